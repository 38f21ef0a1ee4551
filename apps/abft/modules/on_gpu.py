"""Checks of a linear layer's products on a GPU: kernels of this folder on torch's current stream."""

from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from tsapps.apps.abft.modules import launch
from tsapps.apps.abft.modules.bounds import Arithmetic, bounds_of
from tsapps.apps.abft.modules.faults import FaultLog, LinearFault, OnFault
from tsapps.apps.abft.modules.launch import ProductLayout, weights_of
from tsapps.apps.abft.modules.states import Checksums, State, resolve
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = [
    "Overlapped",
    "arithmetic",
    "bias_sum",
    "check",
    "column_checksums",
    "column_sums",
    "overlaps",
    "poll",
    "ready",
    "row_checksums",
    "take_all",
    "wait",
    "was_stale",
]

# Bytes of A from which Σ_l a_il x_l is computed while the product runs, on another stream.
_OVERLAPPED_BYTES = 1 << 22
# Number of flags for stale checksums; states may share one.
_FLAGS = 1 << 12


class _Gpu:
    """What checks on one GPU share: the machine, the list of faults, flags in host memory, and a second stream."""

    def __init__(self, index: int) -> None:
        self.machine: Machine = cuda_machine(index)
        self.log = FaultLog(self.machine, resolve)
        with self.machine.current():
            self.stale = self.machine.pinned(_FLAGS, np.uint32)
        self.stale[...] = 0
        self.address_of_stale = int(self.stale.ctypes.data)
        self.side = torch.cuda.Stream(index)


_gpu = cache(_Gpu)


def _stream(tensor: torch.Tensor) -> int:
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _checksum_dtype(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.element_size() == 2 else torch.float64


@lru_cache(maxsize=1024)
def _weights(n: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(weights_of(n)).to(dtype).to(device)


def arithmetic(dtype: torch.dtype) -> Arithmetic:
    """Return how torch computes products of a dtype on a GPU at present.

    Raises
    ------
    ValueError
        If sums are float16: their rounding errors are too large for any check.
    """
    matmul = torch.backends.cuda.matmul
    if dtype == torch.float32:
        precision = torch.get_float32_matmul_precision()
        return Arithmetic("float32", "float32" if precision == "highest" else "tf32")
    if dtype == torch.float16 and getattr(matmul, "allow_fp16_accumulation", False):
        raise ValueError(
            "torch.backends.cuda.matmul.allow_fp16_accumulation is True; protected modules need float32 sums: "
            "set it to False"
        )
    name = str(dtype).removeprefix("torch.")
    flag = {"float16": "allow_fp16_reduced_precision_reduction", "bfloat16": "allow_bf16_reduced_precision_reduction"}
    return Arithmetic(name, reduced=name in flag and bool(getattr(matmul, flag[name])))


def poll(device: torch.device) -> list[tuple[LinearFault, OnFault | None]]:
    """Return the faults that kernels listed since the last call; does not wait for the GPU."""
    log = _gpu(device.index).log
    return log.take() if log.has_new else []


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


# The numbers of the GPUs on which products were checked.
_used: set[int] = set()


def was_stale(state: State, device: torch.device) -> bool:
    """Return whether a check found the checksums of a state to be outdated, and reset that flag."""
    gpu, place = _gpu(device.index), state.number % _FLAGS
    if not gpu.stale.item(place):
        return False
    gpu.stale[place] = 0
    return True


# --- Checksums --------------------------------------------------------------------------------------------------------


def row_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the rows of a row-major matrix; see on_cpu.py."""
    rows, columns = matrix.shape
    dtype = _checksum_dtype(matrix)
    x, y = torch.empty(2, rows, dtype=dtype, device=matrix.device).unbind()
    v = _weights(columns, dtype, matrix.device)
    pointers = matrix.data_ptr(), v.data_ptr(), x.data_ptr(), y.data_ptr()
    shape = _dtype(matrix), rows, columns, matrix.stride(0)
    launch.row_products(_gpu(matrix.device.index).machine, _stream(matrix), shape, pointers)
    return Checksums(x, y)


def column_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the columns of a row-major matrix; see on_cpu.py."""
    columns, dtype = matrix.shape[1], _checksum_dtype(matrix)
    x, y = (torch.empty(columns, dtype=dtype, device=matrix.device) for _ in range(2))
    v = _weights(matrix.shape[0], dtype, matrix.device)
    _column_products(matrix, v, x, roots=y.data_ptr())
    return Checksums(x, y)


def column_sums(matrix: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Σ_i u_i M_ij, and Σ_i M_ij rounded to M's dtype, for a row-major matrix M."""
    sums = torch.empty(matrix.shape[1], dtype=u.dtype, device=matrix.device)
    totals = matrix.new_empty(matrix.shape[1])
    _column_products(matrix, u, sums, totals=totals.data_ptr())
    return sums, totals


def _column_products(matrix: torch.Tensor, u: torch.Tensor, sums: torch.Tensor, **others: int) -> None:
    machine = _gpu(matrix.device.index).machine
    rows, columns = matrix.shape
    n_parts = launch.parts_of(machine, _dtype(matrix), rows, columns)
    parts = torch.empty(2 * n_parts * columns, dtype=u.dtype, device=matrix.device)
    pointers = matrix.data_ptr(), u.data_ptr(), parts.data_ptr(), sums.data_ptr()
    shape = _dtype(matrix), rows, columns, matrix.stride(0)
    launch.column_products(machine, _stream(matrix), shape, pointers, **others)


def bias_sum(bias: torch.Tensor) -> torch.Tensor:
    """Return the checksum of a bias."""
    return _weights(len(bias), _checksum_dtype(bias), bias.device).double() @ bias.double()


# --- Checks -----------------------------------------------------------------------------------------------------------


def overlaps(A: torch.Tensor) -> bool:
    """Return whether the products of A's rows with x are computed while the product A · B runs."""
    return A.numel() * A.element_size() >= _OVERLAPPED_BYTES


class Overlapped:
    """The products of A's rows with x, computed on another stream while the product A · B runs.

    Construct it before the launch of that product, and call `finish` after that launch: the GPU then starts the
    product first.
    """

    def __init__(self, A: torch.Tensor, x: torch.Tensor) -> None:
        self._A, self._x = A, x
        self._p = torch.empty(len(A), dtype=x.dtype, device=A.device)
        self._main = torch.cuda.current_stream(A.device)
        self._begin = torch.cuda.Event()
        self._begin.record(self._main)

    def finish(self) -> torch.Tensor:
        """Launch the products; the current stream waits for them. Returns them."""
        A, gpu = self._A, _gpu(self._A.device.index)
        gpu.side.wait_event(self._begin)
        pointers = A.data_ptr(), self._x.data_ptr(), self._p.data_ptr(), 0
        shape = _dtype(A), *A.shape, A.stride(0)
        launch.row_products(gpu.machine, int(gpu.side.cuda_stream), shape, pointers)
        end = torch.cuda.Event()
        end.record(gpu.side)
        self._main.wait_event(end)
        return self._p


def check(
    name: str,
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    bias: torch.Tensor | None,
    checksums: Checksums,
    state: State,
    p: torch.Tensor | None = None,
) -> list[tuple[LinearFault, OnFault | None]]:
    """Launch the check of the product C = A · B + bias, for `operands` A, B and C, which also repairs C.

    C and, without p, A are row-major. `p` are the products of A's rows with the checksum x. Returns the faults if the
    module reports them immediately, and nothing otherwise.
    """
    A, B, C = operands
    (m, k), w = A.shape, B.shape[1]
    if 0 in (m, k, w):
        return []
    index = C.device.index
    _used.add(index)
    gpu, options = _gpu(index), state.options
    layout = ProductLayout(_dtype(C), m, k, w, A.stride(), B.stride(), C.stride())
    bounds = bounds_of(k, w, arithmetic(C.dtype))
    launched = launch.row_check(gpu.machine, layout, bounds, gpu.log, p is None, options.repair)
    launched(
        _stream(C),
        *(matrix.data_ptr() for matrix in operands),
        *(0 if one is None else one.data_ptr() for one in (bias, checksums.bias_sum)),
        _weights(w, checksums.x.dtype, C.device).data_ptr(),
        checksums.x.data_ptr(),
        checksums.y.data_ptr(),
        0 if p is None else p.data_ptr(),
        gpu.address_of_stale + 4 * (state.number % _FLAGS),
        state.call(name),
    )
    if options.report == "immediate" and not torch.cuda.is_current_stream_capturing():
        torch.cuda.current_stream(C.device).synchronize()
        return gpu.log.take()
    return []


def ready(state: State, device: torch.device) -> None:
    """Record that the checksums of a state have been computed on the current stream."""
    event: Any = torch.cuda.Event()
    stream = torch.cuda.current_stream(device)
    event.record(stream)
    state.ready = int(stream.cuda_stream), event


def wait(state: State, device: torch.device) -> None:
    """Let the current stream wait for the checksums of a state, if another stream computed them."""
    stream = torch.cuda.current_stream(device)
    if state.ready is None or state.ready[0] == int(stream.cuda_stream):
        return
    if not torch.cuda.is_current_stream_capturing():  # whoever captures a graph has synchronized before
        stream.wait_event(state.ready[1])
