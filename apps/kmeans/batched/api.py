"""`kmeans_batched`: many K-means problems of one shape at once."""

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
    """The clusterings of b problems of n samples in d dimensions into k clusters.

    The arrays are of the kind that X was: CuPy for CuPy, torch for torch on the same device, else NumPy.

    Attributes
    ----------
    labels : array of shape (b, n), int32
        The index of the nearest final center of the sample's own problem, the lowest on a tie.
    centers : array of shape (b, k, d)
        float32 for float32 data, and on a GPU for float16 and bfloat16; else float64.
    inertia : array of shape (b,), float64
        Σ ‖x − c‖² over the samples of a problem and their centers.
    n_iter : array of shape (b,), int32
        Iterations of every problem.
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
    """Cluster every X[i] by itself, all at once.

    Problem i gets what ``TSKMeans(n_clusters, n_init=1, random_state=s_i)`` finds for X[i], with

    - s_i = s + i (modulo 2³²) where `random_state` is an int s;
    - s_i the i-th of ``randint(2**31 - 1, size=b)`` of `random_state` where it is None or a RandomState.

    On the CPU that is what runs, problem by problem, to the last bit. On a GPU an iteration of all problems is two
    kernels, and the host looks every few iterations. There is no protection, as by ``TSKMeans(protect=True)``.

    Parameters
    ----------
    X : array of shape (b, n, d)
        NumPy, CuPy or torch, or anything with DLPack or ``__cuda_array_interface__``.
    n_clusters : int
        The number k of clusters of each problem, at most n.
    init : {"k-means++", "random"} or array of shape (b, k, d), default="k-means++"
        The first centers of every problem; see `TSKMeans`.
    max_iter : int, default=300
        Iterations of a problem at most.
    tol : float, default=1e-4
        A problem has converged when its centers move less than this in all (squared, relative to the mean variance of
        its features), or when none of its labels changes.
    random_state : int, RandomState or None, default=None
    device : {"auto", "cpu", "cuda", "cuda:i"}, default="auto"
        "auto" follows X to the GPU that it lies on, else takes a GPU if there is one, else the CPU.

    Returns
    -------
    BatchedClustering

    Raises
    ------
    ValueError
        If X is no array of three dimensions, none of them 0, of finite real numbers, or a parameter is out of its
        range.
    NoDeviceError
        If a GPU is asked for that is not there.

    Notes
    -----
    On a GPU the kernels serve float32, float16 and bfloat16 of up to a few hundred features (what a block's shared
    memory holds: 432 on an H200 from 65 clusters on); all else goes to `TSKMeans` there, problem by problem. Labels are
    the float64 arg-min of float32 centers, proved from a float16 copy or decided in float64; sums are integers: the
    same bits come out on every run and for any number of problems. X in host memory goes to the GPU in as many parts as
    it takes.

    A GPU makes the same random draws as the CPU. Where scikit-learn's own float32 rounding decides, it may find another
    clustering: on samples as far from one center as from another, and where a draw of k-means++ falls between two
    samples, which is to be expected of many samples and clusters (n·k of more than about 10⁵).

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
            f"X has shape {tuple(array.shape)}; expected (b, n, d), none of them 0: b problems of n samples, d features"
        )


def _check_parameters(n_clusters: int, n: int, max_iter: int, tol: float) -> None:
    for name, value in (("n_clusters", n_clusters), ("max_iter", max_iter)):
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be an int, at least 1, got {value!r}")
    if n_clusters > n:
        raise ValueError(
            f"n_clusters={n_clusters}, and each problem has {n} samples; expected no more clusters than samples"
        )
    if not isinstance(tol, Real) or not 0 <= tol < np.inf:
        raise ValueError(f"tol must be a finite number, at least 0, got {tol!r}")


def _first_centers(init: Any, shape: tuple[int, int, int]) -> Any:
    """Return `init` if it is a name, else the array of centers that it is."""
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
    """Tell whether no element is a NaN or an infinity, where the array lies."""
    if not isinstance(centers, np.ndarray) and centers.dtype.kind == "f":
        import cupy

        with centers.device:
            return bool(cupy.isfinite(centers).all())
    centers = to_host(centers)
    # NumPy's isfinite knows no bfloat16.
    return bool(np.isfinite(centers if centers.dtype.kind in "fiub" else centers.astype(np.float64)).all())


def _seeds(random_state: Any, problems: int) -> list[int]:
    """Return the seed of every problem's RandomState."""
    if isinstance(random_state, Integral):
        check_random_state(random_state)  # says what ints are no seeds
        return [(int(random_state) + i) % 2**32 for i in range(problems)]
    return check_random_state(random_state).randint(2**31 - 1, size=problems).tolist()


def _out_of_range(array: Any, inertia: Any) -> list[int]:
    """Return the problems whose squares of distances overflow float32, or underflow: `TSKMeans` scales them."""
    n, dtype = array.shape[1], np.dtype(np.float32)
    found = []
    for i, value in enumerate(to_host(inertia).tolist()):
        if not is_in_range(dtype, value / n, value):
            square = float(np.ptp(to_host(array[i]).astype(np.float64), axis=0).max()) ** 2
            if square > 0 and not is_in_range(dtype, square, square * array[i].size):
                found.append(i)
    return found


def _one_by_one(
    array: Any, k: int, init: Any, max_iter: int, tol: float, seeds: list[int], device: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fit `TSKMeans` to one problem after the other: scikit-learn has threads of its own, more do not pay."""
    if (
        array.dtype.name == "bfloat16"
    ):  # which scikit-learn does not read; float32 holds it, and float64 is what it gets
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
