"""The best that the libraries offer for one product: cuBLAS, and every algorithm of cublasLt's heuristics.

    name, ms = best(A, B, out, dtype="float32", time_ms=many, quick_ms=few, check=error)

The arithmetic is native: float64 in float64, all else in float32, with neither TF32 nor emulation. As cuBLAS does by
default, partial sums of float16 and bfloat16 products may be added up in their own type.

The numbers are those of `cublas_api.h`, `cublasLt.h` and `library_types.h`; they are the same in CUDA 12 and 13.
"""

import ctypes
import os
import re
import sys
import warnings
import weakref
from collections import namedtuple
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

__all__ = ["LibraryError", "best", "candidates"]

#: What an algorithm of cublasLt may use, how it is aligned, how many algorithms are asked for, and timed at length.
WORKSPACE, ALIGNMENT, MOST_ALGOS, FINALISTS = 64 << 20, 256, 64, 3

COL, ROW = 0, 1  # cublasLtOrder_t
DEFAULT_MATH, GEMM_DEFAULT = 0, c_int(-1)
LAYOUT_ORDER, DESC_TRANSA, DESC_TRANSB, PREF_WORKSPACE, PREF_ALIGNMENTS = 1, 3, 4, 1, (5, 6, 7, 8)
STATUS = {1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR"}
STATUS |= {13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"}
#: 1 switches emulation on whatever a program asks for, and no call switches it off; cublasSetEmulationStrategy says
#: only when to emulate. In float32 from compute capability 10.0 on, in float64 from 8.0 on (CUDA 13.0 update 2).
EMULATION = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")

Run = Callable[[], None]
Clock, Check = Callable[[Run], float], Callable[[], float] | None

# CuPy's name, cudaDataType_t, cublasComputeType_t and cudaDataType_t of the scalars, alpha and beta, NaN in an array.
_Type = namedtuple("_Type", "array data compute scale alpha beta gemv nan")
_FLOAT = 68, 0, ctypes.c_float(1), ctypes.c_float(0)
_TYPES = {
    "float64": _Type("float64", 1, 70, 1, ctypes.c_double(1), ctypes.c_double(0), "cublasDgemv_v2", float("nan")),
    "float32": _Type("float32", 0, *_FLOAT, "cublasSgemv_v2", float("nan")),
    "float16": _Type("float16", 2, *_FLOAT, None, float("nan")),
    "bfloat16": _Type("uint16", 14, *_FLOAT, None, 0x7FC0),
}


class LibraryError(RuntimeError):
    """A call of cuBLAS or cublasLt that did not return CUBLAS_STATUS_SUCCESS."""


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        *(("algo", c_uint64 * 8), ("workspace_size", c_size_t), ("state", c_int)),
        *(("waves_count", ctypes.c_float), ("reserved", c_int * 4)),
    )


@dataclass(frozen=True)
class Layout:
    """A matrix in memory: `ld` elements lie between two columns (order COL) or two rows (order ROW)."""

    ptr: int
    rows: int
    cols: int
    order: int
    ld: int
    owner: Any = field(default=None, compare=False, repr=False)

    @property
    def transposed(self) -> "Layout":
        """The same memory, read as the transposed matrix."""
        return Layout(self.ptr, self.cols, self.rows, COL + ROW - self.order, self.ld, self.owner)


@dataclass(frozen=True)
class Product:
    """out = op(first) · op(second), where op transposes what is said to be transposed."""

    first: Layout
    trans_first: bool
    second: Layout
    trans_second: bool
    out: Layout

    def column_major(self) -> "Product":
        """Return the same product with each matrix column-major: a row-major one is its column-major transposed."""
        first, second, out = (self.first, self.trans_first), (self.second, self.trans_second), self.out
        if out.order == ROW:
            first, second, out = (second[0], not second[1]), (first[0], not first[1]), out.transposed
        columns = [(one.transposed, not trans) if one.order == ROW else (one, trans) for one, trans in (first, second)]
        return Product(*columns[0], *columns[1], out)


def layout(name: str, array: Any, prefer: int = COL) -> Layout:
    """Return how an array lies in memory; `prefer` settles the order where both hold, as for a single column."""
    (rows, cols), size = array.shape, array.itemsize
    down, right = (stride / size for stride in array.strides)
    # The stride of a dimension of one is never taken and may be anything.
    found = {
        COL: (rows == 1 or down == 1, right if cols > 1 else rows, rows),
        ROW: (cols == 1 or right == 1, down if rows > 1 else cols, cols),
    }
    for order in (prefer, COL + ROW - prefer):
        unit, ld, least = found[order]
        if unit and least <= ld == int(ld) and max(rows, cols, ld) < 2**31:
            return Layout(int(array.data.ptr), rows, cols, order, int(ld), array)
    raise ValueError(
        f"{name} has strides of {array.strides} bytes at shape {array.shape} and {size} bytes an element; expected a "
        "row-major or a column-major matrix, with all sizes below 2³¹"
    )


def formulations(A: Any, B: Any, out: Any, trans_a: bool = False) -> dict[str, Product]:
    """Return the ways to put a product: with column-major matrices alone, and with each matrix in its own order.

    A vector is read as a column, then as rows of one: a library may take another kernel for it.
    """
    found: dict[str, Product] = {}
    for prefer, suffix in ((COL, ""), (ROW, ", vectors as rows")):
        a, b, c = (layout(name, one, prefer) for name, one in (("A", A), ("B", B), ("out", out)))
        own = Product(a, trans_a, b, False, c)
        for name, product in (("column-major", own.column_major()), ("own orders", own)):
            if product not in found.values():
                found[name + suffix] = product
    return found


def check_operands(A: Any, B: Any, out: Any, dtype: str, trans_a: bool) -> _Type:
    """Return what the libraries call `dtype`; raise ValueError unless all operands have it and their shapes fit."""
    if dtype not in _TYPES:
        raise ValueError(f"dtype is {dtype!r}; expected {', '.join(_TYPES)}")
    for name, array in (("A", A), ("B", B), ("out", out)):
        if array.ndim != 2 or 0 in array.shape:
            raise ValueError(f"{name} has shape {array.shape}; expected two dimensions of at least one")
        if array.dtype.name != _TYPES[dtype].array:
            raise ValueError(f"{name} holds {array.dtype.name}; expected {_TYPES[dtype].array} for {dtype}")
    m, k = A.shape[::-1] if trans_a else A.shape
    if B.shape[0] != k or out.shape != (m, B.shape[1]):
        product = f"{'Aᵀ' if trans_a else 'A'}·B with A of {A.shape} and B of {B.shape}"
        raise ValueError(f"out has shape {out.shape} for {product}; expected {(m, B.shape[1])}, and {k} rows in B")
    return _TYPES[dtype]


def pin_native() -> None:
    """Make sure that no environment variable replaces native arithmetic; raise LibraryError where one does."""
    for name in (*EMULATION, "NVIDIA_TF32_OVERRIDE"):
        if os.environ.get(name, "0") not in ("", "0"):
            raise LibraryError(f"{name} is {os.environ[name]!r}; expected 0 or unset, for native arithmetic")
    os.environ.update(dict.fromkeys(EMULATION, "0"))


def find(stem: str) -> ctypes.CDLL:
    """Load lib<stem>: the copy that CuPy has loaded, else a wheel's, else what the system's linker finds."""
    maps = Path("/proc/self/maps")
    mapped = re.findall(rf"/.*/lib{stem}\.so[.\d]*$", maps.read_text() if maps.exists() else "", re.MULTILINE)
    folders = [Path(entry) / "nvidia" / name / "lib" for entry in sys.path for name in ("cu13", "cublas")]
    wheels = [str(path) for folder in folders for path in sorted(folder.glob(f"lib{stem}.so.*"))]
    for path in (*mapped, *wheels, f"lib{stem}.so.13", f"lib{stem}.so.12", f"lib{stem}.so"):
        with suppress(OSError):
            return ctypes.CDLL(path)
    raise OSError(
        f"found no lib{stem}.so: CuPy has loaded none, nvidia/cu13/lib and nvidia/cublas/lib on sys.path hold none "
        "that loads, and the system's linker knows none; `pip install cupy-cuda13x[ctk]` brings it"
    )


def call(library: Any, name: str, *arguments: Any) -> None:
    """Call a function of a library; raise LibraryError unless it returns CUBLAS_STATUS_SUCCESS."""
    if status := getattr(library, name)(*arguments):
        raise LibraryError(f"{name} returned CUBLAS_STATUS_{STATUS.get(status, status)}")


@cache
def _of_device(_device: int) -> tuple[ctypes.CDLL, c_void_p, Any, c_void_p]:
    """Return cublasLt, and a handle and a workspace on the current device, kept as long as the process."""
    import cupy

    library, handle = find("cublasLt"), c_void_p()
    call(library, "cublasLtCreate", ctypes.byref(handle))
    memory = cupy.empty(WORKSPACE + ALIGNMENT, cupy.uint8)
    return library, handle, memory, c_void_p(-(-memory.data.ptr // ALIGNMENT) * ALIGNMENT)


def _descriptor(library: Any, what: str, arguments: tuple[Any, ...], attributes: dict[int, Any]) -> c_void_p:
    """Return one of cublasLt's descriptors with its attributes set, destroyed with the last reference to it."""
    made = c_void_p()
    call(library, f"cublasLt{what}Create", ctypes.byref(made), *arguments)
    weakref.finalize(made, getattr(library, f"cublasLt{what}Destroy"), c_void_p(made.value))
    for attribute, value in attributes.items():
        given = c_int(attribute), ctypes.byref(value), c_size_t(ctypes.sizeof(value))
        call(library, f"cublasLt{what}SetAttribute", made, *given)
    return made


class LtProduct:
    """A product as cublasLt is told of it."""

    def __init__(self, library: Any, product: Product, kind: _Type) -> None:
        self.library, self.product, self.kind = library, product, kind
        transposed = {DESC_TRANSA: c_int32(product.trans_first), DESC_TRANSB: c_int32(product.trans_second)}
        self.operation = _descriptor(library, "MatmulDesc", (c_int(kind.compute), c_int(kind.scale)), transposed)
        self.layouts, preferences = [], {PREF_WORKSPACE: c_uint64(WORKSPACE)}
        # The matrix that is added to the product, times zero, is `out` as well.
        matrices = product.first, product.second, product.out, product.out
        for preference, one in zip(PREF_ALIGNMENTS, matrices, strict=True):
            sizes = c_int(kind.data), c_uint64(one.rows), c_uint64(one.cols), c_int64(one.ld)
            self.layouts.append(_descriptor(library, "MatrixLayout", sizes, {LAYOUT_ORDER: c_int32(one.order)}))
            # The greatest power of two that divides the address: the default claims 256 of any.
            preferences[preference] = c_uint32(min(one.ptr & -one.ptr, ALIGNMENT))
        self.preference = _descriptor(library, "MatmulPreference", (), preferences)

    def algorithms(self, handle: c_void_p) -> list[tuple[int, Any]]:
        """Return the algorithms that the heuristics offer, each once, with their ranks."""
        results, count = (HeuristicResult * MOST_ALGOS)(), c_int()
        given = self.operation, *self.layouts, self.preference, c_int(MOST_ALGOS), results, ctypes.byref(count)
        call(self.library, "cublasLtMatmulAlgoGetHeuristic", handle, *given)
        found: dict[bytes, tuple[int, Any]] = {}
        for i, result in enumerate(results[: count.value]):
            if result.state == 0 and result.workspace_size <= WORKSPACE:
                found.setdefault(bytes(result.algo), (i, result.algo))
        return list(found.values())

    def run(self, algo: Any, handle: c_void_p, workspace: c_void_p, stream: Callable[[], Any]) -> None:
        """Enqueue the product by one algorithm on the stream that `stream` returns."""
        (a, b, c, d), one, out = self.layouts, self.product, c_void_p(self.product.out.ptr)
        alpha, beta = ctypes.byref(self.kind.alpha), ctypes.byref(self.kind.beta)
        operands = alpha, c_void_p(one.first.ptr), a, c_void_p(one.second.ptr), b, beta, out, c, out, d
        using = ctypes.byref(algo), workspace, c_size_t(WORKSPACE), c_void_p(stream().ptr)
        call(self.library, "cublasLtMatmul", handle, self.operation, *operands, *using)


def gemm(library: Any, handle: int, product: Product, kind: _Type) -> None:
    """Call cublasGemmEx for a column-major product."""
    first, second, out = product.first, product.second, product.out
    k = first.rows if product.trans_first else first.cols
    m, n, k, lda, ldb, ldc = map(c_int, (out.rows, out.cols, k, first.ld, second.ld, out.ld))
    alpha, beta = ctypes.byref(kind.alpha), ctypes.byref(kind.beta)
    data, ops = c_int(kind.data), (c_int(product.trans_first), c_int(product.trans_second))
    operands = c_void_p(first.ptr), data, lda, c_void_p(second.ptr), data, ldb, beta, c_void_p(out.ptr), data, ldc
    call(library, "cublasGemmEx", c_void_p(handle), *ops, m, n, k, alpha, *operands, c_int(kind.compute), GEMM_DEFAULT)


def gemv(library: Any, handle: int, product: Product, kind: _Type) -> None:
    """Call cublasSgemv or cublasDgemv for a column-major product whose `out` has one column or one row."""
    matrix, transposed, vector, out = product.first, product.trans_first, product.second, product.out
    steps = vector.ld if product.trans_second else 1, 1
    if out.cols > 1:  # outᵀ = op(second)ᵀ · op(first)ᵀ
        matrix, transposed, vector = product.second, not product.trans_second, product.first
        steps = 1 if product.trans_first else vector.ld, out.ld
    m, n, lda, incx, incy = map(c_int, (matrix.rows, matrix.cols, matrix.ld, *steps))
    alpha, beta = ctypes.byref(kind.alpha), ctypes.byref(kind.beta)
    operands = alpha, c_void_p(matrix.ptr), lda, c_void_p(vector.ptr), incx, beta, c_void_p(out.ptr), incy
    call(library, kind.gemv, c_void_p(handle), c_int(transposed), m, n, *operands)


def candidates(A: Any, B: Any, out: Any, *, dtype: str, trans_a: bool = False) -> list[tuple[str, Run]]:
    """Return every way the libraries offer to write A·B, or Aᵀ·B, to `out`.

    Parameters
    ----------
    A, B, out : cupy.ndarray
        Row-major or column-major matrices of any leading dimension.
    dtype : {"float64", "float32", "float16", "bfloat16"}
        Of all three; bfloat16 matrices hold uint16.

    Returns
    -------
    list of (str, callable)
        "cublas", "cublas (gemv)" for a width of one, and "cublasLt[i] (…)" with an algorithm's rank and the way that
        the product is put. A call enqueues on CuPy's current stream, allocates nothing, and raises `LibraryError` on
        a status. All share one workspace: use one stream at a time.
    """
    kind = check_operands(A, B, out, dtype, trans_a)
    products = formulations(A, B, out, trans_a)
    pin_native()
    import cupy
    from cupy_backends.cuda.libs import cublas as modes

    handle = cupy.cuda.device.get_cublas_handle()
    cublas, (lt, lt_handle, _, workspace) = find("cublas"), _of_device(cupy.cuda.Device().id)

    def by_cublas(function: Callable[..., None], product: Product) -> None:
        before = modes.getMathMode(handle)
        modes.setStream(handle, cupy.cuda.get_current_stream().ptr)
        modes.setMathMode(handle, DEFAULT_MATH)
        try:
            function(cublas, handle, product, kind)
        finally:
            modes.setMathMode(handle, before)

    columns = {name: product for name, product in products.items() if name.startswith("column-major")}
    found = [(name.replace("column-major", "cublas"), partial(by_cublas, gemm, columns[name])) for name in columns]
    if kind.gemv and 1 in out.shape:
        found.append(("cublas (gemv)", partial(by_cublas, gemv, products["column-major"])))
    by_lt = lt_handle, workspace, cupy.cuda.get_current_stream
    for name, product in products.items():
        try:
            algos = (described := LtProduct(lt, product, kind)).algorithms(lt_handle)
        except LibraryError as error:
            warnings.warn(f"cublasLt ({name}) is left out: {error}", stacklevel=2)  # as a mix of orders may be
            continue
        found += [(f"cublasLt[{i}] ({name})", partial(described.run, algo, *by_lt)) for i, algo in algos]
    return found


def best(
    A: Any, B: Any, out: Any, *, dtype: str, trans_a: bool = False, time_ms: Clock, quick_ms: Clock, check: Check = None
) -> tuple[str, float]:
    """Return the name and the milliseconds of the fastest candidate; LibraryError is raised where all fail.

    Parameters
    ----------
    time_ms, quick_ms : callable
        Time a call by many and by few repetitions: each candidate by `quick_ms`, the fastest three by `time_ms`.
    check : callable, optional
        Returns the error of what `out` holds, or raises ValueError if it is not right. Those three are checked, each
        after `out` was filled with NaN; the next fastest takes the place of one that is not right.
    """
    quick, timed, failed = [], [], []
    for name, run in candidates(A, B, out, dtype=dtype, trans_a=trans_a):
        try:
            run()  # the first call loads the kernel
            quick.append((quick_ms(run), name, run))
        except LibraryError as error:
            failed.append(f"{name}: {error}")
    for _, name, run in sorted(quick, key=lambda one: one[0]):
        try:
            if check is not None:
                out.fill(_TYPES[dtype].nan)
                run()
                if not check() < float("inf"):
                    raise ValueError("the error is not finite")
            timed.append((time_ms(run), name))
        except (LibraryError, ValueError) as error:
            failed.append(f"{name}: {error}")
        if len(timed) == FINALISTS:
            break
    if not timed:
        raise LibraryError(f"none of {len(failed)} candidates wrote the product: {'; '.join(failed[:3])}")
    ms, name = min(timed)
    return name, ms
