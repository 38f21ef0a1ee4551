"""Fit and prediction by scikit-learn's compiled Lloyd code, for arrays in memory on the CPU.

`KMeans.fit` subtracts the mean of X, and adds the mean to the centers at the end. It stores neither the mean nor the
centers before that addition. This module records both, so that `predict` centers rows exactly as `fit` did and finds
the same labels.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
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
from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, frobenius_norm, is_in_range, ldexp, overflow_exponent
from tsapps.apps.kmeans.data.rows import check_real
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.initial_centers import draw_centers
from tsapps.apps.kmeans.open_engine import check_weights, open_engine
from tsapps.kernels.arrays import as_array, kind_of, refuse_masked, to_host
from tsapps.kernels.blas.threads import one_blas_thread, threads_kept
from tsapps.kernels.system.logs import logger_of

__all__ = [
    "Passes",
    "as_host",
    "fit",
    "init_on_host",
    "narrow_indices",
    "random_state_of",
    "recording_centers",
]

_log = logger_of(__name__)

T = TypeVar("T")

# Name of the model's attribute that holds the dictionary `RecordingCenters.record` during a fit.
_RECORD = "_record"
# Approximate size in bytes of the rows that a thread centers at a time; and largest size of X that a single thread
# processes.
_BLOCK_BYTES, _SMALL_BYTES = 4 << 20, 1 << 19


class RecordingCenters(np.ndarray):
    """Centers that record their values and the mean when `KMeans.fit` adds the mean to the centers in place."""

    record: dict[str, np.ndarray]

    @classmethod
    def of(cls, centers: np.ndarray, record: dict[str, np.ndarray]) -> RecordingCenters:
        """Return a copy of centers that writes to `record`, as do all arrays derived from the copy."""
        made = np.array(centers).view(cls)
        made.record = record
        return made

    def __array_finalize__(self, source: Any) -> None:
        """Use the record of `source`, the array that this array is derived from."""
        self.record = getattr(source, "record", {})

    def __iadd__(self, mean: Any) -> RecordingCenters:  # type: ignore[misc]
        """Add the mean in place, and record the mean and the centers before the addition."""
        self.record["centers"], self.record["mean"] = np.array(self), np.array(mean)
        np.add(self, mean, out=self)
        return self


def recording_centers(model: KMeans, centers: np.ndarray) -> np.ndarray:
    """Return a copy of initial centers, (k, d), as `RecordingCenters` that write to the record of the current `fit`."""
    return RecordingCenters.of(centers, model.__dict__.get(_RECORD, {}))


def random_state_of(model: KMeans) -> np.random.RandomState:
    """Return the `RandomState` that draws the initial centers of a model.

    If they are given, nothing is drawn, so no generator is made from the model's seed: that takes 0.1 ms.
    """
    draws = isinstance(model.init, str) or callable(model.init)
    state: np.random.RandomState = check_random_state(model.random_state if draws else None)
    return state


def fit(model: KMeans, X: Any, sample_weight: Any) -> FittedCenters | None:
    """Fit a model by `KMeans.fit`.

    Parameters
    ----------
    model : KMeans
        The method `model._init_centroids` must return `recording_centers`.
    X : array, frame or sparse matrix of shape (n, d)
    sample_weight : array of shape (n,), optional

    Returns
    -------
    FittedCenters or None
        None if scikit-learn's result is unreliable; see `_is_sound`. The state of the random generator is then
        restored.
    """
    weights = as_host(sample_weight, "sample_weight")
    check_weights(weights)
    generator = check_random_state(model.random_state)  # an int gives a new generator
    state = generator.get_state()
    record: dict[str, np.ndarray] = {}
    model.__dict__[_RECORD] = record
    fitted = None
    try:
        # `_is_sound` finds overflow in the result, so NumPy need not warn.
        quiet = np.errstate(over="ignore", invalid="ignore")
        with init_on_host(model, weights), threads_kept(), quiet, columns_named(X):
            KMeans.fit(model, narrow_indices(as_host(X)), sample_weight=weights)
        fitted = _fitted_centers(np.array(model.cluster_centers_), record)
        model.cluster_centers_ = fitted.restored.copy()
    except ValueError:
        if not _overflows(as_host(X)):
            raise
    finally:
        del model.__dict__[_RECORD]
    if fitted is None or not _is_sound(fitted, model.labels_, model.inertia_):
        generator.set_state(state)
        return None
    _log.info("k = %d: fitted by scikit-learn on the CPU, %d iterations", model.n_clusters, model.n_iter_)
    return fitted


def _fitted_centers(found: np.ndarray, record: dict[str, np.ndarray]) -> FittedCenters:
    """Return the fitted centers, from the record or, if the record is empty, from `found`.

    The record is empty for sparse X, because `KMeans.fit` does not center sparse X.
    """
    centered, frame = record.get("centers", found), Frame(record.get("mean", np.zeros_like(found[0])))
    return FittedCenters(frame, centered, frame.restored(centered))


def _is_sound(fitted: FittedCenters, labels: np.ndarray, inertia: float) -> bool:
    """Return True if no cluster is empty, and squared distances neither overflow nor underflow.

    Otherwise the result of `KMeans.fit` is unreliable. With an empty cluster, labels may belong to earlier centers.
    After overflow or underflow, labels may be arbitrary.
    """
    centers = fitted.centered.astype(np.float64)
    if not np.isfinite(centers).all() or not np.bincount(labels, minlength=len(centers)).all():
        return False
    with np.errstate(over="ignore"):
        largest = float((centers * centers).sum(axis=1).max())
    n = len(labels)
    return is_in_range(fitted.centered.dtype, largest + inertia / n, 4 * (n * largest + inertia))


def _overflows(X: Any) -> bool:
    """Return True if X is a NumPy array of finite floats whose squared distances may overflow."""
    if not isinstance(X, np.ndarray) or X.dtype.kind != "f" or not X.size or not np.isfinite(X).all():
        return False
    square = 4 * float(abs(X).max()) ** 2 * X.size
    return not is_in_range(np.dtype(np.float32) if X.dtype == np.float32 else np.dtype(np.float64), 1.0, square)


def narrow_indices(X: Any) -> Any:
    """Return a sparse matrix in CSR format, with 32-bit indices if they suffice; return anything else unchanged."""
    if not issparse(X):
        return X
    rows = X.tocsr()
    if rows.indices.dtype == np.int32 and rows.indptr.dtype == np.int32:
        return rows
    if max(rows.nnz, *rows.shape) > np.iinfo(np.int32).max:
        return rows
    return csr_matrix((rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)), shape=rows.shape)


def as_host(X: Any, name: str = "X") -> Any:
    """Return X as scikit-learn accepts it: arrays of other libraries as NumPy arrays, anything else unchanged.

    Raises
    ------
    ValueError
        If X is masked, complex or wider than float64; the message calls it `name`.
    """
    kind = kind_of(X)
    if kind in (None, "frame"):
        refuse_masked(X)
        return _writable(X) if kind == "frame" and 1 in X.shape else X
    array = as_array(X)
    check_real(array.dtype, name)
    return X if kind == "numpy" else to_host(array)


def _writable(frame: Any) -> Any:
    """Return a frame of one column or one row that scikit-learn converts to a writable array.

    scikit-learn assumes that pandas copies bools and nullable numbers on conversion, but pandas 3 returns a view.
    """
    if type(frame).__module__.startswith("pandas") and (array := as_array(frame)).dtype.kind in "iuf":
        return frame.__class__(array, frame.index, frame.columns)
    return frame


@contextmanager
def init_on_host(model: KMeans, sample_weight: Any) -> Iterator[None]:
    """Replace the `init` of a model within the ``with`` block by one that scikit-learn's code accepts."""
    given = {"init": model.init, "n_init": model.n_init}
    model.set_params(**_init_for_scikit_learn(**given, sample_weight=sample_weight))
    try:
        yield
    finally:
        model.set_params(**given)


def _init_for_scikit_learn(init: Any, n_init: Any, sample_weight: Any) -> dict[str, Any]:
    """Return `init` and `n_init` as scikit-learn accepts them; "k-means||" becomes a callable."""

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
    """Return a persistent thread pool: starting OpenMP and BLAS in new threads takes longer than a pass over X."""
    return ThreadPoolExecutor(threads)


def _map_threads(threads: int, work: Callable[[slice], T], parts: list[slice]) -> list[T]:
    """Return `work(part)` for every part, in order. `threads` threads, including the calling one, call `work`."""
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
        # Helpers that are still queued behind the work of other calls would find no parts left, so they are cancelled.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[place] for place in range(len(parts))]


class Passes:
    """Labels, inertia and distances of X, a validated NumPy array or CSR matrix, centered by the mean of the fit.

    Each thread centers a block of rows, and calls scikit-learn's code for that block on one thread. A CSR matrix is not
    centered, and scikit-learn's code processes it as a whole.

    Parameters
    ----------
    model : KMeans
    frame : Frame
    centers : numpy.ndarray of shape (k, d)
        The centers, centered by `frame`.
    """

    def __init__(self, model: KMeans, frame: Frame, centers: np.ndarray) -> None:
        self.frame, self.centers = frame, centers
        self._threads = model._n_threads

    def labels(self, X: Any) -> np.ndarray:
        """Return the index of the center nearest to each row, (n,), int32."""
        labels = np.empty(X.shape[0], np.int32)

        def work(block: np.ndarray, part: slice, size: float) -> None:
            exponent = overflow_exponent(block, self.centers, size)
            labels[part] = self._assigned(ldexp(block, -exponent), ldexp(self.centers, -exponent))

        if issparse(X):
            work(self._sparse(X), slice(None), 0.0)
        else:
            self._map_blocks(X, work)
        return labels

    def inertia(self, X: Any, weights: np.ndarray | None) -> float:
        """Return Σ w·‖x − c‖² over the rows and their nearest centers."""

        def work(block: np.ndarray, part: slice, _: float) -> float:
            part_of_weights = None if weights is None else weights[part]
            return float(self._assigned(block, self.centers, part_of_weights, with_inertia=True)[1])

        return work(self._sparse(X), slice(None), 0.0) if issparse(X) else float(np.sum(self._map_blocks(X, work)))

    def distances(self, X: Any) -> np.ndarray:
        """Return the distance of every row to every center, (n, k), in X's dtype."""
        if issparse(X):
            return euclidean_distances(X, self.centers)
        distances = np.empty((len(X), len(self.centers)), X.dtype)

        def work(block: np.ndarray, part: slice, _: float) -> None:
            distances[part] = distances_of(block, self.centers)

        self._map_blocks(X, work)
        return distances

    def _map_blocks(self, X: np.ndarray, work: Callable[[np.ndarray, slice, float], T]) -> list[T]:
        """Return `work(rows, slice, norm)` for every block of rows, in row order.

        `rows` are the centered rows of the block, `slice` their indices in X, and `norm` their Frobenius norm.

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
            size = frobenius_norm(block)
            if not np.isfinite(size):
                assert_all_finite(X, input_name="X", estimator_name="TSKMeans")
            with config_context(assume_finite=True):
                return work(block, part, size)

        parts = [slice(start, start + each) for start in range(0, len(X), each)]
        # Each thread runs BLAS on one thread only, because the threads together use all cores.
        with one_blas_thread():
            return _map_threads(self._threads, center, parts)

    def _sparse(self, X: Any) -> Any:
        return X.astype(self.frame.mean.dtype, copy=False)

    def _assigned(
        self, rows: Any, centers: np.ndarray, weights: np.ndarray | None = None, *, with_inertia: bool = False
    ) -> Any:
        """Return the labels of rows; with `with_inertia`, the labels and the inertia.

        `KMeans.predict` and `score` compute the same, but validate rows and parameters first, which takes as long as
        the assignment of a block.
        """
        if weights is None:
            # Labels do not depend on weights, so the weights are not initialized: at small d, that would take as long
            # as centering the rows.
            weights = (np.ones if with_inertia else np.empty)(rows.shape[0], rows.dtype)
        weights = np.ascontiguousarray(weights, rows.dtype)
        return _labels_inertia(rows, weights, centers, self._threads if issparse(rows) else 1, with_inertia)
