"""Selection of long tests: ``make test`` leaves out those marked ``exhaustive``, ``make test-long`` runs them.

conftest.py resolves `pytest.mark.each_choice` on a parametrised test by `covering`: ``make test`` runs cases with every
value of every parameter, exhaustive runs have every pair of values, and other cases never run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings

__all__ = ["covering", "every", "property_test"]


def every(step: int, cases: Iterable[Any], *, unpacked: bool = False) -> list[Any]:
    """Return parametrised cases in which all except every step-th are marked exhaustive.

    `unpacked` cases are tuples with one value per parameter.
    """
    return [
        pytest.param(*(case if unpacked else (case,)), marks=() if number % step == 0 else pytest.mark.exhaustive)
        for number, case in enumerate(cases)
    ]


def covering(cases: Sequence[Mapping[str, Any]], strength: int) -> set[int]:
    """Return the indices of a few cases that cover every occurring combination of values of `strength` parameters.

    Greedy: selects the case with the most combinations not yet covered, the first one on a tie (each-choice and
    pair-wise coverage; M. Grindal, J. Offutt and S. Andler, "Combination testing strategies: a survey", 2005).
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
    """Make a hypothesis test of a function: `examples` by default, `exhaustive` examples in exhaustive runs."""

    def decorate(body: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [examples, pytest.param(exhaustive, marks=pytest.mark.exhaustive)])
        def test(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*strategies, **named)(body))()

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return decorate
