"""`TSKMeans`: scikit-learn's KMeans on the CPU and on GPUs.

On the CPU, arrays in memory go to scikit-learn's own `KMeans.fit` (public API, compiled, as fast as itself); matrices
that are read in blocks go to the NumPy engine. On a GPU everything goes to the CuPy engines. Which one ran is in
`device_`.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn import get_config
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from tsapps.apps.kmeans import lloyd, scikit_learn
from tsapps.apps.kmeans.data.frame import Placed, frame_about, ldexp
from tsapps.apps.kmeans.data.rows import Rows, is_plain
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.open_engine import (
    check_metric,
    check_precision,
    check_sample_weight,
    choose,
    is_sparse,
    open_engine,
    resident,
)
from tsapps.apps.kmeans.scikit_learn import Passes, as_host, narrow_indices
from tsapps.kernels.arrays import as_array, like, to_host
from tsapps.kernels.blas.threads import is_forked

__all__ = ["TSKMeans"]


class TSKMeans(KMeans):
    """K-means clustering: scikit-learn's `KMeans`, and the same on GPUs.

    The same parameters, attributes, semantics and random draws: with the same `random_state`, `TSKMeans` and
    `sklearn.cluster.KMeans` find the same clustering. On a GPU and of more than 8 MiB in float32, k-means++ is drawn by
    sums in float64, where scikit-learn's round to samples nearby.

    Parameters
    ----------
    n_clusters : int, default=8
        The number k of clusters.
    init : {"k-means++", "k-means||", "random"}, callable or array of shape (k, d), default="k-means++"
        The first centers. "k-means++" is the greedy form, as in scikit-learn. "k-means||" [1]_, which scikit-learn does
        not have, draws 2k samples in each of five passes over X and chooses k of them; "k-means++" takes a pass for
        each of the k. A callable is called with the centered X, k and ``random_state=``.
    n_init : "auto" or int, default="auto"
        Runs from different first centers, of which the best is kept; "auto" is 1 for "k-means++", "k-means||" and
        arrays, else 10.
    max_iter : int, default=300
        Iterations of one run at most.
    tol : float, default=1e-4
        A run ends when the centers move less than this in all (squared, relative to the mean variance of the features),
        or when no label changes.
    verbose : int, default=0
        Print the inertia of every iteration.
    random_state : int, RandomState or None, default=None
    copy_x : bool, default=True
        On the CPU, False lets X be centered in place and restored afterwards. On a GPU X is never written.
    algorithm : {"lloyd", "elkan"}, default="lloyd"
        Both find the same clustering, on a GPU with the same bits. There a sample can be left out of an iteration whose
        nearest center cannot have changed (Hamerly's bounds [3]_, up to 7 more bytes a sample, where they fit): late
        iterations over clusters that lie apart cost a fraction, and bounds that do not pay turn themselves off. "fused"
        has them for 2 to 64 clusters, but of few features (up to 32, or 64 of 16 bits) only where a sample is whole 16
        bytes and 32 at least, and not where `precision` is "tf32". By "elkan" whatever has bounds takes them, by
        "lloyd" what is likely to gain: up to 256 features, as more are compared faster without, and 2²⁶ elements of X.
    device : {"auto", "cpu", "cuda", "cuda:i"}, default="auto"
        "auto" follows X to the GPU that it lies on, else takes a GPU if there is one, else the CPU.
    engine : {"auto", "fused", "cublas"}, default="auto"
        What does the work on a GPU. "fused" is our own kernels, which "auto" takes for all but small data; "cublas" is
        Lloyd by cuBLAS products, to compare with.
    metric : {"euclidean", "cosine"}, default="euclidean"
        "cosine" is spherical K-means [2]_: samples and centers are scaled to norm 1, and a sample goes to the center of
        the largest cosine. X is not written, nor centered.
    precision : {"exact", "tf32"}, default="exact"
        "tf32" lets a GPU take the labels of float32 data as products of numbers with 11 significant bits (tf32's) have
        them, and prove none: a sample about as near to two centers may get either, some in ten thousand. Centers and
        `inertia_` are exact for the labels, and the same bits come out on every run. It saves deciding such samples
        in float64. The CPU, ``engine="cublas"``, small data, other dtypes and few features (up to 16, of few clusters)
        are exact all the same.
    protect : bool, default=False
        Check every step, so that a computation that went wrong is found, and make it again. Clusters' sums and the
        centers are computed twice, or checked exactly; some samples are compared with every center once more, others
        each time; and a run's labels and centers are computed a second time. Without a fault the result has the same
        bits as without protection; but on the CPU, where scikit-learn's `fit` cannot be checked, arrays go to the
        NumPy engine, which finds the same clustering. Not with ``precision="tf32"`` for float32 data on a GPU.

    Attributes
    ----------
    cluster_centers_ : array of shape (k, d)
        Of norm 1 where the metric is the cosine. Of float32 data in float64 where float32 would lose 2⁻¹² of their
        distances from the mean.
    labels_ : array of shape (n,), int32
        The index of the nearest final center, the lowest on a tie.
    inertia_ : float
        Σ w·‖x − c‖² over the samples and their centers; by "cosine" Σ w·(1 − cos(x, c)), which is half of the former of
        samples scaled to norm 1.
    n_iter_ : int
    n_features_in_ : int
    feature_names_in_ : array of shape (d,)
        Where X is a frame with string column names.
    device_ : str
        Where `fit` ran: "cpu" or "cuda:i".
    faults_ : int
        What `protect` found wrong, and was made again; 0 without it.

    Notes
    -----
    X may be a NumPy, CuPy or torch array, anything with DLPack or ``__cuda_array_interface__``, a pandas or polars
    frame, a sparse matrix, or what `tsapps.open_matrix` gives, which need not fit in memory. Masked arrays are refused,
    even where nothing is masked, and so are lists and callable inits that give some. Arrays that come out
    (`labels_`, `cluster_centers_`, what `predict` and `transform` return) are of the kind that went in: CuPy for CuPy,
    torch for torch on the same device, else NumPy.

    float32 data is worked on in float32, float16 and bfloat16 on a GPU in float32, all else in float64.

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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TSKMeans:  # noqa: ARG002 (as scikit-learn has it)
        """Compute the clustering.

        Parameters
        ----------
        X : array, frame, sparse matrix or matrix of blocks, of shape (n, d)
        y : ignored
        sample_weight : array of shape (n,), optional
            None negative. Not used by an `init` that is a callable or an array.

        Returns
        -------
        TSKMeans
            Itself.

        Raises
        ------
        ValueError
            If a parameter is out of its range, X has a NaN or an infinity, fewer samples than clusters or, by "cosine",
            a row of zeros.
        NoDeviceError
            If a GPU is asked for that is not there.
        FaultError
            If `protect` finds the same step wrong as often as it is made.
        """
        check_metric(self.metric)
        check_precision(self.precision)
        choice = choose(X, self.device, self.engine)
        # scikit-learn has no spherical K-means, its iterations cannot be checked, and its OpenMP may hang after a fork.
        simple = self.metric == "euclidean" and not self.protect and not is_forked()
        simple = simple and not choice.is_gpu and not isinstance(X, Rows)
        self.faults_ = 0
        placed = scikit_learn.fit(self, X, sample_weight) if simple else None
        self._by_scikit_learn = placed is not None
        if placed is None:
            self._fit_engine(X, sample_weight)
        else:
            self._placed: Placed | None = placed
            if self.algorithm == "elkan":  # its bounds decide ties by what came before, which `predict` cannot know
                self.labels_ = Passes(self, placed.frame, placed.worked).labels(self._validated_on_host(X))
        if not np.isfinite(self.inertia_):
            warnings.warn("the inertia overflows float64; labels and centers are right", RuntimeWarning, stacklevel=2)
        self.device_ = choice.device
        self.labels_ = like(self.labels_, X)
        self.cluster_centers_: Any = like(self.cluster_centers_, X)
        return self

    def _init_centroids(self, *arguments: Any, **options: Any) -> np.ndarray:
        """Return scikit-learn's first centers, never in memory of the caller's, so that they remember their mean."""
        return scikit_learn.remembering(self, super()._init_centroids(*arguments, **options))

    def _fit_engine(self, X: Any, sample_weight: Any) -> None:
        self._validate_params()
        X = self._validated(X, reset=True)
        engine = self._open(X, sample_weight)
        if self.verbose:
            print("Initialization complete")
        best = lloyd.fit(
            engine,
            self.n_clusters,
            init=self.init,
            n_init=self.n_init,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=check_random_state(self.random_state),
            center=not is_sparse(X),
            progress=_print_progress if self.verbose else None,
            protect=self.protect,
        )
        self.cluster_centers_, self._placed = best.centers, best.placed
        self.labels_ = best.labels
        self.inertia_ = best.inertia
        self.n_iter_ = best.n_iter
        self.faults_ = best.faults
        self._n_features_out = self.n_clusters

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest center for every sample.

        Parameters
        ----------
        X : array, frame, sparse matrix or matrix of blocks, of shape (n, d)

        Returns
        -------
        array of shape (n,), int32
            Of X's kind.
        """
        check_is_fitted(self)
        placed = self._placed_now()
        if self._runs_scikit_learn(X):
            return like(Passes(self, placed.frame, placed.worked).labels(self._validated_on_host(X)), X)
        with self._open(self._validated(X, reset=False), exponent=placed.frame.exponent) as engine:
            centers = engine.place(placed.worked, placed.frame.mean)
            step = engine.step_for(len(centers))
            step.assign(centers, update=False)
            return like(step.labels, X)

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Compute the clustering and return the distance of every sample to every center; see `transform`."""
        return self.fit(X, y, sample_weight).transform(X)

    def transform(self, X: Any) -> Any:
        """Return the distance of every sample to every center.

        Parameters
        ----------
        X : array, frame, sparse matrix or matrix of blocks, of shape (n, d)

        Returns
        -------
        array of shape (n, k)
            Of X's kind. Cosine distances, 1 − cos, where that is the metric.
        """
        check_is_fitted(self)
        placed = self._placed_now()
        # Of what is given, so that a center is at no distance from itself.
        frame, exponent = placed.frame, placed.frame.exponent
        centers = frame.centered(placed.given)
        if self._runs_scikit_learn(X):
            distances = Passes(self, frame, centers).distances(self._validated_on_host(X))
        else:
            with self._open(self._validated(X, reset=False), exponent=exponent) as engine:
                distances = engine.data.distances(engine.place(centers, frame.mean))
        distances = ldexp(distances, exponent)
        # A frame that set_output asks for is built from host memory.
        return to_host(distances) if self._gives_frames() else like(distances, X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002
        """Return the opposite of the inertia of X about the centers."""
        check_is_fitted(self)
        placed = self._placed_now()
        if self._runs_scikit_learn(X):
            X = self._validated_on_host(X)
            weights = check_sample_weight(as_host(sample_weight, "sample_weight"), X.shape[0])
            inertia = Passes(self, placed.frame, placed.worked).inertia(X, weights)
        else:
            X = self._validated(X, reset=False)
            with self._open(X, sample_weight, exponent=placed.frame.exponent) as engine:
                centers = engine.place(placed.worked, placed.frame.mean)
                step = engine.step_for(len(centers))
                step.assign(centers, update=False)
                inertia = engine.data.inertia(centers, step.labels)
        return -float(ldexp(inertia, 2 * placed.frame.exponent))

    def _runs_scikit_learn(self, X: Any) -> bool:
        """Tell whether scikit-learn's passes serve X: on the CPU, in memory, after scikit-learn's own fit."""
        on_cpu = not choose(X, self.device, self.engine).is_gpu
        return self._by_scikit_learn and on_cpu and not isinstance(X, Rows) and not is_forked()

    def _placed_now(self) -> Placed:
        """Return the centers as the fit worked on them; those of now, if the caller has set others."""
        centers, placed = to_host(as_array(self.cluster_centers_)), getattr(self, "_placed", None)
        if placed is None:
            frame = frame_about(centers, centers.dtype)
            return Placed(frame, frame.centered(centers), centers)
        return Placed(placed.frame, placed.centers(centers), centers)

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

    def _validated_on_host(self, X: Any) -> Any:
        """Check X as scikit-learn's `predict` does; return a NumPy array, or a sparse matrix by rows."""
        checks: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}
        # Passes see what is not finite in an array.
        X = narrow_indices(as_host(X))
        return validate_data(self, X, reset=False, ensure_all_finite=is_sparse(X), **checks)

    def _validated(self, X: Any, *, reset: bool) -> Any:
        """Check X's features as scikit-learn does; make an array of what is not yet one (lists, frames)."""
        ready = isinstance(X, Rows) or is_plain(X) or (is_sparse(X) and resident(X) is not None)
        ready = ready and not isinstance(X, np.matrix)  # which scikit-learn refuses
        return validate_data(
            self,
            X,
            reset=reset,
            **({"skip_check_array": True} if ready else {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}),
        )

    def _gives_frames(self) -> bool:
        chosen = getattr(self, "_sklearn_output_config", {}).get("transform", get_config()["transform_output"])
        return chosen != "default"


def _print_progress(progress: lloyd.Progress) -> None:
    print(f"Iteration {progress.iteration - 1}, inertia {progress.inertia}.")
