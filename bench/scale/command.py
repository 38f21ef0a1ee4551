"""The command line of all three benchmarks: which cases, and their records one after the other."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.outcome import LeftOutError, NotRightError, missing

__all__ = ["Case", "chosen_cases", "measure_cases"]


@dataclass(frozen=True)
class Case:
    """n samples of d features in k clusters."""

    n: int
    d: int
    k: int

    @property
    def name(self) -> str:
        """The name on the command line."""
        return f"{self.n // 1_000_000}M-{self.d}-{self.k}"


def chosen_cases(
    parser: argparse.ArgumentParser, cases: Sequence[Any], what: str, arguments: list[str] | None
) -> tuple[argparse.Namespace, list[Any]]:
    """Add the options that all benchmarks have; return the parsed options, and the cases that they name or all.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        With the options of this benchmark alone.
    cases : sequence
        Have a `name`.
    what : str
        The name of the file of records, without its ending.
    arguments : list of str, optional
        By default, those of the process.
    """
    names = {case.name: case for case in cases}
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(names)}; default: all")
    record.add_options(parser, what)
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args(arguments)
    for unknown in set(options.cases) - set(names):
        parser.error(f"case {unknown!r}: expected {', '.join(names)}")
    return options, [names[name] for name in options.cases or names]


def measure_cases(
    on: Any,
    cases: Sequence[Any],
    options: argparse.Namespace,
    what: str,
    key: Sequence[str],
    fields: Mapping[str, tuple[type, ...]],
    line: Callable[[dict[str, Any]], str],
) -> int:
    """Measure cases, store and print their records; return the exit code: 1 if a result was wrong.

    Parameters
    ----------
    on : OnGpu, OnGpus or OnWorkers
    cases, options, what
        See `chosen_cases`.
    key, fields
        See `record.store`.
    line : callable
        Returns what is printed of a record.
    """
    modules = {name: name for name in ("tsapps", "numpy", *on.modules)}
    versions = record.module_versions(modules) | (record.cuda_versions() if "cupy" in modules else {})
    common = {**record.of_run("scale", on.device, versions, options.commit), "seed": on.seed}
    path, failed = options.out or record.results_path(on.device, what), 0
    for case in cases:
        try:
            one = {**common, **on.measured(case)}
        except (LeftOutError, MemoryError, NotRightError) as error:
            failed += isinstance(error, NotRightError)
            print(missing(case.name, error), flush=True)
            continue
        record.store(path, one, key, fields)
        print(line(one), flush=True)
    return 1 if failed else 0
