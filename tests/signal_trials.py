"""Signal trials: ``python tests/signal_trials.py 1000`` interrupts every command at random moments and counts faults.

Each trial runs one command on small data and sends SIGINT, SIGTERM, SIGKILL, or SIGINT or SIGTERM twice, at a random
moment between the start of the process and its usual end. Then:

- the output is either the old one or the new one, complete, and the input is unchanged; of protect and repair, which
  keep what they have finished, this holds for each file;
- after SIGINT and SIGTERM, either the exit code is that of the finished command and the new output exists, or it is 130
  or 143, the old output is unchanged, and stderr has the one line;
- if the trial left a temporary file, one more run of the command removes it.

Signals that come before tsapps installs its handlers reach Python's own handlers. Such trials are counted separately as
`before_tsapps`: the signal killed the process, or the traceback names no function of tsapps.
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


# A line of a traceback with a file of tsapps, except files imported before the handlers are installed.
OWN = re.compile(r'File ".*/(tsapps|kernels|apps)/((?!__init__|__main__|signals)[^"]*\.py|.*, in (?!<module>))')


@dataclass(frozen=True)
class Command:
    """A command, and the file or directory that it writes, or None.

    `keeps` means that files of the output are finished one by one, and `again` is the exit code of a second run.
    """

    arguments: tuple[str, ...]
    output: str | None = None
    code: int = 0
    keeps: bool = False
    again: int | None = None


COMMANDS = {
    "kmeans": Command(("kmeans", "x.npy", "--k", "8", "--force", "--device", "cpu", "--out", "out"), "out"),
    "predict": Command(("predict", "model", "x.npy", "--force", "--device", "cpu", "--out", "out.npy"), "out.npy"),
    "sample": Command(("sample", "digits", "out.npy", "--force"), "out.npy"),
    "protect": Command(("protect", "files"), "files", keeps=True),
    "verify": Command(("verify", "damaged"), None, 3),
    "repair": Command(("repair", "damaged"), "damaged", 3, keeps=True, again=0),
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
    """Outcome counts of trials."""

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
        # A program that starts the trials in the background may ignore Ctrl-C, and so may its child processes.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def temporaries(folder):
    """Return every name below the folder that starts with a dot."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


def content(path):
    """Return the bytes of a file, or of every file of a directory but temporaries; JSON without its times."""
    if path.is_dir():
        return {entry.name: content(entry) for entry in path.iterdir() if not entry.name.startswith(".")}
    if not path.exists():
        return None
    if path.suffix == ".json":
        # Raises unless the file is complete; times differ between runs.
        return {name: value for name, value in json.loads(path.read_bytes()).items() if name != "seconds"}
    return path.read_bytes()


def is_whole(found, old, new, *, keeps):
    """Return whether an output, or each file of a directory if the command keeps what is finished, is old or new."""
    if not keeps:
        return found in (old, new)
    return all(found.get(name) in (old.get(name), new.get(name)) for name in {*found, *old, *new})


class Trials:
    """Commands on small data in a folder, with known running times and outputs."""

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
            for code in (command.code, command.code if command.again is None else command.again):
                began = time.monotonic()
                process = start(work, command, self.program)
                stderr = process.communicate()[1]
                times.append(time.monotonic() - began)
                assert process.returncode == code, stderr
            self.seconds[name] = max(times)
            self.new[name] = content(work / command.output) if command.output else None

    def _prepare(self):
        """Write the data, a model, a sidecar, and then a fault in the data; files, and protected ones with faults."""
        rng = np.random.default_rng(0)
        np.save(self.pristine / "x.npy", rng.random((20_000, 16), np.float32))
        for directory in ("files", "damaged"):
            (self.pristine / directory).mkdir()
            for number in range(4):
                (self.pristine / directory / f"{number}.bin").write_bytes(rng.bytes(1 << 19))
        for arguments in (
            ("kmeans", "x.npy", "--k", "4", "--out", "model", "--device", "cpu"),
            ("abft-encode", "x.npy"),
            ("abft-inject", "x.npy", "--in-place"),
            ("protect", "damaged", "--parity", "1/4"),
        ):
            process = start(self.pristine, Command(arguments))
            stderr = process.communicate()[1]
            assert process.returncode == 0, stderr
        (self.pristine / "damaged" / "0.bin").unlink()
        (self.pristine / "damaged" / "1.bin.sidecar").unlink()
        for number in (2, 3):
            with open(self.pristine / "damaged" / f"{number}.bin", "r+b") as file:
                file.write(bytes(4))

    def _work(self, command, *, old):
        """Return a fresh copy of the data, with an earlier output if `old`."""
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
        inputs = [path for path in ("x.npy", "x.npy.abft", "model", "files", "damaged") if path != command.output]
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
            whole = is_whole(found, old, self.new[name], keeps=command.keeps)
            whole = whole and all(content(work / path) == before[path] for path in inputs)
        except ValueError:  # an incomplete JSON file
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
        """Count the outcome of a trial."""
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
            may_be_new = command.keeps or not is_new
            documented = (stderr == f"tsapps: {WORDS[number]}\n" and may_be_new) or (stderr == late and is_new)
        else:
            counts.finished += 1
            documented = code == command.code and (is_new or (stderr == "" and not command.keeps))
        self._count("undocumented", not documented, facts)

    def _count(self, what, is_so, facts):
        if is_so:
            setattr(self.counts, what, getattr(self.counts, what) + 1)
            self.counts.examples.append({"what": what, **facts})


def trials(folder, count, *, seed=0, named=False):
    """Run trials in a folder, cycling through commands and kinds; the slow abft-calibrate runs less often."""
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
    parser.add_argument(
        "--named", action="store_true", help="use named temporary files, as on a file system without O_TMPFILE"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(vars(trials(Path(folder), given.count, seed=given.seed, named=given.named)), indent=1))


if __name__ == "__main__":
    main()
