"""What a benchmark leaves behind: one JSON object a measurement, in `bench/results/<device>/<what>.json`.

A file holds a list, one object a line, so that a new measurement is one changed line in a diff. A record takes the
place of the older one with the same key. A file is replaced whole: a run cut short never leaves half of one.
"""

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
    "check",
    "commit_of",
    "cpu_name",
    "load",
    "module_versions",
    "of_run",
    "results_path",
    "slug",
    "store",
    "store_sorted",
    "today",
]

ROOT = Path(__file__).resolve().parents[2]

#: The fields of every record, with the types that each may have.
COMMON: dict[str, tuple[type, ...]] = {
    "what": (str,),
    "engine": (str,),
    "device": (str,),
    "versions": (dict,),
    "commit": (str,),
    "date": (str,),
}

# Words of a device's name that tell no two devices apart.
_NOISE = re.compile(r"\((r|tm)\)|\bnvidia\b|\bgeforce\b|\bcpu\b|\bprocessor\b|@.*$", re.IGNORECASE)


def slug(device: str) -> str:
    """Return a device's name as a folder's name: "NVIDIA H200" is h200."""
    return "-".join(re.findall(r"[a-z0-9]+", _NOISE.sub(" ", device).lower()))


def cpu_name() -> str:
    """Return the model of this machine's CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def results_path(device: str, what: str) -> Path:
    """Return where the records of benchmark `what` on `device` are kept."""
    return ROOT / "bench" / "results" / slug(device) / f"{what}.json"


def today() -> str:
    """Return the date in UTC, as in 2026-11-21."""
    return datetime.now(UTC).date().isoformat()


def commit_of(root: Path = ROOT) -> str:
    """Return the commit that is measured, with "-dirty" where the tree differs from it.

    Records that a run has just written are no difference. "unknown" where there is no commit to name.
    """
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
    """Return the fields that all records of a run share; the commit is that of the tree if it is not given."""
    shared = {"what": what, "device": device, "versions": dict(versions)}
    return {**shared, "commit": commit or commit_of(), "date": today()}


def module_versions(modules: Mapping[str, str]) -> dict[str, str]:
    """Return Python's version and that of each module, under the name that `modules` gives it."""
    versions = {"python": platform.python_version()}
    for name, module in modules.items():
        versions[name] = str(getattr(import_module(module), "__version__", "unknown"))
    return versions


def check(record: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]]) -> None:
    """Raise ValueError unless `record` has the `COMMON` fields and `fields`, each of a type that it may have.

    Further fields are free. Numbers must be finite; `date` must be a date.
    """
    for name, types in {**COMMON, **fields}.items():
        if name not in record:
            raise ValueError(f"the record has no {name!r}")
        if not isinstance(record[name], types) or (isinstance(record[name], bool) and bool not in types):
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
            raise ValueError(f"{name!r} is {record[name]!r}; expected {expected}")
    try:
        date.fromisoformat(record["date"])
        json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the record cannot be kept: {error}") from error


def load(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; none where there is no such file. Raises ValueError if it holds anything else."""
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
    """Put a record into a file, in the place of the one whose fields named in `key` are the same.

    Raises ValueError unless the record is one that `check` lets pass.
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
    """Put records into a file, in the place of all older ones that agree with one of them in `key`; sorted by `key`.

    Raises ValueError, and writes nothing, unless `check` lets all of them pass.
    """
    for one in new:
        check(one, fields)

    def of(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(one.get(name) for name in key)

    replaced = {of(one) for one in new}
    kept = [one for one in load(path) if of(one) not in replaced]
    _write(path, sorted([*kept, *new], key=of))


def _write(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(one, ensure_ascii=False, allow_nan=False) for one in records)
    write_bytes(path, f"[\n{lines}\n]\n".encode())
