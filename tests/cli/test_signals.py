"""SIGINT and SIGTERM in every phase of a command: one line and exit code 130 or 143, or a result and exit code 0."""

import os
import shutil
import signal
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from forked import at_line, in_child
from signal_trials import trials

from tsapps import __main__, cli, signals
from tsapps.apps.abft.product import calibrate as calibration
from tsapps.apps.abft.product import calibration_file
from tsapps.cli import result
from tsapps.kernels.system import atomic_write
from tsapps.matrix import write

LINES = {signal.SIGINT: (130, "tsapps: interrupted\n"), signal.SIGTERM: (143, "tsapps: terminated\n")}
BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])

# Runs tsapps; signals itself when a given module is first searched for, or at exit: `NUMBER WHEN ARGUMENTS…`.
AT = """
import atexit, os, runpy, sys
number, when = int(sys.argv[1]), sys.argv[2]
class Finder:
    def find_spec(self, name, *_):
        if name == when:
            os.kill(os.getpid(), number)
if when == "atexit":
    atexit.register(os.kill, os.getpid(), number)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = sys.argv[3:]
runpy.run_module("tsapps", run_name="__main__", alter_sys=True)
"""


def python(program, *args, before=signal.SIG_DFL):
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        # A test runner started in the background may ignore Ctrl-C, and so may its child processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, before),
    )


@BOTH
@pytest.mark.each_choice
@pytest.mark.parametrize("module", ["tsapps.cli", "typer", "tsapps.cli.kmeans", "sklearn"])
def test_signal_during_startup(directory, number, module):
    done = python(AT, int(number), module, "sample", "iris", "x.npy")
    assert (done.returncode, done.stderr) == LINES[number]
    assert done.stdout == ""
    assert not list(directory.iterdir())


@BOTH
def test_signal_during_shutdown(directory, number):
    done = python(AT, int(number), "atexit", "info", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("}\n")


# Phases by hand: a program, its exit code and stderr. It imports no command.
PHASE = """
import os, sys, threading
from tsapps import signals
signals.install()
def come(times=1):
    for _ in range(times):
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(1000):  # handlers run between two instructions
            pass
"""


# Program (appended to `PHASE`), exit code (None: 130 or 143), and stderr (None: empty).
PROGRAMS = {
    "starting": ("come()", None, ""),
    "while the line is written": (
        "write = os.write\ndef twice(*of):\n write(*of); os.write = write; come()\nos.write = twice\ncome()",
        None,
        "",
    ),
    # A signal delivered twice does not disturb cleaning up; a later one ends it.
    "twice": (
        "signals.begin()\ntry:\n come()\nfinally:\n come(); print('clean'); signals.finish()",
        None,
        "",
    ),
    "again": (
        "signals.begin()\ntry:\n come()\nfinally:\n signals.GRACE_SECONDS = -1; come(); print('no')",
        None,
        "",
    ),
    # Signals while a result is renamed into place, and after that, are too late.
    "placing": ("signals.begin()\nwith signals.placing():\n come()\nprint('clean')", 0, None),
    "placed": ("signals.begin()\nwith signals.placing():\n pass\ncome(2); print('clean')", 0, None),
    "placed, again": (
        "signals.begin()\nwith signals.placing():\n pass\ncome(); signals.GRACE_SECONDS = -1; come(); print('no')",
        None,
        " after the result was written",
    ),
    "another result is to come": (
        (
            "signals.begin()\ntry:\n with signals.placing(last=False):\n  come(); print('clean')\n"
            "finally:\n signals.finish()"
        ),
        None,
        "",
    ),
    "the result could not be placed": (
        (
            "signals.begin()\ntry:\n with signals.placing():\n  come(); raise OSError\nexcept OSError:\n"
            " print('clean')\n try:\n  signals.check()\n finally:\n  signals.finish()"
        ),
        None,
        "",
    ),
    "ended": ("signals.begin(); signals.end_with('a failure', 1)\ncome(2)\nprint('no')", 1, "a failure"),
    "where no exception can leave": (
        "class Deleted:\n def __del__(self):\n  come()\nsignals.begin()\nDeleted(); print('no')",
        None,
        "",
    ),
    "taken for another error": (
        (
            "signals.begin()\ntry:\n try:\n  come()\n except BaseException:\n  raise ImportError\n"
            "finally:\n signals.finish()"
        ),
        None,
        "",
    ),
    "stderr is closed": ("os.close(2); come()", None, None),
}


@BOTH
@pytest.mark.each_choice
@pytest.mark.parametrize("phase", PROGRAMS)
def test_phases(number, phase):
    program, code, says = PROGRAMS[phase]
    done = python(PHASE + program, int(number))
    usual, text = LINES[number]
    lines = {None: "", "a failure": "tsapps: a failure\n"}
    assert done.stderr == lines.get(says, text.replace("\n", f"{says}\n"))
    assert done.returncode == (usual if code is None else code)
    assert done.stdout == ("clean\n" if "clean" in program else "")


def test_a_signal_that_is_ignored_from_the_start_stays_ignored():
    done = python(PHASE + "come(); print('on')", int(signal.SIGINT), before=signal.SIG_IGN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "on\n", "")


@pytest.fixture
def handlers(monkeypatch):
    """Install the handlers of a command in this process."""
    before = {number: signal.signal(number, signals._handle) for number in LINES}
    monkeypatch.setattr(signals._State, "stopped", None)
    yield
    signals._State.phase = "starting"
    for number, handler in before.items():
        signal.signal(number, handler)


@cache
def calibrated():
    """Return the files that abft-calibrate writes; measuring one depth is fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "DEPTHS", (16,))
        patch.setattr(calibration, "_SELECT_DEPTHS", (16,))
        return calibration.calibrate("float32", None, rows=16)


def calibrate(directory, monkeypatch):
    found = calibrated()
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: found)
    place = calibration_file.calibration_path(calibration.device_name(None), "float32")
    return place, ["abft-calibrate", "--dtype", "float32", "--device", "cpu"]


COMMANDS = {
    "kmeans": ("x-kmeans", ["kmeans", "x.npy", "--k", 2, "--force", "--device", "cpu"]),
    "predict": ("labels.npy", ["predict", "model", "x.npy", "--out", "labels.npy", "--force", "--device", "cpu"]),
    "sample": ("iris.npy", ["sample", "iris", "iris.npy", "--force"]),
    "abft-encode": ("x.abft", ["abft-encode", "x.npy", "--out", "x.abft", "--force"]),
    "abft-correct": ("right.npy", ["abft-correct", "x.npy", "--out", "right.npy", "--force"]),
    "abft-inject": ("wrong.npy", ["abft-inject", "x.npy", "--out", "wrong.npy", "--force"]),
    "abft-calibrate": (None, None),
}


@BOTH
@pytest.mark.each_choice
@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
@pytest.mark.parametrize("command", COMMANDS)
def test_signal_after_the_result_is_in_place(directory, succeed, handlers, monkeypatch, command, old, number):
    """The command finishes, prints its output and exits with 0."""
    np.save("x.npy", np.random.default_rng(0).random((20, 3)))
    succeed("kmeans", "x.npy", "--k", 2, "--out", "model", "--device", "cpu", "--quiet")
    succeed("abft-encode", "x.npy", "--quiet")
    place, arguments = COMMANDS[command]
    if place is None:
        place, arguments = calibrate(directory, monkeypatch)
    place = directory / place
    if old:
        succeed(*arguments)
    came = []

    def and_then_a_signal(call):
        def called(source, target, *args, **options):
            done = call(source, target, *args, **options)
            if os.fspath(target) == str(place):
                came.append(target)
                signal.raise_signal(number)
            return done

        return called

    for module, name in ((os, "link"), (os, "replace"), (os, "rename"), (atomic_write, "_swap")):
        monkeypatch.setattr(module, name, and_then_a_signal(getattr(module, name)))
    stdout = succeed(*arguments)
    assert came
    assert place.name in stdout
    assert place.exists()
    assert not [entry for entry in place.parent.iterdir() if entry.name.startswith(".")]


OWN = [signals, __main__, cli, atomic_write, write, result]


def stopped_at(n, number, arguments):
    """Run tsapps in a child that receives a signal at the nth line of `OWN`; return its exit code and stderr.

    The signal is sent only if a file `came` exists at that line.
    """

    def send():
        os.close(os.open("came", os.O_CREAT))
        os.kill(os.getpid(), number)

    def command():
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        sys.stdout, sys.stderr = (open(descriptor, "w") for descriptor in (1, 2))  # noqa: SIM115 the process ends
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv[1:] = arguments
        signals.install()  # handlers exist from here on
        at_line(n, OWN, send)
        try:
            __main__.main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)

    code = in_child(command)
    with open("stderr") as file:
        return code, file.read()


SAMPLE = "out.npy", ("sample", "iris", "out.npy", "--force")
KMEANS = "out", ("kmeans", "iris.npy", "--k", "2", "--force", "--device", "cpu", "--out", "out")


@pytest.mark.parametrize(
    ("number", "step", "output", "arguments"),
    [
        pytest.param(signal.SIGINT, 43, *SAMPLE, id="sample"),
        pytest.param(signal.SIGTERM, 97, *KMEANS, id="kmeans"),
        pytest.param(signal.SIGTERM, 5, *SAMPLE, id="sample, many", marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, 25, *KMEANS, id="kmeans, many", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
def test_at_every_line(directory, succeed, iris, monkeypatch, number, step, output, arguments, old):
    """Either the old output and exit code 130 or 143, or the new output and 0; tests every step-th line."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(signals._State, "phase", "starting")
    where, came = directory / output, directory / "came"
    succeed(*arguments)
    others = {path.name for path in directory.iterdir()} - {output} | {"stdout", "stderr", "came"}

    def found():
        if not where.exists():
            return None
        return (where / "labels.npy" if where.is_dir() else where).stat().st_mtime_ns

    n, codes = 1, set()
    came.touch()
    while came.exists():  # the previous run reached its line
        came.unlink()
        if not old and where.exists():
            shutil.rmtree(where) if where.is_dir() else where.unlink()
        earlier = found()
        signals._State.phase = "starting"
        code, stderr = stopped_at(n, number, arguments)
        if code == 0:
            assert stderr == ""
            assert found() not in (None, earlier)
        else:
            assert (code, stderr) == LINES[number]
            assert found() == earlier
        codes.add(code)
        if not {path.name for path in directory.iterdir()} <= others | {output}:
            succeed(*arguments)
            assert {path.name for path in directory.iterdir()} <= others | {output}
        n += step
    assert codes == {0, LINES[number][0]}
    assert n > 100


@pytest.mark.exhaustive
def test_signals_at_random_moments(directory):
    """A sample of the trials of signal_trials.py."""
    counts = trials(directory, 20, seed=1)
    assert counts.trials == 20
    assert (counts.harm, counts.tracebacks, counts.leftovers, counts.undocumented) == (0, 0, 0, 0), counts.examples
