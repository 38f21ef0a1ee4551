"""What ``make test`` runs of long tests. The rest has the marker ``exhaustive``: CI and ``make test-all`` run it.

`pytest.mark.each_choice` on a parametrised test is resolved in conftest.py by `covering`: ``make test`` runs cases with
every value of every parameter, the exhaustive ones are those with every pair of values, and no other is run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings

__all__ = ["covering", "every", "property_test"]


def every(step: int, cases: Iterable[Any], *, unpacked: bool = False) -> list[Any]:
    """Return cases to parametrise a test by, of which all but every step-th are exhaustive.

    `unpacked` cases are tuples with a value for each of several parameters.
    """
    return [
        pytest.param(*(case if unpacked else (case,)), marks=() if number % step == 0 else pytest.mark.exhaustive)
        for number, case in enumerate(cases)
    ]


def covering(cases: Sequence[Mapping[str, Any]], strength: int) -> set[int]:
    """Return the numbers of a few cases in which any values of `strength` parameters that stand together at all, do.

    Greedy: the case with most of them that none before it has, the first of several (each-choice and pair-wise
    coverage; M. Grindal, J. Offutt and S. Andler, "Combination testing strategies: a survey", 2005).
    """
    together = [
        set(combinations(((name, str(value)) for name, value in sorted(case.items())), min(strength, len(case))))
        for case in cases
    ]
    chosen: set[int] = set()
    missing = set().union(*together)
    while missing:
        best = max(range(len(together)), key=lambda number: len(together[number] & missing))
        chosen.add(best)
        missing -= together[best]
    return chosen


def property_test(examples: int, exhaustive: int, *strategies: Any, **named: Any) -> Callable[[Any], Any]:
    """Make a hypothesis test of a function that takes what strategies draw: of some examples, or of many."""

    def decorate(body: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [examples, pytest.param(exhaustive, marks=pytest.mark.exhaustive)])
        def test(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*strategies, **named)(body))()

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return decorate
