"""`kmeans_batched`: K-means for many independent problems of one shape."""

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from tsapps.apps.kmeans.data.frame import is_in_range
from tsapps.apps.kmeans.data.rows import as_numbers
from tsapps.apps.kmeans.estimator import TSKMeans
from tsapps.kernels.arrays import as_array, gpu_index, like, to_host
from tsapps.kernels.devices import choose_device

__all__ = ["BatchedClustering", "kmeans_batched"]

_INITS = ("k-means++", "random")


@dataclass(frozen=True)
class BatchedClustering:
    """Clusterings of b problems of n samples with d features into k clusters.

    Arrays are of the same kind as X: CuPy for CuPy, torch for torch on the same device, otherwise NumPy.

    Attributes
    ----------
    labels : array of shape (b, n), int32
        Index of the nearest final center of the same problem; on a tie, the lowest index.
    centers : array of shape (b, k, d)
        float32 for float32 data, and for float16 and bfloat16 on a GPU; otherwise float64.
    inertia : array of shape (b,), float64
        Σ ‖x − c‖² over the samples x of each problem and their assigned centers c.
    n_iter : array of shape (b,), int32
        Number of iterations of each problem.
    """

    labels: Any
    centers: Any
    inertia: Any
    n_iter: Any

    def __repr__(self) -> str:
        (b, n), (_, k, d) = self.labels.shape, self.centers.shape
        inertia, n_iter = ((one.min().item(), one.max().item()) for one in (self.inertia, self.n_iter))
        return (
            f"<BatchedClustering: {b} problem{'' if b == 1 else 's'} of {n} × {d} into {k} clusters, "
            f"inertia {inertia[0]:.6g} to {inertia[1]:.6g}, {n_iter[0]} to {n_iter[1]} iterations>"
        )


def kmeans_batched(
    X: Any,
    n_clusters: int,
    *,
    init: Any = "k-means++",
    max_iter: int = 300,
    tol: float = 1e-4,
    random_state: Any = None,
    device: str = "auto",
) -> BatchedClustering:
    """Cluster every X[i] independently.

    Problem i gets the clustering of ``TSKMeans(n_clusters, n_init=1, random_state=s_i)`` for X[i], with

    - s_i = s + i (modulo 2³²) if `random_state` is an int s;
    - s_i = the i-th element of ``random_state.randint(2**31 - 1, size=b)`` if it is None or a RandomState.

    On the CPU, `TSKMeans` itself clusters one problem after the other. On a GPU, three kernel launches compute one
    iteration of all problems, and the host reads the status of the problems every few iterations. There is no
    equivalent of ``TSKMeans(protect=True)``.

    Parameters
    ----------
    X : array of shape (b, n, d)
        NumPy, CuPy or torch, or any array with DLPack or ``__cuda_array_interface__``.
    n_clusters : int
        The number of clusters k of each problem, at most n.
    init : {"k-means++", "random"} or array of shape (b, k, d), default="k-means++"
        The initial centers of every problem; see `TSKMeans`.
    max_iter : int, default=300
        Maximum number of iterations of a problem.
    tol : float, default=1e-4
        A problem converges when the squared center shift, summed over its centers, is at most `tol` times the mean
        variance of its features, or when none of its labels changes.
    random_state : int, RandomState or None, default=None
        Source of the random draws; an int makes them reproducible.
    device : {"auto", "cpu", "cuda", "cuda:i"}, default="auto"
        "auto" selects the GPU that holds X; if X is in host memory, a GPU if one is present, otherwise the CPU.

    Returns
    -------
    BatchedClustering

    Raises
    ------
    ValueError
        If X is not three-dimensional, is empty, or does not hold finite real numbers, or if a parameter is out of its
        range.
    NoDeviceError
        If the requested GPU is not present.

    Notes
    -----
    The GPU kernels support float32, float16 and bfloat16 data of up to a few hundred features. Shared memory per block
    limits the features: to 432 on an H200 for 65 clusters or more. `TSKMeans` clusters other data on the GPU, one
    problem after the other.

    A label is the index of the nearest float32 center by float64 distances. It is certified from a float16 copy of X,
    or rescored in float64. Cluster sums are fixed-point. Results have the same bits on every run and for any number of
    problems. X in host memory is copied to the GPU in parts that fit there.

    The GPU uses the same random numbers as the CPU. Its clustering can differ where scikit-learn's float32 rounding
    decides: if a sample is equally far from two centers, or if a random number of k-means++ falls on the boundary
    between two samples. The latter is likely for many samples and clusters (n·k above about 10⁵).

    Examples
    --------
    >>> import numpy as np
    >>> from tsapps import kmeans_batched
    >>> X = np.array([[[0.0], [1], [10], [11]], [[5], [5.5], [-5], [-6]]])
    >>> found = kmeans_batched(X, 2, random_state=0, device="cpu")
    >>> found.labels.shape, found.centers.shape, found.inertia
    ((2, 4), (2, 2, 1), array([1.   , 0.625]))
    """
    array = as_numbers(X)
    _check_data(array)
    b, n, d = array.shape
    _check_parameters(n_clusters, n, max_iter, tol)
    first = _first_centers(init, (b, n_clusters, d))
    seeds = _seeds(random_state, b)
    choice = choose_device(device, resident=gpu_index(X))
    found: tuple[Any, Any, Any, Any] | None = None
    if choice.is_gpu:
        from tsapps.apps.kmeans.batched.gpu import fit_on_gpu

        found = fit_on_gpu(array, n_clusters, first, max_iter, tol, seeds, choice.index)
    if found is None:
        found = _one_by_one(array, n_clusters, first, max_iter, tol, seeds, choice.device)
    else:
        for i in _out_of_range(array, found[2]):
            one = slice(i, i + 1)
            given = first if isinstance(first, str) else first[one]
            again = _one_by_one(array[one], n_clusters, given, max_iter, tol, seeds[one], choice.device)
            for whole, right in zip(found, again, strict=True):
                whole[one].set(right.astype(whole.dtype, copy=False))
    return BatchedClustering(*(like(one, X) for one in found))


def _check_data(array: Any) -> None:
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"X has shape {tuple(array.shape)}; expected (b, n, d), all positive: b problems of n samples, d features"
        )


def _check_parameters(n_clusters: int, n: int, max_iter: int, tol: float) -> None:
    for name, value in (("n_clusters", n_clusters), ("max_iter", max_iter)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an int, at least 1, got {value!r}")
    if n_clusters > n:
        raise ValueError(
            f"n_clusters={n_clusters}, but each problem has {n} samples; expected at most as many clusters as samples"
        )
    if not isinstance(tol, Real) or not 0 <= tol < np.inf:
        raise ValueError(f"tol must be a finite number, at least 0, got {tol!r}")


def _first_centers(init: Any, shape: tuple[int, int, int]) -> Any:
    """Check `init`; return its name, or the given centers as an array of `shape`."""
    if isinstance(init, str):
        if init not in _INITS:
            raise ValueError(f"init must be one of {', '.join(map(repr, _INITS))} or an array, got {init!r}")
        return init
    centers = as_numbers(init, "init")
    if tuple(centers.shape) != shape:
        raise ValueError(f"init has shape {tuple(centers.shape)}; expected (b, n_clusters, d) = {shape}")
    if not _all_finite(centers):
        raise ValueError("init has a NaN or an infinity; expected finite numbers")
    return centers


def _all_finite(centers: Any) -> bool:
    """Return True if all elements are finite; floats on a GPU are checked on the GPU."""
    if not isinstance(centers, np.ndarray) and centers.dtype.kind == "f":
        import cupy

        with centers.device:
            return bool(cupy.isfinite(centers).all())
    centers = to_host(centers)
    # NumPy's isfinite does not support bfloat16.
    return bool(np.isfinite(centers if centers.dtype.kind in "fiub" else centers.astype(np.float64)).all())


def _seeds(random_state: Any, problems: int) -> list[int]:
    """Return the seed of each problem's RandomState."""
    if isinstance(random_state, Integral):
        check_random_state(random_state)  # raises ValueError for invalid seeds
        return [(int(random_state) + i) % 2**32 for i in range(problems)]
    return check_random_state(random_state).randint(2**31 - 1, size=problems).tolist()


def _out_of_range(array: Any, inertia: Any) -> list[int]:
    """Return the indices of problems whose squared distances overflow or underflow float32; these need `TSKMeans`."""
    n, dtype = array.shape[1], np.dtype(np.float32)
    totals = to_host(inertia)
    found = []
    for i in np.flatnonzero(~is_in_range(dtype, totals / n, totals)).tolist():
        square = float(np.ptp(to_host(array[i]).astype(np.float64), axis=0).max()) ** 2
        if square > 0 and not is_in_range(dtype, square, square * array[i].size):
            found.append(i)
    return found


def _one_by_one(
    array: Any, k: int, init: Any, max_iter: int, tol: float, seeds: list[int], device: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cluster one problem after the other by `TSKMeans`; on the CPU, each fit uses all cores.

    Returns
    -------
    labels, centers, inertia, n_iter : numpy.ndarray
        See `BatchedClustering`.
    """
    if array.dtype.name == "bfloat16":  # scikit-learn does not support it
        array = array.astype(np.float64)
    fits = []
    for i, seed in enumerate(seeds):
        first = init if isinstance(init, str) else to_host(init[i])
        kmeans = TSKMeans(k, init=first, n_init=1, max_iter=max_iter, tol=tol, random_state=seed, device=device)
        try:
            fits.append(kmeans.fit(array[i]))
        except ValueError as error:
            raise ValueError(f"problem {i} of X: {error}") from error

    def stacked(name: str) -> np.ndarray:
        return np.stack([to_host(as_array(getattr(one, name))) for one in fits])

    inertia = np.array([one.inertia_ for one in fits], np.float64)
    return stacked("labels_"), stacked("cluster_centers_"), inertia, np.array([one.n_iter_ for one in fits], np.int32)
