"""Interruption of encoding and repair at any moment: data stay intact, and no file is half written."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tsapps.apps.abft.at_rest.sidecar import read_sidecar

#: How often a process is killed.
ATTEMPTS = [1, pytest.param(16, marks=pytest.mark.exhaustive)]


def start(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "tsapps", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test runner started in the background may ignore Ctrl-C, and so may its child processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process):
    process.communicate(timeout=60)
    return process.returncode


def temporaries(directory):
    return [path for path in directory.iterdir() if path.name.startswith(".") and path.name.endswith(".tmp")]


def names(directory):
    return {path.name for path in directory.iterdir()} - {path.name for path in temporaries(directory)}


def wait_for_temporary(directory, process):
    """Wait until the process writes a temporary file, with or without a name; return False if it ended before."""

    def writes():
        try:
            opened = [os.readlink(path) for path in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:  # the process has ended, or has just closed a file
            opened = []
        return any(path.startswith(f"{directory}/#") for path in opened) or bool(temporaries(directory))

    while process.poll() is None:
        if writes():
            return True
        time.sleep(0.0005)
    return False


def clean(directory):
    for path in temporaries(directory):
        path.unlink()


@pytest.fixture
def large(directory):
    """Write a matrix of 32 MB, for which a pass takes some time."""
    X = np.random.default_rng(0).random((62_500, 128), np.float32)
    np.save("x.npy", X)
    return (directory / "x.npy").read_bytes()


@pytest.fixture
def damaged(succeed, directory, flip, large):
    """Flip one bit of the large matrix after encoding; return the original bytes and the corrupted ones."""
    succeed("abft-encode", "x.npy")
    flip("x.npy", 20_000_000)
    return large, (directory / "x.npy").read_bytes()


def timed(*args):
    began = time.monotonic()
    assert finish(start(*args)) == 0
    return time.monotonic() - began


@pytest.mark.parametrize("attempts", ATTEMPTS)
def test_killed_at_any_moment_of_encoding(directory, large, attempts):
    whole = timed("abft-encode", "x.npy", "--out", "whole.abft")
    expected = (directory / "whole.abft").read_bytes()
    moments = random.Random(0)
    for attempt in range(attempts):
        process = start("abft-encode", "x.npy")
        if attempt % 2:
            time.sleep(moments.uniform(0.3, 1) * whole)
        else:  # while the sidecar is written
            wait_for_temporary(directory, process)
        process.kill()
        finish(process)
        assert (directory / "x.npy").read_bytes() == large
        assert names(directory) <= {"x.npy", "whole.abft", "x.npy.abft"}
        if (directory / "x.npy.abft").exists():
            assert (directory / "x.npy.abft").read_bytes() == expected
            (directory / "x.npy.abft").unlink()
        clean(directory)


@pytest.mark.parametrize("attempts", ATTEMPTS)
def test_killed_at_any_moment_of_repairing(directory, damaged, attempts):
    right, wrong = damaged
    whole = timed("abft-correct", "x.npy", "--out", "right.npy")
    moments = random.Random(0)
    for attempt in range(attempts):
        (directory / "x.npy").write_bytes(wrong)
        process = start("abft-correct", "x.npy", "--in-place")
        if attempt % 3 == 1:
            time.sleep(moments.uniform(0.3, 1) * whole)
        else:  # while the copy is written, verified, brought to the disk
            assert wait_for_temporary(directory, process)
            time.sleep(moments.uniform(0, 0.1))
        process.kill()
        finish(process)
        assert (directory / "x.npy").read_bytes() in (wrong, right)
        assert names(directory) == {"x.npy", "x.npy.abft", "right.npy"}
        read_sidecar("x.npy.abft")
        clean(directory)


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_stopped_while_a_copy_is_written(directory, damaged, number, code, line):
    _, wrong = damaged
    process = start("abft-correct", "x.npy", "--in-place")
    assert wait_for_temporary(directory, process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code
    assert stderr.decode() == f"tsapps: {line}\n"
    assert (directory / "x.npy").read_bytes() == wrong
    assert {path.name for path in directory.iterdir()} == {"x.npy", "x.npy.abft"}
