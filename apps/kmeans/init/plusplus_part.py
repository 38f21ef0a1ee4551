"""Greedy k-means++ from a part of X on a GPU: the kernels evaluate candidates, and the host draws them.

A fit over several processes asks its parts for each step. So there is one pass over the rows per step, as on one GPU,
but the host waits for the sums of its chunks.
"""

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.load import is_vectorizable
from tsapps.apps.kmeans.init.plusplus_launch import GreedyDraw, plan_draw, rows_to_draw
from tsapps.apps.kmeans.init.plusplus_order import PlusPlusOrder
from tsapps.kernels.arrays import to_host

__all__ = ["DeviceDraw"]


class DeviceDraw:
    """Samples of a shard on a GPU, from which k-means++ draws; see `ChunkedDraws`.

    Numbers of chunks and samples count from the shard's first.
    """

    @classmethod
    def of(cls, data: DeviceData, trials: int) -> "DeviceDraw | None":
        """Return a draw with `trials` candidates per step, or None if the kernels cannot read the rows in this order.

        Parameters
        ----------
        data : DeviceData
        trials : int
        """
        X, order = rows_to_draw(data), PlusPlusOrder.of(data.n_total, data.n_features, trials, data.dtype.itemsize)
        if X is None or is_vectorizable(X, 16 // X.itemsize) != (order.wide > 1):
            return None
        plan = plan_draw(data, trials, aligned=order.wide > 1)
        return None if plan is None else cls(data, X, order, GreedyDraw(data, X, plan, np.zeros((1, trials))))

    def __init__(self, data: DeviceData, X: np.ndarray, order: PlusPlusOrder, draw: GreedyDraw) -> None:
        self._data, self._X, self.order, self._draw = data, X, order, draw
        first = data.shard.first // order.chunk
        self._own = slice(first, first + -(-data.n_samples // order.chunk))
        self._center: np.ndarray | None = None  # the last one
        self._is_known = True  # whether `GreedyDraw.closest` takes it into account

    def rows_as_read(self, indices: np.ndarray) -> np.ndarray:
        """Return samples; see `ChunkedDraws.rows_as_read`."""
        return to_host(self._X[self._data.xp.asarray(indices)])

    def add(self, point: np.ndarray) -> None:
        """Take a point as a center; see `ChunkedDraws.add`."""
        if not self._is_known:
            self.sums()
        self._center, self._is_known = point, False

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return the potential of each point and chunk; see `ChunkedDraws.potentials`."""
        assert self._center is not None  # there is one
        rows, _ = self._draw.parts(self._draw.points[0])
        rows[...] = self._data.xp.asarray(np.concatenate([self._center[np.newaxis], points]))
        self._draw.evaluate(0)
        self._is_known = True
        return np.array(to_host(self._draw.sums[:, self._own]))  # later steps write to this memory

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedDraws.sums`."""
        assert self._center is not None  # there is one
        found: np.ndarray = self.potentials(self._center[np.newaxis].repeat(len(self._draw.sums), axis=0))[0]
        return found

    def find(self, chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find samples; see `ChunkedDraws.find`."""
        found = self.order.find_rows(self._weighted, chunks, passed, targets)
        return found, self.rows_as_read(found)

    def _weighted(self, start: int) -> np.ndarray:
        """Return w·D² of the rows of a chunk, float64. The kernels have not compared these with the last center yet."""
        part, weights = slice(start, start + self.order.chunk), self._data.sample_weight
        closest = to_host(self._draw.closest[part])
        if not self._is_known and self._center is not None:
            rows = to_host(self._X[part])
            closest = np.minimum(closest, self.order.square_distances(rows, np.broadcast_to(self._center, rows.shape)))
        return closest.astype(np.float64) * (1 if weights is None else to_host(weights[part]).astype(np.float64))
