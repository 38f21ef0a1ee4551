"""The fastest way to compute one product with cuBLAS or any cublasLt algorithm found by its heuristics.

    name, ms = best(A, B, out, dtype="float32", time_ms=many, quick_ms=few, check=error)

The arithmetic is native: float64 in float64, all other types in float32, without TF32 and emulation. Partial sums of
float16 and bfloat16 products may be rounded to these types, as cuBLAS does by default.

Enumeration values are those of `cublas_api.h`; they are the same in CUDA 12 and 13.
"""

import ctypes
import os
import warnings
from collections import namedtuple
from collections.abc import Callable
from ctypes import c_int, c_int64, c_void_p
from functools import cache, partial
from typing import Any

from tsapps.kernels.blas.cublaslt import (
    ALIGNMENT,
    COL,
    ROW,
    TYPES,
    WORKSPACE,
    LibraryError,
    LtProduct,
    Matrix,
    Product,
    call,
    find,
    of_device,
)

__all__ = ["LibraryError", "best", "candidates", "stripes"]

#: Number of algorithms that are timed accurately.
FINALISTS = 3

DEFAULT_MATH, GEMM_DEFAULT = 0, c_int(-1)
#: The value 1 enables emulation in every program, and no call disables it: cublasSetEmulationStrategy only selects when
#: to emulate. Float32 from compute capability 10.0 on, float64 from 8.0 on (CUDA 13.0 update 2).
EMULATION = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATE_DOUBLE_PRECISION")

Run = Callable[[], None]
Clock, Check = Callable[[Run], float], Callable[[], float] | None

# Batched products: elements between consecutive matrices, and number of products.
Strides = namedtuple("Strides", "apart count")
# CuPy's name, cudaDataType_t, cublasComputeType_t and cudaDataType_t of the scalars, alpha and beta, a NaN.
_Type = namedtuple("_Type", "array data compute scale alpha beta gemv nan")
_FLOAT, _DOUBLE = ((kind(1), kind(0)) for kind in (ctypes.c_float, ctypes.c_double))
_TYPES = {
    "float64": _Type("float64", *TYPES["float64"], *_DOUBLE, "cublasDgemv_v2", float("nan")),
    "float32": _Type("float32", *TYPES["float32"], *_FLOAT, "cublasSgemv_v2", float("nan")),
    "float16": _Type("float16", *TYPES["float16"], *_FLOAT, None, float("nan")),
    "bfloat16": _Type("uint16", *TYPES["bfloat16"], *_FLOAT, None, 0x7FC0),
}


def layout(name: str, array: Any, prefer: int = COL) -> Matrix:
    """Return the memory layout of an array; `prefer` decides if both orders apply, as for a single column."""
    (rows, cols), size = array.shape, array.itemsize
    down, right = (stride / size for stride in array.strides)
    # The stride of a dimension of size one is never used and may be arbitrary.
    found = {
        COL: (rows == 1 or down == 1, right if cols > 1 else rows, rows),
        ROW: (cols == 1 or right == 1, down if rows > 1 else cols, cols),
    }
    for order in (prefer, COL + ROW - prefer):
        unit, ld, least = found[order]
        if unit and least <= ld == int(ld) and max(rows, cols, ld) < 2**31:
            return Matrix(int(array.data.ptr), rows, cols, order, int(ld), array)
    raise ValueError(
        f"{name} has strides of {array.strides} bytes at shape {array.shape} and {size} bytes an element; expected a "
        "row-major or a column-major matrix, with all sizes below 2³¹"
    )


def formulations(A: Any, B: Any, out: Any, trans_a: bool = False) -> dict[str, Product]:
    """Return the formulations of a product: with column-major matrices only, and with each matrix in its own order.

    A vector is passed as a column, then as rows of one element: a library may select another kernel.
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
    """Return the libraries' codes for `dtype`; raise ValueError unless all operands have it and their shapes match."""
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
    """Raise LibraryError if an environment variable replaces native arithmetic."""
    for name in (*EMULATION, "NVIDIA_TF32_OVERRIDE"):
        if os.environ.get(name, "0") not in ("", "0"):
            raise LibraryError(f"{name} is {os.environ[name]!r}; expected 0 or unset, for native arithmetic")
    os.environ.update(dict.fromkeys(EMULATION, "0"))


def gemm(library: Any, handle: int, product: Product, kind: _Type, strides: Strides | None = None) -> None:
    """Call cublasGemmEx for a column-major product, or cublasGemmStridedBatchedEx for several at given strides."""
    first, second, out = product.first, product.second, product.out
    k = first.rows if product.trans_first else first.cols
    sizes = map(c_int, (product.trans_first, product.trans_second, out.rows, out.cols, k))
    alpha, beta, data = ctypes.byref(kind.alpha), ctypes.byref(kind.beta), c_int(kind.data)
    name, apart, count = "cublasGemmEx", [()] * 3, ()
    if strides is not None:
        name, count = "cublasGemmStridedBatchedEx", (c_int(strides.count),)
        apart = [(c_int64(one),) for one in strides.apart]
    a, b, c = (
        (c_void_p(one.ptr), data, c_int(one.ld), *by) for one, by in zip((first, second, out), apart, strict=True)
    )
    how = *count, c_int(kind.compute), GEMM_DEFAULT
    call(library, name, c_void_p(handle), *sizes, alpha, *a, *b, beta, *c, *how)


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


@cache
def _workspace(_device: int) -> tuple[Any, int]:
    """Return a workspace on the current device, allocated once per process, and its aligned address."""
    import cupy

    memory = cupy.empty(WORKSPACE + ALIGNMENT, cupy.uint8)
    return memory, -(-memory.data.ptr // ALIGNMENT) * ALIGNMENT


def _by_cublas(library: Any, function: Callable[..., None], *given: Any) -> None:
    """Call one of the functions above on CuPy's current stream, with the default arithmetic of cuBLAS."""
    import cupy
    from cupy_backends.cuda.libs import cublas as modes

    handle = cupy.cuda.device.get_cublas_handle()
    before = modes.getMathMode(handle)
    modes.setStream(handle, cupy.cuda.get_current_stream().ptr)
    modes.setMathMode(handle, DEFAULT_MATH)
    try:
        function(library, handle, *given)
    finally:
        modes.setMathMode(handle, before)


def candidates(A: Any, B: Any, out: Any, *, dtype: str, trans_a: bool = False) -> list[tuple[str, Run]]:
    """Return all ways of the libraries to compute A·B, or Aᵀ·B, into `out`.

    Parameters
    ----------
    A, B, out : cupy.ndarray
        Row-major or column-major matrices of any leading dimension.
    dtype : {"float64", "float32", "float16", "bfloat16"}
        Type of all three; bfloat16 matrices hold uint16.

    Returns
    -------
    list of (str, callable)
        "cublas", "cublas (gemv)" for a width of one, and "cublasLt[i] (…)" with the algorithm's rank and the
        formulation of the product. A call enqueues work on CuPy's current stream, allocates nothing, and raises
        `LibraryError` for an error status. All share one workspace: use one stream at a time.
    """
    kind = check_operands(A, B, out, dtype, trans_a)
    products = formulations(A, B, out, trans_a)
    pin_native()
    import cupy

    index = cupy.cuda.Device().id
    cublas, (lt, lt_handle) = find("cublas"), of_device(index)
    by_cublas = partial(_by_cublas, cublas)
    columns = {name: product for name, product in products.items() if name.startswith("column-major")}
    found = [
        (name.replace("column-major", "cublas"), partial(by_cublas, gemm, columns[name], kind)) for name in columns
    ]
    if kind.gemv and 1 in out.shape:
        found.append(("cublas (gemv)", partial(by_cublas, gemv, products["column-major"], kind)))

    def by_lt(described: LtProduct, algo: Any) -> None:
        one, stream = described.product, cupy.cuda.get_current_stream().ptr
        pointers, memory = (one.first.ptr, one.second.ptr, one.out.ptr), _workspace(index)[1]
        described.run(algo, lt_handle, pointers, (kind.alpha, kind.beta), (memory, WORKSPACE), stream)

    _workspace(index)  # allocated here, because the calls are timed
    for name, product in products.items():
        try:
            described = LtProduct(lt, product, kind.data, kind.compute, kind.scale)
            algos = described.algorithms(lt_handle)
        except LibraryError as error:
            warnings.warn(f"cublasLt ({name}) is skipped: {error}", stacklevel=2)  # such as mixed orders
            continue
        found += [(f"cublasLt[{i}] ({name})", partial(by_lt, described, algo)) for i, algo, _ in algos]
    return found


def stripes(A: Any, B: Any, out: Any, *, dtype: str) -> list[tuple[str, Run]]:
    """Return the ways of cuBLAS to compute outᵢ = Aᵢᵀ · B for all i in one call, as `candidates` does.

    Parameters
    ----------
    A, out : cupy.ndarray
        Three-dimensional arrays: a stack of matrices.
    """
    kind = check_operands(A[0], B, out[0], dtype, True)
    product = formulations(A[0], B, out[0], trans_a=True)["column-major"]
    pin_native()
    # All matrices of A share one B.
    apart = [A.strides[0] // A.itemsize if one.ptr == A.data.ptr else 0 for one in (product.first, product.second)]
    strides = Strides((*apart, out.strides[0] // out.itemsize), len(A))
    return [("cublas (strided batched)", partial(_by_cublas, find("cublas"), gemm, product, kind, strides))]


def best(
    A: Any, B: Any, out: Any, *, dtype: str, trans_a: bool = False, time_ms: Clock, quick_ms: Clock, check: Check = None
) -> tuple[str, float]:
    """Return the name and the time in ms of the fastest candidate; raise LibraryError if all fail.

    Parameters
    ----------
    A, B, out : cupy.ndarray
        As for `candidates`; three-dimensional arrays as for `stripes`.
    time_ms, quick_ms : callable
        Timers with many and with few repetitions: `quick_ms` times all candidates, `time_ms` the fastest three.
    check : callable, optional
        Returns the error of `out`, or raises ValueError if it is wrong. The fastest three are checked, each with `out`
        filled with NaN before; the next fastest replaces a wrong one.
    """
    quick, timed, failed = [], [], []
    ways = stripes(A, B, out, dtype=dtype) if out.ndim == 3 else candidates(A, B, out, dtype=dtype, trans_a=trans_a)
    for name, run in ways:
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
