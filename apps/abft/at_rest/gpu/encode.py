"""Checksums of a matrix on a GPU in one pass: launches of the kernel of at_rest/gpu/encode.cuh."""

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.gpu.plan import ALIGNMENT, ChecksumsPlan, elements_plan, fitted, words_plan
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout, fold
from tsapps.apps.abft.at_rest.source import Progress, Source, whole_on_gpu
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = [
    "COLUMNS_KERNEL",
    "COLUMN_THREADS",
    "Comparison",
    "add_checksums",
    "build_columns",
    "compiled",
    "machine_of",
    "pieces_on_gpu",
    "plans",
    "sum_columns",
    "sums_of_piece",
    "sums_on_gpu",
]

_SOURCE = Path(__file__).with_name("encode.cuh")
#: The C++ name of the kernel of word_columns.cuh, and the number of threads per thread block (kColumnThreads).
COLUMNS_KERNEL, COLUMN_THREADS = "abft::sum_columns", 256
_COLUMNS_SOURCE = Path(__file__).with_name("word_columns.cuh")
# Minimum compute capability: the kernel needs the barriers and copies of this architecture.
_LEAST_CAPABILITY = 8.0
# Maximum number of bytes of a matrix in host memory that are uploaded at a time.
_PIECE_BYTES = 1 << 28


class Comparison(NamedTuple):
    """C++ class of tile_pipeline.cuh: what a pass compares exact sums with, and where it lists the blocks that differ.

    Arrays in GPU memory.

    Attributes
    ----------
    expected : array of shape (stripes, 5, width), uint64
    listed : array of shape (stripes · width,), int64
        Receives the numbers stripe · width + column of the blocks, in no order.
    count : array of shape (1,), uint64
        Zero before the launch; then the number of listed blocks.
    """

    expected: Any
    listed: Any
    count: Any


def compiled(plan: ChecksumsPlan, arch: str) -> Cubin:
    """Compile the kernel of a plan for an architecture; needs no GPU."""
    return build(_SOURCE.read_text(encoding="utf-8"), [plan.kernel], arch)


def build_columns(arch: str) -> Cubin:
    """Compile the kernel of word_columns.cuh for an architecture; needs no GPU."""
    return build(_COLUMNS_SOURCE.read_text(encoding="utf-8"), [COLUMNS_KERNEL], arch)


@lru_cache(maxsize=1024)
def plans(
    m: int, n: int, dtype: str, of: Layout, *, code: str, weights: int, block: int, gpu: GpuSpec
) -> tuple[ChecksumsPlan, ...] | None:
    """Return the plans of the passes that compute a matrix's checksums; None if the kernel does not support the matrix.

    The exact code and the float code need separate passes if a row of words is not a row of elements (skinny and short
    matrices, see `interleave.py`), or if the GPU has too little shared memory or no setmaxnreg.

    Parameters
    ----------
    m, n : int
        The matrix is m × n.
    dtype : str
        The name of the elements' type.
    of : Layout
        The interleaving of the words of the matrix.
    code : {"exact", "float", "both"}
        The sums to compute.
    weights, block : int
        Number of weights and block size of the float code.
    gpu : GpuSpec
    """
    if code == "both":
        both = elements_plan(m, n, dtype, weights, block, of)
        if both is not None and both.exact and (found := fitted(both, gpu)) is not None:
            return (found,)
    passes = []
    if code != "float":
        passes.append(fitted(words_plan(of), gpu))
    if code != "exact":
        passes.append(fitted(elements_plan(m, n, dtype, weights, block, None), gpu))
    every = tuple(one for one in passes if one is not None)
    return every if len(every) == len(passes) else None


def sums_on_gpu(
    source: Source,
    device: int | None,
    of: Layout,
    *,
    code: str,
    weights: int,
    block: int,
    progress: Progress | None = None,
) -> dict[str, np.ndarray] | None:
    """Compute the checksums of a matrix on a GPU, and return them in host memory; None if no kernel supports it.

    `machine_of` documents `source` and `device`; `pieces_on_gpu` documents the other parameters.
    """
    machine = machine_of(source, device)
    if machine is None:
        return None
    pieces = pieces_on_gpu(machine, source, of, code=code, weights=weights, block=block, progress=progress)
    if pieces is None:
        return None
    passes = (sums_of_piece(machine, piece, served, of.width) for piece, served in pieces)
    found = [{name: to_host(tensor) for name, tensor in tensors.items()} for tensors in passes]
    if len(found) == 1:
        return found[0]
    return {name: np.concatenate([one[name] for one in found], axis=2 if name == "rows" else 0) for name in found[0]}


def machine_of(source: Source, device: int | None) -> Machine | None:
    """Return the GPU that computes a matrix's checksums; None if the CPU computes them.

    Parameters
    ----------
    source : Source
    device : int or None
        The index of the GPU for a matrix in host memory or in a file; None selects the CPU for such a matrix. An array
        in GPU memory is read by the GPU that holds it.
    """
    array = whole_on_gpu(source)
    device = device if array is None else int(array.device.id)
    machine = None if device is None else cuda_machine(device)
    return machine if machine and float(machine.gpu.compute_capability) >= _LEAST_CAPABILITY else None


def sums_of_piece(machine: Machine, piece: Any, served: tuple[ChecksumsPlan, ...] | None, width: int) -> dict[str, Any]:
    """Return the checksums of a piece of a matrix, in GPU memory; piece and plans as `pieces_on_gpu` yields them."""
    if served is None:
        return {"exact": sum_columns(machine, piece, width)}
    return {name: sums for plan in served for name, sums in add_checksums(machine, piece, plan).items()}


def pieces_on_gpu(
    machine: Machine,
    source: Source,
    of: Layout,
    *,
    code: str,
    weights: int,
    block: int,
    progress: Progress | None = None,
) -> Iterator[tuple[Any, tuple[ChecksumsPlan, ...] | None]] | None:
    """Yield consecutive pieces of a matrix in GPU memory, each with the plans of its passes; None for `sum_columns`.

    Return None if no kernel supports a piece.

    An array on the GPU is a single piece if the kernel can read it in place. Otherwise all pieces except the last have
    the same number of whole stripes: of rows, or of the columns of a single row.

    Parameters
    ----------
    machine : Machine
    source : Source
    of : Layout
        The interleaving of the whole matrix.
    code, weights, block
        As for `plans`.
    progress : callable, optional
        Called with the number of bytes read so far, once per piece, when the next piece is requested.
    """
    array = whole_on_gpu(source)
    m, (n, name, size) = source.shape[0], (source.shape[1], source.dtype.name, source.dtype.itemsize)
    whole = array is not None and array.flags.c_contiguous and array.data.ptr % ALIGNMENT == 0
    # Pieces are whole stripes, so that the matrix's sums are the concatenated sums of the pieces.
    by_columns = m == 1 and not whole and code == "exact"
    stripe = ROWS * (of.width * WORD // size if by_columns else fold(source.shape, size))
    total, each = (n, size) if by_columns else (m, n * size)
    count = total if whole else stripe and max(1, _PIECE_BYTES // (stripe * each)) * stripe
    if not count:
        return None
    plans_of: dict[int, tuple[ChecksumsPlan, ...] | None] = {}
    for k in (min(count, total), total % count or count):
        layout, shape = Layout(k * each, of.width), (1, k) if by_columns else (k, n)
        served = plans(*shape, name, layout, code=code, weights=weights, block=block, gpu=machine.gpu)
        if served is None and code != "exact":
            return None
        plans_of[k * each] = served

    parts: Iterator[Any]
    if whole:
        parts = iter([array])
    elif by_columns:
        parts = (elements for *_, elements in source.pieces(count))
    else:
        parts = (elements for _, elements in source.blocks(count))

    def pieces() -> Iterator[tuple[Any, tuple[ChecksumsPlan, ...] | None]]:
        done = 0
        for part in parts:
            yield _on_gpu(machine, part), plans_of[part.nbytes]
            done += part.nbytes
            if progress is not None:
                progress(done)

    return pieces()


def _on_gpu(machine: Machine, part: Any) -> Any:
    """Return rows of a matrix in GPU memory; copy them only if they are in host memory or not aligned to 16 bytes."""
    with machine.current():
        if isinstance(part, np.ndarray):
            return machine.xp.asarray(part.view(np.uint8))  # CuPy lacks some dtypes
        return part if address(part) % ALIGNMENT == 0 else part.copy()


@cache
def _kernel(machine: Machine, plan: ChecksumsPlan) -> Any:
    (kernel,) = machine.kernels(_SOURCE, plan.kernel)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


def add_checksums(
    machine: Machine, array: Any, plan: ChecksumsPlan, compared: Comparison | None = None
) -> dict[str, Any]:
    """Launch the computation of a matrix's checksums on the current stream, and return them in GPU memory.

    Parameters
    ----------
    machine : Machine
    array : array of `machine.xp`
        The matrix: row-major without gaps, aligned to 16 bytes.
    plan : ChecksumsPlan
        A plan for this matrix.
    compared : Comparison, optional
        Then blocks whose exact sums differ are listed, and the exact sums of others are not written.

    Returns
    -------
    dict of str to array of `machine.xp`
        The checksums, by the names in `ChecksumsPlan.shapes`.
    """
    xp = machine.xp
    with machine.current():
        shapes = plan.shapes.items()
        tensors = {name: xp.empty(shape, np.uint64 if name == "exact" else plan.sums) for name, shape in shapes}
        _, next_unit = machine.workspace(0, 1)
        addresses = {name: address(tensor) for name, tensor in tensors.items()}
        of_comparison = (0, 0, 0) if compared is None else map(address, compared)
        task = plan.task(address(array), addresses, address(next_unit), of_comparison)[()]
        blocks = min(plan.units, machine.gpu.multiprocessors)
        _kernel(machine, plan)((blocks,), (plan.threads,), (task,), shared_mem=plan.shared_bytes)
    return tensors


def sum_columns(machine: Machine, array: Any, width: int) -> Any:
    """Launch the computation of the exact sums of any number of bytes on the current stream; return them in GPU memory.

    Parameters
    ----------
    machine : Machine
    array : array of `machine.xp`
        Without gaps, aligned to 4 bytes.
    width : int
        Words per row of words (interleave.py).

    Returns
    -------
    array of `machine.xp`, of shape (stripes, 5, width), uint64
    """
    stripes = Layout(array.nbytes, width).stripes
    with machine.current():
        sums = machine.xp.empty((stripes, SUMS, width), np.uint64)
        (kernel,) = machine.kernels(_COLUMNS_SOURCE, COLUMNS_KERNEL)
        sizes = np.int64(array.nbytes), np.int64(width), np.int64(stripes * width)
        blocks = -(-stripes * width // COLUMN_THREADS)
        kernel((blocks,), (COLUMN_THREADS,), (array, sums, *sizes))
    return sums
