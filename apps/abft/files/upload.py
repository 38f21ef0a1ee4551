"""Copies of parts of files to GPU memory: threads read a piece into pinned memory while they copy the one before.

file ──read──► two pinned pieces for each thread ──copy, on a stream for each thread──► GPU memory
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.abft.files.scan import read_into
from tsapps.kernels.runtime.machine import Machine

__all__ = ["Upload", "upload"]

# Bytes of a piece, and number of threads.
_PIECE_BYTES, _READERS = 1 << 23, 4


class Upload(NamedTuple):
    """Bytes of a file, from offset `begin` on, and the array of uint8 in GPU memory that they are copied to."""

    path: str
    begin: int
    to: Any


def upload(parts: Sequence[Upload], machine: Machine) -> None:
    """Copy parts of files to GPU memory, and wait until they are there.

    Raises
    ------
    ChangedFileError
        If a file ends before the part does.
    OSError
        If a file cannot be read.
    """
    pieces = [(part, first) for part in parts for first in range(0, len(part.to), _PIECE_BYTES)]

    def read(reader: int) -> None:
        with machine.current(), ExitStack() as stack:
            files = {part.path: stack.enter_context(open(part.path, "rb", buffering=0)) for part in parts}
            stream = machine.stream()
            pinned = [machine.pinned((_PIECE_BYTES,), np.uint8) for _ in range(2)]
            events = [machine.event() for _ in pinned]
            for turn, (part, first) in enumerate(pieces[reader::_READERS]):
                to, event = part.to[first : first + _PIECE_BYTES], events[turn % 2]
                piece, file = pinned[turn % 2][: len(to)], files[part.path]
                event.synchronize()
                file.seek(part.begin + first)
                read_into(file, piece)
                machine.copy(to, piece, stream)
                event.record(stream)
            stream.synchronize()

    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read, range(_READERS)))
