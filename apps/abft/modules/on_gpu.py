"""Checks of a linear layer's products on a GPU: kernels of this folder on torch's current stream."""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Any, cast

import numpy as np
import torch

from tsapps.apps.abft.modules import checked_product, launch
from tsapps.apps.abft.modules.bounds import Arithmetic, bounds_of
from tsapps.apps.abft.modules.faults import FaultLog, LinearFault, OnFault
from tsapps.apps.abft.modules.launch import weights_of
from tsapps.apps.abft.modules.states import Checksums, Known, State, resolve
from tsapps.apps.abft.product.thresholds import DTYPES
from tsapps.kernels.runtime.machine import Machine, cuda_machine
from tsapps.kernels.square_gemm import SIDE_ROWS

__all__ = [
    "arithmetic",
    "bias_sum",
    "check",
    "checked_forward",
    "column_checksums",
    "listed",
    "of_grad_weight",
    "pointers",
    "ready",
    "row_checksums",
    "take_all",
    "usable",
    "wait",
    "was_stale",
    "with_parts",
]

# Number of flags for stale checksums; states may share one.
_FLAGS = 1 << 12
# Vectors that share a tensor begin at multiples of this many elements.
_ALIGNED = 64
# A function that returns the address of torch's current stream of a GPU; torch built for the CPU has none.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_NAMES = {getattr(torch, name): name for name in DTYPES}


class _Gpu:
    """What checks on one GPU share: the machine, the list of faults, and flags in host memory."""

    def __init__(self, index: int) -> None:
        self.machine: Machine = cuda_machine(index)
        self.log = FaultLog(self.machine, resolve)
        with self.machine.current():
            self.stale = self.machine.pinned(_FLAGS, np.uint32)
        self.stale[...] = 0
        self.stale_words = memoryview(self.stale)
        self.address_of_stale = int(self.stale.ctypes.data)
        _used.add(index)


# The numbers of the GPUs on which products were checked.
_used: set[int] = set()
_gpu = cache(_Gpu)


def _checksum_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.element_size() == 2 else torch.float64


@lru_cache(maxsize=1024)
def _weights(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(weights_of(n)).to(dtype).to(device)


@lru_cache(maxsize=1024)
def _weight_parts(n: int, device: torch.device) -> torch.Tensor:
    """Return the weights of n columns as products that check themselves take them (checked_product.py).

    They are computed on the host and copied, so that every stream may read them at once.
    """
    rest = v = _weights(n, torch.float32, torch.device("cpu"))
    parts = []
    for _ in range(checked_product.PARTS):
        parts.append(rest.bfloat16())
        rest = rest - parts[-1]
    return torch.stack([*parts, (v * v).bfloat16()]).to(device)


def arithmetic(dtype: torch.dtype) -> Arithmetic:
    """Return how torch computes products of a dtype on a GPU at present.

    Raises
    ------
    ValueError
        If sums are float16: their rounding errors are too large for any check.
    """
    matmul = torch.backends.cuda.matmul
    if dtype == torch.float32:
        precision = getattr(matmul, "fp32_precision", None)  # since torch 2.9
        is_tf32 = matmul.allow_tf32 if precision is None else precision == "tf32"
        return Arithmetic("float32", "tf32" if is_tf32 else "float32")
    if dtype == torch.float16 and getattr(matmul, "allow_fp16_accumulation", False):
        raise ValueError(
            "torch.backends.cuda.matmul.allow_fp16_accumulation is True; protected modules need float32 sums: "
            "set it to False"
        )
    flag = {"float16": "allow_fp16_reduced_precision_reduction", "bfloat16": "allow_bf16_reduced_precision_reduction"}
    name = _NAMES[dtype]
    return Arithmetic(name, reduced=name in flag and bool(getattr(matmul, flag[name])))


# Functions that return the settings on which `arithmetic` depends, by dtype; torch.backends.cuda.matmul takes longer.
_settings_of: dict[torch.dtype, Callable[[], Any]] = {
    torch.float64: lambda: None,
    torch.float32: partial(torch._C._get_fp32_precision_getter, "cuda", "matmul")
    if hasattr(torch._C, "_get_fp32_precision_getter")
    else torch._C._get_cublas_allow_tf32,
    torch.float16: lambda: (
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False),
    ),
    torch.bfloat16: torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
}


def listed(index: int) -> Sequence[tuple[LinearFault, OnFault | None]]:
    """Return the faults that kernels listed since the last call; does not wait for the GPU."""
    log = _gpu(index).log
    return log.take() if log.has_new else ()


def take_all() -> tuple[list[tuple[LinearFault, OnFault | None]], int]:
    """Wait for all GPUs with checks; return the faults since the last call, and how many more were not listed."""
    found, lost = [], 0
    for index in _used:
        torch.cuda.synchronize(index)
        log = _gpu(index).log
        found += log.take()
        if log.is_half_full:
            lost += log.clear()
    return found, lost


def was_stale(state: State, index: int) -> bool:
    """Return whether a check found the checksums of a state to be outdated, and reset that flag."""
    gpu, place = _gpu(index), state.number % _FLAGS
    if not gpu.stale_words[place]:
        return False
    gpu.stale_words[place] = 0
    return True


# --- Checksums --------------------------------------------------------------------------------------------------------


def row_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the rows of a row-major matrix; see on_cpu.py."""
    x, y = torch.empty(2, len(matrix), dtype=_checksum_dtype(matrix), device=matrix.device).unbind()
    _row_products(matrix, x.data_ptr(), y.data_ptr())
    return Checksums(x, y)


def _row_products(matrix: torch.Tensor, sums: int, roots: int) -> None:
    (rows, columns), index = matrix.shape, matrix.get_device()
    if not matrix.numel():
        return
    v = _weights(columns, _checksum_dtype(matrix), matrix.device)
    shape = _NAMES[matrix.dtype], rows, columns, matrix.stride(0)
    launch.row_products(_gpu(index).machine, _raw_stream(index), shape, (matrix.data_ptr(), v.data_ptr(), sums, roots))


def column_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the columns of a row-major matrix; see on_cpu.py."""
    (rows, columns), dtype, device = matrix.shape, _checksum_dtype(matrix), matrix.device
    x, y = torch.empty(2, columns, dtype=dtype, device=device).unbind()
    parts = torch.empty(_n_parts(matrix) * columns, dtype=dtype, device=device)
    v = _weights(rows, dtype, device)
    _column_products(matrix, v.data_ptr(), parts.data_ptr(), x.data_ptr(), roots=y.data_ptr())
    return Checksums(x, y)


def with_parts(checksums: Checksums, weight: torch.Tensor) -> Checksums:
    """Return checksums of the columns of a weight together with their parts, if `checked_forward` can take them."""
    (w, k), index = weight.shape, weight.get_device()
    machine, dtype = _gpu(index).machine, _NAMES[weight.dtype]
    if not checked_product.can_check(machine.gpu, launch.ProductLayout(dtype, 1, k, w, (k, 1), (1, k), (w, 1))):
        return checksums
    _weight_parts(w, weight.device)  # while no graph is captured
    parts = weight.new_empty(SIDE_ROWS, k)
    checked_product.split(machine, _raw_stream(index), dtype, k, checksums.x.data_ptr(), parts.data_ptr())
    return checksums._replace(parts=parts)


def _n_parts(matrix: torch.Tensor) -> int:
    """Return the number of rows of the array of partial sums of a matrix."""
    return 2 * launch.parts_of(_gpu(matrix.get_device()).machine, _NAMES[matrix.dtype], *matrix.shape)


def _column_products(matrix: torch.Tensor, u: int, parts: int, sums: int, *, roots: int = 0, totals: int = 0) -> None:
    (rows, columns), index = matrix.shape, matrix.get_device()
    if not matrix.numel():
        return
    shape, pointers = (_NAMES[matrix.dtype], rows, columns, matrix.stride(0)), (matrix.data_ptr(), u, parts, sums)
    machine, stream = _gpu(index).machine, _raw_stream(index)
    launch.column_products(machine, stream, shape, pointers, roots=roots, totals=totals)


def of_grad_weight(
    grad: torch.Tensor, x: torch.Tensor, state: State, *, of_bias: bool
) -> tuple[Known, torch.Tensor | None]:
    """Return what the check of gradᵀ · x takes, and the gradient of the bias if it is wanted.

    The checksums are those of the rows of x; the products of rows of gradᵀ with them, and the gradient of the bias, are
    sums along the columns of grad.
    """
    tokens, n = grad.shape
    dtype, device = _checksum_dtype(x), x.device
    sizes = tokens, tokens, n, _n_parts(grad) * n
    starts = [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
    held = torch.empty(starts[-1], dtype=dtype, device=device)  # one allocation takes less time than four
    of_x, of_y, p, parts = (held.data_ptr() + start * held.itemsize for start in starts[:-1])
    totals = grad.new_empty(n) if of_bias else None
    _row_products(x, of_x, of_y)
    _column_products(grad, of_x, parts, p, totals=0 if totals is None else totals.data_ptr())
    v = _weights(x.shape[1], dtype, device).data_ptr()
    return Known(None, Checksums(held, held), (0, v, of_x, of_y, p, *_marks(state, "grad_weight", x))), totals


def bias_sum(bias: torch.Tensor) -> torch.Tensor:
    """Return the checksum of a bias."""
    return _weights(len(bias), _checksum_dtype(bias), bias.device).double() @ bias.double()


# --- Checks -----------------------------------------------------------------------------------------------------------


def pointers(product: str, checksums: Checksums, state: State, w: int) -> tuple[int, ...]:
    """Return what a check takes of checksums of a weight: bias_sum, v, x, y, p, is_stale and call (row_check.cuh)."""
    x, y, bias_sum, _ = checksums
    v = _weights(w, x.dtype, x.device)
    of_bias = 0 if bias_sum is None else bias_sum.data_ptr()
    return of_bias, v.data_ptr(), x.data_ptr(), y.data_ptr(), 0, *_marks(state, product, x)


def _marks(state: State, product: str, tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a check marks the checksums of a state as stale, and the number of its call."""
    address = _gpu(tensor.get_device()).address_of_stale
    return address + 4 * (state.number % _FLAGS), state.call(product)


def check(
    product: str,
    factors: tuple[torch.Tensor, torch.Tensor],
    C: torch.Tensor,
    bias: torch.Tensor | None,
    known: Known,
    state: State,
) -> Sequence[tuple[LinearFault, OnFault | None]]:
    """Launch the check of a product, which also repairs it.

    Parameters
    ----------
    product : {"forward", "grad_input", "grad_weight"}
    factors : tuple of tensor
        Factors as they are stored: x and the weight, grad and the weight, or grad and x. C and, but for "grad_weight",
        the first factor are row-major.
    C : tensor
    bias : tensor or None
    known : Known
    state : State

    Returns
    -------
    sequence
        The faults, if the module reports them immediately; otherwise nothing.
    """
    first, second = factors
    dtype, index = C.dtype, C.get_device()
    gpu, shapes = _gpu(index), (first.shape, second.shape, first.stride(), second.stride(), C.stride())
    _check(gpu, product, dtype, _settings_of[dtype](), state.options.repair, *shapes)(
        _raw_stream(index),
        first.data_ptr(),
        C.data_ptr(),
        second.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        *known.pointers,
    )
    return _reported(gpu, state, C.device)


def _reported(gpu: _Gpu, state: State, device: torch.device) -> Sequence[tuple[LinearFault, OnFault | None]]:
    """Return the faults after a check, if the module reports them immediately; otherwise nothing."""
    if state.options.report != "immediate" or torch.cuda.is_current_stream_capturing():
        return ()
    torch.cuda.current_stream(device).synchronize()
    return gpu.log.take()


@lru_cache(maxsize=4096)
def _check(
    gpu: _Gpu, product: str, dtype: torch.dtype, settings: Any, repairs: bool, *shapes: tuple[int, ...]
) -> launch.Check:
    """Return the launch function for a product of factors with these shapes and strides, and C with its strides.

    `settings` are those of torch on which the bounds depend. All arguments are compared at every call, in a fraction of
    the time that it takes to compute bounds.
    """
    del settings
    first, second, a, b, c = shapes
    if product == "forward":
        second, b = second[::-1], b[::-1]
    elif product == "grad_weight":
        first, a = first[::-1], a[::-1]
    (m, k), (_, w) = first, second
    if 0 in (m, k, w):
        return lambda *_: None
    layout = launch.ProductLayout(_NAMES[dtype], m, k, w, *(cast(tuple[int, int], tuple(one)) for one in (a, b, c)))
    bounds = bounds_of(k, w, arithmetic(dtype))
    return launch.row_check(gpu.machine, layout, bounds, gpu.log, product != "grad_weight", repairs)


def checked_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, known: Known, state: State
) -> tuple[torch.Tensor, Sequence[tuple[LinearFault, OnFault | None]]] | None:
    """Compute ``x Wᵀ + bias`` by a kernel that checks it; parameters and faults as for `check`.

    Returns
    -------
    tuple or None
        The product and the faults; None if there is no such kernel for these operands, or another way is faster.
    """
    parts, kinds = known.checksums.parts, {(one.dtype, one.device) for one in (x, weight, bias) if one is not None}
    if parts is None or not len(x) or len(kinds) > 1:  # torch refuses operands of several kinds
        return None
    operands = x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr()
    is_aligned = not any(address % checked_product.ALIGNMENT for address in operands)
    index, gpu, repairs = x.get_device(), _gpu(x.get_device()), state.options.repair
    shapes = x.shape, weight.shape, x.stride(), weight.stride(), *(() if bias is None else (bias.shape, bias.stride()))
    found = _checked(gpu, x.dtype, repairs, is_aligned, state.options.gemm == "fused", *shapes)
    if found is None:
        return None
    launch_all, n_partials = found
    y, partials = x.new_empty(len(x), len(weight)), torch.empty(n_partials, dtype=torch.float32, device=x.device)
    weights = _weight_parts(len(weight), x.device)
    (of_x, of_weight, of_bias), given = operands, (parts.data_ptr(), weights.data_ptr(), partials.data_ptr())
    launch_all(_raw_stream(index), *given, of_x, y.data_ptr(), of_weight, of_bias, *known.pointers)
    return y, _reported(gpu, state, y.device)


@lru_cache(maxsize=4096)
def _checked(
    gpu: _Gpu, dtype: torch.dtype, repairs: bool, is_aligned: bool, always: bool, *shapes: tuple[int, ...]
) -> tuple[Callable[..., None], int] | None:
    """Return the launch function for operands with these shapes and strides, and its number of partial residuals.

    None if there is no kernel for them or, unless `always`, another way is faster.
    """
    (m, k), (w, depth), of_x, of_weight, *of_bias = shapes
    if k != depth or tuple(of_bias) not in ((), ((w,), (1,))):
        return None
    layout = launch.ProductLayout(_NAMES[dtype], m, k, w, (of_x[0], of_x[1]), (of_weight[1], of_weight[0]), (w, 1))
    if not is_aligned or not checked_product.can_check(gpu.machine.gpu, layout):
        return None
    if not always and not checked_product.is_faster(gpu.machine.gpu, layout):
        return None
    bounds = bounds_of(k, w, Arithmetic(layout.dtype))  # all sums are float32
    run = checked_product.checked_product(gpu.machine, layout, bounds, gpu.log, repairs)
    return run, checked_product.n_partials(layout)


def ready(state: State, device: torch.device) -> None:
    """Record that the checksums of a state have been computed on the current stream."""
    event: Any = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    state.ready = event, {_raw_stream(device.index)}


def usable(state: State, index: int) -> bool:
    """Return whether the current stream may use the checksums of a state, as far as checks and streams have told."""
    is_stale = _gpu(index).stale_words[state.number % _FLAGS]
    return not is_stale and state.ready is not None and _raw_stream(index) in state.ready[1]


def wait(state: State, device: torch.device) -> None:
    """Let the current stream wait for the checksums of a state, if another stream computed them."""
    stream = _raw_stream(device.index)
    if state.ready is None or stream in state.ready[1]:
        return
    if not torch.cuda.is_current_stream_capturing():  # whoever captures a graph has synchronized before
        torch.cuda.current_stream(device).wait_event(state.ready[0])
        state.ready[1].add(stream)
