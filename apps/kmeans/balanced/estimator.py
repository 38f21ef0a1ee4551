"""`TSBalancedKMeans`: K-means whose clusters have limited sizes, as an estimator of scikit-learn's kind."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from tsapps.apps.kmeans.balanced.limits import limits_of
from tsapps.apps.kmeans.balanced.lloyd import run_from
from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, ldexp
from tsapps.apps.kmeans.distributed.collections import is_dask
from tsapps.apps.kmeans.estimator import TSKMeans
from tsapps.apps.kmeans.initial_centers import initial_centers
from tsapps.apps.kmeans.open_engine import open_engine, resident
from tsapps.apps.kmeans.prepare import scaled_into_range
from tsapps.apps.kmeans.validation import validated
from tsapps.kernels.arrays import is_sparse, like
from tsapps.kernels.devices import choose_device

__all__ = ["TSBalancedKMeans"]


class TSBalancedKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):
    """K-means clustering whose clusters have limited sizes, on the CPU and on a GPU.

    After `fit`, every cluster has between `min_cluster_size` and `max_cluster_size` samples, exactly. Each iteration
    assigns the samples to the centers at the lowest cost that these sizes allow, and moves each center to the mean of
    its samples [1]_.

    Parameters
    ----------
    n_clusters : int, default=8
        The number of clusters k.
    max_cluster_size : int, default=None
        The largest number of samples of a cluster. None means ⌈n / k⌉, the smallest that has room for all samples.
    min_cluster_size : int, default=1
        The smallest number of samples of a cluster, at most n / k. With ``n // k``, and None for `max_cluster_size`,
        sizes differ by at most one.
    init : {"k-means++", "k-means||", "random"}, callable or array of shape (k, d), default="k-means++"
        The initial centers; see `TSKMeans`.
    n_init : int, default=1
        Number of runs from different initial centers; the run with the lowest inertia is kept. One, if `init` is an
        array.
    max_iter : int, default=300
        Maximum number of iterations of a run.
    tol : float, default=1e-4
        A run converges when the squared center shift, summed over the centers, is at most `tol` times the mean variance
        of the features, or when no assignment that costs less than the last one is found.
    random_state : int, RandomState or None, default=None
        Source of the random draws; an int makes the result reproducible.
    device : {"auto", "cpu", "cuda", "cuda:i"}, default="auto"
        "auto" selects the GPU that holds X; if X is in host memory, a GPU if one is present, otherwise the CPU.

    Attributes
    ----------
    cluster_centers_ : array of shape (k, d)
    labels_ : array of shape (n,), int32
        The cluster of each sample. Unlike the labels that `predict` returns, these keep to the limits.
    inertia_ : float
        Σ ‖x − c‖² over the samples and the centers of their clusters.
    assignment_gap_ : float
        How far the inertia may be above the lowest of all assignments to these centers that keep to the limits, as a
        part of the inertia. 0 if the assignment is proved to be optimal; see Notes.
    n_iter_ : int
        Number of iterations of the best run.
    n_features_in_ : int
        Number of features d.
    feature_names_in_ : array of shape (d,)
        Column names of X, if it is a frame with string column names.
    device_ : str
        Device of `fit`: "cpu" or "cuda:i".

    See Also
    --------
    TSKMeans : K-means without limits, which takes a fraction of the time.

    Notes
    -----
    An assignment of lowest cost is a transportation problem. Its dual has a price for each cluster. L-BFGS-B [2]_ finds
    nearly optimal prices in some 30 passes over n · k distances (about 100 in the first iteration); they give a lower
    bound of the cost, and leave open the clusters of a few samples only. HiGHS [3]_ assigns these by a linear program,
    which proves the assignment to be optimal, up to its tolerance of 10⁻⁷ and rounding. This is so for any data of
    n · k ≤ 65,536, and usually for data of any size. If more than 65,536 pairs of a sample and a cluster are left open,
    as among many equal samples, the assignment is improved as far as possible; then `assignment_gap_` is positive.

    No iteration increases the inertia, whether assignments are optimal or not. As for K-means without limits, the
    result is a local minimum that depends on the initial centers.

    The n · k distances are kept in float64 if half of the available memory (on a GPU, the free memory) suffices.
    Otherwise each pass computes them again, from X in blocks. X may be what `TSKMeans` takes, except Dask collections.
    There are no sample weights.

    References
    ----------
    .. [1] Bradley, Bennett and Demiriz, "Constrained k-means clustering", Microsoft Research MSR-TR-2000-65 (2000).
    .. [2] Byrd, Lu, Nocedal and Zhu, "A limited memory algorithm for bound constrained optimization", SIAM J. Sci.
       Comput. 16 (1995).
    .. [3] Huangfu and Hall, "Parallelizing the dual revised simplex method", Math. Program. Comput. 10 (2018).

    Examples
    --------
    >>> import numpy as np
    >>> from tsapps import TSBalancedKMeans
    >>> X = np.array([[0.0], [1], [2], [9]])
    >>> kmeans = TSBalancedKMeans(n_clusters=2, max_cluster_size=2, random_state=0, device="cpu").fit(X)
    >>> np.bincount(kmeans.labels_)
    array([2, 2])
    >>> kmeans.predict([[2.0]]) == kmeans.labels_[2]
    array([False])
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "n_clusters": [Interval(Integral, 1, None, closed="left")],
        "max_cluster_size": [Interval(Integral, 1, None, closed="left"), None],
        "min_cluster_size": [Interval(Integral, 0, None, closed="left")],
        "init": [StrOptions({"k-means++", "k-means||", "random"}), callable, "array-like"],
        "n_init": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "device": [str],
    }

    def __init__(
        self,
        n_clusters: int = 8,
        max_cluster_size: int | None = None,
        *,
        min_cluster_size: int = 1,
        init: Any = "k-means++",
        n_init: int = 1,
        max_iter: int = 300,
        tol: float = 1e-4,
        random_state: Any = None,
        device: str = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.max_cluster_size = max_cluster_size
        self.min_cluster_size = min_cluster_size
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any = None) -> TSBalancedKMeans:  # noqa: ARG002 (scikit-learn's API)
        """Cluster the samples of X.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
        y : ignored

        Returns
        -------
        TSBalancedKMeans
            The fitted estimator itself.

        Raises
        ------
        ValueError
            If a parameter is out of its range, X has a NaN or an infinity, or no sizes keep to the limits: n is below
            k · `min_cluster_size` or above k · `max_cluster_size`.
        NoDeviceError
            If a requested GPU is not present.
        MemoryError
            If the CPU's memory does not hold the labels and the temporaries of a fit.
        """
        self._validate_params()
        if is_dask(X):
            raise ValueError("TSBalancedKMeans computes in one process, got a Dask collection: pass X.compute()")
        self._check(X, reset=True)
        given = validated(self, X, reset=True)
        choice = choose_device(self.device, resident=resident(given))
        engine = open_engine(given, device=choice.device)
        k, random_state = self.n_clusters, check_random_state(self.random_state)
        limits = limits_of(engine.data.n_samples, k, self.min_cluster_size, self.max_cluster_size)
        engine, moments, exponent = scaled_into_range(engine)
        with engine:
            data = engine.data
            engine.center(np.zeros_like(moments.mean) if is_sparse(given) else moments.mean, k)
            frame, tol = Frame(data.host_mean(), exponent), self.tol * moments.variance
            runs = self.n_init if isinstance(self.init, str) or callable(self.init) else 1
            first = (initial_centers(engine, k, self.init, random_state, frame) for _ in range(runs))
            best = min(
                (run_from(data, centers, limits, self.max_iter, tol) for centers in first),
                key=lambda run: run.inertia,
            )
            self.labels_ = like(best.labels, X)
        self._fitted_centers = FittedCenters(frame, best.centers, frame.restored(best.centers))
        self.cluster_centers_ = like(self._fitted_centers.restored.copy(), X)
        self.inertia_, self.n_iter_ = float(ldexp(best.inertia, 2 * exponent)), best.n_iter
        self.assignment_gap_, self.device_ = best.gap, choice.device
        self._n_features_out = k
        return self

    def predict(self, X: Any) -> Any:
        """Return the index of the nearest center for every sample, whatever the limits; see `TSKMeans.predict`."""
        return self._without_limits(X).predict(X)

    def transform(self, X: Any) -> Any:
        """Return the distance of every sample to every center; see `TSKMeans.transform`."""
        return self._without_limits(X).transform(X)

    def score(self, X: Any, y: Any = None) -> float:  # noqa: ARG002 (scikit-learn's API)
        """Return the negative inertia of X about the nearest centers, whatever the limits; see `TSKMeans.score`."""
        return self._without_limits(X).score(X)

    def _check(self, X: Any, *, reset: bool) -> None:
        """Raise the errors of scikit-learn for arrays in host memory."""
        if type(X) is np.ndarray and X.dtype.kind in "fiu":
            validate_data(self, X, reset=reset, dtype="numeric")

    def _without_limits(self, X: Any) -> TSKMeans:
        """Return a fitted `TSKMeans` with the centers of this estimator, for a pass over X."""
        check_is_fitted(self)
        self._check(X, reset=False)
        nearest = TSKMeans(self.n_clusters, device=self.device)
        nearest.cluster_centers_, nearest._fitted_centers = self.cluster_centers_, self._fitted_centers
        nearest._by_scikit_learn, nearest.n_features_in_ = False, self.n_features_in_
        if hasattr(self, "feature_names_in_"):
            nearest.feature_names_in_ = self.feature_names_in_
        return nearest

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
