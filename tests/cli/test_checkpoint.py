"""`tsapps kmeans --checkpoint` and `--resume`: the same files as without an interruption; what is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tsapps.apps.kmeans import checkpoint as checkpoints
from tsapps.apps.kmeans.checkpoint import Checkpoint, parameters_of
from tsapps.errors import ExitCode

FIT = ("blobs.npy", "--k", 9, "--init", "random", "--n-init", 2, "--tol", 0, "--seed", 3)


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Write a checkpoint after every iteration."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)


@pytest.fixture
def interrupted(run, monkeypatch):
    """Run a command that is interrupted after a number of checkpoints."""

    def interrupted(*arguments, after):
        write, written = Checkpoint._write, []

        def writing(self, **options):
            write(self, **options)
            written.append(True)
            if len(written) == after:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "_write", writing)
            result = run("kmeans", *arguments)
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", "tsapps: interrupted\n")

    return interrupted


def content(place):
    """Return what a result has, without its times, its command, and the iterations before it was continued."""
    summary = json.loads((Path(place) / "summary.json").read_text())
    labels, centers = ((Path(place) / f"{name}.npy").read_bytes() for name in ("labels", "centers"))
    return (
        labels,
        centers,
        {name: summary[name] for name in summary if name not in ("seconds", "command", "checkpoint", "history")},
    )


@pytest.mark.parametrize("after", [1, 2, 6, "last"])
def test_resume_gives_the_same_files(directory, succeed, interrupted, blobs, after):
    succeed("kmeans", *FIT, "--out", "whole")
    if after == "last":  # the fit has ended, and its result is not written
        after = number_of_writes(succeed)
    interrupted(*FIT, "--checkpoint", "run", "--out", "found", after=after)
    assert not (directory / "found").exists()
    printed = json.loads(succeed("kmeans", "--resume", "run", "--json"))
    assert content("found") == content("whole")
    every, continued = (json.loads(Path(f"{out}/summary.json").read_text())["history"] for out in ("whole", "found"))
    assert (continued or []) == every[len(every) - len(continued or []) :]
    assert printed["checkpoint"] == str(directory / "run")
    assert printed["command"] == "tsapps kmeans --resume run --json"


def number_of_writes(succeed):
    """Return the number of checkpoints of a whole fit, without the last one, which says that it has finished."""
    write, written = Checkpoint._write, []

    def writing(self, *, finished=False):
        write(self, finished=finished)
        written.append(finished)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "_write", writing)
        succeed("kmeans", *FIT, "--checkpoint", "counted", "--out", "of-counted")
    assert written == [False] * (len(written) - 1) + [True]
    return len(written) - 1


def test_the_same_command_continues(succeed, interrupted, blobs):
    given = (*FIT, "--checkpoint", "run", "--out", "found")
    interrupted(*given, after=5)
    interrupted(*given, after=2)
    succeed("kmeans", *given)
    succeed("kmeans", *FIT, "--out", "whole")
    assert content("found") == content("whole")


def test_resume_from_another_directory(directory, succeed, interrupted, blobs, monkeypatch, rng):
    """Every recorded option, and every file, is found again."""
    np.save("w.npy", rng.random(len(blobs)))
    np.save("first.npy", blobs[:5].astype(np.float64))
    np.savetxt("blobs.tsv", blobs, delimiter="\t")
    given = ["blobs.tsv", "--k", 5, "--init", "first.npy", "--weights", "w.npy", "--dtype", "float32", "--protect"]
    given += ["--max-iter", 7, "--algorithm", "elkan", "--no-header", "--no-index", "--device", "cpu", "--tol", 0]
    succeed("kmeans", *given, "--out", "whole")
    os.mkdir("found")
    interrupted(*given, "--out", "found", "--force", "--checkpoint", "run", after=3)
    os.mkdir("elsewhere")
    monkeypatch.chdir("elsewhere")
    succeed("kmeans", "--resume", "../run", "--quiet")
    monkeypatch.chdir("..")
    assert content("found") == content("whole")


def test_options_that_change_no_bit_may_be_given_again(directory, succeed, interrupted, blobs):
    interrupted(*FIT, "--checkpoint", "run", after=5)
    succeed("kmeans", *FIT)
    expected = content("blobs-kmeans")
    os.rename("blobs.npy", "moved.npy")
    succeed("kmeans", "moved.npy", "--resume", "run", "--out", "found", "--device", "cpu")
    assert content("found")[:2] == expected[:2]
    assert content("found")[2]["input"] == str(directory / "moved.npy")


@pytest.fixture
def unfinished(interrupted, blobs):
    """Write an unfinished fit to the directory run."""
    interrupted(*FIT, "--checkpoint", "run", "--out", "found", after=5)


def finish(succeed):
    succeed("kmeans", "--resume", "run")


def add_file(_):
    with open("run/notes.txt", "w") as file:
        file.write("mine")


def damage(_):
    with open("run/best.npy" if os.path.exists("run/best.npy") else "run/centers.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x99")


def empty(_):
    shutil.rmtree("run")
    os.mkdir("run")


def change_data(_):
    X = np.load("blobs.npy")
    X[3, 3] = np.nextafter(X[3, 3], np.float32(0))
    np.save("blobs.npy", X)


def remove_data(_):
    os.unlink("blobs.npy")


def of_python(_):
    shutil.rmtree("run")
    options = {"n_clusters": 2, "init": "random", "n_init": 1, "max_iter": 3, "tol": 0, "metric": "euclidean"}
    found = Checkpoint("run", parameters_of(**options, precision="exact", random_state=0))
    facts = {"data": {"shape": [3, 2]}, "computation": {"dtype": "float64"}}
    found.begin(facts, np.random.RandomState(0))


REFUSED = {
    "finished": (finish, "--resume run", ExitCode.USAGE, "run: holds a finished fit, which is not computed again"),
    "another file": (add_file, "--resume run", ExitCode.USAGE, "run: holds 'notes.txt', which is not of a checkpoint"),
    "damaged": (damage, "--resume run", ExitCode.FAILURE, ".npy: is damaged: delete the checkpoint"),
    "empty": (empty, "--resume run", ExitCode.USAGE, "run: holds no checkpoint: name the directory that --checkpoint"),
    "missing": (None, "--resume no", ExitCode.USAGE, "no: holds no checkpoint: name the directory that --checkpoint"),
    "of Python": (of_python, "--resume run", ExitCode.USAGE, "run: is the checkpoint of a fit in Python"),
    "other data": (change_data, "--resume run", ExitCode.USAGE, "other data or parameters (other values of X"),
    "no data": (remove_data, "--resume run", ExitCode.USAGE, "blobs.npy: no such file: check the path"),
    "other k": (None, "--resume run --k 8", ExitCode.USAGE, "(n_clusters: 9 there, 8 here)"),
    "other seed": (
        None,
        "blobs.npy --k 9 --init random --n-init 2 --tol 0 --checkpoint run",
        ExitCode.USAGE,
        "run: holds an unfinished fit of other data or parameters (random_state: 3 there, 0 here)",
    ),
    "both": (None, "--resume run --checkpoint other", ExitCode.USAGE, "--checkpoint other: a fit that continues saves"),
    "a result": (
        lambda succeed: succeed("kmeans", "blobs.npy", "--k", 2, "--out", "done"),
        "blobs.npy --k 9 --checkpoint done",
        ExitCode.USAGE,
        "done: holds 'centers.npy', which is not of a checkpoint",
    ),
    "in the output": (
        None,
        "blobs.npy --k 9 --checkpoint x --out x",
        ExitCode.USAGE,
        "overlaps --out x: name separate",
    ),
    "the output in it": (None, "--resume run --out run/x", ExitCode.USAGE, "--checkpoint run: overlaps --out run/x"),
    "existing output": (
        lambda _: os.mkdir("found"),
        "--resume run",
        ExitCode.USAGE,
        "found: already exists: choose another --out, or replace it with --force",
    ),
    "no parent": (None, "blobs.npy --k 9 --checkpoint no/where", ExitCode.USAGE, "no/where: there is no directory"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(refuse, succeed, unfinished, name):
    prepare, arguments, code, says = REFUSED[name]
    if prepare is not None:
        prepare(succeed)
    assert says in refuse(code, "kmeans", *arguments.split())


def test_a_full_disk_is_noticed_before_the_fit(refuse, blobs, monkeypatch):
    monkeypatch.setattr("tsapps.cli.kmeans_checkpoint._STATE", 1 << 60)
    assert "run: the output takes" in refuse(ExitCode.FAILURE, "kmeans", *FIT, "--checkpoint", "run")


# Runs tsapps with a checkpoint in every iteration, and says so on stdout.
PROGRAM = """
import runpy
from tsapps.apps.kmeans import checkpoint
checkpoint.SECONDS = 0.0
write, written = checkpoint.Checkpoint._write, []
def writing(self, **options):
    write(self, **options)
    written.append(True)
    if len(written) == 5:
        print("written", flush=True)
checkpoint.Checkpoint._write = writing
runpy.run_module("tsapps", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_command_that_is_stopped(directory, succeed, rng, number, code):
    np.save("x.npy", rng.random((20_000, 8), np.float32))
    given = ["kmeans", "x.npy", "--k", "50", "--max-iter", "30", "--tol", "0", "--device", "cpu", "--out", "found"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *given, "--checkpoint", "run", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "written\n"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (code, "")
    assert stderr == ("tsapps: terminated\n" if number == signal.SIGTERM else "")
    assert {path.name for path in directory.iterdir() if path.suffix != ".tmp"} == {"x.npy", "run"}
    succeed("kmeans", "--resume", "run")
    assert {path.name for path in directory.iterdir()} == {"x.npy", "run", "found"}
    given[-1] = "whole"
    succeed(*given)
    assert content("found") == content("whole")
