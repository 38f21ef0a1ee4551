"""Adapters for Lloyd's algorithm in tsapps and other libraries, with one interface.

Each adapter is bound to one X and its initial centers, both CuPy arrays. It imports the library when it is created. If
the library could silently fall back to another implementation, the adapter names its kernels explicitly.
"""

import os
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np

from tsapps.kernels.arrays import to_host

__all__ = ["PEERS", "ForSm80", "ForSm90", "Peer"]

_ALL = ("float64", "float32", "float16", "bfloat16")


class Peer(ABC):
    """Lloyd iterations on X (n, d) from given centers (k, d); or of several problems, whose arrays have one axis more.

    Raises
    ------
    ValueError
        If the environment variable ``TSAPPS_MAX_ARCH`` is not what the engine needs.
    """

    #: Name on the command line and in records.
    name: ClassVar[str]
    #: Module to import; its version is recorded.
    module: ClassVar[str]
    #: Supported dtypes.
    dtypes: ClassVar[tuple[str, ...]] = _ALL
    #: True if `step` runs one iteration alone; False if it runs a whole fit of one iteration.
    steps: ClassVar[bool] = False
    #: True if it offers fits with its own greedy k-means++ init.
    seeds: ClassVar[bool] = False
    #: True if an iteration is faster when fewer labels change: only the mean over many gives its cost.
    settles: ClassVar[bool] = False
    #: True if it compiles kernels for each shape.
    compiles: ClassVar[bool] = False
    #: Allocator of its GPU memory; see `memory.peak_bytes`.
    allocator: ClassVar[str] = "cupy"
    #: The value of ``TSAPPS_MAX_ARCH`` that the engine needs; None if any will do.
    max_arch: ClassVar[str | None] = None

    def __init__(self, X: Any, centers: Any) -> None:
        given = os.environ.get("TSAPPS_MAX_ARCH", "")
        if self.max_arch is not None and given != self.max_arch:
            raise ValueError(f"{self.name} needs TSAPPS_MAX_ARCH={self.max_arch or '(none)'}, got {given or '(none)'}")
        self.X, self.centers = X, centers
        self.k = centers.shape[-2]

    @classmethod
    def installed(cls) -> bool:
        """Return whether its library is installed."""
        return find_spec(cls.module) is not None

    @abstractmethod
    def step(self) -> tuple[Any, Any]:
        """Run one iteration; return the labels at the given centers (n,) and the new centers (k, d)."""

    @abstractmethod
    def fit(self, iterations: int) -> int:
        """Fit from the given centers with at most `iterations` iterations; return the number made."""


class ForSm80:
    """What sets apart kernels of tsapps for GPUs of compute capability 8.0, which have no wgmma.

    ``TSAPPS_MAX_ARCH=80`` holds for a process, so other engines of tsapps need another one.
    """

    name = "tsapps-sm80"
    max_arch = "80"


class ForSm90:
    """What sets apart kernels of tsapps for GPUs from compute capability 9.0 on, which need no wgmma; see `ForSm80`."""

    name = "tsapps-sm90"
    max_arch = "90"


class Tsapps(Peer):
    """Kernels of tsapps; raises an error for shapes that they do not support."""

    name, module = "tsapps", "tsapps"
    steps = settles = seeds = True
    engine = "auto"
    precision = "exact"
    protect = False
    #: Hamerly bounds: True, False, or None to use them where they are likely to save time.
    bounds: bool | None = None
    device = "cuda"
    max_arch = ""

    def __init__(self, X: Any, centers: Any) -> None:
        super().__init__(X, centers)
        import tsapps  # so that the first fit does not import modules
        from tsapps.apps.kmeans.open_engine import compute_dtype

        self._estimator = tsapps.TSKMeans

        # Copy on the host, in the dtype of the computation.
        self.given = to_host(centers).astype(compute_dtype(X.dtype, on_gpu=self.device == "cuda"))
        self._open: Any = None

    def _opened(self) -> Any:
        """Return a new engine of X, in the state in which a fit starts."""
        from tsapps.apps.kmeans.open_engine import open_engine

        options: dict[str, Any] = {"engine": self.engine, "precision": self.precision, "bounds": self.bounds}
        return open_engine(self.X, device=self.device, **options)

    def _step(self) -> Any:
        """Return the step of an engine with X centered, as in a fit."""
        if self._open is None:
            from tsapps.apps.kmeans.protect.checks import Protection

            engine = self._opened()
            with engine:
                engine.center(engine.data.moments()[0], self.k)
                if self.settles and self.device == "cuda" and not engine.serves(self.k):
                    raise ValueError("no tsapps kernel supports this shape: cuBLAS would run")
                step = engine.step_for(self.k)
                step.protection = Protection() if self.protect else None
                step.reset()
            self._open, self._mean = step, to_host(engine.data.mean)
            self._centered = self.given - self._mean
        return self._open

    def step(self) -> tuple[Any, Any]:
        """Assign on the device and divide the sums on the host, as a fit does."""
        step = self._step()
        with step.data:
            found = step.assign(self._centered)
        means = found.sums / np.maximum(found.weights, 1)[:, np.newaxis]
        return step.labels, means.astype(step.data.dtype) + self._mean

    def iterate(self, iterations: int) -> int:
        """Run iterations from the given centers, starting without labels; return the number made."""
        step = self._step()
        with step.data:
            step.reset()
            if step.protection is not None:
                step.protection.keep(self._centered)
            return int(step.iterate(self._centered, 0, iterations, 0.0, None).count)

    def fit(self, iterations: int) -> int:
        """Fit a `TSKMeans`."""
        return self._fitted(iterations, init=self.given).n_iter_

    def fit_seeded(self, iterations: int, seed: int) -> None:
        """Fit a `TSKMeans` with init by greedy k-means++."""
        self._fitted(iterations, random_state=seed)

    def _fitted(self, iterations: int, **options: Any) -> Any:
        self._open = None
        options |= {"n_init": 1, "max_iter": iterations, "tol": 0, "device": self.device, "engine": self.engine}
        return self._estimator(self.k, precision=self.precision, protect=self.protect, **options).fit(self.X)


class TsappsAllRows(Tsapps):
    """Kernels of tsapps without bounds: every iteration scores all rows."""

    name = "tsapps-all-rows"
    bounds = False
    seeds = False

    def fit(self, iterations: int) -> int:
        """Fit as `TSKMeans` does."""
        from tsapps.apps.kmeans import lloyd

        self._open, options = None, {"n_init": 1, "max_iter": iterations, "tol": 0}
        random_state = np.random.RandomState(0)
        return lloyd.fit(self._opened(), self.k, init=self.given, random_state=random_state, **options).n_iter


class TsappsTf32(Tsapps):
    """Kernels of tsapps without certification, `TSKMeans(precision="tf32")`; float32 only, other dtypes are exact."""

    name = "tsapps-tf32"
    dtypes = ("float32",)
    precision = "tf32"


class TsappsProtected(Tsapps):
    """Kernels of tsapps with all steps and the result checked: `TSKMeans(protect=True)`."""

    name = "tsapps-protected"
    protect = True


class TsappsSm80(ForSm80, Tsapps):
    """Kernels of tsapps as on GPUs of compute capability 8.0."""


class TsappsSm90(ForSm90, Tsapps):
    """Kernels of tsapps as on GPUs from compute capability 9.0 on that have no wgmma."""


class Cublas(Tsapps):
    """Lloyd's algorithm on cuBLAS: `TSKMeans(engine="cublas")`."""

    name = "cublas"
    engine = "cublas"
    settles = seeds = False


class ScikitLearn(Peer):
    """scikit-learn on the CPU; X is copied to the host once, outside all timings."""

    name, module = "scikit-learn", "sklearn"

    def __init__(self, X: Any, centers: Any) -> None:
        super().__init__(to_host(X), to_host(centers))
        if self.X.dtype.name == "bfloat16":
            self.X, self.centers = self.X.astype(np.float32), self.centers.astype(np.float32)

    def _fitted(self, iterations: int) -> Any:
        from sklearn.cluster import KMeans

        return KMeans(self.k, init=self.centers, n_init=1, max_iter=iterations, tol=0).fit(self.X)

    def step(self) -> tuple[Any, Any]:
        """Fit one iteration; the labels are those of predict at the initial centers."""
        model = self._fitted(1)
        new_centers, model.cluster_centers_ = model.cluster_centers_, self.centers.astype(model.cluster_centers_.dtype)
        return model.predict(self.X), new_centers

    def fit(self, iterations: int) -> int:
        """Fit a `KMeans`."""
        return self._fitted(iterations).n_iter_


class Torch(Peer):
    """Lloyd's algorithm as usual in torch, one block of rows at a time: matmul, argmin, index_add."""

    name, module = "torch", "torch"
    steps = True
    allocator = "torch"

    def __init__(self, X: Any, centers: Any) -> None:
        import torch

        super().__init__(torch.from_dlpack(X), torch.from_dlpack(centers))
        self.torch = torch
        self.half = self.X.itemsize == 2
        self.rows = max(1, (512 << 20) // (4 * max(self.k, self.X.shape[1])))

    def _step_from(self, centers: Any) -> tuple[Any, Any]:
        torch = self.torch
        wide = torch.float32 if self.half else self.X.dtype
        norms = (centers.to(wide) ** 2).sum(dim=1)
        transposed = centers.t().contiguous()
        labels = torch.empty(len(self.X), dtype=torch.int32, device=self.X.device)
        sums = torch.zeros(centers.shape, dtype=wide, device=self.X.device)
        counts = torch.zeros(self.k, dtype=wide, device=self.X.device)
        for start in range(0, len(self.X), self.rows):
            block = self.X[start : start + self.rows]
            if self.half:
                scores = torch.mm(block, transposed, out_dtype=wide).mul_(-2).add_(norms)
            else:
                scores = torch.addmm(norms, block, transposed, alpha=-2)
            nearest = scores.argmin(dim=1)
            labels[start : start + self.rows] = nearest
            sums.index_add_(0, nearest, block.to(wide))
            counts.index_add_(0, nearest, torch.ones(len(block), dtype=wide, device=self.X.device))
        new_centers = sums / counts[:, None]
        return labels, torch.where(counts[:, None] > 0, new_centers.to(centers.dtype), centers)

    def step(self) -> tuple[Any, Any]:
        """Run one iteration."""
        return self._step_from(self.centers)

    def fit(self, iterations: int) -> int:
        """Run iterations and an assignment to the final centers."""
        centers = self.centers
        for _ in range(iterations):
            _, centers = self._step_from(centers)
        self._step_from(centers)
        return iterations


class Cuvs(Peer):
    """cuVS, the engine of cuML."""

    name, module = "cuvs", "cuvs"
    allocator = "driver"
    dtypes = ("float64", "float32")

    def __init__(self, X: Any, centers: Any) -> None:
        super().__init__(X, centers)
        from cuvs.cluster import kmeans
        from cuvs.common import Resources

        self.kmeans, self.resources = kmeans, Resources()

    def _fitted(self, iterations: int) -> tuple[Any, Any, int]:
        """Return the parameters, the centers and the number of iterations of a fit."""
        # cuVS rejects tol=0; this value ends a fit only if the inertia does not decrease.
        options = {"init_method": "Array", "max_iter": iterations, "tol": 1e-30, "n_init": 1}
        parameters = self.kmeans.KMeansParams(n_clusters=self.k, **options)
        # A named tuple; a plain one in version 26.10.
        centers, _, count = self.kmeans.fit(parameters, self.X, self.centers.copy(), resources=self.resources)
        return parameters, centers, int(count)

    def step(self) -> tuple[Any, Any]:
        """Fit one iteration; the labels are those of predict at the initial centers."""
        parameters, centers, _ = self._fitted(1)
        labels, _ = self.kmeans.predict(parameters, self.X, self.centers, resources=self.resources)
        self.resources.sync()
        return labels, centers

    def fit(self, iterations: int) -> int:
        """Fit; its n_iter is max_iter + 1 unless the fit ends early."""
        return min(iterations, self._fitted(iterations)[2])


class FlashKmeans(Peer):
    """flash-kmeans and its Triton kernels."""

    name, module = "flash-kmeans", "flash_kmeans"
    compiles = True
    allocator = "torch"

    def __init__(self, X: Any, centers: Any) -> None:
        import torch
        from flash_kmeans.kmeans_triton_impl import batch_kmeans_Euclid

        super().__init__(torch.from_dlpack(X)[None], torch.from_dlpack(centers)[None])
        self.run = batch_kmeans_Euclid

    def _fitted(self, iterations: int) -> tuple[Any, Any, int]:
        return self.run(self.X, self.k, max_iters=iterations, tol=0.0, init_centroids=self.centers.clone())

    def step(self) -> tuple[Any, Any]:
        """Fit one iteration; the labels are those found by the iteration."""
        labels, new_centers, _ = self._fitted(1)
        return labels[0], new_centers[0]

    def fit(self, iterations: int) -> int:
        """Fit; the returned labels refer to the centers before the last update."""
        return self._fitted(iterations)[2]


class Flashlib(FlashKmeans):
    """flashlib, with the kernels that it selects."""

    name, module = "flashlib", "flashlib"

    def __init__(self, X: Any, centers: Any) -> None:
        import torch
        from flashlib import flash_kmeans

        Peer.__init__(self, torch.from_dlpack(X)[None], torch.from_dlpack(centers)[None])
        self.run = flash_kmeans


#: All adapters by name.
PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Tsapps,
        TsappsAllRows,
        TsappsTf32,
        TsappsProtected,
        TsappsSm80,
        TsappsSm90,
        Cublas,
        ScikitLearn,
        Torch,
        Cuvs,
        FlashKmeans,
        Flashlib,
    )
}
