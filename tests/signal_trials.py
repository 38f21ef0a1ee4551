"""Trials of signals: ``python tests/signal_trials.py 1000`` stops every command at random moments and counts the harm.

Each trial runs one command on small data and sends SIGINT, SIGTERM, SIGKILL, or SIGINT or SIGTERM twice, at a random
moment between the start of the process and its usual end. Then

- the output is the old one or the new one, whole, and the input is as it was;
- after SIGINT and SIGTERM, the exit code is that of the finished command and the new output is there, or it is 130 or
  143, the old output is there, and stderr is the one line;
- if the trial left a temporary, one more run of the command removes it.

A signal that comes before tsapps has installed its handlers finds Python's own. Such trials are counted apart, as
`before_tsapps`: the process died by the signal itself, or its traceback names no function of tsapps.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
KINDS = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGKILL": (signal.SIGKILL,),
    "SIGINT twice": (signal.SIGINT,) * 2,
    "SIGTERM twice": (signal.SIGTERM,) * 2,
}


# A line of a traceback: a file of tsapps, but those that are imported before the handlers are installed.
OWN = re.compile(r'File ".*/(tsapps|kernels|apps)/((?!__init__|__main__|signals)[^"]*\.py|.*, in (?!<module>))')


@dataclass(frozen=True)
class Command:
    """A command, and the file or directory that it writes; None if it writes nothing."""

    arguments: tuple[str, ...]
    output: str | None = None
    code: int = 0


COMMANDS = {
    "kmeans": Command(("kmeans", "x.npy", "--k", "8", "--force", "--device", "cpu", "--out", "out"), "out"),
    "predict": Command(("predict", "model", "x.npy", "--force", "--device", "cpu", "--out", "out.npy"), "out.npy"),
    "sample": Command(("sample", "digits", "out.npy", "--force"), "out.npy"),
    "abft-encode": Command(("abft-encode", "x.npy", "--force", "--out", "out.abft"), "out.abft"),
    "abft-verify": Command(("abft-verify", "x.npy"), None, 3),
    "abft-correct": Command(("abft-correct", "x.npy", "--in-place"), "x.npy"),
    "abft-correct --out": Command(("abft-correct", "x.npy", "--out", "out.npy", "--force"), "out.npy"),
    "abft-inject": Command(("abft-inject", "x.npy", "--out", "out.npy", "--force"), "out.npy"),
    "abft-calibrate": Command(
        ("abft-calibrate", "--dtype", "float16", "--rows", "16", "--device", "cpu"),
        "cache/tsapps/abft/cpu-float16.json",
    ),
    "info": Command(("info", "--json")),
    "tune": Command(("tune", "--dry-run")),
}


@dataclass
class Counts:
    """What trials came to."""

    trials: int = 0
    before_tsapps: int = 0
    stopped: int = 0
    finished: int = 0
    killed: int = 0
    new_output: int = 0
    old_output: int = 0
    temporaries: int = 0
    harm: int = 0
    tracebacks: int = 0
    undocumented: int = 0
    leftovers: int = 0
    by_command: Counter = field(default_factory=Counter)
    by_kind: Counter = field(default_factory=Counter)
    examples: list = field(default_factory=list)


USUAL = ("-m", "tsapps")
NAMED = ("-c", "import os, runpy; del os.O_TMPFILE; runpy.run_module('tsapps', run_name='__main__', alter_sys=True)")


def start(folder, command, program=USUAL):
    return subprocess.Popen(
        [sys.executable, *program, *command.arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What starts trials in the background may have them, and so their children, ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def temporaries(folder):
    """Every name below the folder that starts with a dot."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def content(path):
    """The bytes of a file, or of every file of a directory; of a JSON file, what does not tell of time."""
    if path.is_dir():
        return {entry.name: content(entry) for entry in path.iterdir()}
    if not path.exists():
        return None
    if path.suffix == ".json":
        # Whole, or this raises; times differ from run to run.
        return {name: value for name, value in json.loads(path.read_bytes()).items() if name != "seconds"}
    return path.read_bytes()


class Trials:
    """Commands on small data in a folder, whose usual times and outputs are known."""

    def __init__(self, folder, seed, *, named):
        self.program = NAMED if named else USUAL
        self.folder, self.random, self.counts = folder, random.Random(seed), Counts()
        self.pristine = folder / "pristine"
        self.pristine.mkdir()
        self._prepare()
        self.seconds, self.new = {}, {}
        for name, command in COMMANDS.items():
            work = self._work(command, old=False)
            times = []
            for _ in range(2):
                began = time.monotonic()
                process = start(work, command, self.program)
                stderr = process.communicate()[1]
                times.append(time.monotonic() - began)
                assert process.returncode == (command.code if command.output != "x.npy" or len(times) == 1 else 0), (
                    stderr
                )
            self.seconds[name] = max(times)
            self.new[name] = content(work / command.output) if command.output else None

    def _prepare(self):
        """Write the data, a model, a sidecar, and then a fault into the data."""
        rng = np.random.default_rng(0)
        np.save(self.pristine / "x.npy", rng.random((20_000, 16), np.float32))
        for arguments in (
            ("kmeans", "x.npy", "--k", "4", "--out", "model", "--device", "cpu"),
            ("abft-encode", "x.npy"),
            ("abft-inject", "x.npy", "--in-place"),
        ):
            process = start(self.pristine, Command(arguments))
            stderr = process.communicate()[1]
            assert process.returncode == 0, stderr

    def _work(self, command, *, old):
        """A fresh copy of the data, with an earlier output where there is to be one."""
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.pristine, work)
        if old and command.output == "out":
            shutil.copytree(work / "model", work / "out")
        elif old and command.output and command.output.startswith("out."):
            (work / command.output).write_bytes(b"an earlier output")
        return work

    def trial(self, name, kind):
        command, numbers, counts = COMMANDS[name], KINDS[kind], self.counts
        work = self._work(command, old=self.random.random() < 0.5)
        inputs = [path for path in ("x.npy", "x.npy.abft", "model") if path != command.output]
        before = {path: content(work / path) for path in inputs}
        old = content(work / command.output) if command.output else None
        moment = self.random.uniform(0, self.seconds[name])
        process = start(work, command, self.program)
        time.sleep(moment)
        for number in numbers:
            process.send_signal(number)
            time.sleep(self.random.choice([0, 0, 0.001, 0.01]))
        stderr = process.communicate(timeout=120)[1]
        counts.trials += 1
        counts.by_command[name] += 1
        counts.by_kind[kind] += 1
        facts = {"command": name, "kind": kind, "moment": moment, "code": process.returncode, "stderr": stderr}
        try:
            found = content(work / command.output) if command.output else None
            whole = found in (old, self.new[name]) and all(content(work / path) == before[path] for path in inputs)
        except ValueError:  # half a JSON file
            found, whole = "half", False
        self._count("harm", not whole, facts)
        is_new = command.output is not None and found == self.new[name] and found != old
        counts.new_output += is_new
        counts.old_output += command.output is not None and found == old
        self._judge(process.returncode, stderr, numbers[0], command, is_new, facts)
        if temporaries(work):
            counts.temporaries += 1
            again = start(work, command, self.program)
            again.communicate(timeout=120)
            self._count("leftovers", bool(temporaries(work)), facts | {"left": temporaries(work)})

    def _judge(self, code, stderr, number, command, is_new, facts):
        """Count how the process ended."""
        counts = self.counts
        lines = stderr.splitlines()
        ours = any(OWN.search(line) for line in lines)
        if number == signal.SIGKILL:
            counts.killed += code == -signal.SIGKILL
            return
        if code == -number or ("Traceback" in stderr and not ours):
            counts.before_tsapps += 1
            return
        self._count("tracebacks", "Traceback" in stderr, facts)
        if code == 128 + number:
            counts.stopped += 1
            late = f"tsapps: {WORDS[number]} after the result was written\n"
            documented = (stderr == f"tsapps: {WORDS[number]}\n" and not is_new) or (stderr == late and is_new)
        else:
            counts.finished += 1
            documented = code == command.code and (is_new or stderr == "")
        self._count("undocumented", not documented, facts)

    def _count(self, what, is_so, facts):
        if is_so:
            setattr(self.counts, what, getattr(self.counts, what) + 1)
            self.counts.examples.append({"what": what, **facts})


def trials(folder, count, *, seed=0, named=False):
    """Make trials in a folder, all commands and kinds in turn; abft-calibrate, which takes long, less often."""
    made = Trials(folder, seed, named=named)
    names = [name for name in COMMANDS if name != "abft-calibrate"] * 4 + ["abft-calibrate"]
    kinds = list(KINDS)
    for number in range(count):
        made.trial(names[number % len(names)], kinds[number % len(kinds)])
    return made.counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--named", action="store_true", help="as on a file system without O_TMPFILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(vars(trials(Path(folder), given.count, seed=given.seed, named=given.named)), indent=1))


if __name__ == "__main__":
    main()
