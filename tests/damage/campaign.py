"""Fuzzing campaign: reads damaged files and counts the outcomes. Run it from the repository's root:

    python tests/damage/campaign.py --count 10000 [--format hdf5 …] [--first 0] [--keep DIRECTORY]

Prints one line of JSON per format: files rejected by one line with their name, files accepted with the content that
their bytes have, and faults. A fault is another exception, a message of several lines or without the name, other
content than the bytes have, more than 10 s, or a crash. Worker processes with limited memory read many files each. A
file depends only on the format and its number; --keep saves those with faults.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unicodedata import category

import numpy as np

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS), str(_TESTS.parent)]  # for use as a program

from damage.matrices import MATRICES  # noqa: E402
from damage.mutations import mutate  # noqa: E402
from damage.records import RECORDS  # noqa: E402
from tsapps.kernels.system import host_memory  # noqa: E402

__all__ = ["FORMATS", "missing_library", "run"]

FORMATS: dict[str, Any] = MATRICES | RECORDS
_SECONDS, _MEMORY = 10, 1 << 30
_MOST_KEPT = 20
# Control characters, surrogates and line separators.
_BREAKS = ("Cc", "Cs", "Zl", "Zp")


def missing_library(name: str) -> str:
    """Return the missing library that a format needs, or an empty string."""
    library = getattr(FORMATS[name], "library", "")
    return library if library and find_spec(library) is None else ""


def damaged_file(name: str, number: int, valid: bytes) -> bytes:
    """Return the content of the damaged file with this number."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), number])
    part, rest = FORMATS[name].split(valid)
    while (content := FORMATS[name].join(mutate(rng, part), rest)) == valid:
        pass
    return content


def run(names: Iterable[str], count: int, first: int = 0, keep: Path | None = None) -> dict[str, dict[str, Any]]:
    """Read damaged files of some formats; return the numbers of rejected and accepted files and the faults of each."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            found[name] = {"format": name, "files": count, "refused": 0, "accepted": 0, "faults": []}
        tasks = [[name, first] for name in found]
        while tasks:
            command = [sys.executable, __file__, "--worker", directory, json.dumps(tasks), str(first + count)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                for line in process.stdout:
                    outcome = line.rstrip("\n")
                    name, number = tasks[0]
                    if outcome in ("refused", "accepted"):
                        found[name][outcome] += 1
                    else:
                        found[name]["faults"].append([number, outcome])
                    tasks[0][1] += 1
                    if tasks[0][1] == first + count:
                        del tasks[0]
                complaint = process.stderr.read()
            if tasks:  # the next file killed the process
                name, number = tasks[0]
                if process.returncode >= 0:
                    raise RuntimeError(f"the worker ended with {process.returncode} at {name} {number}: {complaint}")
                dead = signal.Signals(-process.returncode)
                reason = f"more than {_SECONDS} s" if dead == signal.SIGALRM else f"crash by {dead.name}"
                found[name]["faults"].append([number, reason])
                tasks[0][1] += 1
                if tasks[0][1] == first + count:
                    del tasks[0]
        if keep is not None:
            _keep(found, Path(directory), keep)
    return found


def _keep(found: dict[str, dict[str, Any]], directory: Path, keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    for name, one in found.items():
        valid = (directory / f"{name}.valid").read_bytes()
        for number, _ in one["faults"][:_MOST_KEPT]:
            suffix = getattr(FORMATS[name], "suffix", ".json")
            (keep / f"{name}-{number}{suffix}").write_bytes(damaged_file(name, number, valid))


def _work(directory: Path, tasks: list[tuple[str, int]], end: int) -> None:
    """Read the files and print an outcome for each; a file that takes too long ends the process."""
    valid = {}
    for name, _ in tasks:  # import everything before the memory limit is set
        path = directory / f"{name}.valid"
        if not path.exists():
            path.write_bytes(FORMATS[name].make(directory))
        valid[name] = path.read_bytes()
        FORMATS[name].make(directory)  # the files next to the damaged one
        outcome = _outcome(name, directory, valid[name], valid[name])
        if outcome != "accepted":
            raise RuntimeError(f"the valid file of {name} is not accepted: {outcome}")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Querying available memory takes longer than reading most files, and the limit above is lower.
    for name in ("_machine_memory", "_cgroup_memory"):
        setattr(host_memory, name, cache(partial(_once, getattr(host_memory, name))))
    for name, first in tasks:
        FORMATS[name].make(directory)
        for number in range(first, end):
            content = damaged_file(name, number, valid[name])
            signal.setitimer(signal.ITIMER_REAL, _SECONDS)
            outcome = _outcome(name, directory, valid[name], content)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(outcome, flush=True)


def _once(measure: Callable[[Path], Any], root: Path) -> Any:
    found = measure(root)
    return found if isinstance(found, int) else tuple(found)


def _outcome(name: str, directory: Path, valid: bytes, content: bytes) -> str:
    form = FORMATS[name]
    path = form.place(directory, content)
    try:
        wrong = form.examine(path, valid, content)
    except form.refusals as error:
        message = str(error)
        if str(path) in message and not any(category(c) in _BREAKS for c in message):
            return "refused"
        return f"a message without the name, or of several lines: {message!r}"
    except MemoryError as error:  # the command line reports it in one line
        return "refused" if str(path) in str(error) else f"MemoryError without the name: {error}"
    except BaseException as error:  # noqa: BLE001 (any exception of a reader is an outcome)
        return f"{type(error).__module__}.{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return f"accepted wrongly: {wrong}" if wrong else "accepted"


def main() -> None:
    """Run the campaign, or its files as a worker process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--format", action="append", choices=sorted(FORMATS))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--worker", nargs=3)
    given = parser.parse_args()
    if given.worker:
        directory, tasks, end = given.worker
        warnings.simplefilter("ignore")
        _work(Path(directory), json.loads(tasks), int(end))
        return
    for name in given.format or [name for name in FORMATS if not missing_library(name)]:
        print(json.dumps(run([name], given.count, given.first, given.keep)[name]), flush=True)


if __name__ == "__main__":
    main()
