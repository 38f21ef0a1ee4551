"""Distribution of X over the memory of several GPUs."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.host_stream import stream_to_gpu
from tsapps.apps.kmeans.data.pinned_rows import is_half
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.apps.kmeans.distributed.row_range import row_range
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.runtime.machine import Machine

__all__ = ["distribute"]

# Maximum size in bytes of a block of rows that is copied at a time.
_BLOCK_BYTES = 64 << 20


def distribute(source: Rows, parts: Sequence[range], machines: Sequence[Machine], dtype: np.dtype) -> list[Any]:
    """Copy consecutive rows of a matrix to each of several GPUs; rows that are there already are not copied.

    Parameters
    ----------
    source : Rows
    parts : sequence of range
        The indices of the rows for each GPU: all rows of the matrix, in order.
    machines : sequence of Machine
        The GPUs.
    dtype : {float32, float64}
        The working dtype.

    Returns
    -------
    list of array
        A row-major array for each GPU, in `dtype`, or in the type of the source if that has 16 bits and kernels read
        it.

    Raises
    ------
    NoDeviceError
        If a GPU has no memory for its rows.
    """
    kept = source.dtype if is_half(source.dtype, dtype) else dtype
    _check_memory(source, parts, machines, kept)
    if source.device is not None and isinstance(source, ArrayRows):
        return _from_gpu(source.array, parts, machines, kept)
    ranges = [rows for rows in (row_range(source, part) for part in parts) if rows is not None]
    if not ranges:
        return _from_blocks(source, parts, machines, kept)

    def upload(rows: Rows, machine: Machine) -> Any:
        with machine.current():
            copy = machine.xp.empty(rows.shape, kept)
            for start, block in stream_to_gpu(machine, rows, _block_rows(source)):
                copy[start : start + len(block)] = block
            machine.current_stream().synchronize()
        return copy

    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(upload, ranges, machines))


def _check_memory(source: Rows, parts: Sequence[range], machines: Sequence[Machine], kept: np.dtype) -> None:
    for part, machine in zip(parts, machines, strict=True):
        with machine.current():
            free = machine.free_bytes()
        needed = len(part) * source.shape[1] * kept.itemsize
        in_place_already = machine.index == source.device and source.dtype == kept
        if not in_place_already and needed > free:
            raise NoDeviceError(
                f"cuda:{machine.index}: {len(part)} of {source.shape[0]} rows take {needed / 2**30:.2f} GiB, but "
                f"{free / 2**30:.2f} GiB are free: use more GPUs, or one GPU, which also reads X where it is"
            )


def _from_gpu(array: Any, parts: Sequence[range], machines: Sequence[Machine], kept: np.dtype) -> list[Any]:
    """Return the rows of an array on one GPU, for each GPU: a view on the same GPU, else a copy."""
    found = []
    for part, machine in zip(parts, machines, strict=True):
        with array.device as device:
            piece = array[part.start : part.stop].astype(kept, order="C", copy=False)
            device.synchronize()
        if machine.index != array.device.id:
            with machine.current():
                copy = machine.xp.empty(piece.shape, kept)
                machine.copy(copy, piece)
                machine.current_stream().synchronize()
            piece = copy
        found.append(piece)
    return found


def _from_blocks(source: Rows, parts: Sequence[range], machines: Sequence[Machine], kept: np.dtype) -> list[Any]:
    """Return the rows of a matrix that is read only once and in order, for each GPU."""
    copies = []
    for part, machine in zip(parts, machines, strict=True):
        with machine.current():
            copies.append(machine.xp.empty((len(part), source.shape[1]), kept))
    for start, block in _plain_blocks(source, kept):
        for part, machine, copy in zip(parts, machines, copies, strict=True):
            first, end = max(part.start, start), min(part.stop, start + len(block))
            if first >= end:
                continue
            with machine.current():
                machine.copy(copy[first - part.start : end - part.start], block[first - start : end - start])
                machine.current_stream().synchronize()
    return copies


def _plain_blocks(source: Rows, kept: np.dtype) -> Iterator[tuple[int, Any]]:
    for start, block in source.blocks(_block_rows(source)):
        plain = block.astype(kept, order="C", copy=False)
        if source.device is not None:
            with plain.device as device:
                device.synchronize()
        yield start, plain


def _block_rows(source: Rows) -> int:
    return max(1, _BLOCK_BYTES // (source.shape[1] * source.dtype.itemsize))
