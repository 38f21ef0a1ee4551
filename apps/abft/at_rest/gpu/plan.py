"""Plans of the checksum kernel (at_rest/gpu/encode.cuh), from sizes alone: work units, threads and shared memory."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.float_code import columns_shape, rows_shape, sums_dtype
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.problem import ITEMSIZE

__all__ = ["ALIGNMENT", "TASK", "ChecksumsPlan", "elements_plan", "fitted", "words_plan"]

#: Bytes per copy from global to shared memory, and the alignment of each copy in bytes.
ALIGNMENT = 16
# A *strip* is 1024 bytes of each row of a stripe: the part of the matrix that a thread block copies and sums at a time.
# The kernel's constants kStrip, kWarps, kProducts, kPitch and kRows are, in this order: bytes of a strip per row;
# number of warps that sum a strip; number of columns of word weights; bytes per row of a pipeline stage, with padding;
# rows per stage. _STAGES: maximum number of stages.
_STRIP, _WARPS, _PRODUCTS, _PITCH, _PIPELINE_ROWS, _STAGES = 1024, 8, 8, 1056, 32, 5
# The least compute capability at which a pass may compute both codes: it needs setmaxnreg.
_BOTH_CAPABILITY = 9.0
# Number of parts from which the kernel computes a row's sums (kParts), by the type of the sums. Below: maximum number
# of work units of a pass, and of weights.
_PARTS = {"float64": 2, "float32": 3}
_MOST_UNITS, _MOST_WEIGHTS = 2**30, 2

#: The kernel argument: the C++ class `Task` of at_rest/gpu/tile_pipeline.cuh.
TASK = np.dtype(
    [
        *((name, "u8") for name in ("data", "exact")),
        ("compared", [(name, "u8") for name in ("expected", "listed", "count")]),
        *((name, "u8") for name in ("row_sums", "column_sums")),
        *((name, "i8") for name in ("rows", "row_bytes", "last_bytes")),
        *((name, "i4") for name in ("units", "units_across", "strips")),
        ("next", "u8"),
    ],
    align=True,
)


@dataclass(frozen=True)
class ChecksumsPlan:
    """Template arguments, sizes and result shapes of one pass of the kernel.

    Attributes
    ----------
    dtype : str
        The elements' type; "float32" for a pass over words only.
    exact : bool
        Whether the pass computes the exact sums of words.
    weights : int
        Number of weighted sums per row and per column: 0, 1 or 2.
    rows, row_bytes, last_bytes : int
        Number of rows (of words, if the pass computes only exact sums; otherwise of elements); bytes of every row
        except the last; bytes of the last row, which may be shorter.
    stages : int
        Number of stages of the pipeline, at least 2.
    """

    dtype: str
    exact: bool
    weights: int
    rows: int
    row_bytes: int
    last_bytes: int
    stages: int = _STAGES

    @property
    def stripes(self) -> int:
        """Number of stripes of 512 rows."""
        return -(-self.rows // ROWS)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def strips(self) -> int:
        """Number of strips per work unit: 1, or with weighted sums as many as the 512 columns of a row sum need."""
        return max(1, ROWS * self.itemsize // _STRIP) if self.weights else 1

    @property
    def units_across(self) -> int:
        """Number of work units per stripe."""
        return -(-self.row_bytes // (self.strips * _STRIP))

    @property
    def units(self) -> int:
        """Number of work units of the matrix."""
        return self.stripes * self.units_across

    @property
    def sums(self) -> np.dtype:
        """The type of the weighted sums."""
        return sums_dtype(self.dtype)

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The shapes of the checksum arrays, by name: "exact", "rows" and "columns", if the pass computes them."""
        shapes = {"exact": (self.stripes, SUMS, self.row_bytes // WORD)} if self.exact else {}
        if self.weights:
            shape = self.rows, self.row_bytes // self.itemsize
            shapes["rows"] = rows_shape(shape, self.weights, ROWS)
            shapes["columns"] = columns_shape(shape, self.weights, ROWS)
        return shapes

    @property
    def kernel(self) -> str:
        """The C++ name of the kernel, with its template arguments."""
        return f"abft::add_checksums<{ELEMENT[self.dtype]}, {str(self.exact).lower()}, {self.weights}, {self.stages}>"

    @property
    def threads(self) -> int:
        """Number of threads per thread block (kThreads)."""
        return 128 + 32 * _WARPS * (self.exact + (self.weights > 0))

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory (kSharedBytes)."""
        table = ROWS * _PRODUCTS * 8 if self.exact else 0
        of_warps = self.stages * _PARTS[self.sums.name] * _WARPS * _PIPELINE_ROWS if self.weights else 0
        sums = (of_warps + self.weights * ROWS) * self.sums.itemsize
        return table + sums + self.stages * (_PIPELINE_ROWS * _PITCH + 3 * 8 + 4)

    def task(
        self, data: int, tensors: dict[str, int], following: int, compared: Iterable[int] = (0, 0, 0)
    ) -> np.ndarray:
        """Return the kernel's argument, a `TASK`.

        Parameters
        ----------
        data : int
            The address of the matrix.
        tensors : dict of str to int
            The addresses of the checksum arrays, by the names in `shapes`.
        following : int
            The address of the counter from which thread blocks fetch work units.
        compared : iterable of int
            The addresses of a `Comparison` (encode.py), or zeros.
        """
        task = np.zeros((), TASK)
        task["data"], task["exact"], task["next"] = data, tensors.get("exact", 0), following
        task["compared"] = tuple(compared)
        task["row_sums"], task["column_sums"] = tensors.get("rows", 0), tensors.get("columns", 0)
        for name in ("rows", "row_bytes", "last_bytes", "units", "units_across", "strips"):
            task[name] = getattr(self, name)
        return task


def _served(plan: ChecksumsPlan) -> ChecksumsPlan | None:
    """Return the plan if the kernel supports it, otherwise None.

    The bytes of every row must be a multiple of 16, and there must be at most `_MOST_UNITS` work units.
    """
    whole = plan.row_bytes % ALIGNMENT == 0 and plan.last_bytes % ALIGNMENT == 0
    return plan if whole and plan.units <= _MOST_UNITS else None


def fitted(plan: ChecksumsPlan | None, gpu: GpuSpec) -> ChecksumsPlan | None:
    """Return a plan with as many stages as a GPU has shared memory for; None without a plan, or if two do not fit."""
    if plan is None or (plan.exact and plan.weights and float(gpu.compute_capability) < _BOTH_CAPABILITY):
        return None
    every = (replace(plan, stages=stages) for stages in range(_STAGES, 1, -1))
    return next((one for one in every if one.shared_bytes <= gpu.shared_memory_per_block), None)


def words_plan(of: Layout) -> ChecksumsPlan | None:
    """Return the plan of a pass that computes only exact sums; None if the kernel does not support the layout."""
    row_bytes = of.width * WORD
    rows = -(-of.n_bytes // row_bytes)
    return _served(ChecksumsPlan("float32", True, 0, rows, row_bytes, of.n_bytes - (rows - 1) * row_bytes))


def elements_plan(m: int, n: int, dtype: str, weights: int, block: int, of: Layout | None) -> ChecksumsPlan | None:
    """Return the plan of a pass that computes the weighted sums of a matrix; None if the kernel does not support it.

    Parameters
    ----------
    m, n : int
        The matrix is m × n.
    dtype : str
        The name of the elements' type.
    weights, block : int
        Number of weights and block size of the float code.
    of : Layout or None
        The interleaving of the matrix's words, or None if no exact sums are needed. If a row of words is a row of
        elements, the pass also computes the exact sums.
    """
    if dtype not in ELEMENT or weights > _MOST_WEIGHTS or block != ROWS:
        return None
    plan = ChecksumsPlan(dtype, False, weights, m, 0, 0)
    row_bytes = n * plan.itemsize
    exact = of is not None and of.width * WORD == row_bytes
    return _served(ChecksumsPlan(dtype, exact, weights, m, row_bytes, row_bytes))
