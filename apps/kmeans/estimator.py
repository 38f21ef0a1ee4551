"""`TSKMeans`: scikit-learn's `KMeans` estimator on the CPU and on GPUs.

On the CPU, scikit-learn's compiled `KMeans.fit` clusters arrays in memory. The NumPy engine clusters what scikit-learn
cannot, such as matrices that are read in blocks. On a GPU, the GPU engine clusters all data. The attribute `device_`
names the device that `fit` used.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils._param_validation import StrOptions

from tsapps.apps.kmeans import lloyd, scikit_learn
from tsapps.apps.kmeans.checkpoint import Checkpoint, checkpoint_of
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.distributed.collections import for_collections
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.open_engine import check_metric, check_precision, choose, open_engine
from tsapps.apps.kmeans.prediction import Prediction
from tsapps.apps.kmeans.report.reporting import Reporting
from tsapps.apps.kmeans.scikit_learn import Passes
from tsapps.apps.kmeans.validation import check_parameters, validated, validated_on_host
from tsapps.kernels.arrays import gpu_index, is_sparse, like
from tsapps.kernels.blas.threads import is_forked
from tsapps.kernels.devices import Choice

__all__ = ["TSKMeans"]


class TSKMeans(Prediction, Reporting, KMeans):
    """K-means clustering: a drop-in replacement for scikit-learn's `KMeans` that also runs on GPUs.

    With the same `random_state`, `TSKMeans` and `sklearn.cluster.KMeans` find the same clustering. Exception: for
    float32 data, other initial centers may be drawn for some seeds, because sums are rounded differently: on the CPU
    for matrices of `tsapps.open_matrix` and with ``protect=True``, and on a GPU above 8 MiB or for many samples. Ties
    are a second exception; see docs/promises.md.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters k.
    init : {"k-means++", "k-means||", "random"}, callable or array of shape (k, d), default="k-means++"
        The initial centers. "k-means++" is the greedy variant, as in scikit-learn. "k-means||" [1]_, which scikit-learn
        does not offer, samples 2k candidates in each of five passes over X and chooses k of them; "k-means++" makes k
        passes. A callable receives the centered X, k and ``random_state=``.
    n_init : "auto" or int, default="auto"
        Number of runs from different initial centers; the run with the lowest inertia is kept. "auto" means 1 for
        "k-means++", "k-means||" and arrays, otherwise 10.
    max_iter : int, default=300
        Maximum number of iterations of a run.
    tol : float, default=1e-4
        A run converges when the squared center shift, summed over the centers, is at most `tol` times the mean variance
        of the features, or when no label changes.
    verbose : int, default=0
        If positive, print the inertia of every iteration.
    random_state : int, RandomState or None, default=None
        Source of the random draws; an int makes them reproducible.
    copy_x : bool, default=True
        On the CPU, False allows centering X in place and restoring it afterwards. X is never written on a GPU.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Both find the same clustering except for ties; on a GPU, the same bits. On a GPU, iterations can skip samples
        whose nearest center cannot have changed, by Hamerly's bounds [3]_. Bounds take up to 7 bytes per sample, and
        turn themselves off when they save no time. They require ``precision="exact"``, our own kernels and 2 to 64
        clusters. Up to 32 features (64 for 16-bit types), they also require that a sample is a multiple of 16 bytes,
        and at least 32. "elkan" uses bounds wherever possible. "lloyd" uses them for up to 256 features and at least
        2²⁶ elements in X, where they usually save time.
    device : {"auto", "cpu", "cuda", "cuda:i", "cuda:i,j,…", "cuda:all"}, default="auto"
        "auto" selects the GPU that holds X; if X is in host memory, a GPU if one is present, otherwise the CPU. The
        last two forms distribute X over several GPUs: for shapes of our kernels, with the bits of one GPU.
    engine : {"auto", "fused", "cublas"}, default="auto"
        The kernels of a GPU fit. "fused" selects our own kernels, and "cublas" Lloyd's algorithm by cuBLAS products,
        for comparison. "auto" selects our own kernels, except for small data. Shapes that our kernels do not support
        use cuBLAS. On the CPU, "fused" selects the arithmetic of our kernels, with the bits of a GPU; see Notes.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is spherical K-means [2]_: samples and centers are scaled to norm 1, and a sample belongs to the center
        with the largest cosine. X is neither written nor centered.
    precision : {"exact", "tf32"}, default="exact"
        "tf32" accepts labels of float32 data from tf32 products (11 significant bits) on a GPU, without certifying them
        or rescoring ambiguous samples in float64. A few labels in 10,000 may then belong to the second nearest center.
        Centers and `inertia_` are exact for these labels, and every run gives the same bits. Labels stay exact on the
        CPU, with ``engine="cublas"``, and for small data, other dtypes, and up to 16 features with few clusters.
    protect : bool, default=False
        Check every iteration and the result for computation errors, and recompute after an error. Cluster sums and
        centers are computed twice or checked exactly. Each iteration compares another subset of the rows with all
        centers. Labels and centers of a run are computed twice. Without errors, the checks change no bit of the result.
        On the CPU, however, the NumPy engine replaces scikit-learn's `fit` for arrays; see the exceptions above. Not
        available with ``precision="tf32"`` for float32 data on a GPU.
    checkpoint : str or path-like, default=None
        Directory in which `fit` saves its state about once a minute, so that a fit that was killed continues to the
        same bits: `fit` with the directory of an unfinished fit continues it. Parameters and data must then be the
        same. The directory must be new or empty otherwise. On the CPU, the NumPy engine replaces scikit-learn's `fit`.

    Attributes
    ----------
    cluster_centers_ : array of shape (k, d)
        Of norm 1 for the cosine metric. Float64 for float32 data if float32 would lose more than 2⁻¹² of the centers'
        distances from the mean.
    labels_ : array of shape (n,), int32
        Index of the nearest final center; the lowest index on a tie.
    inertia_ : float
        Σ w·‖x − c‖² over the samples and their centers. For "cosine", Σ w·(1 − cos(x, c)), which is half of that sum
        for samples of norm 1.
    n_iter_ : int
        Number of iterations of the best run.
    n_features_in_ : int
        Number of features d.
    feature_names_in_ : array of shape (d,)
        Column names of X, if it is a frame with string column names.
    device_ : str
        Device of `fit`: "cpu", "cuda:i" or "cuda:i,j,…".
    faults_ : int
        Number of faults that `protect` found and recomputed; 0 without it.

    Notes
    -----
    X may be a NumPy, CuPy or torch array, any array with DLPack or ``__cuda_array_interface__``, a pandas or polars
    frame, a sparse matrix, or a matrix of `tsapps.open_matrix`, which need not fit in memory. Masked arrays are not
    supported, even if nothing is masked, also inside lists and from a callable `init`. Returned arrays (`labels_`,
    `cluster_centers_`, and those of `predict` and `transform`) are of the same kind as X: CuPy for CuPy, torch for
    torch on the same device, otherwise NumPy.

    The working type is float32 for float32 data, and for float16 and bfloat16 on a GPU; otherwise float64.

    References
    ----------
    .. [1] Bahmani, Moseley, Vattani, Kumar and Vassilvitskii, "Scalable k-means++", PVLDB 5 (2012).
    .. [2] Dhillon and Modha, "Concept decompositions for large sparse text data using clustering", Machine Learning 42
       (2001).
    .. [3] Hamerly, "Making k-means even faster", SDM 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from tsapps import TSKMeans
    >>> X = np.array([[1.0, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]])
    >>> kmeans = TSKMeans(n_clusters=2, random_state=0, device="cpu").fit(X)
    >>> kmeans.labels_
    array([1, 1, 1, 0, 0, 0], dtype=int32)
    >>> kmeans.predict([[0, 0], [12, 3]])
    array([1, 0], dtype=int32)
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **KMeans._parameter_constraints,
        "init": [StrOptions({"k-means++", "k-means||", "random"}), callable, "array-like"],
        "protect": ["boolean"],
        "checkpoint": [str, os.PathLike, None],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: Any = "k-means++",
        n_init: Any = "auto",
        max_iter: int = 300,
        tol: float = 1e-4,
        verbose: int = 0,
        random_state: Any = None,
        copy_x: bool = True,
        algorithm: str = "lloyd",
        device: str = "auto",
        engine: str = "auto",
        metric: str = "euclidean",
        precision: str = "exact",
        protect: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            verbose=verbose,
            random_state=random_state,
            copy_x=copy_x,
            algorithm=algorithm,
        )
        self.device = device
        self.engine = engine
        self.metric = metric
        self.precision = precision
        self.protect = protect
        self.checkpoint = checkpoint

    @classmethod
    @cache
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())  # which takes as long as an iteration

    @for_collections
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TSKMeans:  # noqa: ARG002 (scikit-learn's API)
        """Cluster the samples of X.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
        y : ignored
        sample_weight : array of shape (n,), optional
            Non-negative weights; 1 by default. Not used by an `init` that is a callable or an array.

        Returns
        -------
        TSKMeans
            The fitted estimator itself.

        Raises
        ------
        ValueError
            If a parameter is out of its range, X has a NaN or an infinity or fewer samples than clusters, or, for
            "cosine", X has a row of zeros; or if `checkpoint` is finished, damaged, of another fit or program.
        NoDeviceError
            If a requested GPU is not present, or several GPUs cannot fit this X together.
        MemoryError
            If the CPU's memory does not hold the labels and the temporaries of a fit.
        FaultError
            If `protect` finds the same step wrong again after every recomputation.
        """
        check_metric(self.metric)
        check_precision(self.precision)
        choice = self._choice(X)
        # scikit-learn has no spherical K-means, its iterations cannot be checked, and its OpenMP may hang after a fork.
        simple = self.metric == "euclidean" and self.engine == "auto" and not self.protect and not is_forked()
        simple = simple and not choice.is_gpu and not isinstance(X, Rows) and self.checkpoint is None
        self.faults_, self.device_ = 0, choice.device
        fitted = scikit_learn.fit(self, X, sample_weight) if simple else None
        self._by_scikit_learn = fitted is not None
        if fitted is None:
            self._fit_engine(X, sample_weight)
        else:
            self._fitted_centers = fitted
            if self.algorithm == "elkan":  # on a tie, scikit-learn's bounds keep the earlier label, unlike `predict`
                self.labels_ = Passes(self, fitted.frame, fitted.centered).labels(validated_on_host(self, X))
        self.labels_ = like(self.labels_, X)
        self.cluster_centers_ = like(self.cluster_centers_, X)
        if not np.isfinite(self.inertia_):
            warnings.warn("the inertia overflows float64; labels and centers are correct", RuntimeWarning, stacklevel=2)
        return self

    def _init_centroids(self, *arguments: Any, **options: Any) -> np.ndarray:
        """Return a copy of scikit-learn's initial centers that records the mean that `KMeans.fit` adds to it."""
        return scikit_learn.recording_centers(self, super()._init_centroids(*arguments, **options))

    def _fit_engine(self, X: Any, sample_weight: Any) -> None:
        check_parameters(self)
        checkpoint = checkpoint_of(self)
        given = validated(self, X, reset=True)
        best = self._fit_with(self._open(given, sample_weight), checkpoint, center=not is_sparse(given))
        # `_fitted_centers` has the array itself, which the caller must not write to.
        self.cluster_centers_ = best.centers.copy() if gpu_index(X) is None else best.centers

    def _fit_with(self, engine: Engine, checkpoint: Checkpoint | None, *, center: bool = True) -> lloyd.Clustering:
        """Fit by an engine, set the attributes of the result but for the centers, and return the result."""
        if self.verbose:
            print("Initialization complete")
        best = lloyd.fit(
            engine,
            self.n_clusters,
            init=self.init,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=scikit_learn.random_state_of(self),
            center=center,
            progress=print if self.verbose else None,
            protect=self.protect,
            checkpoint=checkpoint,
        )
        self._fitted_centers = best.fitted
        self.labels_, self.inertia_ = best.labels, best.inertia
        self.n_iter_, self.faults_ = best.n_iter, best.faults
        self._n_features_out, self.device_ = self.n_clusters, engine.data.device
        if checkpoint is not None:
            checkpoint.finish()
        return best

    def _choice(self, X: Any) -> Choice:
        return choose(X, self.device, self.engine)

    def _open(self, X: Any, sample_weight: Any = None, exponent: int = 0) -> Engine:
        return open_engine(
            X,
            sample_weight=sample_weight,
            device=self.device,
            engine=self.engine,
            metric=self.metric,
            precision=self.precision,
            bounds=True if self.algorithm == "elkan" else None,
            exponent=exponent,
        )
