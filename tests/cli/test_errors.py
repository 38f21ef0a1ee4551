"""Errors of every kind at the command line: messages and exit codes."""

import errno
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

import tsapps
from tsapps.errors import ExitCode


def fail_with(monkeypatch, error):
    from tsapps.apps.kmeans import lloyd

    def fit(*args, **kwargs):
        raise error

    monkeypatch.setattr(lloyd, "fit", fit)


class OutOfOrderError(RuntimeError):
    """An error like those that CuPy raises."""


OutOfOrderError.__module__ = "cupy_backends.cuda.api.runtime"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("one\ntwo"), ExitCode.FAILURE, "one two"),
        (TypeError("of no kind"), ExitCode.FAILURE, "of no kind"),
        (MemoryError("Unable to allocate 9 TiB"), ExitCode.FAILURE, "out of memory: Unable to allocate 9 TiB"),
        (MemoryError(), ExitCode.FAILURE, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.FAILURE, "No space left on device"),
        (OSError(errno.EIO, "Input/output error", "a.npy"), ExitCode.FAILURE, "a.npy: Input/output error"),
        (OSError("300 requested and 200 written"), ExitCode.FAILURE, "300 requested and 200 written"),
        (OSError(), ExitCode.FAILURE, "OSError"),
        (ValueError(), ExitCode.FAILURE, "ValueError"),
        (OutOfOrderError("cudaErrorLaunchFailure"), ExitCode.FAILURE, "the GPU failed: cudaErrorLaunchFailure"),
    ],
)
def test_one_line_and_an_exit_code(refuse, iris, monkeypatch, error, code, line):
    fail_with(monkeypatch, error)
    assert refuse(code, "kmeans", "iris.npy", "--k", 3) == f"tsapps: {line}\n"


def test_a_bug_keeps_its_traceback(run, iris, monkeypatch):
    error = RuntimeError("a bug")
    fail_with(monkeypatch, error)
    assert run("kmeans", "iris.npy", "--k", 3).exception is error


def tsapps_process(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "tsapps", *args], capture_output=True, text=True, check=False, **options
    )


def test_a_full_disk_leaves_the_old_result(directory, succeed):
    resource = pytest.importorskip("resource")
    np.save("x.npy", np.random.default_rng(0).normal(size=(50_000, 2)))
    succeed("kmeans", "x.npy", "--k", 2)
    before = (directory / "x-kmeans/summary.json").read_bytes()
    done = tsapps_process(
        *("kmeans", "x.npy", "--k", "3", "--device", "cpu", "--force"),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # or bytecode would be kept in part
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == ExitCode.FAILURE
    assert done.stdout == ""
    assert done.stderr.startswith("tsapps: x-kmeans: ")
    assert done.stderr.count("\n") == 1
    assert (directory / "x-kmeans/summary.json").read_bytes() == before
    assert {path.name for path in directory.iterdir()} == {"x.npy", "x-kmeans"}


def test_a_closed_pipe_is_not_an_error(directory):
    command = f"{shlex.quote(sys.executable)} -m tsapps info 2>errors | true"
    subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], check=False)
    assert (directory / "errors").read_text() == ""


def test_version(directory):
    done = tsapps_process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tsapps {tsapps.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["kmeans", "--help"], ["abft-correct", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys\n"
        "from tsapps.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(sorted({'numpy', 'scipy', 'sklearn', 'cupy', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
