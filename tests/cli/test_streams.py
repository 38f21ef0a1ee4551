"""Closed standard streams, streams without a reader, and warnings as errors."""

import os
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tsapps.errors import ExitCode

TSAPPS = f"{shlex.quote(sys.executable)} -m tsapps"
CLOSED = [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]
# Commands with their output and exit code.
COMMANDS = {
    "sample iris out.npy": ("out.npy", 0),
    "kmeans x.npy -k 2 --device cpu": ("x-kmeans/labels.npy", 0),
    "abft-encode x.npy --device cpu": ("x.npy.abft", 0),
    "abft-inject x.npy --out out.npy --json": ("out.npy", 0),
    "abft-verify x.npy --sidecar known.abft --device cpu --json": (None, 0),
    "abft-verify bad.npy --sidecar known.abft --device cpu": (None, ExitCode.CORRUPTION),
    "abft-correct bad.npy --sidecar known.abft --out out.npy": ("out.npy", 0),
    "info": (None, 0),
    "--help": (None, 0),
    "kmeans x.npy -k 99": (None, ExitCode.USAGE),
}


@pytest.fixture
def shell(directory, succeed, rng):
    np.save("x.npy", rng.normal(size=(40, 2)))
    succeed("abft-encode", "x.npy", "-q", "--out", "known.abft")
    succeed("abft-inject", "x.npy", "-q", "--out", "bad.npy")

    def shell(command, streams, **environment):
        script = f"set -o pipefail; {TSAPPS} {command} {streams}"
        return subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=False, env=os.environ | environment
        )

    return shell


def check_works(shell, directory, command, streams):
    output, code = COMMANDS[command]
    found = shell(command, streams)
    assert found.returncode == code, found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr == "" or code or "2>&1" in streams
    if ">&-" in streams.split():
        assert found.stdout == ""
    if output is not None:
        assert (directory / output).stat().st_size > 0
        assert b"tsapps:" not in (directory / output).read_bytes()


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        ("abft-inject x.npy --out out.npy --json", "<&- >&- 2>&-"),
        ("kmeans x.npy -k 2 --device cpu", "2>&-"),
        ("abft-verify bad.npy --sidecar known.abft --device cpu", ">&-"),
        ("kmeans x.npy -k 99", "2> >(exit)"),
    ],
)
def test_closed(shell, directory, command, streams):
    check_works(shell, directory, command, streams)


STREAMS = [*CLOSED, "2> >(exit)", "2>/dev/full"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "streams"),
    [(one, streams) for i, one in enumerate(COMMANDS) for j, streams in enumerate(STREAMS) if (i + j) % 3 == 0],
)
def test_every_command_with_every_stream_closed(shell, directory, command, streams):
    check_works(shell, directory, command, streams)


def test_results_are_written_to_a_closed_pipe(shell, directory):
    found = shell("abft-inject x.npy --out out.npy", "| head -c0")
    assert (found.returncode, found.stdout, found.stderr) == (ExitCode.FAILURE, "", "")
    assert np.load(directory / "out.npy").shape == (40, 2)


@pytest.mark.parametrize("action", ["error", "error::UserWarning"])
def test_warnings_do_not_fail_the_command(shell, directory, action):
    # Provokes one of our warnings: another writer to the same path was killed.
    (directory / ".out.npy.0123456789abcdef.tmp").write_bytes(b"half")
    found = shell("abft-inject x.npy --out out.npy", "", PYTHONWARNINGS=action)
    assert found.returncode == 0
    assert found.stderr.startswith("tsapps: warning: ")
    assert found.stderr.count("\n") == 1
    assert np.load(directory / "out.npy").shape == (40, 2)
