"""Records of benchmarks: one JSON object per measurement, in `bench/results/<device>/<what>.json`.

A file holds a list with one object per line, so that a new measurement changes one line of a diff. A record replaces
the older one with the same key. Files are replaced atomically: an interrupted run leaves no partial file.
"""

import argparse
import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tsapps.kernels.system.atomic_write import write_bytes
from tsapps.kernels.system.strict_json import read_json

__all__ = [
    "COMMON",
    "add_options",
    "check",
    "commit_of",
    "cpu_name",
    "cuda_versions",
    "gpu_name",
    "load",
    "module_versions",
    "of_run",
    "replace",
    "results_path",
    "slug",
    "store",
    "store_sorted",
    "today",
]

ROOT = Path(__file__).resolve().parents[2]

#: Fields of every record, with their allowed types.
COMMON: dict[str, tuple[type, ...]] = {
    "what": (str,),
    "engine": (str,),
    "device": (str,),
    "versions": (dict,),
    "commit": (str,),
    "date": (str,),
}

# Parts of a device name that do not distinguish devices.
_NOISE = re.compile(r"\((r|tm)\)|\bnvidia\b|\bgeforce\b|\bcpu\b|\bprocessor\b|@.*$", re.IGNORECASE)


def slug(device: str) -> str:
    """Return a device's name as a folder name: "NVIDIA H200" becomes h200."""
    return "-".join(re.findall(r"[a-z0-9]+", _NOISE.sub(" ", device).lower()))


def cpu_name() -> str:
    """Return the model of this machine's CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def gpu_name() -> str:
    """Return the name of the current GPU, as CUDA's runtime states it."""
    cuda = import_module("cupy").cuda
    return str(cuda.runtime.getDeviceProperties(cuda.Device().id)["name"].decode())


def results_path(device: str, what: str) -> Path:
    """Return the file of the records of benchmark `what` on `device`; outside the repository, in this folder."""
    folder = ROOT / "bench" / "results"
    return folder / slug(device) / f"{what}.json" if folder.is_dir() else Path(f"{what}.json")


def today() -> str:
    """Return the date in UTC, as in 2026-11-21."""
    return datetime.now(UTC).date().isoformat()


def commit_of(root: Path = ROOT) -> str:
    """Return the measured commit, with "-dirty" appended if the working tree differs from it.

    Changed records do not count as a difference. Returns "unknown" if there is no commit.
    """
    if Path(_git(root, "rev-parse", "--show-toplevel")).resolve() != root.resolve():
        return "unknown"  # installed, perhaps inside another repository
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", ".", ":(exclude)bench/results")
    return f"{commit}-dirty" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def of_run(what: str, device: str, versions: Mapping[str, str], commit: str | None) -> dict[str, Any]:
    """Return the fields shared by all records of a run; the default commit is that of the working tree."""
    shared = {"what": what, "device": device, "versions": dict(versions)}
    return {**shared, "commit": commit or commit_of(), "date": today()}


def module_versions(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of Python and of each module, under the names given in `modules`."""
    versions = {"python": platform.python_version()}
    for name, module in modules.items():
        versions[name] = str(getattr(import_module(module), "__version__", "unknown"))
    return versions


def cuda_versions() -> dict[str, str]:
    """Return the versions of CUDA's runtime and driver, such as 13.2."""
    runtime = import_module("cupy").cuda.runtime
    numbers = {"cuda-runtime": runtime.runtimeGetVersion(), "cuda-driver": runtime.driverGetVersion()}
    return {name: f"{number // 1000}.{number % 1000 // 10}" for name, number in numbers.items()}


def add_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options --out and --commit of a benchmark whose records are `what`."""
    parser.add_argument("--out", type=Path, help=f"file of records (default: bench/results/<device>/{what}.json)")
    parser.add_argument("--commit", help="measured commit, if git is not available")


def check(record: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> None:
    """Raise ValueError unless `record` has the fields of `COMMON` and `fields`, each with an allowed type.

    Other fields are allowed. Numbers must be finite; `date` must be a date.
    """
    for name, types in {**COMMON, **fields}.items():
        if name not in record:
            raise ValueError(f"the record lacks the field {name!r}")
        if not isinstance(record[name], types) or (isinstance(record[name], bool) and bool not in types):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise ValueError(f"{name!r} is {record[name]!r}; expected {expected}")
    try:
        date.fromisoformat(record["date"])
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the record cannot be kept: {error}") from error


def load(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, or none if it does not exist. Raises ValueError for any other content."""
    if not path.exists():
        return []
    records = read_json(path)
    if not isinstance(records, list):
        raise ValueError(f"{path} holds a {type(records).__name__}; expected a list of records")
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(f"{path}: record {number} is a {type(record).__name__}; expected an object")
    return records


def store(path: Path, record: Mapping[str, Any], key: Sequence[str], fields: Mapping[str, tuple[type, ...]]) -> None:
    """Store a record in a file; it replaces the record with the same values of the fields in `key`.

    Raises ValueError unless the record passes `check`.
    """
    check(record, fields)
    records = load(path)
    place = next((i for i, old in enumerate(records) if all(old.get(name) == record[name] for name in key)), None)
    if place is None:
        records.append(dict(record))
    else:
        records[place] = dict(record)
    _write(path, records)


def store_sorted(
    path: Path, new: Sequence[Mapping[str, Any]], key: Sequence[str], fields: Mapping[str, tuple[type, ...]]
) -> None:
    """Store records in a file sorted by `key`; they replace all older records with the same key.

    Raises ValueError, and writes nothing, unless all of them pass `check`.
    """

    def order(one: Mapping[str, Any]) -> list[tuple[bool, Any]]:
        return [(value is not None, value) for value in _values(one, key)]  # None cannot be compared

    _write(path, sorted(_replaced(path, new, key, fields), key=order))


def replace(
    path: Path, new: Sequence[Mapping[str, Any]], key: Sequence[str], fields: Mapping[str, tuple[type, ...]]
) -> None:
    """Store records at the end of a file, which may be of several benchmarks; otherwise as `store_sorted`."""
    _write(path, _replaced(path, new, key, fields))


def _replaced(
    path: Path, new: Sequence[Mapping[str, Any]], key: Sequence[str], fields: Mapping[str, tuple[type, ...]]
) -> list[Mapping[str, Any]]:
    for one in new:
        check(one, fields)
    obsolete = {_values(one, key) for one in new}
    return [*(one for one in load(path) if _values(one, key) not in obsolete), *new]


def _values(one: Mapping[str, Any], key: Sequence[str]) -> tuple[Any, ...]:
    return tuple(one.get(name) for name in key)


def _write(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(one, ensure_ascii=False, allow_nan=False) for one in records)
    write_bytes(path, f"[\n{lines}\n]\n".encode())
