"""Saving of safetensors files whose checksums are computed before the bytes leave the GPU.

Pieces of whole stripes of the file are put together in GPU memory and summed there; then they are copied to pinned
memory, hashed and written, while the next piece is summed. The bytes are summed once more on the host: if these sums
differ, the memory or the link is faulty, and nothing is written. So is a file that is read back wrongly found to be
wrong, wherever it was corrupted on its way.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import ExactSums, sums_shape
from tsapps.apps.abft.at_rest.gpu.encode import plans, sums_of_piece
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.verdict import ChangedError
from tsapps.apps.abft.files.file_sidecar import FileSidecar, write_file_sidecar
from tsapps.apps.abft.files.manifest import HASHES, FileEntry, hasher
from tsapps.apps.abft.files.places import SIDECAR
from tsapps.apps.abft.files.safetensors_header import header_of, ordered, tensors_in
from tsapps.apps.abft.files.scan import TensorHashes, file_layout
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.machine import Machine, cuda_machine
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["save_file"]

# Bytes of a piece, rounded to whole stripes; and maximum number of pieces that wait to be written.
_PIECE_BYTES, _MOST_WAITING = 1 << 26, 2


def save_file(
    tensors: Mapping[str, Any],
    path: str | PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    hash_name: str = "blake3",
) -> None:
    """Save torch tensors as a safetensors file with its sidecar, whose sums are computed where the tensors lie.

    `tsapps protect` of the directory then adds the file to its manifest, without reading it.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        All on the CPU, or all on one GPU.
    path : path-like
        An existing file is replaced. The sidecar is ``PATH.sidecar``.
    metadata : mapping of str to str, optional
        The ``__metadata__`` of the file, such as ``{"format": "pt"}``.
    hash_name : {"blake3", "sha256"}, optional
        The hash of the file and the tensors.

    Raises
    ------
    ValueError
        If there are tensors on several devices, or of a dtype that safetensors lacks.
    ChangedError
        If the host has other bytes than the GPU; nothing is written.
    OSError
        If the disk is full or fails.
    """
    if hash_name not in HASHES:
        raise ValueError(f"hash {hash_name!r}: expected one of {', '.join(HASHES)}")
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        raise ValueError(f"tensors on {', '.join(sorted(map(str, devices)))}: expected all on one device")
    device = next(iter(devices), None)
    machine = cuda_machine(device.index) if device is not None and device.type == "cuda" else None
    name, header = fspath(path), header_of(tensors, metadata)
    parts = [tensors[one].detach().reshape(-1) for one in ordered(tensors)]
    n_bytes = len(header) + sum(part.numel() * part.element_size() for part in parts)
    places = dict(sorted(tensors_in(header, n_bytes).items(), key=lambda item: (item[1].begin, item[1].end)))
    whole, hashes = hasher(hash_name), TensorHashes(places, hash_name)
    of = file_layout(n_bytes)
    exact = np.empty(sums_shape(of), np.uint64)
    sums = ExactSums(of, exact.__setitem__)
    computed: list[Any] = []

    def take(piece: np.ndarray, file: Any) -> None:
        whole.update(piece.data)
        hashes.update(piece)
        sums.add(piece)
        file.write(piece.data)

    with replacing(path) as file:
        with ThreadPoolExecutor(1) as writer:
            waiting: deque[Future[None]] = deque()
            for piece in _pieces(header, parts, of, machine, computed):
                waiting.append(writer.submit(take, piece, file))
                if len(waiting) > _MOST_WAITING:
                    waiting.popleft().result()
            for one in waiting:
                one.result()
        sums.finish()
        if computed and not np.array_equal(np.concatenate([to_host(one) for one in computed]), exact):
            raise ChangedError(name)
        file.flush()
    modified = Path(path).stat().st_mtime_ns
    entry = FileEntry(n_bytes, modified, str(whole.hexdigest()), hashes.finish())
    sidecar = Path(name + SIDECAR)
    content = FileSidecar(hash_name, entry, Sidecar((1, n_bytes), "uint8", n_bytes, exact=exact))
    write_file_sidecar(sidecar, content, mode_of_result(sidecar, [path]))


def _pieces(
    header: bytes, parts: list[Any], of: Layout, machine: Machine | None, computed: list[Any]
) -> Iterator[np.ndarray]:
    """Yield the bytes of the file in host memory, in pieces of whole stripes; append the sums that a GPU computes."""
    import torch

    device = parts[0].device if parts else torch.device("cpu")
    first = torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device)
    stripe = ROWS * of.width * WORD
    size = max(1, _PIECE_BYTES // stripe) * stripe
    for some in _joined([first, *(part.view(torch.uint8) for part in parts if part.numel())], size):
        piece = torch.cat(some) if len(some) > 1 else some[0]
        if machine is None:
            yield piece.numpy()
            continue
        with machine.current(), torch.cuda.device(machine.index):
            there = machine.xp.from_dlpack(piece if piece.data_ptr() % 16 == 0 else piece.clone())
            torch.cuda.current_stream().synchronize()  # the sums are computed on another stream
            layout = Layout(len(there), of.width)
            plan = plans(1, len(there), "uint8", layout, code="exact", weights=0, block=0, gpu=machine.gpu)
            computed.append(sums_of_piece(machine, there, plan, of.width)["exact"])
            host = machine.pinned((len(there),), np.uint8)
            machine.copy(host, there)
            machine.current_stream().synchronize()
        yield host


def _joined(parts: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of consecutive parts that have `size` bytes together, the last one fewer."""
    waiting: list[Any] = []
    left = size
    for part in parts:
        while part.numel() >= left:
            waiting.append(part[:left])
            yield waiting
            part, waiting, left = part[left:], [], size
        if part.numel():
            waiting.append(part)
            left -= part.numel()
    if waiting:
        yield waiting
