"""Benchmark problems of K-means: shapes, random data, roofline times and float64 references.

Functions take `xp`, which is NumPy or CuPy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.bench.common.dtypes import DTYPE_OF, ITEMSIZE, SHORT_OF
from tsapps.bench.common.roofline import Ceilings

__all__ = [
    "CPU_SHAPES",
    "GPU_SHAPES",
    "GRIDS",
    "QUICK_GPU_SHAPES",
    "Shape",
    "centers_error",
    "compared_rows",
    "draw",
    "draw_from",
    "floor_ms",
    "nearest_f64",
    "numpy_dtype",
    "read_bytes",
    "shapes_named",
    "share_equal",
]

# Fastest arithmetic unit for each dtype.
_UNIT = {"float64": "float64", "float32": "tf32", "float16": "float16", "bfloat16": "bfloat16"}
_SUFFIXES = {"M": 1_000_000, "k": 1_000}
# Size of temporaries per block of rows.
_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True)
class Shape:
    """Shape of a problem: n samples, d features, k clusters and a dtype; its name is, for example, 10M-128-64-f32."""

    n: int
    d: int
    k: int
    dtype: str

    @property
    def name(self) -> str:
        """Return the name used on the command line."""
        for suffix, size in _SUFFIXES.items():
            if self.n % size == 0:
                n = f"{self.n // size}{suffix}"
                break
        else:
            n = str(self.n)
        return f"{n}-{self.d}-{self.k}-{SHORT_OF[self.dtype]}"

    @classmethod
    def parse(cls, name: str) -> "Shape":
        """Parse a name, of a shape in the tables or any other."""
        try:
            n, d, k, short = name.split("-")
            size = _SUFFIXES.get(n[-1:], 1)
            shape = cls(int(n.rstrip("Mk")) * size, int(d), int(k), DTYPE_OF[short])
        except (KeyError, ValueError):
            raise ValueError(
                f"shape {name!r}: expected n-d-k-dtype, such as 10M-128-64-f32, or one of {', '.join(GRIDS)}"
            ) from None
        if min(shape.n, shape.d) < 1 or not 1 <= shape.k <= shape.n:
            raise ValueError(f"shape {name!r}: expected 1 <= k <= n and d >= 1")
        return shape

    @property
    def itemsize(self) -> int:
        """Return the bytes per number."""
        return ITEMSIZE[self.dtype]


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(Shape.parse(name) for name in text.split())


#: Recorded shapes on a GPU.
GPU_SHAPES = _shapes(
    """
    100M-4-16-f32 50M-16-16-f32 20M-32-64-f32 1M-64-64-f32 262144-4096-16-f32
    10M-128-16-f32 10M-128-64-f32 10M-128-256-f32 10M-128-1024-f32 1M-768-1000-f32 4M-96-4096-f32
    262144-4096-16-f64
    262144-4096-16-f16 10M-128-16-f16 10M-128-256-f16 10M-128-1024-f16 1M-768-1000-f16 4M-96-4096-f16 4M-256-16384-f16
    1M-64-64-bf16
    """
)
#: Some of them, which a run of a minute measures.
QUICK_GPU_SHAPES = _shapes("1M-64-64-f32 50M-16-16-f32 10M-128-64-f32 1M-768-1000-f32 10M-128-256-f16")
#: Recorded shapes on a CPU: pixels of a photograph, a table, handwritten digits.
CPU_SHAPES = _shapes("273280-3-16-f64 273280-3-16-f32 100k-64-64-f64 100k-64-64-f32 20k-784-10-f64 20k-784-10-f32")

_GRID_SIZES = {"1M": 1_000_000, "3M": 3_000_000, "10M": 10_000_000}
_GRID = {
    f"grid-{name}": tuple(
        Shape(n, d, k, "float32") for d in (16, 32, 64, 128, 256) for k in (16, 64, 256, 1000, 16_384)
    )
    for name, n in _GRID_SIZES.items()
}
#: Shapes of the grid, all together and by n, under their names on the command line.
GRIDS: dict[str, tuple[Shape, ...]] = {"grid": tuple(shape for part in _GRID.values() for shape in part), **_GRID}


def shapes_named(names: str) -> list[Shape]:
    """Return the shapes of comma-separated names of shapes or grids."""
    found: list[Shape] = []
    for name in names.split(","):
        found += GRIDS[name] if name in GRIDS else (Shape.parse(name),)
    return list(dict.fromkeys(found))


def read_bytes(shape: Shape) -> int:
    """Return the minimum traffic of an iteration: X read once, one int32 label per sample written."""
    return shape.n * shape.d * shape.itemsize + 4 * shape.n


def floor_ms(shape: Shape, ceilings: Ceilings) -> tuple[float | None, str | None]:
    """Return the roofline time of an iteration and its limit, "read" or "math"; None if a rate is unknown.

    The larger of two times: reading X and writing the labels at the bandwidth of a read stream, and 2·n·d·k flops at
    the throughput of the fastest unit for the dtype.
    """
    rate = ceilings.matmul_tflops.get(_UNIT[shape.dtype])
    if rate is None:
        return None, None
    read = read_bytes(shape) / ceilings.read_gbs / 1e6
    math = 2 * shape.n * shape.d * shape.k / rate / 1e9
    return (read, "read") if read >= math else (math, "math")


def numpy_dtype(name: str) -> np.dtype:
    """Return the dtype of a name; bfloat16 is that of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def draw(shape: Shape, seed: int, xp: Any) -> tuple[Any, Any]:
    """Draw X (n, d) and initial centers (k, d), both in the dtype of the shape.

    k Gaussian clusters of variance 1, with centers some 6 apart, so that neighboring clusters overlap slightly: labels
    are meaningful, and Lloyd's algorithm takes tens of iterations. The initial centers are the first k samples, exact
    in the dtype.
    """
    return draw_from(xp.random.default_rng(seed), shape, xp)


def draw_from(rng: Any, shape: Shape, xp: Any) -> tuple[Any, Any]:
    """Draw X and initial centers as `draw` does, from a given generator."""
    work = np.float64 if shape.dtype == "float64" else np.float32
    means = rng.standard_normal((shape.k, shape.d), dtype=work)
    means *= work(6 / np.sqrt(2 * shape.d))
    X = xp.empty((shape.n, shape.d), numpy_dtype(shape.dtype))
    for start, stop in _blocks(shape.n, shape.d * np.dtype(work).itemsize):
        rows = rng.standard_normal((stop - start, shape.d), dtype=work)
        rows += means[rng.integers(0, shape.k, stop - start)]
        X[start:stop] = rows
    return X, X[: shape.k].copy()


def compared_rows(n: int, most: int, seed: int, xp: Any) -> Any:
    """Return the rows to compare: all, or about `most` random ones and the last 4096, which include partial tiles."""
    if n <= most:
        return xp.arange(n)
    rows = xp.random.default_rng(seed + 1).integers(0, n, most)
    return xp.unique(xp.concatenate((rows, xp.arange(n - min(n, 4096), n))))


def nearest_f64(X: Any, centers: Any, rows: Any, xp: Any) -> Any:
    """Return the nearest center of each of these rows of X by blocked float64 arithmetic; (len(rows),)."""
    centers = centers.astype(np.float64)
    norms = (centers * centers).sum(axis=1)
    labels = xp.empty(len(rows), np.int32)
    for start, stop in _blocks(len(rows), 16 * max(centers.shape)):
        scores = X[rows[start:stop]].astype(np.float64) @ (-2 * centers.T)
        scores += norms
        labels[start:stop] = scores.argmin(axis=1)
    return labels


def share_equal(labels: Any, rows: Any, expected: Any, k: int) -> float:
    """Return the share of `rows` that have the expected label.

    Raises
    ------
    ValueError
        If any label is out of range, for example because it was never written.
    """
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= k:
        raise ValueError(f"labels run from {low} to {high}; expected 0 to {k - 1}")
    return float((labels[rows] == expected).mean())


def centers_error(X: Any, labels: Any, new_centers: Any) -> float:
    """Return the largest ‖c − mean‖ / ‖mean‖ of the first and the last cluster's new center, the mean in float64."""
    errors = []
    for cluster in (0, len(new_centers) - 1):
        mean = X[labels == cluster].astype(np.float64).mean(axis=0)
        delta = new_centers[cluster].astype(np.float64) - mean
        errors.append(float((delta * delta).sum() / (mean * mean).sum()) ** 0.5)
    return float(np.max(errors))  # NaN if an error is NaN


def _blocks(n: int, row_bytes: int) -> list[tuple[int, int]]:
    rows = max(1, _BLOCK_BYTES // row_bytes)
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]
