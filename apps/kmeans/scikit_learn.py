"""scikit-learn's compiled Lloyd, for arrays on the CPU: what its `fit` worked with, and its passes over centered rows.

`KMeans.fit` subtracts the mean of X, adds it to the centers that it found, and keeps neither. Here both are kept, as
they were: rows that are centered by the same mean get the same labels by the same centers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, TypeVar

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn import config_context
from sklearn.cluster import KMeans
from sklearn.cluster._kmeans import _labels_inertia
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import assert_all_finite, check_random_state

from tsapps.apps.kmeans.data.distances import distances_of
from tsapps.apps.kmeans.data.frame import Frame, Placed, is_in_range, ldexp, length, shrinking
from tsapps.apps.kmeans.data.rows import check_real
from tsapps.apps.kmeans.initial_centers import draw_centers
from tsapps.apps.kmeans.open_engine import check_weights, open_engine
from tsapps.kernels.arrays import as_array, kind_of, refuse_masked, to_host
from tsapps.kernels.blas.threads import one_blas_thread, threads_kept

__all__ = ["Passes", "as_host", "fit", "narrow_indices", "remembering"]

T = TypeVar("T")

# Where a model has what its centers remember, during a fit.
_MEMORY = "_memory"
# Rows that a thread centers at a time, and rows for which no thread is started.
_BLOCK_BYTES, _SMALL_BYTES = 4 << 20, 1 << 19


class Remembering(np.ndarray):
    """Centers that remember what they were, and what was added to them, when their mean is."""

    memory: dict[str, np.ndarray]

    @classmethod
    def of(cls, centers: np.ndarray, memory: dict[str, np.ndarray]) -> Remembering:
        """Return a copy of centers, which it and all that are made of it remember in `memory`."""
        made = np.array(centers).view(cls)
        made.memory = memory
        return made

    def __array_finalize__(self, source: Any) -> None:
        """Remember where `source` does."""
        self.memory = getattr(source, "memory", {})

    def __iadd__(self, mean: Any) -> Remembering:  # type: ignore[misc]
        """Add the mean, and remember both."""
        self.memory["centers"], self.memory["mean"] = np.array(self), np.array(mean)
        np.add(self, mean, out=self)
        return self


def remembering(model: KMeans, centers: np.ndarray) -> np.ndarray:
    """Return first centers of a fit of a model, never in memory of the caller's, so that they remember their mean."""
    return Remembering.of(centers, model.__dict__.get(_MEMORY, {}))


def fit(model: KMeans, X: Any, sample_weight: Any) -> Placed | None:
    """Fit a model by `KMeans.fit`, and set its centers.

    The model's `_init_centroids` gives `remembering` centers.

    Returns
    -------
    Placed or None
        None if the result does not stand. No random number has been drawn then.
    """
    weights = as_host(sample_weight, "sample_weight")
    check_weights(weights)
    generator = check_random_state(model.random_state)  # of an int a new one, which nobody else draws from
    state, given = generator.get_state(), {"init": model.init, "n_init": model.n_init}
    memory: dict[str, np.ndarray] = {}
    model.__dict__[_MEMORY] = memory
    model.set_params(**_init_for_scikit_learn(**given, sample_weight=weights))
    placed = None
    try:
        # What overflows is seen by the result.
        with threads_kept(), np.errstate(over="ignore", invalid="ignore"):
            KMeans.fit(model, narrow_indices(as_host(X)), sample_weight=weights)
        placed = _placed(np.array(model.cluster_centers_), memory)
        model.cluster_centers_ = placed.given.copy()
    except ValueError:
        if not _overflows(as_host(X)):
            raise
    finally:
        model.set_params(**given)
        del model.__dict__[_MEMORY]
    if placed is None or not _is_sound(placed, model.labels_, model.inertia_):
        generator.set_state(state)
        return None
    return placed


def _placed(found: np.ndarray, memory: dict[str, np.ndarray]) -> Placed:
    """Return centers that `KMeans.fit` found, by what they remember: of sparse X it subtracts no mean."""
    worked, frame = memory.get("centers", found), Frame(memory.get("mean", np.zeros_like(found[0])))
    return Placed(frame, worked, frame.restored(worked))


def _is_sound(placed: Placed, labels: np.ndarray, inertia: float) -> bool:
    """Tell whether the result of a fit of `KMeans` stands.

    Where clusters are empty its labels may be of earlier centers; and where squares overflow or underflow, any.
    """
    centers = placed.worked.astype(np.float64)
    if not np.isfinite(centers).all() or not np.bincount(labels, minlength=len(centers)).all():
        return False
    with np.errstate(over="ignore"):
        largest = float((centers * centers).sum(axis=1).max())
    n = len(labels)
    return is_in_range(placed.worked.dtype, largest + inertia / n, 4 * (n * largest + inertia))


def _overflows(X: Any) -> bool:
    """Tell whether X is an array of finite numbers of which squares of distances may overflow."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f" or not X.size or not np.isfinite(X).all():
        return False
    square = 4 * float(abs(X).max()) ** 2 * X.size
    return not is_in_range(np.dtype(np.float32) if X.dtype == np.float32 else np.dtype(np.float64), 1.0, square)


def narrow_indices(X: Any) -> Any:
    """Return a sparse matrix by rows, with indices of 32 bits where they do; anything else as it is."""
    if not issparse(X):
        return X
    rows = X.tocsr()
    if rows.indices.dtype == np.int32 and rows.indptr.dtype == np.int32:
        return rows
    if max(rows.nnz, *rows.shape) > np.iinfo(np.int32).max:
        return rows
    return csr_matrix((rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)), shape=rows.shape)


def as_host(X: Any, name: str = "X") -> Any:
    """Return X as scikit-learn can take it: arrays of other libraries as NumPy, all else as it is."""
    kind = kind_of(X)
    if kind in (None, "frame"):
        refuse_masked(X)
        return _writable(X) if kind == "frame" and 1 in X.shape else X
    array = as_array(X)
    check_real(array.dtype, name)
    return X if kind == "numpy" else to_host(array)


def _writable(frame: Any) -> Any:
    """Return a frame of one column or one row of which scikit-learn makes an array that it can write to.

    It takes the array that pandas makes of bools and nullable numbers for a copy, and pandas 3 gives a view.
    """
    if type(frame).__module__.startswith("pandas") and (array := as_array(frame)).dtype.kind in "iuf":
        return frame.__class__(array, frame.index, frame.columns)
    return frame


def _init_for_scikit_learn(init: Any, n_init: Any, sample_weight: Any) -> dict[str, Any]:
    """Return the parameters `init` and `n_init` as scikit-learn can take them, a function for what it cannot draw."""

    def draw(X: Any, n_clusters: int, random_state: np.random.RandomState) -> np.ndarray:
        with open_engine(X, sample_weight=sample_weight, device="cpu") as engine:
            return draw_centers(engine, "k-means||", n_clusters, random_state)

    def unmasked(*arguments: Any, **options: Any) -> Any:
        centers = init(*arguments, **options)
        refuse_masked(centers)
        return centers

    if isinstance(init, str):
        runs = 1 if n_init == "auto" else n_init
        return {"init": draw, "n_init": runs} if init == "k-means||" else {"init": init, "n_init": n_init}
    if callable(init):
        return {"init": unmasked, "n_init": n_init}
    refuse_masked(init)
    return {"init": as_host(init, "init"), "n_init": n_init}


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return threads that stay: OpenMP and BLAS take longer to begin in a new one than a pass takes."""
    return ThreadPoolExecutor(threads)


def _by_threads(threads: int, work: Callable[[slice], T], parts: list[slice]) -> list[T]:
    """Return what `work` makes of every part, in order; the caller's thread is one of the threads."""
    left, results = deque(enumerate(parts)), dict[int, T]()

    def take() -> None:
        while True:
            try:
                place, part = left.popleft()
            except IndexError:
                return
            results[place] = work(part)

    helpers = [_pool(threads - 1).submit(take) for _ in range(min(threads, len(parts)) - 1)]
    try:
        take()
    finally:
        left.clear()
        # Those that have not begun, for other calls' work, would find nothing left.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[place] for place in range(len(parts))]


class Passes:
    """Passes over X, a checked NumPy array or sparse matrix by rows, about the mean of the fitted rows.

    Each thread centers a block of rows, and gives it to scikit-learn, which works on that thread alone.
    """

    def __init__(self, model: KMeans, frame: Frame, centers: np.ndarray) -> None:
        self.frame, self.centers = frame, centers
        self._threads = model._n_threads

    def labels(self, X: Any) -> np.ndarray:
        """Return the label of the nearest center to every row, (n,), int32."""
        labels = np.empty(X.shape[0], np.int32)

        def work(block: np.ndarray, part: slice, size: float) -> None:
            exponent = shrinking(block, self.centers, size)
            labels[part] = self._assigned(ldexp(block, -exponent), ldexp(self.centers, -exponent))

        if issparse(X):
            work(self._sparse(X), slice(None), 0.0)
        else:
            self._each(X, work)
        return labels

    def inertia(self, X: Any, weights: np.ndarray | None) -> float:
        """Return Σ w·‖x − c‖² over the rows and their nearest centers."""

        def work(block: np.ndarray, part: slice, _: float) -> float:
            part_of_weights = None if weights is None else weights[part]
            return float(self._assigned(block, self.centers, part_of_weights, with_inertia=True)[1])

        return work(self._sparse(X), slice(None), 0.0) if issparse(X) else float(np.sum(self._each(X, work)))

    def distances(self, X: Any) -> np.ndarray:
        """Return the distance of every row to every center, (n, k), in X's dtype."""
        if issparse(X):
            return euclidean_distances(X, self.centers)
        distances = np.empty((len(X), len(self.centers)), X.dtype)

        def work(block: np.ndarray, part: slice, _: float) -> None:
            distances[part] = distances_of(block, self.centers)

        self._each(X, work)
        return distances

    def _each(self, X: np.ndarray, work: Callable[[np.ndarray, slice, float], T]) -> list[T]:
        """Return what `work` makes of every block of centered rows, their place and their length, in order.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity.
        """
        turns = -(-X.nbytes // (self._threads * _BLOCK_BYTES))
        each = -(-len(X) // (turns * self._threads)) if X.nbytes > _SMALL_BYTES else len(X)
        mine = threading.local()

        def center(part: slice) -> T:
            if not hasattr(mine, "buffer"):
                mine.buffer = np.empty((each, X.shape[1]), self.frame.mean.dtype)
            block = self.frame.centered(X[part], mine.buffer)
            size = length(block)
            if not np.isfinite(size):
                assert_all_finite(X, input_name="X", estimator_name="TSKMeans")
            with config_context(assume_finite=True):
                return work(block, part, size)

        parts = [slice(start, start + each) for start in range(0, len(X), each)]
        # One thread of BLAS for each of these.
        with one_blas_thread():
            return _by_threads(self._threads, center, parts)

    def _sparse(self, X: Any) -> Any:
        return X.astype(self.frame.mean.dtype, copy=False)

    def _assigned(
        self, rows: Any, centers: np.ndarray, weights: np.ndarray | None = None, *, with_inertia: bool = False
    ) -> Any:
        """Return the rows' labels, and their inertia if it is asked for.

        `KMeans.predict` and `score` do the same, but look at rows and parameters first, for as long as it takes to
        assign a block.
        """
        if weights is None:
            # Labels do not depend on them, and to write them takes as long as to center rows of few features.
            weights = (np.ones if with_inertia else np.empty)(rows.shape[0], rows.dtype)
        weights = np.ascontiguousarray(weights, rows.dtype)
        return _labels_inertia(rows, weights, centers, self._threads if issparse(rows) else 1, with_inertia)
