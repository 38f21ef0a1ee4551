"""`TSMiniBatchKMeans`: scikit-learn's `MiniBatchKMeans` estimator, also for files of any size and on a GPU.

On the CPU, scikit-learn's compiled code does every step; for arrays in memory, its own `fit` and `partial_fit` run. On
a GPU, the engine of `TSKMeans` labels and sums each batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
from sklearn.cluster import MiniBatchKMeans
from sklearn.utils import check_random_state
from sklearn.utils._openmp_helpers import _openmp_effective_n_threads

from tsapps.apps.kmeans.data.frame import FittedCenters, Frame
from tsapps.apps.kmeans.data.rows import Rows, as_rows
from tsapps.apps.kmeans.distributed.collections import is_dask
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.minibatch.draws import quick_draws
from tsapps.apps.kmeans.minibatch.fit import first_centers, fit_batches, labels_and_inertia, mean_variance
from tsapps.apps.kmeans.minibatch.steps import BatchSteps, EngineSteps, ScikitLearnSteps
from tsapps.apps.kmeans.open_engine import check_sample_weight, check_weights, choose, compute_dtype, open_engine
from tsapps.apps.kmeans.prediction import Prediction
from tsapps.apps.kmeans.scikit_learn import as_host, init_on_host, narrow_indices
from tsapps.apps.kmeans.validation import check_parameters, validated
from tsapps.kernels.arrays import as_array, like, to_host
from tsapps.kernels.blas.threads import is_forked, threads_kept
from tsapps.kernels.devices import Choice

__all__ = ["TSMiniBatchKMeans"]


class TSMiniBatchKMeans(Prediction, MiniBatchKMeans):
    """Mini-batch K-means [1]_: a drop-in replacement for scikit-learn's `MiniBatchKMeans`, for files and GPUs too.

    A step reads `batch_size` random rows, labels them, and moves the centers a little. So a fit reads a fraction of X,
    and its clustering is worse than that of `TSKMeans`, usually by some percent of the inertia. `partial_fit` takes the
    batches from the caller.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters k.
    init : {"k-means++", "random"}, callable or array of shape (k, d), default="k-means++"
        The initial centers. "k-means++" and "random" choose from `init_size` random rows. A callable receives these
        rows, k and ``random_state=``.
    max_iter : int, default=100
        Maximum number of passes over as many rows as X has.
    batch_size : int, default=1024
        Number of rows of a step. On a GPU, larger batches use it better.
    verbose : int, default=0
        If positive, print the inertia of every batch.
    compute_labels : bool, default=True
        Whether `fit` labels all rows at the end, by one pass over X.
    random_state : int, RandomState or None, default=None
        Source of the random draws; an int makes them reproducible.
    tol : float, default=0.0
        If positive, a fit ends when the squared center shift of a step, summed over the centers, is at most `tol` times
        the mean variance of the features. The variance takes one pass over X.
    max_no_improvement : int or None, default=10
        A fit ends after so many batches without a new lowest average of the batches' inertia; None turns this off.
    init_size : int or None, default=None
        Number of random rows from which initial centers are chosen; 3 · `batch_size` by default, or 3 k if that is less
        than k.
    n_init : "auto" or int, default="auto"
        Number of initial centers that are tried; those with the lowest inertia of `init_size` random rows are kept.
        "auto" means 1 for "k-means++" and arrays, otherwise 3.
    reassignment_ratio : float, default=0.01
        Centers that have seen less than this fraction of the samples of the largest cluster are replaced by random rows
        now and then.
    device : {"auto", "cpu", "cuda", "cuda:i"}, default="auto"
        "auto" selects the GPU that holds X; if X is in host memory, a GPU if one is present, otherwise the CPU.

    Attributes
    ----------
    cluster_centers_ : array of shape (k, d)
    labels_ : array of shape (n,), int32
        Index of the nearest final center; after `partial_fit`, of the rows of the last batch. Only with
        `compute_labels`.
    inertia_ : float
        Σ w·‖x − c‖² over the samples and their centers. Without `compute_labels`, an estimate from recent batches.
    n_iter_ : int
        Number of passes over as many rows as X has, rounded up.
    n_steps_ : int
        Number of batches.
    n_features_in_ : int
        Number of features d.
    feature_names_in_ : array of shape (d,)
        Column names of X, if it is a frame with string column names.
    device_ : str
        Device of the last call of `fit` or `partial_fit`: "cpu" or "cuda:i".

    Notes
    -----
    X may be what `TSKMeans` accepts, but for Dask collections. The working type and the kinds of returned arrays are
    those of `TSKMeans`.

    On the CPU, centers and labels of arrays have scikit-learn's bits. For a matrix of `tsapps.open_matrix` on the
    CPU, `fit` draws the rows that scikit-learn 1.8 or later draws of an array, reads only these, and has the
    centers of the array's fit, bit for bit; a positive `tol` can end it otherwise, as the variance may differ in
    its last bits. Above 8 MiB, labels may differ for samples halfway between two centers. Single rows are cheap to
    read where a file has them as plain bytes or in chunks: .npy, .safetensors, HDF5. Of Parquet files, a batch
    reads the row groups of its rows, and of text and .npz files everything up to its last row: read such files into
    memory (``open_matrix(path).read()``), or convert them. `partial_fit` reads the whole matrix as one batch.

    On a GPU, the random rows from which initial centers are chosen, and those of batches, are those of the CPU: they
    depend on `random_state`, n and the weights only. The choice of "k-means++" and "random" is scikit-learn's own up to
    4 million rows times clusters. Rows that replace centers of low counts are the same as long as the counts are. So a
    float64 fit differs from the CPU's by rounding, unless a sample is as far from one center as from another, such as
    after two centers were replaced by the same row.

    Rows are checked for NaN and infinities when they are read. Without `compute_labels`, `fit` reads only some.

    References
    ----------
    .. [1] Sculley, "Web-scale k-means clustering", WWW 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from tsapps import TSMiniBatchKMeans
    >>> X = np.repeat([[0.0, 0], [0, 9], [9, 0]], 1000, axis=0)
    >>> X += np.random.default_rng(0).normal(size=X.shape)
    >>> kmeans = TSMiniBatchKMeans(n_clusters=3, batch_size=100, random_state=0, device="cpu").fit(X)
    >>> np.bincount(kmeans.labels_)
    array([1000, 1000, 1000])
    >>> kmeans.n_steps_ < 100
    True

    Batches that arrive one after the other:

    >>> online = TSMiniBatchKMeans(n_clusters=3, random_state=0, device="cpu")
    >>> for batch in np.array_split(np.random.default_rng(1).permutation(X), 30):
    ...     online = online.partial_fit(batch)
    >>> online.predict([[0, 0], [0, 9], [9, 0]]).tolist() == kmeans.predict([[0, 0], [0, 9], [9, 0]]).tolist()
    True
    """

    tol: float

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        max_iter: int = 100,
        batch_size: int = 1024,
        verbose: int = 0,
        compute_labels: bool = True,
        random_state: Any = None,
        tol: float = 0.0,
        max_no_improvement: int | None = 10,
        init_size: int | None = None,
        n_init: Any = "auto",
        reassignment_ratio: float = 0.01,
        device: str = "auto",
    ) -> None:
        super().__init__(
            n_clusters,
            init=init,
            max_iter=max_iter,
            batch_size=batch_size,
            verbose=verbose,
            compute_labels=compute_labels,
            random_state=random_state,
            tol=tol,
            max_no_improvement=max_no_improvement,
            init_size=init_size,
            n_init=n_init,
            reassignment_ratio=reassignment_ratio,
        )
        self.device = device

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())  # which takes as long as a step

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TSMiniBatchKMeans:  # noqa: ARG002
        """Cluster the samples of X by random batches.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
        y : ignored
        sample_weight : array of shape (n,), optional
            Non-negative weights; 1 by default. Rows are drawn with probabilities proportional to them. Not used by an
            `init` that is a callable or an array.

        Returns
        -------
        TSMiniBatchKMeans
            The fitted estimator itself.

        Raises
        ------
        ValueError
            If a parameter is out of its range, X is a Dask collection, has a NaN or an infinity or fewer samples than
            clusters, or weights are negative, not finite or all zero.
        NoDeviceError
            If a requested GPU is not present.
        MemoryError
            If the CPU's memory does not hold the labels and the temporaries of a pass.
        """
        choice = self._begin(X)
        if self._by_scikit_learn and not isinstance(X, Rows):
            with quick_draws(self):
                self._run_scikit_learn(MiniBatchKMeans.fit, X, sample_weight)
        else:
            rows = as_rows(validated(self, X, reset=True))
            dtype = compute_dtype(rows.dtype, on_gpu=choice.is_gpu)
            weights = _weights_on_host(sample_weight, rows.shape[0], dtype)
            opened = partial(open_engine, dtype=dtype, device=choice.device)
            self._check_params_vs_input(rows)
            if self.tol > 0:
                self._tol = self.tol * mean_variance(opened, rows, dtype, on_gpu=choice.is_gpu)
            with init_on_host(self, weights) if self._by_scikit_learn else nullcontext():
                centers, inertia = fit_batches(self, rows, weights, self._steps(opened, dtype), dtype)
            self._set_centers(centers)
            self.inertia_ = inertia
            if self.compute_labels:
                self._label(opened, rows, weights, dtype, choice)
        return self._as_kind_of(X)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TSMiniBatchKMeans:  # noqa: ARG002
        """Move the centers by one step, whose batch is X. The first call chooses the initial centers from X.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
        y : ignored
        sample_weight : array of shape (n,), optional
            Non-negative weights; 1 by default. Not used by an `init` that is a callable or an array.

        Returns
        -------
        TSMiniBatchKMeans
            The estimator itself.

        Raises
        ------
        ValueError
            As for `fit`; or if X has other features, or on the CPU another working type, than earlier batches.
        NoDeviceError
            If a requested GPU is not present.
        """
        choice = self._begin(X)
        if self._by_scikit_learn:
            if isinstance(X, Rows):
                X = X.rows(np.arange(X.shape[0]))
            self._run_scikit_learn(MiniBatchKMeans.partial_fit, X, sample_weight)
        else:
            self._step_by_engine(X, sample_weight, choice)
        return self._as_kind_of(X)

    def _begin(self, X: Any) -> Choice:
        """Check the parameters, choose the device for X, and record both it and whether scikit-learn's code runs."""
        if is_dask(X):
            raise ValueError(
                "mini-batches are not drawn from Dask collections: use TSKMeans, or call partial_fit with the chunks, "
                "such as X.blocks[i].compute()"
            )
        check_parameters(self)
        choice = self._choice(X)
        # scikit-learn's OpenMP may hang after a fork.
        self.device_, self._by_scikit_learn = choice.device, not choice.is_gpu and not is_forked()
        return choice

    def _run_scikit_learn(self, method: Any, X: Any, sample_weight: Any) -> None:
        """Call `MiniBatchKMeans.fit` or `partial_fit` with arrays in host memory."""
        weights = as_host(sample_weight, "sample_weight")
        check_weights(weights)
        if hasattr(self, "cluster_centers_"):
            self.cluster_centers_ = np.require(to_host(as_array(self.cluster_centers_)), requirements=["C", "W"])
        try:
            with init_on_host(self, weights), threads_kept(), columns_named(X):
                method(self, narrow_indices(as_host(X)), sample_weight=weights)
        except ValueError as error:
            if "dtype mismatch" not in str(error):
                raise
            dtype = self.cluster_centers_.dtype
            raise ValueError(
                f"X has another working type than the batches before, {dtype}: convert it, for example by "
                f"X.astype('{dtype}')"
            ) from error
        self._set_centers(self.cluster_centers_)

    def _step_by_engine(self, X: Any, sample_weight: Any, choice: Choice) -> None:
        """Do one step by the engine of a device."""
        is_first = not hasattr(self, "cluster_centers_")
        rows = as_rows(validated(self, X, reset=is_first))
        if is_first:
            dtype = compute_dtype(rows.dtype, on_gpu=choice.is_gpu)
        else:
            centers = to_host(as_array(self.cluster_centers_))
            dtype = centers.dtype
        weights = _weights_on_host(sample_weight, rows.shape[0], dtype)
        opened = partial(open_engine, dtype=dtype, device=choice.device)
        steps = self._steps(opened, dtype)
        self._random_state = getattr(self, "_random_state", check_random_state(self.random_state))
        if is_first:
            self._check_params_vs_input(rows)
            centers = first_centers(self, rows, weights, steps, self._random_state)
            self._counts, self._n_since_last_reassign = np.zeros(self.n_clusters, dtype), 0
        reassign = self._random_reassign()
        centers, _ = steps.update(rows, weights, centers, self._counts, self._random_state, reassign=reassign)
        self._set_centers(centers)
        if self.compute_labels:
            self._label(opened, rows, weights, dtype, choice)
        self.n_steps_ = getattr(self, "n_steps_", 0) + 1

    def _check_params_vs_input(self, X: Any) -> None:
        """Set what scikit-learn derives from the parameters and the shape of X, and the number of threads.

        `_tol` is left at 0 for a matrix that is read in blocks, of which scikit-learn cannot compute the variance.
        """
        self._n_threads = _openmp_effective_n_threads()
        if not isinstance(X, Rows):
            super()._check_params_vs_input(X)
            return
        tol, self.tol = self.tol, 0.0
        try:
            super()._check_params_vs_input(np.broadcast_to(0.0, X.shape))
        finally:
            self.tol = tol

    def _steps(self, opened: Any, dtype: np.dtype) -> BatchSteps:
        return ScikitLearnSteps(self, dtype) if self._by_scikit_learn else EngineSteps(self, opened, dtype)

    def _set_centers(self, centers: np.ndarray) -> None:
        """Set the centers, and those that `predict` uses: not centered if scikit-learn's code computed them."""
        self.cluster_centers_, self._n_features_out = centers, len(centers)
        self._fitted_centers = None
        if self._by_scikit_learn:
            kept = centers.copy()  # the caller may write to `cluster_centers_`
            self._fitted_centers = FittedCenters(Frame(np.zeros_like(kept[0])), kept, kept)

    def _label(self, opened: Any, rows: Rows, weights: Any, dtype: np.dtype, choice: Choice) -> None:
        fitted = self._current_centers()
        found = labels_and_inertia(opened, rows, weights, fitted, dtype, on_gpu=choice.is_gpu)
        self.labels_, self.inertia_ = found

    def _as_kind_of(self, X: Any) -> TSMiniBatchKMeans:
        """Convert the arrays of the result to the kind of X; return the estimator."""
        self.cluster_centers_ = like(self.cluster_centers_, X)
        if self.compute_labels:
            self.labels_ = like(self.labels_, X)
        return self

    def _choice(self, X: Any) -> Choice:
        return choose(X, self.device, several=False)

    def _open(self, X: Any, sample_weight: Any = None, exponent: int = 0) -> Engine:
        return open_engine(X, sample_weight=sample_weight, device=self.device, exponent=exponent)


def _weights_on_host(sample_weight: Any, n_samples: int, dtype: np.dtype) -> np.ndarray | None:
    """Return checked weights, (n_samples,), in host memory; None if every sample has weight 1."""
    weights = check_sample_weight(sample_weight, n_samples)
    return None if weights is None else np.ascontiguousarray(to_host(weights), dtype)
