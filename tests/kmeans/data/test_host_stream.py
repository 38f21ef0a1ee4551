"""Rows streamed from the host to a GPU, on a machine whose copies land as late as the events allow."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.data.host_stream import stream_to_gpu
from tsapps.apps.kmeans.data.rows import ArrayRows


class Stream:
    """A stream whose copies land when it is waited for."""

    ptr = 1

    def __init__(self):
        self.copies = []

    def synchronize(self):
        for to, source in self.copies:
            to[...] = source
        self.copies.clear()

    def wait_event(self, event):
        """Let later work of this stream wait, but not the host."""


class Event:
    def __init__(self):
        self.stream = None

    def record(self, stream=None):
        self.stream = stream

    def synchronize(self):
        if self.stream is not None:
            self.stream.synchronize()


class LateMachine(HostMachine):
    def __init__(self):
        super().__init__()
        self.copying, self.slots = Stream(), []

    event = Event

    def stream(self):
        return self.copying

    def current_stream(self):
        return Stream()

    def pinned(self, shape, dtype):
        self.slots.append(np.zeros(shape, dtype))
        return self.slots[-1]

    def copy(self, to, source, stream=None):
        assert stream is self.copying
        stream.copies.append((to, source))


class Uneven(ArrayRows):
    """A matrix whose blocks are smaller than they may be, as those of files with groups of rows."""

    def blocks(self, rows):
        for start, end in ((0, 1), (1, 7), (7, 9), (9, 9), (9, 10)):
            for first in range(start, end, rows):
                last = min(first + rows, end)
                yield first, self.array[first:last]


@pytest.mark.parametrize("rows", [12, 10, 4, 3, 1])
def test_blocks_have_as_many_rows_as_asked_for(rows):
    X = np.arange(20.0).reshape(10, 2)
    found = [(start, block.copy()) for start, block in stream_to_gpu(HostMachine(), Uneven(X), rows)]
    assert [(start, len(block)) for start, block in found] == [(i, min(rows, 10 - i)) for i in range(0, 10, rows)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in found]), X)


@pytest.mark.parametrize("rows", [10, 4, 3, 1])
@pytest.mark.parametrize("taken", [None, 1, 2])
def test_buffers_are_not_given_away_while_they_are_copied(rows, taken):
    # Pinned memory that nobody holds goes to whoever asks next: a copy from it would read their data.
    machine = LateMachine()
    X = np.arange(20.0).reshape(10, 2)
    blocks = stream_to_gpu(machine, ArrayRows(X), rows)
    found = []
    for number, (start, block) in enumerate(blocks, 1):
        assert machine.copying.copies
        found.append((start, block))
        if number == taken:
            break
        machine.copying.synchronize()
        found[-1] = start, block.copy()  # the next block but one is copied to the same memory
    blocks.close()
    assert len(machine.slots) == 2
    assert machine.copying.copies == []
    for start, block in found:
        np.testing.assert_array_equal(block, X[start : start + rows])
    if taken is None:
        assert sum(len(block) for _, block in found) == 10
