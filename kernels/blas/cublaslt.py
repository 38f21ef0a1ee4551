"""cublasLt through ctypes: descriptors of a product, and the ranked algorithms of the library's heuristics.

Constants are those of `cublasLt.h`, `cublas_api.h` and `library_types.h`; they are the same in CUDA 12 and 13.
"""

import ctypes
import re
import sys
import weakref
from contextlib import suppress
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["ALIGNMENT", "COL", "ROW", "WORKSPACE", "HeuristicResult", "LibraryError", "LtProduct", "Matrix", "Product"]
__all__ += ["TYPES", "call", "find", "of_device", "version"]

#: WORKSPACE: maximum workspace of an algorithm, in bytes. ALIGNMENT: alignment of the workspace, and the alignment that
#: cublasLt assumes for matrices by default, in bytes. MOST_ALGOS: maximum number of algorithms to request.
WORKSPACE, ALIGNMENT, MOST_ALGOS = 64 << 20, 256, 64

#: By dtype: cudaDataType_t of the matrices, cublasComputeType_t, and cudaDataType_t of alpha and beta. The compute type
#: is float64 for float64 matrices and float32 without TF32 for all others.
TYPES = {"float64": (1, 70, 1), "float32": (0, 68, 0), "float16": (2, 68, 0), "bfloat16": (14, 68, 0)}
COL, ROW = 0, 1  # cublasLtOrder_t
LAYOUT_ORDER, DESC_TRANSA, DESC_TRANSB = 1, 3, 4
PREF_WORKSPACE, PREF_REDUCTIONS, PREF_ALIGNMENTS = 1, 3, (5, 6, 7, 8)
STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR"}
STATUS |= {13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"}


class LibraryError(RuntimeError):
    """A call to cuBLAS or cublasLt failed."""


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        *(("algo", c_uint64 * 8), ("workspace_size", c_size_t), ("state", c_int)),
        *(("waves_count", ctypes.c_float), ("reserved", c_int * 4)),
    )


@dataclass(frozen=True)
class Matrix:
    """A matrix at address `ptr`; `ld` is the distance in elements between columns (order COL) or rows (order ROW)."""

    ptr: int
    rows: int
    cols: int
    order: int
    ld: int
    owner: Any = field(default=None, compare=False, repr=False)

    @property
    def transposed(self) -> "Matrix":
        """The transposed matrix in the same memory."""
        return Matrix(self.ptr, self.cols, self.rows, COL + ROW - self.order, self.ld, self.owner)


@dataclass(frozen=True)
class Product:
    """The product out = op(first) · op(second); op transposes `first` if `trans_first`, `second` if `trans_second`."""

    first: Matrix
    trans_first: bool
    second: Matrix
    trans_second: bool
    out: Matrix

    def column_major(self) -> "Product":
        """Return the same product with column-major matrices; a row-major matrix is replaced by its transpose."""
        first, second, out = (self.first, self.trans_first), (self.second, self.trans_second), self.out
        if out.order == ROW:
            first, second, out = (second[0], not second[1]), (first[0], not first[1]), out.transposed
        columns = [(one.transposed, not trans) if one.order == ROW else (one, trans) for one, trans in (first, second)]
        return Product(*columns[0], *columns[1], out)


def find(stem: str) -> ctypes.CDLL:
    """Load the library lib<stem>: the copy loaded in this process, else one in a wheel, else the system's copy."""
    maps = Path("/proc/self/maps")
    mapped = re.findall(rf"/.*/lib{stem}\.so[.\d]*$", maps.read_text() if maps.exists() else "", re.MULTILINE)
    folders = [Path(entry) / "nvidia" / name / "lib" for entry in sys.path for name in ("cu13", "cublas")]
    wheels = [str(path) for folder in folders for path in sorted(folder.glob(f"lib{stem}.so.*"))]
    for path in (*mapped, *wheels, f"lib{stem}.so.13", f"lib{stem}.so.12", f"lib{stem}.so"):
        with suppress(OSError):
            return ctypes.CDLL(path)
    raise OSError(
        f"found no lib{stem}.so: CuPy has not loaded it, nvidia/cu13/lib and nvidia/cublas/lib on sys.path have no "
        "usable copy, and the system's linker finds none; install it with pip install 'cupy-cuda13x[ctk]'"
    )


def call(library: Any, name: str, *arguments: Any) -> None:
    """Call a function of cuBLAS or cublasLt; raise LibraryError unless it returns CUBLAS_STATUS_SUCCESS."""
    if status := getattr(library, name)(*arguments):
        raise LibraryError(f"{name} returned CUBLAS_STATUS_{STATUS.get(status, status)}")


@cache
def version() -> int | None:
    """Return the version of cublasLt from cublasLtGetVersion, or None if there is no cublasLt."""
    with suppress(ImportError):
        import cupy.cuda.cublas  # noqa: F401, because CuPy loads copies that `find` cannot locate itself
    try:
        get = find("cublasLt").cublasLtGetVersion
    except OSError:
        return None
    get.restype = c_size_t
    return int(get())


@cache
def of_device(_device: int) -> tuple[ctypes.CDLL, c_void_p]:
    """Return (cublasLt, its handle for the current device); `_device`, the number of that device, is the cache key."""
    library, handle = find("cublasLt"), c_void_p()
    call(library, "cublasLtCreate", ctypes.byref(handle))
    return library, handle


def _descriptor(library: Any, what: str, arguments: tuple[Any, ...], attributes: dict[int, Any]) -> c_void_p:
    """Create a cublasLt descriptor of type `what`, and set its attributes.

    The descriptor is destroyed when no reference to it remains.
    """
    made = c_void_p()
    call(library, f"cublasLt{what}Create", ctypes.byref(made), *arguments)
    weakref.finalize(made, getattr(library, f"cublasLt{what}Destroy"), c_void_p(made.value))
    for attribute, value in attributes.items():
        given = c_int(attribute), ctypes.byref(value), c_size_t(ctypes.sizeof(value))
        call(library, f"cublasLt{what}SetAttribute", made, *given)
    return made


class LtProduct:
    """The cublasLt descriptors of a product.

    Parameters
    ----------
    library : ctypes.CDLL
        cublasLt.
    product : Product
    data, compute, scale : int
        cudaDataType_t of the matrices, cublasComputeType_t, and cudaDataType_t of alpha and beta.
    reductions : int
        Mask of the allowed ways to add partial sums (cublasLtReductionScheme_t). By default, all are allowed.
    """

    def __init__(
        self, library: Any, product: Product, data: int, compute: int, scale: int, reductions: int | None = None
    ) -> None:
        self.library, self.product = library, product
        transposed = {DESC_TRANSA: c_int32(product.trans_first), DESC_TRANSB: c_int32(product.trans_second)}
        self.operation = _descriptor(library, "MatmulDesc", (c_int(compute), c_int(scale)), transposed)
        self.layouts: list[c_void_p] = []
        preferences: dict[int, Any] = {PREF_WORKSPACE: c_uint64(WORKSPACE)}
        if reductions is not None:
            preferences[PREF_REDUCTIONS] = c_uint32(reductions)
        # cublasLt computes D ← alpha · A · B + beta · C; `out` is both C and D.
        matrices = product.first, product.second, product.out, product.out
        for preference, one in zip(PREF_ALIGNMENTS, matrices, strict=True):
            sizes = c_int(data), c_uint64(one.rows), c_uint64(one.cols), c_int64(one.ld)
            self.layouts.append(_descriptor(library, "MatrixLayout", sizes, {LAYOUT_ORDER: c_int32(one.order)}))
            # cublasLt assumes addresses aligned to 256 bytes unless it is given the true alignment.
            preferences[preference] = c_uint32(min(one.ptr & -one.ptr, ALIGNMENT))
        self.preference = _descriptor(library, "MatmulPreference", (), preferences)

    def algorithms(self, handle: c_void_p) -> list[tuple[int, Any, int]]:
        """Return the algorithms that cublasLt's heuristics rank, without duplicates, the best first.

        Each item is (rank counted from 0, algorithm, bytes of workspace).
        """
        results, count = (HeuristicResult * MOST_ALGOS)(), c_int()
        given = self.operation, *self.layouts, self.preference, c_int(MOST_ALGOS), results, ctypes.byref(count)
        call(self.library, "cublasLtMatmulAlgoGetHeuristic", handle, *given)
        found: dict[bytes, tuple[int, Any, int]] = {}
        for i, result in enumerate(results[: count.value]):
            if result.state == 0 and result.workspace_size <= WORKSPACE:
                found.setdefault(bytes(result.algo), (i, result.algo, int(result.workspace_size)))
        return list(found.values())

    def run(
        self,
        algo: Any,
        handle: c_void_p,
        pointers: tuple[int, int, int],
        scalars: tuple[Any, Any],
        workspace: tuple[int, int],
        stream: int,
    ) -> None:
        """Enqueue out ← alpha · op(first) · op(second) + beta · out.

        `pointers` are the addresses of first, second and out; `scalars` are alpha and beta; `workspace` is the address
        and the number of bytes of the workspace.
        """
        (a, b, c, d), (first, second, out) = self.layouts, map(c_void_p, pointers)
        alpha, beta = map(ctypes.byref, scalars)
        operands = alpha, first, a, second, b, beta, out, c, out, d
        using = ctypes.byref(algo), c_void_p(workspace[0]), c_size_t(workspace[1]), c_void_p(stream)
        call(self.library, "cublasLtMatmul", handle, self.operation, *operands, *using)
