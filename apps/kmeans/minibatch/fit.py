"""Mini-batch fits by other code than scikit-learn's `fit`: for matrices read in blocks, and on a GPU.

The attributes of a model that monitor convergence are scikit-learn's, and so is the code that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from tsapps.apps.kmeans.data.blocks import SMALL
from tsapps.apps.kmeans.data.frame import FittedCenters, ldexp
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.minibatch.draws import BatchDraws, DrawnRows, drawn_rows
from tsapps.apps.kmeans.minibatch.steps import BatchSteps
from tsapps.apps.kmeans.prediction import assign
from tsapps.kernels.devices import available_cores

__all__ = ["first_centers", "fit_batches", "labels_and_inertia", "mean_variance"]

# Elements per core of a block of rows in host memory: a thread of a pass takes as many at a time.
_BLOCK_ELEMENTS = 1 << 21


def first_centers(
    model: Any, rows: Rows, weights: np.ndarray | None, steps: BatchSteps, random_state: np.random.RandomState
) -> np.ndarray:
    """Return initial centers, (k, d), from `model._init_size` random rows, or all if there are no more."""
    n, size = rows.shape[0], model._init_size
    indices = random_state.randint(0, n, size) if size < n else np.arange(n)
    return steps.initial(drawn_rows(rows, indices), None if weights is None else weights[indices], random_state)


def _best_centers(
    model: Any, rows: Rows, weights: np.ndarray | None, steps: BatchSteps, random_state: np.random.RandomState
) -> np.ndarray:
    """Return those of `model._n_init` initial centers with the lowest inertia of random rows."""
    indices = random_state.randint(0, rows.shape[0], model._init_size)
    batch, of_batch = drawn_rows(rows, indices), None if weights is None else weights[indices]
    best, least = np.zeros(0), np.inf
    for number in range(model._n_init):
        if model.verbose:
            print(f"Init {number + 1}/{model._n_init} with method {model.init}")
        centers = first_centers(model, rows, weights, steps, random_state)
        inertia = steps.inertia(batch, of_batch, centers)
        if model.verbose:
            print(f"Inertia for init {number + 1}/{model._n_init}: {inertia}")
        if number == 0 or inertia < least:
            best, least = centers, inertia
    return best


def fit_batches(
    model: Any, rows: Rows, weights: np.ndarray | None, steps: BatchSteps, dtype: np.dtype
) -> tuple[np.ndarray, float]:
    """Fit a model to random batches, with the draws and the stopping rules of scikit-learn.

    Parameters
    ----------
    model : MiniBatchKMeans
        Its parameters have been checked; `_counts`, `n_steps_`, `n_iter_` and the attributes that monitor convergence
        are set.
    rows : Rows of shape (n, d)
    weights : numpy.ndarray of shape (n,), optional
        A row is drawn with a probability proportional to its weight.
    steps : BatchSteps
    dtype : {float32, float64}

    Returns
    -------
    centers : numpy.ndarray of shape (k, d)
    inertia : float
        Estimate of the inertia of all rows from the batches: their weight times the average of recent batches.
    """
    (n, _), size = rows.shape, model._batch_size
    random_state = check_random_state(model.random_state)
    centers = _best_centers(model, rows, weights, steps, random_state)
    model._counts = np.zeros(model.n_clusters, dtype)
    model._ewa_inertia = model._ewa_inertia_min = None
    model._no_improvement = model._n_since_last_reassign = 0
    each = np.broadcast_to(np.ones((), dtype), n) if weights is None else weights  # the first takes no memory
    total, n_steps = each.sum(), model.max_iter * n // size
    draws = BatchDraws(np.broadcast_to(each[0] / total, n) if weights is None else weights / total)
    for step in range(n_steps):
        batch = drawn_rows(rows, draws.draw(random_state, size))
        reassign = model._random_reassign()
        given, (centers, inertia) = (
            centers,
            steps.update(batch, None, centers, model._counts, random_state, reassign=reassign),
        )
        shift = np.sum((centers - given) ** 2) if model._tol > 0 else 0
        if model._mini_batch_convergence(step, n_steps, n, shift, inertia):
            break
    model.n_steps_ = step + 1
    model.n_iter_ = int(np.ceil((step + 1) * size / n))
    average = inertia / size if model._ewa_inertia is None else model._ewa_inertia
    return centers, float(average) * float(total)


def _engines(
    open_rows: Callable[..., Engine], rows: Rows, weights: np.ndarray | None, dtype: np.dtype, *, on_gpu: bool
) -> Iterator[tuple[slice, Engine]]:
    """Yield engines for consecutive rows: for all at once on a GPU and for small matrices, else for block after block.

    An engine of the CPU may hold a copy of its rows; blocks keep that small. Labels do not depend on the blocks.
    """
    n, d = rows.shape
    if on_gpu or n * d * dtype.itemsize <= SMALL:
        yield slice(0, n), open_rows(rows, sample_weight=weights)
        return
    for start, block in rows.blocks(max(1, available_cores() * _BLOCK_ELEMENTS // d)):
        part = slice(start, start + len(block))
        read = DrawnRows(rows, range(part.start, part.stop), block)
        # "fused": the last block may be small, whose labels would follow another rounding.
        yield part, open_rows(read, sample_weight=None if weights is None else weights[part], engine="fused")


def labels_and_inertia(
    open_rows: Callable[..., Engine],
    rows: Rows,
    weights: np.ndarray | None,
    fitted: FittedCenters,
    dtype: np.dtype,
    *,
    on_gpu: bool,
) -> tuple[Any, float]:
    """Label all rows by one pass; return the labels, (n,), int32, on the device, and the inertia.

    Raises
    ------
    ValueError
        If a row has a NaN or an infinity; the message names its row and column.
    """
    labels, inertia, n = np.zeros(0, np.int32), 0.0, rows.shape[0]
    exponent = fitted.frame.exponent
    for part, opened in _engines(partial(open_rows, exponent=exponent), rows, weights, dtype, on_gpu=on_gpu):
        with opened as engine:
            centers, step, _ = assign(engine, fitted)
            inertia += engine.data.inertia(centers, step.labels)
            if part == slice(0, n):
                labels = step.labels
            else:
                labels = labels if len(labels) else np.empty(n, np.int32)
                labels[part] = step.labels
    return labels, float(ldexp(inertia, 2 * exponent))


def mean_variance(open_rows: Callable[..., Engine], rows: Rows, dtype: np.dtype, *, on_gpu: bool) -> float:
    """Return the mean variance of the features, by one pass over the rows."""
    n, means, variances = [], [], []
    for part, opened in _engines(open_rows, rows, None, dtype, on_gpu=on_gpu):
        with opened as engine:
            mean, variance = engine.data.moments()
        n.append(part.stop - part.start)
        means.append(mean)
        variances.append(variance)
    mean = np.average(means, axis=0, weights=n)
    return float(np.average(variances + np.mean((means - mean) ** 2, axis=1), weights=n))
