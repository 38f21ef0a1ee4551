"""Random rows of a matrix: the draws of scikit-learn's `MiniBatchKMeans.fit`, and a matrix of the drawn rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, check_finite, row_name

__all__ = ["BatchDraws", "DrawnRows", "drawn_rows", "quick_draws"]

# Maximum number of running sums that are kept.
_MOST_KEPT = 1 << 20
# Number of probabilities that are added up at once.
_ROWS = 1 << 19


class DrawnRows(ArrayRows):
    """Some rows of another matrix as an array; messages call each by its name in the other matrix.

    Parameters
    ----------
    source : Rows
    indices : numpy.ndarray or range of shape (m,)
    array : array of shape (m, d)
        The rows of `source` with these indices.
    """

    def __init__(self, source: Rows, indices: np.ndarray | range, array: np.ndarray) -> None:
        super().__init__(array, source.name)
        self._source, self._indices = source, indices

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `rows.row_name`."""
        return row_name(self._source, int(self._indices[row]))


def drawn_rows(source: Rows, indices: np.ndarray) -> DrawnRows:
    """Return the rows with these indices, (m,), on the device that holds `source`.

    Raises
    ------
    ValueError
        If one has a NaN or an infinity; the message names its row and column.
    """
    current: AbstractContextManager[Any] = nullcontext()
    if source.device is not None:
        from tsapps.kernels.runtime.machine import cuda_machine

        current = cuda_machine(source.device).current()
    with current:
        found = DrawnRows(source, indices, source.rows(indices))
        check_finite(found.array, found)
    return found


class BatchDraws:
    """Draws of row indices with replacement: those of ``RandomState.choice(n, size, p=probabilities)``.

    `choice` adds up all n probabilities in each call. Here, the running sums are kept. Of large n, only one of each
    group of rows is kept, from which they are continued by the same additions.

    Parameters
    ----------
    probabilities : numpy.ndarray of shape (n,), float32 or float64
        Not copied; may be a broadcast number.
    """

    def __init__(self, probabilities: np.ndarray) -> None:
        self.probabilities, n = probabilities, len(probabilities)
        self._group = 1
        while n > _MOST_KEPT * self._group:
            self._group *= 2
        # The running sum before the first row of each group, and at the end.
        self._starts = np.zeros(-(-n // self._group) + 1)
        rows = max(1, _ROWS // self._group) * self._group
        for first in range(0, n, rows):
            group = first // self._group
            running = self._continued(self._starts[group : group + 1], np.arange(first, min(first + rows, n)))[0]
            ends = running[self._group - 1 :: self._group]
            self._starts[group + 1 : group + 1 + len(ends)] = ends
            self._starts[-1] = running[-1]
        self._ends = self._starts[1:] / self._starts[-1]

    def draw(self, random_state: np.random.RandomState, size: int) -> np.ndarray:
        """Draw row indices, (size,), int64."""
        drawn = random_state.random_sample(size)
        groups = self._ends.searchsorted(drawn, side="right")
        if self._group == 1:
            return groups
        found, at_once = groups * self._group, max(1, _ROWS // self._group)
        for part in (slice(first, first + at_once) for first in range(0, size, at_once)):
            rows = found[part, np.newaxis] + np.arange(self._group)
            running = self._continued(self._starts[groups[part]], rows) / self._starts[-1]
            found[part] += (running <= drawn[part, np.newaxis]).sum(axis=1)
        return found

    def _continued(self, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return running sums of probabilities of consecutive rows, (groups, rows), that begin with `starts`.

        Rows past the end repeat the last one.
        """
        rows = np.atleast_2d(rows)
        terms = np.empty((len(rows), rows.shape[1] + 1))
        terms[:, 0] = starts
        terms[:, 1:] = self.probabilities[np.minimum(rows, len(self.probabilities) - 1)]
        return np.cumsum(terms, axis=1, out=terms)[:, 1:]


class BatchState(np.random.RandomState):
    """A `RandomState` whose `choice` with replacement does not add up the probabilities again in each call.

    So draws of `MiniBatchKMeans.fit`, the same ones, do not take longer for more rows.
    """

    _draws: BatchDraws | None = None

    def choice(self, a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        """Draw as `RandomState.choice` does."""
        one_batch = replace and isinstance(a, int) and isinstance(size, int) and isinstance(p, np.ndarray)
        if not one_batch or len(p) != a:
            return super().choice(a, size, replace, p)
        if self._draws is None or self._draws.probabilities is not p:
            self._draws = BatchDraws(p)
        return self._draws.draw(self, size)


@contextmanager
def quick_draws(model: Any) -> Iterator[None]:
    """Replace the `random_state` of a model within the ``with`` block by a `BatchState` that gives the same numbers."""
    given = model.random_state
    generator = check_random_state(given)
    state = generator.get_state(legacy=False)
    if state["bit_generator"] == "MT19937":
        quick = BatchState(0)
        quick.set_state(state)
        model.random_state = quick
    try:
        yield
    finally:
        if model.random_state is not given:
            generator.set_state(model.random_state.get_state(legacy=False))
            model.random_state = given
