"""Grid of tall-and-skinny products for tsapps.bench.gemm: operands, float64 references and error bounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.bench.common.dtypes import DTYPE_OF, ITEMSIZE, SHORT_OF
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.roofline import Streams

__all__ = [
    *("CPU_CELLS", "GPU_CELLS", "LAYOUTS", "SHAPES", "Cell", "Pools", "Sizes"),
    *("bound", "cell_named", "exact", "grid", "largest_error", "relative_bound", "spoil"),
]

SHAPES = ("tsm2r", "tsm2l", "tsmttsm")
LAYOUTS = ("row", "col")
# The largest width of a skinny matrix, which decides the shape class of a name.
_SKINNY = 64
#: Number of elements of A, B and C.
Sizes = tuple[int, int, int]
# Numbers drawn at a time; rows of A and B in a partial sum of a reference.
_DRAWN, _SUMMED = 1 << 27, 1 << 21
# Largest relative error of the rounding of a result to 16 bits.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
# TSM2R: the squares of the paper, and the rectangles of the authors' later paper.
SIZES, FRACTIONS, WIDTHS = (10_240, 20_480, 30_720), (8, 4, 2, 1), (1, 2, 3, 4, 8, 16, 17, 32, 33, 64)
# Dimensions of TSM2L and TSMTTSM.
LONG, SHORT = (10_000, 100_000, 1_000_000, 10_000_000, 20_000_000), (2, 4, 8, 16, 32, 33, 64)


@dataclass(frozen=True)
class Cell:
    """One product; its name is, for example, 20480-8-20480-f32, or 16-16-10000000-f64-col for a "tsmttsm".

    The name has the rows and columns of the result, the length of its sums and the dtype, and -col if it is not
    row-major.

    Attributes
    ----------
    shape : {"tsm2r", "tsm2l", "tsmttsm"}
        C (m × w) = A (m × k) · B (k × w); for "tsmttsm", C (k × w) = Aᵀ · B with A (m × k) and B (m × w).
    dtype : str
    layout : {"row", "col"}
        Layout of all three matrices.
    m, k, w : int
    """

    shape: str
    dtype: str
    layout: str
    m: int
    k: int
    w: int

    @property
    def name(self) -> str:
        """Return the name used on the command line."""
        rows, columns = self.shapes[2]
        return f"{rows}-{columns}-{self.depth}-{SHORT_OF[self.dtype]}" + ("-col" if self.layout == "col" else "")

    @property
    def flops(self) -> int:
        """Return the number of floating-point operations."""
        return 2 * self.m * self.k * self.w

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return the shapes of A, B and C."""
        if self.shape == "tsmttsm":
            return (self.m, self.k), (self.m, self.w), (self.k, self.w)
        return (self.m, self.k), (self.k, self.w), (self.m, self.w)

    @property
    def sizes(self) -> Sizes:
        """Return the numbers of elements of A, B and C."""
        a, b, c = (rows * columns for rows, columns in self.shapes)
        return a, b, c

    @property
    def depth(self) -> int:
        """Return the number of products summed per element of C."""
        return self.m if self.shape == "tsmttsm" else self.k

    @property
    def read(self) -> int:
        """Return the bytes of A and B."""
        (a, b), (c, d), _ = self.shapes
        return (a * b + c * d) * ITEMSIZE[self.dtype]

    @property
    def written(self) -> int:
        """Return the bytes of C."""
        rows, columns = self.shapes[2]
        return rows * columns * ITEMSIZE[self.dtype]

    @property
    def temporary_bytes(self) -> int:
        """Return the bytes of temporary arrays, at most: to draw operands in float64, and for the reference."""
        reference = min(self.m, _SUMMED) * (self.k + self.w) if self.shape == "tsmttsm" else self.sizes[1]
        return 8 * max(min(_DRAWN, max(self.sizes)), 2 * reference)

    def floors_ms(self, streams: Streams, tflops: dict[str, float]) -> tuple[float, float]:
        """Return the time in ms of a plain stream of all operands, and of the arithmetic (0 if unknown).

        float32 counts as three tf32 products.
        """
        unit, products = ("tf32", 3) if self.dtype == "float32" else (self.dtype, 1)
        flops = self.flops * products
        return streams.milliseconds(self.read, self.written), flops / tflops[unit] / 1e9 if unit in tflops else 0.0


def cell_named(name: str) -> Cell:
    """Return the product of a name, m-n-k-dtype or m-n-k-dtype-col; raise ValueError for any other text.

    If only k exceeds 64, the product is Aᵀ · B of two tall matrices. If k is at most 64, A is tall and skinny.
    """
    try:
        m, n, k, short, *layout = name.split("-")
        rows, columns, depth, dtype = int(m), int(n), int(k), DTYPE_OF[short]
        is_known = min(rows, columns, depth) >= 1 and layout in ([], ["col"])
    except (KeyError, ValueError):
        is_known = False
    if not is_known:
        raise ValueError(
            f"shape {name!r}: expected m-n-k-dtype or m-n-k-dtype-col, such as 20480-8-20480-f32, with f64, f32, f16 "
            "or bf16"
        )
    order = "col" if layout else "row"
    if max(rows, columns) <= _SKINNY < depth:
        return Cell("tsmttsm", dtype, order, depth, rows, columns)
    return Cell("tsm2r" if depth > _SKINNY else "tsm2l", dtype, order, rows, depth, columns)


def _cells(names: str) -> tuple[Cell, ...]:
    return tuple(map(cell_named, names.split()))


#: Products that represent the grid, on a GPU and on a CPU.
GPU_CELLS = _cells(
    """
    20480-2-20480-f64 20480-16-20480-f64 20480-8-20480-f64-col 10000000-16-16-f64 16-16-10000000-f64
    20480-2-20480-f32 20480-8-20480-f32 20480-32-20480-f32 10000000-4-4-f32 10000000-16-16-f32 10000000-64-64-f32
    4-4-10000000-f32 16-16-10000000-f32 64-64-10000000-f32
    20480-8-20480-f16 10000000-16-16-f16 16-16-10000000-f16 10000000-16-16-bf16
    """
)
CPU_CELLS = _cells(
    """
    20480-2-2048-f64 20480-16-2048-f64 1000000-16-16-f64 16-16-1000000-f64
    20480-2-2048-f32 20480-16-2048-f32 1000000-16-16-f32 16-16-1000000-f32 100000-64-64-f32 64-64-100000-f32
    """
)


def grid() -> Iterator[Cell]:
    """Yield every cell; cells of one dtype are consecutive."""
    for dtype in ITEMSIZE:
        for layout in LAYOUTS:
            for m in SIZES:
                for share in FRACTIONS:
                    for w in WIDTHS:
                        yield Cell("tsm2r", dtype, layout, m, m // share, w)
            for shape in ("tsm2l", "tsmttsm"):
                for m in LONG:
                    for k in SHORT:
                        for w in SHORT:
                            yield Cell(shape, dtype, layout, m, k, w)


class Pools:
    """Pools of memory from which all cells of one dtype take matrix views; A and B are fresh random numbers.

    Parameters
    ----------
    dtype : str
    sizes : tuple of int
        Maximum number of elements of A, B and C.
    seed : int
    xp : module, optional
        NumPy for pools in host memory. The default is CuPy, for pools on the current GPU.
    """

    def __init__(self, dtype: str, sizes: Sizes, seed: int, xp: Any = None) -> None:
        if xp is None:
            import cupy as xp

        a, b, c = sizes
        random = xp.random.default_rng(seed)
        self._a, self._b = (_normal(random, size, dtype, xp) for size in (a, b))
        self._c = xp.empty(c, self._a.dtype)

    def operands(self, cell: Cell) -> tuple[Any, Any, Any]:
        """Return A, B and C of a cell; bfloat16 as the uint16 of its bits. C's content is undefined."""
        return tuple(
            _matrix(pool, shape, cell.layout)
            for pool, shape in zip((self._a, self._b, self._c), cell.shapes, strict=True)
        )


def _normal(random: Any, size: int, dtype: str, xp: Any) -> Any:
    """Return normally distributed numbers, a part at a time."""
    kept = "uint16" if dtype == "bfloat16" else dtype
    made = xp.empty(size, kept)
    for start in range(0, size, _DRAWN):
        part = made[start : start + _DRAWN]
        wide = random.standard_normal(part.size, dtype="f8" if dtype == "float64" else "f4")
        # Truncation instead of rounding to bfloat16: the bits are random anyway.
        part[...] = wide.view("u4") >> 16 if dtype == "bfloat16" else wide
    return made


def _matrix(pool: Any, shape: tuple[int, int], layout: str) -> Any:
    rows, columns = shape
    flat = pool[: rows * columns]
    return flat.reshape(rows, columns) if layout == "row" else flat.reshape(columns, rows).T


def wide(x: Any, dtype: str) -> Any:
    """Return a matrix in float64; bfloat16 is given as the uint16 of its bits."""
    return (x.astype("u4") << 16).view("f4").astype("f8") if dtype == "bfloat16" else x.astype("f8")


def spoil(C: Any) -> None:
    """Fill a matrix with NaN: all bits set are a NaN in every dtype."""
    (C if C.flags.c_contiguous else C.T).view(f"u{C.itemsize}").fill((1 << 8 * C.itemsize) - 1)


def largest_error(cell: Cell, C: Any, reference: tuple[Any, Any, Any]) -> float:
    """Return the largest ``|C − AB| / (|A||B|)``.

    Parameters
    ----------
    cell : Cell
    C : cupy.ndarray
        A matrix of `Pools.operands`.
    reference : tuple
        Result of `exact`.

    Raises
    ------
    NotRightError
        If an error exceeds the bound of `tsapps.matmul`.
    """
    rows, product, magnitude = reference
    difference = abs(wide(C[rows], cell.dtype) - product)
    allowed = bound(cell) * magnitude
    if ITEMSIZE[cell.dtype] == 2:  # the final rounding to 16 bits
        allowed += _ROUNDING[cell.dtype] * (abs(product) + allowed) + 2.0**-25
    if not bool((difference <= allowed).all()):
        raise NotRightError(f"an element is off by {float((difference / magnitude).max()):.1e} of |A||B|")
    return float((difference / magnitude).max())


def bound(cell: Cell) -> float:
    """Return the bound of ``|C − AB| / (|A||B|)`` before C is rounded to 16 bits.

    It is the bound of `tsapps.matmul` if that is meaningful. For longer sums of random numbers, whose rounding errors
    have random signs, it is 8·√n·u instead of n·u (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019: it fails with a
    probability of 2·exp(−32) per element).
    """
    n, u = cell.depth + 4, 2.0**-53 if cell.dtype == "float64" else 2.0**-24
    sums = n * u / (1 - n * u) if n * u < 0.01 else 8 * n**0.5 * u
    # Rounding of the float64 reference itself.
    return sums + (2.0**-21 if cell.dtype == "float32" else 0.0) + n * 2.0**-53


def relative_bound(cell: Cell) -> float:
    """Return the bound of ``|C − AB| / (|A||B|)`` with the rounding to 16 bits, except that of subnormal numbers."""
    sums, rounding = bound(cell), _ROUNDING.get(cell.dtype, 0.0)
    return sums + rounding * (1 + sums)


def exact(cell: Cell, A: Any, B: Any) -> tuple[Any, Any, Any]:
    """Return sampled rows of C (all rows if there are few), and of A·B and ``|A||B|`` in float64."""
    xp = _module_of(A)
    if cell.shape != "tsmttsm":
        count = 64 if cell.shape == "tsm2r" else 1000
        rows = xp.unique(xp.linspace(0, cell.m - 1, count).astype("i8"))
        some, b = wide(A[rows], cell.dtype), wide(B, cell.dtype)
        return rows, some @ b, abs(some) @ abs(b)
    product, magnitude = (xp.zeros(cell.shapes[2]) for _ in range(2))
    for start in range(0, cell.m, _SUMMED):
        a, b = (wide(x[start : start + _SUMMED], cell.dtype) for x in (A, B))
        product += a.T @ b
        magnitude += abs(a).T @ abs(b)
    return xp.arange(cell.k), product, magnitude


def _module_of(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy
