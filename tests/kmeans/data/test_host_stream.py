"""Rows on their way from the host to a GPU: the buffers that they go through, without a GPU."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.apps.kmeans.data.rows import ArrayRows

pytest.importorskip("cupy", reason="CuPy is not installed")
from tsapps.apps.kmeans.data import host_stream

pytestmark = pytest.mark.compile


class Slot:
    """A `_Slot` whose copies are over when they are waited for, and not before."""

    def __init__(self, made):
        self.copied = SimpleNamespace(synchronize=self.wait)
        self.on_its_way = False
        made.append(self)

    def wait(self):
        self.on_its_way = False

    def fill(self, blocks, fillers):
        self.wait()
        start, count, read = next(blocks, (None, 0, None))
        if start is not None:
            self.block = np.empty((count, 2))
            read(slice(0, count), self.block)
        return start

    @contextmanager
    def on_gpu(self, copies):
        self.on_its_way = True
        yield self.block.copy()


@pytest.mark.parametrize("rows", [10, 4, 3, 1])
@pytest.mark.parametrize("taken", [None, 1, 2])
def test_buffers_are_not_given_away_while_they_are_copied(rows, taken, monkeypatch):
    # Pinned memory that nobody holds is whoever's asks next: what was still to be copied from it would be theirs.
    made = []
    monkeypatch.setattr(host_stream, "_Slot", lambda shape, dtype: Slot(made))
    monkeypatch.setattr(host_stream, "cupy", SimpleNamespace(cuda=SimpleNamespace(Stream=lambda **_: None)))
    X = np.arange(20.0).reshape(10, 2)
    blocks = host_stream.stream_to_gpu(ArrayRows(X), rows)
    found = []
    for start, block in blocks:
        assert any(slot.on_its_way for slot in made)
        found.append((start, block))
        if len(found) == taken:
            break
    blocks.close()
    assert len(made) == 2
    assert not any(slot.on_its_way for slot in made)
    for start, block in found:
        np.testing.assert_array_equal(block, X[start : start + rows])
    if taken is None:
        assert sum(len(block) for _, block in found) == 10
