"""Golden cases of K-means: fits of every regime, and batches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from golden_cases import DTYPES, SEED, Place, numpy_type

__all__ = ["batches", "fits", "gpu_fits"]

# Samples, features, clusters; and what a GPU computes them by.
_FEW = (
    (20_000, 1, 2),  # short_rows.cuh
    (20_000, 2, 16),
    (20_000, 4, 64),  # few_features.cuh
    (12_001, 16, 16),
    (12_000, 16, 64),  # few_products.cuh, few_until.cuh
    (10_001, 32, 64),
    (8_000, 50, 16),  # of 16 bits; rows that are no whole 16 bytes
    (8_000, 64, 64),  # of 16 bits with centers in shared memory; else nearest.cuh
    (6_001, 130, 2),  # nearest.cuh
    (4_000, 300, 16),  # nearest.cuh by stretches
    (3_000, 784, 64),
)
_MANY = (
    (6_000, 2, 65),  # nearest_of_many.cuh: rows stay
    (8_001, 16, 300),
    (5_000, 130, 300),
    (4_000, 300, 65),
    (3_000, 784, 65),  # rows stream by
    (2_500, 784, 300),
)
# Features of which a center has two parts, and changing rows are sorted.
_LONG = (3_000, 2048, 16)


def blobs(n: int, d: int, k: int, dtype: str, kind: str = "near") -> np.ndarray:
    """Return n rows about k points: clusters that overlap ("near"), that lie apart, or a special kind of them."""
    rng = np.random.default_rng([SEED, n, d, k])
    points = rng.uniform(-3, 3, (k, d))
    X = points[rng.integers(0, k, n)] + (0.4 if kind == "apart" else 2.0) * rng.standard_normal((n, d))
    if kind == "away":  # the mean is far larger than the spread
        X += 1000
    elif kind == "outlier":  # float32 sums in three digits
        X[0, 0] = 1e4
    elif kind in _MAGNITUDES:
        X *= _MAGNITUDES[kind]
    elif kind == "ties":
        X = X.round()
    elif kind == "duplicates":  # fewer rows than clusters
        X = X[rng.integers(0, max(1, k // 2), n)]
    return X.astype(numpy_type(dtype))


_MAGNITUDES = {"huge": 1e20, "tiny": 1e-25, "bytes": 20}


@dataclass(frozen=True)
class Fit:
    """A fit of `TSKMeans`: its data, how that is given, and the parameters that are not as usual."""

    shape: tuple[int, int, int]
    dtype: str = "float32"
    kind: str = "near"
    given_as: str = "array"
    weighted: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What the case is called."""
        n, d, k = self.shape
        words = [f"fit {n}x{d} k={k}", self.dtype, self.kind, self.given_as, *(["weighted"] if self.weighted else [])]
        return " ".join([*words, *(f"{key}={value}" for key, value in self.options.items())])

    def _given(self, X: np.ndarray, place: Place) -> Any:
        if self.given_as == "file":
            return place.matrix(X)
        if self.given_as == "host":
            return X
        if self.given_as == "columns":  # column-major
            return place.put(np.asfortranarray(X))
        if self.given_as == "sparse":
            from scipy.sparse import csr_matrix

            kept = abs(X) > 3
            kept[:, 0] = True  # no row is zero, which has no cosine
            return place.put(csr_matrix(np.where(kept, X, 0)))
        return place.put(X)

    def run(self, place: Place) -> dict[str, Any]:
        """Return what the fit found, and what it says of rows."""
        from tsapps import TSKMeans

        n, _, k = self.shape
        X = blobs(*self.shape, self.dtype, self.kind)
        options = {"random_state": 0, "n_init": 1, "max_iter": 15, "tol": 0, "device": place.device} | self.options
        if options.get("init") == "array":
            options["init"] = X[:k].astype(np.float64)
        elif options.get("init") == "callable":
            options["init"] = _drawn_rows
        weights = place.put(np.random.default_rng(SEED).uniform(0.5, 2, n)) if self.weighted else None
        given = self._given(X, place)
        model = TSKMeans(k, **options).fit(given, sample_weight=weights)
        some = given if self.given_as == "file" else given[:300]
        return {
            "labels": model.labels_,
            "centers": model.cluster_centers_,
            "inertia": model.inertia_,
            "n_iter": model.n_iter_,
            "faults": model.faults_,
            "predict": model.predict(given),
            "transform": model.transform(some),
            "score": model.score(given, sample_weight=weights),
        }


def _drawn_rows(X: Any, k: int, random_state: np.random.RandomState) -> Any:
    """Return k rows, as an `init` that is a callable."""
    return X[random_state.permutation(len(X))[:k]]


def fits() -> Iterator[Fit]:
    """Yield fits for every device."""
    small, middle, large = (2_000, 4, 16), (5_000, 16, 16), (3_000, 50, 65)
    yield from (Fit(shape, dtype) for shape in (*_FEW, *_MANY) for dtype in ("float32", "float64"))
    yield from (Fit(shape, dtype) for shape in (small, middle, large) for dtype in ("float16", "bfloat16"))
    for shape in (_FEW[2], _FEW[5], _FEW[7], _FEW[9], large):
        yield Fit(shape, kind="apart", options={"algorithm": "elkan"})
        yield Fit(shape, weighted=True)
        yield Fit(shape, options={"protect": True})
        yield Fit(shape, options={"metric": "cosine"})
    for dtype in ("float64", "float16", "bfloat16"):
        yield Fit(middle, dtype, "apart", options={"algorithm": "elkan"})
        yield Fit(middle, dtype, weighted=True, options={"protect": True})
        yield Fit(middle, dtype, options={"metric": "cosine", "protect": True})
    for dtype in ("float32", "float64"):
        for init in ("k-means||", "random", "array", "callable"):
            yield Fit(middle, dtype, options={"init": init, "n_init": 2 if init == "random" else 1})
        yield Fit(large, dtype, weighted=True, options={"init": "k-means||"})
        yield Fit(large, dtype, options={"init": "k-means||", "metric": "cosine"})
        yield Fit(middle, dtype, options={"tol": 1e-2, "max_iter": 100})
        yield Fit(middle, dtype, options={"max_iter": 1})
        for kind in ("away", "outlier", "ties", "duplicates"):
            yield Fit(middle, dtype, kind)
            yield Fit(middle, dtype, kind, options={"protect": True})
        yield Fit(large, dtype, "duplicates", options={"init": "array"})
        for given_as in ("file", "columns", "sparse", "host"):
            yield Fit(middle, dtype, given_as=given_as)
        yield Fit(large, dtype, given_as="file", weighted=True)
        yield Fit(large, dtype, given_as="file", options={"metric": "cosine"})
        yield Fit(middle, dtype, given_as="file", options={"init": "k-means||", "protect": True})
        yield Fit(middle, dtype, given_as="sparse", weighted=True, options={"init": "random"})
        yield Fit(middle, dtype, given_as="sparse", options={"metric": "cosine"})
    for kind in ("huge", "tiny"):
        yield Fit(middle, kind=kind)
        yield Fit(large, kind=kind, weighted=True)
        yield Fit(middle, kind=kind, options={"protect": True})
        yield Fit(middle, kind=kind, given_as="file")
    # Several blocks of rows on the CPU.
    yield from (Fit((150_000, 16, 16), given_as=given_as) for given_as in ("array", "file"))
    yield Fit((150_000, 16, 16), "float64", weighted=True, options={"protect": True})
    yield Fit(middle, "int16", "bytes")
    yield Fit(middle, "int16", "bytes", "file")


def gpu_fits() -> Iterator[Fit]:
    """Yield fits by engines of GPUs alone."""
    fused, elkan = {"engine": "fused"}, {"engine": "fused", "algorithm": "elkan"}
    for shape in (*_FEW, _LONG, *_MANY):
        yield from (Fit(shape, dtype, options=fused) for dtype in DTYPES)
    for n, d, k in _FEW[3:]:
        # Enough rows for some to be left out.
        shape = 2 * n, d, k
        yield from (Fit(shape, dtype, "apart", options=elkan) for dtype in DTYPES)
    for shape in (_FEW[1], _FEW[5], _FEW[7], _FEW[9], _LONG, _MANY[2], _MANY[4]):
        yield from (Fit(shape, dtype, weighted=True, options=fused) for dtype in ("float32", "float64", "float16"))
        yield from (Fit(shape, dtype, options=fused | {"protect": True}) for dtype in DTYPES)
        yield from (Fit(shape, dtype, options=fused | {"metric": "cosine"}) for dtype in ("float32", "float16"))
        yield Fit(shape, options=fused | {"precision": "tf32"})
    for shape in (_FEW[1], _FEW[7], _FEW[9], _MANY[1]):
        yield from (Fit(shape, dtype, options={"engine": "cublas"}) for dtype in DTYPES)
        yield Fit(shape, weighted=True, options={"engine": "cublas", "protect": True})
        yield Fit(shape, options={"engine": "cublas", "metric": "cosine"})
    for kind in ("away", "outlier", "ties", "duplicates"):
        for shape in (_FEW[1], _FEW[3], _FEW[5], _FEW[7], _MANY[1]):
            yield Fit(shape, kind=kind, options=fused)
        yield from (Fit(_FEW[5], dtype, kind, options=fused) for dtype in ("float16", "bfloat16"))
    yield Fit(_FEW[5], kind="apart", weighted=True, options=elkan)
    yield Fit(_FEW[5], kind="apart", options=elkan | {"protect": True})
    yield Fit(_FEW[7], kind="apart", options=elkan | {"protect": True})
    # More than 8 MiB: seeds by sums in float64, no scikit-learn rounding; 32 MiB: seeds by X's copy; 2^26 elements.
    large = (300_000, 16, 16)
    yield from (Fit(large, dtype) for dtype in DTYPES)
    yield Fit(large, weighted=True)
    yield Fit(large, options={"engine": "cublas"})
    yield Fit((140_000, 64, 50), kind="apart")
    yield Fit((140_000, 64, 50), weighted=True)
    yield Fit((70_000, 64, 100), "float64")
    yield Fit((1_100_000, 64, 16), "float16", "apart", options={"init": "array"})


@dataclass(frozen=True)
class Batch:
    """A call of `kmeans_batched`."""

    shape: tuple[int, int, int, int]
    dtype: str = "float32"
    kind: str = "near"
    init: str = "k-means++"

    @property
    def name(self) -> str:
        """What the case is called."""
        b, n, d, k = self.shape
        return f"batched {b}x{n}x{d} k={k} {self.dtype} {self.kind} init={self.init}"

    def run(self, place: Place) -> dict[str, Any]:
        """Return the clusterings."""
        from tsapps import kmeans_batched

        b, n, d, k = self.shape
        X = blobs(b * n, d, k, self.dtype, self.kind).reshape(b, n, d)
        init = X[:, :k].astype(np.float64) if self.init == "array" else self.init
        found = kmeans_batched(place.put(X), k, init=init, max_iter=15, random_state=3, device=place.device)
        return {"labels": found.labels, "centers": found.centers, "inertia": found.inertia, "n_iter": found.n_iter}


def batches() -> Iterator[Batch]:
    """Yield batches: chunks of 16, 32 and 64 centers, several chunks, and sums that shared memory has no room for."""
    shapes = (5, 500, 16, 4), (3, 800, 64, 32), (2, 1_500, 50, 64), (2, 1_000, 130, 100), (2, 700, 300, 65)
    yield from (Batch(shape, dtype) for shape in shapes for dtype in ("float32", "float16"))
    for dtype in ("float64", "bfloat16"):
        yield from (Batch(shape, dtype) for shape in shapes[:2])
    yield from (Batch(shapes[1], kind=kind) for kind in ("away", "outlier", "ties", "duplicates", "huge", "tiny"))
    yield from (Batch(shape, init=init) for shape in shapes[:2] for init in ("random", "array"))
    yield Batch((40, 33, 2, 3))
    yield Batch((1, 4_000, 4, 16))
