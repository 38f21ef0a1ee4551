"""Records that a report reads: their files, the fields that its sections need, and the newest of each measurement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsapps.bench.common import record
from tsapps.kernels.system.printable import one_line

__all__ = [
    "KINDS",
    "Kind",
    "Record",
    "by",
    "check",
    "files_of",
    "is_tsm2_paper",
    "measured",
    "newest",
    "provenance",
    "read",
]

Record = dict[str, Any]

# Bounds of positive numbers (ms, rates, speed-ups), so that no quotient of them overflows.
_LEAST, _MOST = 1e-9, 1e15
# Maximum number of commits that a figure's caption names.
_MOST_COMMITS = 3


@dataclass(frozen=True)
class Kind:
    """Fields that the report reads from the records of one `what`, as names separated by spaces.

    Attributes
    ----------
    key : str
        Fields that identify a measurement, in addition to what, device and engine.
    texts, sizes, counts : str
        Strings, integers of at least 1, and integers of at least 0.
    numbers, optional, shares : str
        Positive numbers, positive numbers or null, and numbers from 0 to 1.
    ranges : str
        Lists [least, mean or null, most], or null.
    """

    key: str
    texts: str
    sizes: str = ""
    counts: str = ""
    numbers: str = ""
    optional: str = ""
    shares: str = ""
    ranges: str = ""

    def fields(self) -> dict[str, tuple[type, ...]]:
        """Return the allowed types of each field."""
        return {
            **dict.fromkeys(self.texts.split(), (str,)),
            **dict.fromkeys((*self.sizes.split(), *self.counts.split()), (int,)),
            **dict.fromkeys((*self.numbers.split(), *self.shares.split()), (int, float)),
            **dict.fromkeys(self.optional.split(), (int, float, type(None))),
            **dict.fromkeys(self.ranges.split(), (list, type(None))),
        }


#: Kinds of records that have a section; all others are printed as plain tables.
KINDS: dict[str, Kind] = {
    "ladder": Kind(
        key="rung m n k dtype layout",
        texts="rung title dtype layout",
        sizes="m n k",
        numbers="ms library_ms",
        optional="floor_ms speedup_serial efficiency",
    ),
    "gemm": Kind(
        key="shape dtype layout m k w",
        texts="shape dtype layout kernel",
        sizes="m k w",
        numbers="ms library_ms",
        optional="floor_ms",
    ),
    "gemm-untuned": Kind(
        key="shape dtype layout m k w",
        texts="shape dtype layout",
        sizes="m k w",
        numbers="tuned_ms untuned_ms untuned_sm80_ms library_ms",
    ),
    "kmeans": Kind(key="n d k dtype", texts="dtype", sizes="n d k", optional="iter_ms fit_ms floor_ms"),
    "kmeans-batched": Kind(key="b n d k dtype", texts="dtype", sizes="b n d k", optional="iter_ms fit_ms floor_ms"),
    "kmeans-small": Kind(key="n d k dtype", texts="dtype", sizes="n d k", numbers="fit_ms"),
    "kmeans-data": Kind(
        key="n d k dtype data",
        texts="dtype data",
        sizes="n d k",
        numbers="fit_ms",
        optional="seeded_fit_ms",
        shares="wrong",
    ),
    "abft": Kind(
        key="job code dtype m n k",
        texts="job code dtype",
        sizes="m n",
        numbers="ms",
        optional="k floor_ms library_ms unprotected_ms",
    ),
    "abft-campaign": Kind(
        key="target code dtype distribution fault m n",
        texts="target code dtype distribution fault",
        sizes="m n",
        counts="trials detected located repaired miscorrected harmless certain certain_detected certain_repaired clean "
        "false_alarms",
    ),
    "paper": Kind(
        key="run baseline m k n dtype",
        texts="run baseline dtype paper_device",
        sizes="m k n",
        numbers="ms",
        optional="baseline_ms speedup gbs baseline_gbs peak_gbs",
        ranges="paper_speedup paper_points",
    ),
}


def files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the files, and the ``.json`` files below the directories, without repetition.

    Raises
    ------
    ValueError
        If a path does not exist, or a directory has no such file.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        some = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not some:
            raise ValueError(f"{path}: has no .json file: name a directory of records")
        if not some[0].exists():
            raise ValueError(f"{path}: no such file: measure first (tsapps bench ladder), or name a file of records")
        for one in some:
            found.setdefault(one.resolve(), one)
    return list(found.values())


def read(paths: Iterable[Path]) -> list[Record]:
    """Return the records of files, with all text in printable characters.

    Raises
    ------
    ValueError
        If a file is no file of records, a record lacks a field or has a wrong value, or there is no record. The
        message names the file, the record's number, from 0, and the field.
    OSError
        If a file cannot be read.
    """
    found = []
    for path in paths:
        for number, one in enumerate(record.load(path)):
            try:
                check(one)
            except ValueError as error:
                raise ValueError(f"{path}: record {number}: {error}") from error
            found.append(_printable(one))
    if not found:
        raise ValueError("the files hold no records: measure first (tsapps bench ladder)")
    return found


def check(one: Mapping[str, Any]) -> None:
    """Raise ValueError unless a record has the fields of `record.COMMON` and those of its `Kind`."""
    record.check(one, {})
    kind = KINDS.get(one["what"])
    if kind is None:
        return
    record.check(one, kind.fields())
    for names, least, most in (
        (kind.sizes, 1, 1 << 64),
        (kind.counts, 0, 1 << 64),
        (f"{kind.numbers} {kind.optional}", _LEAST, _MOST),
        (kind.shares, 0, 1),
    ):
        for name in names.split():
            if one[name] is not None and not least <= one[name] <= most:
                raise ValueError(f"{name!r} is {one[name]!r}; expected a number from {least:g} to {most:g}")
    for name in kind.ranges.split():
        if one[name] is not None and not _is_range(one[name]):
            raise ValueError(f"{name!r} is {one[name]!r}; expected [least, mean or null, most] or null")


def _is_range(values: list[Any]) -> bool:
    if len(values) != 3:
        return False
    numbers = [value for place, value in enumerate(values) if place != 1 or value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST for value in numbers):
        return False
    return numbers == sorted(numbers)


def _printable(value: Any) -> Any:
    """Return a JSON value with printable text: no control characters, directional marks or lone surrogates."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(name): _printable(part) for name, part in value.items()}
    return [_printable(part) for part in value] if isinstance(value, list) else value


def newest(records: Sequence[Record]) -> list[Record]:
    """Return the records without those of a measurement that was repeated later; of a day, the last one counts."""
    places: dict[tuple[Any, ...], int] = {}
    for place, one in sorted(enumerate(records), key=lambda pair: pair[1]["date"]):
        places[_measurement(one, place)] = place
    return [records[place] for place in sorted(places.values())]


def _measurement(one: Record, place: int) -> tuple[Any, ...]:
    """Return what identifies a measurement; a record of an unknown kind is identified by its place."""
    kind = KINDS.get(one["what"])
    if kind is None:
        return (place,)
    # Records of TSM2 as published have the cells and the engine of ours.
    kernel = one["kernel"] if one["what"] == "gemm" and is_tsm2_paper(one) else ""
    return one["what"], one["device"], one["engine"], kernel, *(one[name] for name in kind.key.split())


def is_tsm2_paper(one: Record) -> bool:
    """Return True for a gemm record of TSM2 as published, and False for one of tsapps.matmul."""
    return one["kernel"].startswith("tsm2_v")


def by(records: Iterable[Record], key: Callable[[Record], Any] | str) -> dict[Any, list[Record]]:
    """Return the records grouped by a function of a record, or by its fields, separated by spaces; in file order.

    The groups of a single field have its value as key, those of several fields a tuple.
    """
    if isinstance(key, str):
        names = key.split()
        of = (lambda one: one[names[0]]) if len(names) == 1 else (lambda one: tuple(one[name] for name in names))
    else:
        of = key
    groups: dict[Any, list[Record]] = {}
    for one in records:
        groups.setdefault(of(one), []).append(one)
    return groups


def provenance(records: Sequence[Record], *, all_commits: bool = False) -> str:
    """Return the devices, commits and dates of records, and their number."""
    return f"{', '.join(sorted({one['device'] for one in records}))}; {measured(records, all_commits=all_commits)}"


def measured(records: Sequence[Record], *, all_commits: bool = False) -> str:
    """Return the commits and dates of records, and their number; by default, at most three commits are named."""
    dates = sorted({one["date"] for one in records})
    commits = sorted({_short(one["commit"]) for one in records})
    named = commits if all_commits else commits[:_MOST_COMMITS]
    more = f" and {len(commits) - len(named)} more" if len(commits) > len(named) else ""
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    count = f"{len(records):,} record{'' if len(records) == 1 else 's'}"
    return f"commit{'' if len(commits) == 1 else 's'} {', '.join(named)}{more}; {when}; {count}"


def _short(commit: str) -> str:
    """Return the first seven characters of a commit's hash, with the mark of a changed working tree."""
    return commit[:7] + ("-dirty" if commit.endswith("-dirty") else "")
