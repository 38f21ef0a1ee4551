"""Matrix products `matmul` and `gram`: check the arrays, select a plan, and compute on the device that holds them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix, as_array, device_matrix, gpu_index, kind_of
from tsapps.kernels.blas import cublas, cublaslt, host
from tsapps.kernels.dispatch import prepare
from tsapps.kernels.gpu_specs import GpuSpec, live
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.select import LIBRARY, plan
from tsapps.kernels.plan.simt import AnyPlan
from tsapps.kernels.plan.user_table import of_version, on_change, user_table
from tsapps.kernels.problem import ITEMSIZE, Layout, Lies, Problem
from tsapps.kernels.runtime.launch import ProductLaunch
from tsapps.kernels.runtime.machine import cuda_machine
from tsapps.kernels.system.logs import logger_of

__all__ = ["gram", "matmul", "on_stream", "oriented", "planned", "prepared", "problem_of"]

_log = logger_of(__name__)


def matmul(A: Any, B: Any, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None, stream: Any = None) -> Any:
    """Compute alpha · A · B + beta · out, optimized for results with at most 64 rows or columns.

    Parameters
    ----------
    A : array of shape (m, k)
        NumPy, CuPy, torch, or anything with DLPack or ``__cuda_array_interface__``; float64, float32, float16 or
        bfloat16; row- or column-major, with any leading dimension.
    B : array of shape (k, w)
        The same dtype and device as A.
    alpha, beta : float
    out : array of shape (m, w), optional
        The same dtype and device as A. `out` must not overlap A or B in memory. It is not read if beta is 0. The
        default is a new row-major array of A's library.
    stream : optional
        A CUDA stream of CuPy or torch, or the address of a stream. The default is the current stream of A's library.
        The function does not wait for the GPU.

    Returns
    -------
    array of shape (m, w)
        `out`.

    Raises
    ------
    TypeError
        If an operand is not an array, or has a dtype other than the four above.
    ValueError
        If shapes, dtypes or devices do not agree, if `out` overlaps an operand, if beta is not 0 and `out` is missing,
        or if an operand on a GPU is neither row- nor column-major: operands are never copied.

    Notes
    -----
    Let C be the result for alpha = 1 and beta = 0, u the unit roundoff and γ(k) = k·u / (1 − k·u). Element by element,
    the error ``|C − AB|`` is at most ``γ(k)·|A||B|`` in float64 and ``(γ(k + 4) + 2⁻²¹)·|A||B|`` in float32. Tensor
    cores compute a float32 product as the sum of at least three products of tf32 parts, added in float32. float16 and
    bfloat16 are multiplied exactly and summed in float32, and the sum is rounded once. Results have
    the same bits on every run on one device. An infinity in a float32 operand can give NaN where float32 arithmetic
    gives an infinity.

    The kernels are based on TSM2 (Chen et al., "TSM2: optimizing tall-and-skinny matrix-matrix
    multiplication on GPUs", ICS 2019). cuBLAS computes products for which it was measured faster, and products whose
    result has more than 64 rows and more than 64 columns.
    """
    index, other = gpu_index(A), gpu_index(B)
    if index is None and other is None:
        _check_no_stream(stream)
        return _on_host(A, B, alpha, beta, out)
    if index is None or index != other:
        raise _apart(A, B)
    with on_stream(A, index, stream):
        a, b = device_matrix("A", A), device_matrix("B", B)
        _check_pair(a, b, a.dtype, b.dtype)
        out, c = _result(A, a, (a.shape[0], b.shape[1]), beta, out, (a, b))
        _compute(a, b, c, alpha, beta, gram=False)
        return out


def gram(A: Any, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None, stream: Any = None) -> Any:
    """Compute alpha · Aᵀ · A + beta · out; the kernel reads A once if A has at most 64 columns.

    Parameters
    ----------
    A : array of shape (m, k)
        As for `matmul`.
    alpha, beta : float
    out : array of shape (k, k), optional
        As for `matmul`.
    stream : optional
        As for `matmul`.

    Returns
    -------
    array of shape (k, k)
        `out`.

    Raises
    ------
    TypeError, ValueError
        As for `matmul`.

    Notes
    -----
    The error bounds are those of `matmul` with m in place of k, because the sums are over the m rows of A. In float64,
    the error ``|G − AᵀA|`` of the result G is at most ``γ(m)·|A|ᵀ|A|``.
    """
    index = gpu_index(A)
    if index is None:
        _check_no_stream(stream)
        return _gram_on_host(A, alpha, beta, out)
    with on_stream(A, index, stream):
        a = device_matrix("A", A)
        _check_dtype("A", a.dtype)
        out, c = _result(A, a, (a.shape[1], a.shape[1]), beta, out, (a,))
        _compute(a.transposed, a, c, alpha, beta, gram=True)
        return out


# --- Checks --------------------------------------------------------------------------------------------------------


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in ITEMSIZE:
        raise TypeError(f"{name} has dtype {dtype}; expected {', '.join(ITEMSIZE)}")


def _check_pair(a: Any, b: Any, a_dtype: str, b_dtype: str) -> None:
    _check_dtype("A", a_dtype)
    _check_dtype("B", b_dtype)
    if a_dtype != b_dtype:
        raise ValueError(f"A has dtype {a_dtype} and B {b_dtype}; convert one of them")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"A has shape {tuple(a.shape)} and B {tuple(b.shape)}; expected (m, k) and (k, w)")


def _check_no_stream(stream: Any) -> None:
    if stream is not None:
        raise ValueError("a stream was given for arrays in host memory; streams are for arrays on a GPU")


def _where(obj: Any) -> str:
    index = gpu_index(obj)
    return "in host memory" if index is None else f"on GPU {index}"


def _apart(A: Any, B: Any) -> Exception:
    """Return the exception to raise for operands that are not on the same GPU."""
    for name, X in (("A", A), ("B", B)):
        if kind_of(X) is None:
            return TypeError(f"{name} is a {type(X).__name__}; expected an array {_where(A if X is B else B)}")
    return ValueError(f"A lies {_where(A)} and B {_where(B)}; move one of them")


def _result(
    A: Any, a: DeviceMatrix, shape: tuple[int, int], beta: float, out: Any, operands: tuple[DeviceMatrix, ...]
) -> tuple[Any, DeviceMatrix]:
    """Return the result array and its `DeviceMatrix`: `out` after checks or, if `out` is None, a new array."""
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, and there is no `out` to scale by it")
        out = _made(A, shape)
        return out, device_matrix("out", out)
    if gpu_index(out) != a.device:
        raise ValueError(f"out lies {_where(out)} and A on GPU {a.device}; expected the same")
    c = device_matrix("out", out)
    if c.shape != shape or c.dtype != a.dtype:
        raise ValueError(f"out has shape {tuple(c.shape)} and dtype {c.dtype}; expected {shape} and {a.dtype}")
    for name, operand in zip("AB", operands, strict=False):
        if c.overlaps(operand):
            raise ValueError(f"out overlaps {name} in memory; give it memory of its own")
    return out, c


def _made(A: Any, shape: tuple[int, int]) -> Any:
    """Return a new matrix of A's library and dtype, on the current GPU."""
    if kind_of(A) == "torch":
        return A.new_empty(shape)
    import cupy

    return cupy.empty(shape, as_array(A).dtype)


def on_stream(A: Any, index: int, stream: Any = None) -> AbstractContextManager[None]:
    """Return a context in which GPU `index`, which holds A, is CuPy's current device and `stream` its current stream.

    If `stream` is None, the current stream of A's library is used.
    """
    import cupy

    if stream is None and kind_of(A) == "torch":
        import torch

        stream = torch.cuda.current_stream(A.device)
    here = cupy.cuda.runtime.getDevice() == index
    if stream is None:
        return nullcontext() if here else cupy.cuda.Device(index)
    address = next((getattr(stream, name) for name in ("ptr", "cuda_stream") if hasattr(stream, name)), stream)
    if not isinstance(address, int):
        raise TypeError(f"stream is a {type(stream).__name__}; expected a stream of CuPy or torch, or its address")
    if here and address == cupy.cuda.get_current_stream().ptr:
        return nullcontext()
    return _on_stream_at(index, _Stream(address))


class _Stream:
    """A CUDA stream of another library; CuPy makes its own stream object from ``__cuda_stream__``."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


@contextmanager
def _on_stream_at(index: int, stream: _Stream) -> Iterator[None]:
    import cupy

    with cupy.cuda.Device(index), cupy.cuda.Stream.from_external(stream):
        yield


# --- Computing on a GPU --------------------------------------------------------------------------------------------


def _compute(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, alpha: float, beta: float, *, gram: bool) -> None:
    if 0 in c.shape:
        return
    a, b, c = oriented(a, b, c)
    prepared(a, b, c, gram=gram)(a.pointer, b.pointer, c.pointer, alpha, beta)


def oriented(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> tuple[DeviceMatrix, DeviceMatrix, DeviceMatrix]:
    """Return a, b and c; or bᵀ, aᵀ and cᵀ if c has more columns than rows, because plans need w ≤ m for an m × w c."""
    return (a, b, c) if a.shape[0] >= b.shape[1] else (b.transposed, a.transposed, c.transposed)


def prepared(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, *, gram: bool = False) -> ProductLaunch:
    """Return the cached launch function for all products of `oriented` matrices with these layouts and alignments."""
    return _prepared(a.stand_in, b.stand_in, c.stand_in, gram)


@lru_cache(maxsize=4096)
def _prepared(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, gram: bool) -> ProductLaunch:
    problem = problem_of(a, b, c, gram=gram)
    found = planned(problem, live(a.device)) if problem.k else LIBRARY
    if isinstance(found, str):
        _layout("out", c, depth=1)
        return cublas.gemm(a, b, c)
    return prepare(found, problem, c, cuda_machine(c.device))


on_change(_prepared.cache_clear)


def planned(problem: Problem, device: GpuSpec) -> AnyPlan | str:
    """Return the plan of a problem on a device, or `LIBRARY`; a matching row of the user's tuning table decides."""
    table = user_table(device.name)
    found = plan(problem, device, table)
    # The version of cublasLt matters only for plans that use cublasLt. Reading the version loads the library.
    if isinstance(found, LibraryAlgorithm):
        found = plan(problem, device, of_version(table, cublaslt.version()))
    _log.info("%s on %s: %s", problem, device.name, found)
    return found


def problem_of(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, *, gram: bool = False) -> Problem:
    """Describe the product c = a · b of matrices on a GPU.

    Raises
    ------
    ValueError
        If `a` or `b` is neither row- nor column-major.
    """
    (m, k), w = a.shape, b.shape[1]
    return Problem(m, k, w, a.dtype, _layout("A", a, depth=1), _layout("B", b, depth=0), gram, _lies(c))


def _lies(c: DeviceMatrix) -> Lies:
    (_, columns), (down, right), size = c.shape, c.strides, c.itemsize
    if columns == 1:
        right = size  # with a single column, the stride between columns is never used
    if (down, right) == (columns * size, size) and c.pointer % 16 == 0:
        return "packed"
    if right == size and (down | c.pointer) % max(8, 2 * size) == 0:
        return "rows"
    if down == size:
        return "aligned columns" if (right | c.pointer) % 16 == 0 else "columns"
    return "any"


def _layout(name: str, x: DeviceMatrix, depth: int) -> Layout:
    """Return the memory layout of an operand; `depth` is the dimension (0 or 1) that the product sums over."""
    size, outer = x.itemsize, 1 - depth
    for along, line, other in ((True, depth, outer), (False, outer, depth)):
        length, lines = x.shape[line], x.shape[other]
        apart = x.strides[other] if lines > 1 else length * size
        if (x.strides[line] == size or length == 1) and apart >= length * size and apart % size == 0:
            return Layout(along, apart // size, gcd(16, x.pointer, apart if lines > 1 else 16), gcd(16, x.pointer))
    raise ValueError(
        f"{name} has strides of {x.strides} bytes at shape {tuple(x.shape)}; expected a row-major or a column-major "
        "matrix: make it contiguous first"
    )


# --- On the CPU ----------------------------------------------------------------------------------------------------


def _host_array(name: str, obj: Any) -> np.ndarray:
    if kind_of(obj) in (None, "frame"):
        raise TypeError(
            f"{name} is a {type(obj).__module__}.{type(obj).__qualname__}; expected an array of NumPy, CuPy or "
            "torch, or one with DLPack or __cuda_array_interface__"
        )
    array = np.asarray(as_array(obj))
    if array.ndim != 2:
        raise ValueError(f"{name} has shape {array.shape}; expected a matrix, (rows, columns)")
    _check_dtype(name, array.dtype.name)
    return array


def _host_result(
    out: Any, dtype: np.dtype, shape: tuple[int, int], operands: tuple[np.ndarray, ...], beta: float
) -> Any:
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, and there is no `out` to scale by it")
        return np.empty(shape, dtype)
    if gpu_index(out) is not None:
        raise ValueError(f"out lies {_where(out)} and A in host memory; expected the same")
    array = _host_array("out", out)
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"out has shape {array.shape} and dtype {array.dtype}; expected {shape} and {dtype}")
    if not array.flags.writeable:
        raise ValueError("out is read-only; give an array that can be written")
    for name, operand in zip("AB", operands, strict=False):
        if np.may_share_memory(array, operand) and np.shares_memory(array, operand):
            raise ValueError(f"out overlaps {name} in memory; give it memory of its own")
    return array


def _on_host(A: Any, B: Any, alpha: float, beta: float, out: Any) -> Any:
    a, b = _host_array("A", A), _host_array("B", B)
    _check_pair(a, b, a.dtype.name, b.dtype.name)
    c = _host_result(out, a.dtype, (a.shape[0], b.shape[1]), (a, b), beta)
    host.matmul(a, b, c, alpha, beta)
    return _given_back(c, A, out)


def _gram_on_host(A: Any, alpha: float, beta: float, out: Any) -> Any:
    a = _host_array("A", A)
    c = _host_result(out, a.dtype, (a.shape[1], a.shape[1]), (a,), beta)
    host.gram(a, c, alpha, beta)
    return _given_back(c, A, out)


def _given_back(c: np.ndarray, A: Any, out: Any) -> Any:
    from tsapps.kernels.arrays import like

    return like(c, A) if out is None else out
