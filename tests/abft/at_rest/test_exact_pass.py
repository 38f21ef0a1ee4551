"""Passes of the exact code: threads compute the sums of stripes, or of parts of them, of arrays and files."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from tsapps.apps.abft.at_rest import exact_pass as module
from tsapps.apps.abft.at_rest.exact_code import ExactSums
from tsapps.apps.abft.at_rest.exact_pass import exact_pass
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.source import as_source
from tsapps.apps.abft.at_rest.verify import encode, verify
from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix

SHAPES = [(1, 1), (1, 7001), (1, 3_000_001), (3000, 300), (1300, 5), (513, 1500), (600, 1024)]


@pytest.fixture(params=[1, 3])
def threads(request, monkeypatch):
    """Threads even for small matrices, whose stripes have several parts."""
    monkeypatch.setattr(module, "available_cores", lambda: request.param)
    for name, size in {"_THREAD_BYTES": 1, "_LEAST_COLUMNS": 64, "_MEMORY_BYTES": 9000, "_FILE_BYTES": 9000}.items():
        monkeypatch.setattr(module, name, size)
    return request.param


def in_one_piece(A):
    """All sums by `ExactSums`."""
    of, found = layout(A.shape, A.itemsize), []
    exact = ExactSums(of, lambda stripe, sums: found.append(sums))
    exact.add(np.ascontiguousarray(A).reshape(-1).view(np.uint8))
    exact.finish()
    return np.stack(found)


def by_pass(source):
    """All sums by a pass, and the numbers of bytes that it tells."""
    found, told = [], []
    of = layout(source.shape, source.dtype.itemsize)
    exact_pass(source, of, lambda stripe, sums: found.append((stripe, sums)), told.append)
    assert [stripe for stripe, _ in found] == list(range(of.stripes))
    assert told == sorted(told)
    assert told[-1] == of.n_bytes
    return np.stack([sums for _, sums in found])


def numbers(shape, rng, dtype=np.float32):
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def at_an_odd_address(A):
    room = np.empty(A.nbytes + 1, np.uint8)[1:]
    room[:] = A.reshape(-1).view(np.uint8)
    return room.view(A.dtype).reshape(A.shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_and_files(threads, shape, dtype, tmp_path, rng):
    A = numbers(shape, rng, dtype)
    np.save(tmp_path / "A.npy", A)
    expected = in_one_piece(A)
    for source in (as_source(A), open_matrix(A), open_matrix(tmp_path / "A.npy"), as_source(at_an_odd_address(A))):
        np.testing.assert_array_equal(by_pass(source), expected)


def test_other_orders_of_elements(threads, tmp_path, rng):
    A = numbers((1300, 70), rng)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(A))
    np.save(tmp_path / "swapped.npy", A.astype(">f4"))
    np.savez(tmp_path / "A.npz", A=A)
    expected = in_one_piece(A)
    for array in (np.asfortranarray(A), A.astype(">f4"), np.repeat(A, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(by_pass(as_source(array)), expected)
    for name in ("fortran.npy", "swapped.npy", "A.npz"):
        np.testing.assert_array_equal(by_pass(open_matrix(tmp_path / name)), expected)
    np.testing.assert_array_equal(by_pass(as_source(np.load(tmp_path / "A.npz")["A"])), expected)


def test_several_stripes_at_once(tmp_path, rng, monkeypatch):
    """A thread has three small stripes, the last unit has two."""
    monkeypatch.setattr(module, "available_cores", lambda: 2)
    monkeypatch.setattr(module, "_THREAD_BYTES", 1)
    monkeypatch.setattr(module, "_UNIT_BYTES", 3 * 512 * 4 * 520 + 9)
    A = numbers((512 * 7 + 7, 520), rng)
    monkeypatch.setattr(module, "_UNITS", 1)
    np.save(tmp_path / "A.npy", A)
    assert [len(unit.stripes) for unit in module._whole_stripes(layout(A.shape, 4), 2)] == [3, 3, 2]
    for source in (as_source(A), open_matrix(tmp_path / "A.npy")):
        np.testing.assert_array_equal(by_pass(source), in_one_piece(A))


def test_wide_files_are_read_in_parts(threads, tmp_path, rng, monkeypatch):
    A = numbers((600, 1024), rng)
    np.save(tmp_path / "A.npy", A)
    monkeypatch.setattr(module, "_MOST_STRIPE_BYTES", A.nbytes // 2)
    monkeypatch.setattr(module, "_File", None)
    np.testing.assert_array_equal(by_pass(open_matrix(tmp_path / "A.npy")), in_one_piece(A))
    np.testing.assert_array_equal(by_pass(as_source(A)), in_one_piece(A))


class Disk:
    """A file whose reads wait for a disk, one at a time, except for those of the first bytes."""

    name, dtype = "disk", np.dtype(np.uint8)

    def __init__(self, content, cached=0):
        self.shape, self.content, self.cached = (1, len(content)), content, cached
        self.waiting, self.most, self.places = 0, 0, []
        self.closed = False

    def blocks(self, rows):
        raise AssertionError("not read in blocks")

    rows = blocks

    def bytes_reader(self):
        return self

    def __enter__(self):
        return self.read

    def __exit__(self, *_):
        self.closed = True

    def read(self, begin, out, *, wait):
        if not wait and begin >= self.cached:
            return False
        if wait:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            self.places.append(begin)
        out[:] = self.content[begin : begin + len(out)]
        self.waiting -= wait
        return True


@pytest.mark.parametrize("cached", [0, 4_000_000])
def test_a_disk_reads_one_stripe_after_the_other(threads, cached, rng):
    content = rng.integers(0, 256, 20_000_001, np.uint8)
    disk = Disk(content, cached)
    np.testing.assert_array_equal(by_pass(disk), in_one_piece(content[None]))
    assert (disk.most, disk.closed) == (1, True)
    stripes = [place // (512 * 4096 * 4) for place in disk.places]
    changes = np.count_nonzero(np.diff(stripes))
    assert len(stripes) > 10 * (changes + 1)  # many reads of each stripe, and none of another between them
    assert changes == len(set(stripes)) - 1


def sums_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tsapps-sums")]


def test_an_error_of_the_caller_ends_all_threads(threads, rng):
    A = numbers((20_000, 300), rng)

    def progress(done):
        if done > A.nbytes // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(A, code="exact", progress=progress)
    for thread in sums_threads():  # whose tasks have ended
        thread.join(10)
    assert not sums_threads()


def test_a_signal_while_threads_read(threads, rng):
    class Interrupted(Disk):
        after = 0

        def read(self, begin, out, *, wait):
            if begin > 9_000_000 and not self.closed:
                self.closed = True
                os.kill(os.getpid(), signal.SIGINT)
            if self.closed:
                self.after += 1
                time.sleep(0.01)  # in which the other thread stops
            return super().read(begin, out, wait=wait)

    disk = Interrupted(rng.integers(0, 256, 30_000_000, np.uint8))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            encode(disk, code="exact")
    finally:
        signal.signal(signal.SIGINT, before)
    assert disk.after < 20  # of the 64 reads of a stripe
    for thread in sums_threads():  # one may be left that was just started
        thread.join(10)
    assert not sums_threads()


def test_an_error_of_a_file(threads, tmp_path, rng):
    A = numbers((20_000, 30), rng)
    np.save(tmp_path / "A.npy", A)
    matrix = open_matrix(tmp_path / "A.npy")
    sidecar = encode(matrix, code="exact")
    os.truncate(tmp_path / "A.npy", A.nbytes // 2)
    with pytest.raises(MatrixError, match="changed"):
        verify(matrix, sidecar)


def test_a_corrupted_word_is_found(threads, tmp_path, rng):
    A = numbers((20_000, 30), rng)
    sidecar = encode(A, code="exact")
    A.view(np.uint32)[15_000, 7] ^= 8
    np.save(tmp_path / "A.npy", A)
    for matrix in (A, open_matrix(tmp_path / "A.npy")):
        assert verify(matrix, sidecar).elements(sidecar) == [(15_000, 7)]
