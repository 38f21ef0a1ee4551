"""Loading of safetensors files whose bytes are verified where the tensors lie: in the memory of a GPU, or of the host.

The file is read into one buffer, and the tensors are views of it. The exact sums of the whole buffer are computed where
it lies, on a GPU in one pass at the rate of its memory, so that a fault of the disk, the host's memory or the link is
found alike.

    file ──upload──► buffer ──sums──► compare with the sidecar ──► tensors, as views
"""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import sums_shape
from tsapps.apps.abft.at_rest.exact_decode import exact_faults
from tsapps.apps.abft.at_rest.gpu.compare import mismatches_by_piece
from tsapps.apps.abft.at_rest.source import ArraySource
from tsapps.apps.abft.at_rest.verdict import AmbiguousError
from tsapps.apps.abft.files.damage import Damage, damage_of
from tsapps.apps.abft.files.file_sidecar import FileSidecar, read_file_sums
from tsapps.apps.abft.files.places import SIDECAR
from tsapps.apps.abft.files.safetensors_header import DTYPES, tensors_in
from tsapps.apps.abft.files.scan import file_layout, read_into
from tsapps.apps.abft.files.upload import Upload, upload
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = ["load_file"]

# Tensors in GPU memory begin at a multiple of this many bytes, if the file's header lets them.
_ALIGNMENT = 256


def load_file(
    path: str | PathLike[str], sidecar: str | PathLike[str] | None = None, *, device: Any = "cpu"
) -> dict[str, Any]:
    """Load a safetensors file, and verify every byte where the tensors lie.

    Parameters
    ----------
    path : path-like
        A file that `save_file` wrote, or that is protected (`protect_files`).
    sidecar : path-like, optional
        Its sidecar; by default ``PATH.sidecar``.
    device : str or torch.device, optional
        "cpu", "cuda" or "cuda:i".

    Returns
    -------
    dict of str to torch.Tensor
        Views of one buffer, which is freed with the last of them.

    Raises
    ------
    AmbiguousError
        If more was corrupted than the sidecar restores.
    SidecarError
        If the sidecar is corrupted, or belongs to a file of another size.
    LaterVersionError
        If the sidecar was made by a later version of tsapps.
    ValueError
        If the file is not safetensors, or torch does not have one of its dtypes.
    OSError
        If a file cannot be read.

    Warns
    -----
    UserWarning
        If words were corrupted: they are right in the tensors, and still wrong in the file.
    """
    import torch

    name, where = fspath(path), torch.device(device)
    beside = Path(name + SIDECAR if sidecar is None else sidecar)
    if where.type == "cuda":
        machine = cuda_machine(torch.cuda.current_device() if where.index is None else where.index)
        with machine.current(), torch.cuda.device(machine.index):
            content, bytes_of, sums = _on_gpu(name, beside, machine, torch)
            if not _match(name, bytes_of, sums, machine):
                _repair(name, bytes_of, read_file_sums(beside), machine)
    else:
        content = torch.empty(os.path.getsize(path), dtype=torch.uint8)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(read_file_sums, beside)
            read_into(name, content.numpy())
            _repair(name, content.numpy(), waiting.result(), None)
    return _views(name, content, torch)


def _on_gpu(name: str, sidecar: Path, machine: Machine, torch: Any) -> tuple[Any, Any, Any]:
    """Read a file, and the sums at the end of its sidecar, into GPU memory.

    Returns
    -------
    content : torch.Tensor of uint8
    bytes_of : array of uint8
        The same memory, as an array of the machine's library.
    sums : array of uint64, shape (stripes, 5, width), or None
        Not checked against the digest of the sidecar; None if the sidecar is too short.
    """
    n_bytes = os.path.getsize(name)
    with open(name, "rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    first = -header % _ALIGNMENT  # so that the data begins at a multiple of the alignment
    buffer = torch.empty(first + n_bytes, dtype=torch.uint8, device=f"cuda:{machine.index}")
    content = buffer[first:]
    there = machine.xp.from_dlpack(content)
    parts, sums, sidecar_bytes = [Upload(name, 0, there)], None, os.path.getsize(sidecar)
    if n_bytes:
        of = file_layout(n_bytes)
        shape = sums_shape(of)
        if sidecar_bytes >= 8 * prod(shape):
            sums = machine.xp.empty(shape, np.uint64)
            part = Upload(str(sidecar), sidecar_bytes - sums.nbytes, sums.reshape(-1).view(np.uint8))
            parts.insert(0, part)
    torch.cuda.current_stream().synchronize()  # the allocator may give memory that a kernel still uses
    upload(parts, machine)
    return content, there, sums


def _match(name: str, content: Any, sums: Any, machine: Machine) -> bool:
    """Return whether the bytes of a file in GPU memory have these sums.

    If so, both are right: no corruption of the sums makes them those of other bytes.
    """
    if sums is None:
        return False
    found = mismatches_by_piece(machine, _Loaded(name, content), file_layout(len(content)), sums)
    return found is not None and not any(len(blocks) for blocks, _ in found)


class _Loaded(ArraySource):
    """The bytes of a file in memory."""

    def __init__(self, name: str, content: Any) -> None:
        super().__init__(content.reshape(1, -1))
        self.name = name

    def bytes_at(self, offsets: np.ndarray) -> np.ndarray:
        """Return the bytes at ascending offsets."""
        return to_host(self.array[0][_index(self.array, offsets)])


def _index(array: Any, offsets: np.ndarray) -> Any:
    if isinstance(array, np.ndarray):
        return offsets
    import cupy

    return cupy.asarray(offsets)


def _repair(name: str, content: Any, sidecar: FileSidecar, machine: Machine | None) -> None:
    """Compare the bytes of a file in memory with its sidecar, and restore what was corrupted."""
    sums, n_bytes = sidecar.sums, len(content)
    if sums is None or sums.n_bytes != n_bytes:
        raise AmbiguousError(
            f"{name}: has {n_bytes:,} bytes, and its sidecar is of a file of {0 if sums is None else sums.n_bytes:,}: "
            f"tsapps repair may restore it"
        )
    source, gpu = _Loaded(name, content), None if machine is None else machine.index
    faults, refused = exact_faults(source, sums, None, gpu)
    damage = damage_of(faults, refused, file_layout(n_bytes))
    if damage.lost:
        _refuse(name, sidecar, damage)
    if not damage.words:
        return
    content[_index(content, damage.offsets)] = damage.was if machine is None else machine.on_gpu(damage.was)
    again, refused = exact_faults(source, sums, None, gpu)
    if len(again) or len(refused):
        raise AmbiguousError(f"{name}: changes while it is in memory: this machine is faulty")
    words = f"{damage.words:,} word{'s' if damage.words != 1 else ''} of 32 bits"
    warnings.warn(f"{name}: corrupted in {words}, which are right in memory: run tsapps repair", stacklevel=3)


def _refuse(name: str, sidecar: FileSidecar, damage: Damage) -> None:
    """Raise the error of stripes that cannot be repaired."""
    tensors = Damage(lost=damage.lost).tensors(sidecar.entry)
    named = f", in one or more of the tensors {', '.join(tensors[:3])}" if tensors else ""
    raise AmbiguousError(
        f"{name}: more was corrupted than its sidecar restores{named}{' …' if len(tensors) > 3 else ''}: tsapps repair "
        f"restores it if there is parity"
    )


def _views(name: str, content: Any, torch: Any) -> dict[str, Any]:
    """Return the tensors of a file, as views of its bytes where they are aligned."""
    size = int.from_bytes(content[:8].cpu().numpy().tobytes(), "little")
    header = content[: min(content.numel(), 8 + size)].cpu().numpy().tobytes()
    found: dict[str, Any] = {}
    of_dtype: dict[Any, Any] = {}  # all bytes as elements of a dtype; one view per tensor is what takes time
    for tensor, (begin, end, dtype_name, sizes, _) in tensors_in(header, content.numel()).items():
        shape = sizes or ()
        dtype = getattr(torch, DTYPES.get(dtype_name or "", ""), None)
        if dtype is None:
            raise ValueError(f"{name}: the tensor {tensor!r} is {dtype_name}, which this version of torch lacks")
        size = dtype.itemsize
        if (content.storage_offset() + begin) % size:
            found[tensor] = content[begin:end].clone().view(dtype).view(shape)
            continue
        if (dtype, begin % size) not in of_dtype:
            whole = content[begin % size :]
            of_dtype[dtype, begin % size] = whole[: whole.numel() // size * size].view(dtype)
        part = of_dtype[dtype, begin % size][begin // size : begin // size + (end - begin) // size]
        found[tensor] = part if len(shape) == 1 else part.view(shape)
    return found
