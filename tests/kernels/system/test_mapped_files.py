"""The files in a range of memory, read from a table by hand and from this process's own."""

import mmap

import numpy as np
import pytest

from tsapps.kernels.arrays import address
from tsapps.kernels.system.mapped_files import MappedFile, mapped_files

TABLE = """\
1000-3000 r--s 00000000 08:01 77                         /data/X.npy
3000-4000 rw-p 00002000 08:01 77                         /data/X.npy
4000-5000 rw-p 00000000 00:00 0
5000-6000 rw-p 00000000 00:00 0                          [heap]
6000-7000 rw-s 00000000 00:1a 5                          /dev/shm/a name
7000-8000 r--p 00000000 08:01 78                         /lib/libc.so
9000-a000 rw-p 00000000 00:0f 91                         /anon_hugepage (deleted)
not a mapping
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text(TABLE)
    return tmp_path


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0x1800, 0x2000, [MappedFile("/data/X.npy", writable=False, shared=True)]),
        (0x2FFF, 0x3000, [MappedFile("/data/X.npy", writable=False, shared=True)]),
        (
            0x2FFF,
            0x3001,
            [
                MappedFile("/data/X.npy", writable=False, shared=True),
                MappedFile("/data/X.npy", writable=True, shared=False),
            ],
        ),
        (0x4000, 0x6000, []),
        (0x6000, 0x6001, [MappedFile("/dev/shm/a name", writable=True, shared=True)]),
        (0x7FFF, 0xA000, [MappedFile("/lib/libc.so", writable=False, shared=False)]),
        (0x8000, 0x9000, []),
        (0x9000, 0xA000, []),
    ],
)
def test_a_table_by_hand(first, end, expected, table):
    assert mapped_files(first, end, table) == expected


def test_shared_memory(table):
    assert [file.is_shared_memory for file in mapped_files(0x1000, 0xA000, table)] == [False, False, True, False]


def test_without_a_table(tmp_path):
    assert mapped_files(0, 1 << 48, tmp_path) == []


@pytest.mark.parametrize(("mode", "writable", "shared"), [("r", False, True), ("r+", True, True), ("c", True, False)])
def test_arrays_of_numpy(mode, writable, shared, tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, np.zeros((4000, 5)))
    X = np.load(path, mmap_mode=mode)
    assert mapped_files(address(X), address(X) + X.nbytes) == [MappedFile(str(path), writable, shared)]


def test_memory_without_a_file():
    X, anonymous = np.ones(1 << 20), mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for array in (X, np.frombuffer(anonymous, np.uint8)):
        assert mapped_files(address(array), address(array) + array.nbytes) == []
