"""Fixtures of the command line: an empty current directory, and a machine without a GPU."""

import struct
from functools import cache

import numpy as np
import pytest
import typer.testing
from sklearn.datasets import load_iris, make_blobs
from typer.testing import CliRunner

from tsapps.cli import app
from tsapps.errors import ExitCode
from tsapps.kernels import devices, gpu_specs

NO_GPU = "CuPy is not installed (pip install 'cupy-cuda13x[ctk]')"


@pytest.fixture(scope="session", autouse=True)
def _commands():
    """Make the commands of the application once, which takes as long as many of them run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.testing._get_command))
        yield


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Change to an empty directory; pretend that the machine has no GPU."""
    monkeypatch.setattr(devices, "_probe", lambda: ((), NO_GPU))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stand_in_gpu(monkeypatch):
    """Pretend that the machine has one GPU, of a `GpuSpec`; return the `InstalledGpu`."""

    def stand_in_gpu(spec):
        installed = devices.InstalledGpu(0, spec.name, spec.compute_capability, spec.multiprocessors, 80 << 30, spec.l2)
        monkeypatch.setattr(devices, "_probe", lambda: ((installed,), ""))
        monkeypatch.setattr(gpu_specs, "live", lambda index: spec)
        return installed

    return stand_in_gpu


@pytest.fixture
def run():
    """Run a command in this process: ``run("kmeans", "x.npy", …)``."""

    def run(*args):
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return run


@pytest.fixture
def succeed(run):
    """Run a command that must exit with 0; return its stdout."""

    def succeed(*args):
        result = run(*args)
        assert result.exit_code == 0, result.output
        return result.stdout

    return succeed


@pytest.fixture
def refuse(run, directory):
    """Run a command that must fail with one line on stderr and write nothing; return that line."""

    def refuse(code, *args):
        before = snapshot(directory)
        result = run(*args)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("tsapps: ")
        assert result.stderr.count("\n") == 1
        assert snapshot(directory) == before
        return result.stderr

    return refuse


def snapshot(directory):
    """Return every path below a directory, with its bytes."""
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


@pytest.fixture
def iris(directory):
    X = load_iris().data
    np.save("iris.npy", X)
    return X


@pytest.fixture
def blobs(directory):
    """Write 600 × 5 float32 around 6 centers, as .npy, .csv and .fbin."""
    X = make_blobs(600, 5, centers=6, random_state=1)[0].astype(np.float32)
    np.save("blobs.npy", X)
    np.savetxt("blobs.csv", X, delimiter=",", header="a,b,c,d,e", comments="", fmt="%.17g")
    with open("blobs.fbin", "wb") as file:
        file.write(struct.pack("<II", *X.shape) + X.tobytes())
    return X


@pytest.fixture
def flip(directory):
    """Flip bits of one byte of a file."""

    def flip(name, byte, bits=1):
        content = bytearray((directory / name).read_bytes())
        content[byte] ^= bits
        (directory / name).write_bytes(content)

    return flip


@pytest.fixture
def stop(run, directory):
    """Run a command that must find corruption and write nothing; return its result."""

    def stop(*args):
        before = snapshot(directory)
        result = run(*args)
        assert result.exit_code == ExitCode.CORRUPTION, result.output
        assert snapshot(directory) == before
        return result

    return stop
