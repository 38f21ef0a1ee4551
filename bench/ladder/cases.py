"""Products that the rungs of the ladder compute: squares, rectangles, and tall and skinny matrices."""

from dataclasses import dataclass

import numpy as np

from tsapps.bench.common.dtypes import DTYPE_OF, ITEMSIZE, SHORT_OF

__all__ = ["CPU_CASES", "GPU_CASES", "Case", "case_named", "error_bound"]

_DTYPES = ("float32", "float64")
_LAYOUTS = ("row", "col")


@dataclass(frozen=True)
class Case:
    """C (m × n) = A (m × k) · B (k × n); its name is, for example, 20480-4-20480-f64-col.

    Attributes
    ----------
    m, n, k : int
    dtype : {"float32", "float64"}
    layout : {"row", "col"}
        Whether all three matrices are row-major or column-major.
    """

    m: int
    n: int
    k: int
    dtype: str
    layout: str = "row"

    @property
    def name(self) -> str:
        """Return the name used on the command line."""
        return f"{self.m}-{self.n}-{self.k}-{SHORT_OF[self.dtype]}" + ("-col" if self.layout == "col" else "")

    @property
    def flops(self) -> int:
        """Return the number of floating-point operations, 2·m·n·k."""
        return 2 * self.m * self.n * self.k

    @property
    def read_bytes(self) -> int:
        """Return the size of A and B."""
        return (self.m + self.n) * self.k * ITEMSIZE[self.dtype]

    @property
    def needed_bytes(self) -> int:
        """Return the bytes of memory that a case needs: the matrices, and A, B and two references in float64."""
        return self.read_bytes + self.written_bytes + 8 * (2 * (self.m + self.n) * self.k + 3 * self.m * self.n)

    @property
    def written_bytes(self) -> int:
        """Return the size of C."""
        return self.m * self.n * ITEMSIZE[self.dtype]


def case_named(name: str) -> Case:
    """Return the case of a name; raise ValueError for any other text."""
    try:
        m, n, k, short, *layout = name.split("-")
        case = Case(int(m), int(n), int(k), DTYPE_OF[short], *layout)
    except (KeyError, TypeError, ValueError):
        case = None
    known = case is not None and case.dtype in _DTYPES and case.layout in _LAYOUTS
    if case is None or not known or min(case.m, case.n, case.k) < 1:
        raise ValueError(f"shape {name!r}: expected m-n-k-dtype or m-n-k-dtype-col, such as 20480-4-20480-f64-col")
    return case


def error_bound(k: int, dtype: str) -> float:
    """Return a bound of the error of an element of C relative to the same element of ``|A|·|B|``.

    It is that of `tsapps.matmul`, plus the error of the reference, a sum in float64.
    """
    roundings = ((k + 4) * float(np.finfo(kind).eps) / 2 for kind in (dtype, "float64"))
    return sum(one / (1 - one) for one in roundings) + (2.0**-21 if dtype == "float32" else 0.0)


_SQUARES = (256, 512, 1023, 1024, 2048, 4095, 4096, 8192)
_RECTANGLES = ((4096, 4096, 256), (4096, 256, 4096), (256, 4096, 4096), (8192, 1024, 128), (1024, 8192, 128))
_SKINNY = (*((20_480, n, 20_480) for n in (2, 4, 8, 16)), (10_000_000, 16, 16), (1_000_000, 64, 64))

#: Recorded cases on a GPU.
GPU_CASES = tuple(
    Case(m, n, k, dtype, layout)
    for dtype in _DTYPES
    for sizes, layouts in (
        (tuple((edge, edge, edge) for edge in _SQUARES), ("row",)),
        (_RECTANGLES, ("row",)),
        (_SKINNY, _LAYOUTS),
    )
    for m, n, k in sizes
    for layout in layouts
)
#: Recorded cases on a CPU.
CPU_CASES = tuple(
    Case(m, n, k, dtype)
    for dtype in _DTYPES
    for m, n, k in (*((edge, edge, edge) for edge in (256, 512, 1024, 2048)), (20_480, 8, 2048), (1_000_000, 16, 16))
)
