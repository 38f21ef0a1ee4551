"""Fit and prediction by scikit-learn's compiled Lloyd code, for arrays in memory on the CPU.

`KMeans.fit` subtracts the mean of X and adds it to the centers at the end, but stores neither the mean nor the centered
centers. This module records both, so that prediction centers its rows as the fit did and finds the same labels.
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
from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, frobenius_norm, is_in_range, ldexp, overflow_exponent
from tsapps.apps.kmeans.data.rows import check_real
from tsapps.apps.kmeans.initial_centers import draw_centers
from tsapps.apps.kmeans.open_engine import check_weights, open_engine
from tsapps.kernels.arrays import as_array, kind_of, refuse_masked, to_host
from tsapps.kernels.blas.threads import one_blas_thread, threads_kept

__all__ = ["Passes", "as_host", "fit", "narrow_indices", "recording_centers"]

T = TypeVar("T")

# Attribute of a model that holds the record of its `RecordingCenters` during a fit.
_RECORD = "_record"
# Bytes of rows that a thread centers at a time; and bytes of X up to which one thread does all the work.
_BLOCK_BYTES, _SMALL_BYTES = 4 << 20, 1 << 19


class RecordingCenters(np.ndarray):
    """Centers that record their values, and the mean, when `KMeans.fit` adds the mean to them in place."""

    record: dict[str, np.ndarray]

    @classmethod
    def of(cls, centers: np.ndarray, record: dict[str, np.ndarray]) -> RecordingCenters:
        """Return a copy of centers that, like all arrays derived from it, writes to `record`."""
        made = np.array(centers).view(cls)
        made.record = record
        return made

    def __array_finalize__(self, source: Any) -> None:
        """Share the record of `source`, the array that this one derives from."""
        self.record = getattr(source, "record", {})

    def __iadd__(self, mean: Any) -> RecordingCenters:  # type: ignore[misc]
        """Add the mean in place, and record the mean and the centers before the addition."""
        self.record["centers"], self.record["mean"] = np.array(self), np.array(mean)
        np.add(self, mean, out=self)
        return self


def recording_centers(model: KMeans, centers: np.ndarray) -> np.ndarray:
    """Return a copy of the initial centers, (k, d), of a running `fit`, as `RecordingCenters` of that fit."""
    return RecordingCenters.of(centers, model.__dict__.get(_RECORD, {}))


def fit(model: KMeans, X: Any, sample_weight: Any) -> FittedCenters | None:
    """Fit a model by `KMeans.fit`.

    Parameters
    ----------
    model : KMeans
        Its `_init_centroids` must return `recording_centers`.
    X : array, frame or sparse matrix of shape (n, d)
    sample_weight : array of shape (n,), optional

    Returns
    -------
    FittedCenters or None
        None if scikit-learn's result is unreliable; see `_is_sound`. The random state is then restored.
    """
    weights = as_host(sample_weight, "sample_weight")
    check_weights(weights)
    generator = check_random_state(model.random_state)  # for an int: a new generator
    state, given = generator.get_state(), {"init": model.init, "n_init": model.n_init}
    record: dict[str, np.ndarray] = {}
    model.__dict__[_RECORD] = record
    model.set_params(**_init_for_scikit_learn(**given, sample_weight=weights))
    fitted = None
    try:
        # Overflow shows in the result.
        with threads_kept(), np.errstate(over="ignore", invalid="ignore"):
            KMeans.fit(model, narrow_indices(as_host(X)), sample_weight=weights)
        fitted = _fitted_centers(np.array(model.cluster_centers_), record)
        model.cluster_centers_ = fitted.restored.copy()
    except ValueError:
        if not _overflows(as_host(X)):
            raise
    finally:
        model.set_params(**given)
        del model.__dict__[_RECORD]
    if fitted is None or not _is_sound(fitted, model.labels_, model.inertia_):
        generator.set_state(state)
        return None
    return fitted


def _fitted_centers(found: np.ndarray, record: dict[str, np.ndarray]) -> FittedCenters:
    """Return the fitted centers from their record; for sparse X it is empty, since `KMeans.fit` does not center it."""
    centered, frame = record.get("centers", found), Frame(record.get("mean", np.zeros_like(found[0])))
    return FittedCenters(frame, centered, frame.restored(centered))


def _is_sound(fitted: FittedCenters, labels: np.ndarray, inertia: float) -> bool:
    """Tell whether the result of `KMeans.fit` is reliable.

    With an empty cluster, its labels may belong to earlier centers. If squared distances overflow or underflow, they
    may be arbitrary.
    """
    centers = fitted.centered.astype(np.float64)
    if not np.isfinite(centers).all() or not np.bincount(labels, minlength=len(centers)).all():
        return False
    with np.errstate(over="ignore"):
        largest = float((centers * centers).sum(axis=1).max())
    n = len(labels)
    return is_in_range(fitted.centered.dtype, largest + inertia / n, 4 * (n * largest + inertia))


def _overflows(X: Any) -> bool:
    """Tell whether X is a NumPy array of finite floats whose squared distances may overflow."""
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
    """Return a persistent thread pool: OpenMP and BLAS take longer to start in a new thread than a pass takes."""
    return ThreadPoolExecutor(threads)


def _map_threads(threads: int, work: Callable[[slice], T], parts: list[slice]) -> list[T]:
    """Return `work(part)` for every part, in order; the calling thread is one of the `threads`."""
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
        # Helpers still queued behind the work of other calls have no parts left, so they are cancelled.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return [results[place] for place in range(len(parts))]


class Passes:
    """Passes over X, a validated NumPy array or CSR matrix, that center its rows by the mean of the fit.

    Each thread centers a block of rows, and calls scikit-learn's single-threaded code for it. A CSR matrix is not
    centered, and is passed as a whole.

    Parameters
    ----------
    model : KMeans
    frame : Frame
    centers : numpy.ndarray of shape (k, d)
        Centered by the frame.
    """

    def __init__(self, model: KMeans, frame: Frame, centers: np.ndarray) -> None:
        self.frame, self.centers = frame, centers
        self._threads = model._n_threads

    def labels(self, X: Any) -> np.ndarray:
        """Return the label of the nearest center to every row, (n,), int32."""
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
        """Return `work(rows, slice, norm)` for every block of centered rows and its Frobenius norm, in row order.

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
        # BLAS runs on one thread in each of these threads.
        with one_blas_thread():
            return _map_threads(self._threads, center, parts)

    def _sparse(self, X: Any) -> Any:
        return X.astype(self.frame.mean.dtype, copy=False)

    def _assigned(
        self, rows: Any, centers: np.ndarray, weights: np.ndarray | None = None, *, with_inertia: bool = False
    ) -> Any:
        """Return the labels of rows, or with `with_inertia` their labels and inertia.

        `KMeans.predict` and `score` do the same, but their validation of rows and parameters takes as long as the
        assignment of a block.
        """
        if weights is None:
            # Labels do not depend on weights. At small d, initializing them would take as long as centering the rows.
            weights = (np.ones if with_inertia else np.empty)(rows.shape[0], rows.dtype)
        weights = np.ascontiguousarray(weights, rows.dtype)
        return _labels_inertia(rows, weights, centers, self._threads if issparse(rows) else 1, with_inertia)
