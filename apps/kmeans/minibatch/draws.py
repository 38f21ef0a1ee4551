"""Random rows of a matrix: the draws of scikit-learn's `MiniBatchKMeans.fit`, and a matrix of the drawn rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import check_finite
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, row_name

__all__ = ["BatchDraws", "DrawnRows", "drawn_rows"]

# Number of consecutive rows of which only the running sum at the first is kept; and of draws that are searched at once.
_GROUP_ROWS, _DRAWS = 128, 4096
# Number of groups whose weights are summed at once.
_GROUPS = 4096


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
    """Draws of row indices with replacement, with probabilities proportional to weights.

    They are those of ``RandomState.choice(n, size, p=weights / sum)``, which keeps and adds up all n probabilities in
    each call. Here, only the running sum at every 128th row is kept, and continued from there by the same additions.

    Parameters
    ----------
    n : int
    weights : numpy.ndarray of shape (n,), optional
        None means that every row has weight 1.
    dtype : {float32, float64}
        The type in which probabilities are computed.

    Attributes
    ----------
    total : float
        Sum of the weights.
    """

    def __init__(self, n: int, weights: np.ndarray | None, dtype: np.dtype) -> None:
        ones = np.broadcast_to(np.ones((), dtype), n)  # takes no memory
        self._weights: np.ndarray = ones if weights is None else weights.astype(dtype, copy=False)
        self._sum = self._weights.sum()
        self.total = float(self._sum)
        self._starts = np.zeros(-(-n // _GROUP_ROWS) + 1)  # running sum at the first row of each group, and at the end
        rows = _GROUPS * _GROUP_ROWS
        for group in range(0, len(self._starts) - 1, _GROUPS):
            first = group * _GROUP_ROWS
            running = self._continued(self._starts[group : group + 1], np.arange(first, min(first + rows, n)))
            ends = running[0, _GROUP_ROWS - 1 :: _GROUP_ROWS]
            self._starts[group + 1 : group + 1 + len(ends)] = ends
            self._starts[-1] = running[0, -1]
        self._ends = self._starts[1:] / self._starts[-1]

    def draw(self, random_state: np.random.RandomState, size: int) -> np.ndarray:
        """Draw row indices, (size,), int64."""
        drawn = random_state.random_sample(size)
        groups = self._ends.searchsorted(drawn, side="right")
        found = groups * _GROUP_ROWS
        for part in (slice(first, first + _DRAWS) for first in range(0, size, _DRAWS)):
            rows = found[part, np.newaxis] + np.arange(_GROUP_ROWS)
            running = self._continued(self._starts[groups[part]], rows) / self._starts[-1]
            found[part] += (running <= drawn[part, np.newaxis]).sum(axis=1)
        return found

    def _continued(self, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return running sums of probabilities of consecutive rows, (groups, rows), that begin with `starts`.

        Rows past the end repeat the last one.
        """
        rows = np.atleast_2d(rows)
        weights = self._weights[np.minimum(rows, len(self._weights) - 1)]
        terms = np.empty((len(rows), rows.shape[1] + 1))
        terms[:, 0], terms[:, 1:] = starts, weights / self._sum
        return np.cumsum(terms, axis=1, out=terms)[:, 1:]
