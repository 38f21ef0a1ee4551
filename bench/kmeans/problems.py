"""The shapes that K-means is timed on, their data, what the hardware allows, and what is right.

Everything here is written once for NumPy and CuPy: `xp` is either.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.common.roofline import Ceilings

__all__ = [
    "CPU_SHAPES",
    "GPU_SHAPES",
    "GRIDS",
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

_SHORT = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
# The fastest unit that takes operands of a dtype.
_UNIT = {"float64": "float64", "float32": "tf32", "float16": "float16", "bfloat16": "bfloat16"}
_SUFFIXES = {"M": 1_000_000, "k": 1_000}
# Temporaries of a block of rows.
_BLOCK_BYTES = 256 << 20


@dataclass(frozen=True)
class Shape:
    """n samples of d features in k clusters, of one dtype; named as 10M-128-64-f32."""

    n: int
    d: int
    k: int
    dtype: str

    @property
    def name(self) -> str:
        """The name that the command line takes."""
        for suffix, size in _SUFFIXES.items():
            if self.n % size == 0:
                n = f"{self.n // size}{suffix}"
                break
        else:
            n = str(self.n)
        short = {dtype: short for short, dtype in _SHORT.items()}[self.dtype]
        return f"{n}-{self.d}-{self.k}-{short}"

    @classmethod
    def parse(cls, name: str) -> "Shape":
        """Read a name, of a shape in the tables or of any other."""
        try:
            n, d, k, short = name.split("-")
            size = _SUFFIXES.get(n[-1:], 1)
            shape = cls(int(n.rstrip("Mk")) * size, int(d), int(k), _SHORT[short])
        except (KeyError, ValueError):
            raise ValueError(
                f"shape {name!r}: expected n-d-k-dtype, such as 10M-128-64-f32, or one of {', '.join(GRIDS)}"
            ) from None
        if min(shape.n, shape.d) < 1 or not 1 <= shape.k <= shape.n:
            raise ValueError(f"shape {name!r}: expected 1 <= k <= n and d >= 1")
        return shape

    @property
    def itemsize(self) -> int:
        """Bytes of one number."""
        return _ITEMSIZE[self.dtype]


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(Shape.parse(name) for name in text.split())


#: The shapes of record on a GPU.
GPU_SHAPES = _shapes(
    """
    100M-4-16-f32 50M-16-16-f32 20M-32-64-f32 1M-64-64-f32 262144-4096-16-f32
    10M-128-16-f32 10M-128-64-f32 10M-128-256-f32 10M-128-1024-f32 1M-768-1000-f32 4M-96-4096-f32
    262144-4096-16-f64
    262144-4096-16-f16 10M-128-16-f16 10M-128-256-f16 10M-128-1024-f16 1M-768-1000-f16 4M-96-4096-f16 4M-256-16384-f16
    1M-64-64-bf16
    """
)
#: The shapes of record on a CPU: the pixels of a photograph, a table, handwritten digits.
CPU_SHAPES = _shapes("273280-3-16-f64 273280-3-16-f32 100k-64-64-f64 100k-64-64-f32 20k-784-10-f64 20k-784-10-f32")

_GRID_SIZES = {"1M": 1_000_000, "3M": 3_000_000, "10M": 10_000_000}
_GRID = {
    f"grid-{name}": tuple(
        Shape(n, d, k, "float32") for d in (16, 32, 64, 128, 256) for k in (16, 64, 256, 1000, 16_384)
    )
    for name, n in _GRID_SIZES.items()
}
#: The shapes of the grid, all of them and by n, under the names that the command line takes.
GRIDS: dict[str, tuple[Shape, ...]] = {"grid": tuple(shape for part in _GRID.values() for shape in part), **_GRID}


def shapes_named(names: str) -> list[Shape]:
    """Return the shapes of some names with commas between: each a shape's or a grid's."""
    found: list[Shape] = []
    for name in names.split(","):
        found += GRIDS[name] if name in GRIDS else (Shape.parse(name),)
    return list(dict.fromkeys(found))


def read_bytes(shape: Shape) -> int:
    """Return the fewest bytes that an iteration moves: X read once, one int32 label a sample written."""
    return shape.n * shape.d * shape.itemsize + 4 * shape.n


def floor_ms(shape: Shape, ceilings: Ceilings) -> tuple[float | None, str | None]:
    """Return the least time of an iteration, and what sets it, "read" or "math"; None where a rate is not known.

    One read of X and one write of the labels at the rate of a read stream, or the 2·n·d·k flops at the rate of the
    fastest unit for the dtype, whichever is larger.
    """
    rate = ceilings.matmul_tflops.get(_UNIT[shape.dtype])
    if rate is None:
        return None, None
    read = read_bytes(shape) / ceilings.read_gbs / 1e6
    math = 2 * shape.n * shape.d * shape.k / rate / 1e9
    return (read, "read") if read >= math else (math, "math")


def numpy_dtype(name: str) -> np.dtype:
    """Return the dtype of this name; bfloat16 is the one of ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def draw(shape: Shape, seed: int, xp: Any) -> tuple[Any, Any]:
    """Draw X (n, d) and first centers (k, d), both of the shape's dtype.

    k Gaussian clusters of variance 1 about centers that lie some 6 apart, so that neighbours overlap a little: the
    labels mean something, and Lloyd takes tens of iterations. The first centers are k of the samples, exact in the
    dtype.
    """
    return draw_from(xp.random.default_rng(seed), shape, xp)


def draw_from(rng: Any, shape: Shape, xp: Any) -> tuple[Any, Any]:
    """Draw what `draw` does, from a generator."""
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
    """Return the rows whose labels are compared: all, or about `most` at random and the last 4096, where tails are."""
    if n <= most:
        return xp.arange(n)
    rows = xp.random.default_rng(seed + 1).integers(0, n, most)
    return xp.unique(xp.concatenate((rows, xp.arange(n - min(n, 4096), n))))


def nearest_f64(X: Any, centers: Any, rows: Any, xp: Any) -> Any:
    """Return the index of the nearest center of these rows of X, by float64 arithmetic, in blocks; (len(rows),)."""
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
        If a sample anywhere has a label that is no cluster's: a label that was never written, for one.
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
    return float(np.max(errors))  # of no number, no number


def _blocks(n: int, row_bytes: int) -> list[tuple[int, int]]:
    rows = max(1, _BLOCK_BYTES // row_bytes)
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]
