"""Interruption of a fit by signals."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest


class Process:
    """A `tsapps` process with a terminal as stderr, which is read continuously."""

    def __init__(self, *args):
        self.seen = ""
        self.terminal, end = pty.openpty()
        self.changed = threading.Condition()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        # A test runner started in the background may ignore Ctrl-C, and so may its child processes.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tsapps", *args],
            stdout=subprocess.PIPE,
            stderr=end,
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        os.close(end)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self.terminal, 4096)
            except OSError:  # on Linux: the other end is closed
                return
            if not piece:
                return
            with self.changed:
                self.seen += piece.decode(errors="replace")
                self.changed.notify_all()

    def wait_for(self, text):
        with self.changed:
            assert self.changed.wait_for(lambda: text in self.seen, timeout=60), self.seen

    def end(self):
        stdout, _ = self.process.communicate(timeout=60)
        self.reader.join(timeout=60)
        os.close(self.terminal)
        return stdout


@pytest.mark.parametrize(
    ("number", "code", "last_line"),
    [
        (signal.SIGINT, 130, "tsapps: interrupted"),
        pytest.param(signal.SIGTERM, 143, "tsapps: terminated", marks=pytest.mark.exhaustive),
        (signal.SIGKILL, -signal.SIGKILL, None),
    ],
)
def test_leaves_nothing_behind(directory, number, code, last_line):
    np.save("x.npy", np.random.default_rng(0).random((100_000, 8), np.float32))
    # Ten runs of up to 300 iterations that cannot end early: this takes minutes.
    process = Process("kmeans", "x.npy", "--k", "300", "--init", "random", "--tol", "0", "--device", "cpu", "--json")
    process.wait_for("labels changed")
    process.process.send_signal(number)
    stdout = process.end()
    assert process.process.returncode == code
    assert stdout == b""
    assert [path.name for path in directory.iterdir()] == ["x.npy"]
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", process.seen).split("\n")
    assert "Traceback" not in process.seen
    if last_line is not None:
        assert [line for line in lines if line.startswith("tsapps")] == [last_line]
        assert [line for line in lines if line.strip()][-1] == last_line
