"""Atomic writes: files are replaced as a whole or left unchanged."""

import errno
import os
import signal
import stat

import numpy as np
import pytest

from tsapps.errors import MatrixError, UsageError
from tsapps.matrix import open_matrix, replacing, save_npy


def test_by_hand(tmp_path):
    with replacing(tmp_path / "x.txt") as file:
        file.write(b"new")
        assert not (tmp_path / "x.txt").exists()
    assert (tmp_path / "x.txt").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x.txt"]


class Stopped(BaseException):
    """Like KeyboardInterrupt, not an Exception."""


def interrupt():
    # A test runner started in the background may ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def fail_with(error):
    raise error


@pytest.mark.parametrize(
    ("exception", "stop"),
    [
        (KeyboardInterrupt, interrupt),
        (Stopped, lambda: fail_with(Stopped())),
        (ValueError, lambda: fail_with(ValueError())),
        (SystemExit, lambda: fail_with(SystemExit(1))),
    ],
)
@pytest.mark.parametrize("old", [b"old", None])
def test_interrupted(tmp_path, exception, stop, old):
    path = tmp_path / "x.npy"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(exception), replacing(path) as file:  # noqa: PT012 the exception comes from within
        file.write(b"half")
        stop()
    assert os.listdir(tmp_path) == ([] if old is None else ["x.npy"])
    if old is not None:
        assert path.read_bytes() == old


def test_interrupted_while_an_array_is_written(tmp_path, monkeypatch):
    save_npy(tmp_path / "x.npy", np.ones(3))

    def write_header(file, header):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", write_header)
    with pytest.raises(KeyboardInterrupt):
        save_npy(tmp_path / "x.npy", np.zeros(3))
    assert os.listdir(tmp_path) == ["x.npy"]
    assert np.load(tmp_path / "x.npy").tolist() == [1, 1, 1]


def test_full_disk_is_named(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=r"No space left on device: .*x.npy"):
        save_npy(tmp_path / "x.npy", np.ones(3))
    assert os.listdir(tmp_path) == []


def test_permissions_follow_the_umask(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    save_npy(tmp_path / "x.npy", np.ones(3))
    assert stat.S_IMODE((tmp_path / "x.npy").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.npy").write_bytes(b"old")
    (tmp_path / "x.npy").symlink_to("elsewhere/x.npy")
    save_npy(tmp_path / "x.npy", np.ones(3))
    assert (tmp_path / "x.npy").is_symlink()
    assert np.load(tmp_path / "elsewhere" / "x.npy").tolist() == [1, 1, 1]


def test_longest_name(tmp_path):
    save_npy(tmp_path / ("x" * 251 + ".npy"), np.ones(3))


def test_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_npy("x.npy", np.ones(3))
    assert os.listdir(tmp_path) == ["x.npy"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "is a directory: name a file in it"),
        ("absent/x.npy", "cannot be written: No such file or directory"),
        ("pipe", "is not a regular file: name one"),
    ],
)
def test_rejected_paths(tmp_path, name, message):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=f"^{tmp_path}/?.*: {message}"):
        save_npy(tmp_path / name, np.ones(3))
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "u8", "?", "c8", "U3"])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 4), (0, 3)])
def test_round_trip(tmp_path, shape, dtype, order):
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype), order=order)
    save_npy(tmp_path / "x.npy", array)
    loaded = np.load(tmp_path / "x.npy", allow_pickle=False)
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


def test_replacing_the_file_being_read(tmp_path):
    save_npy(tmp_path / "x.npy", np.ones((4, 2)))
    matrix = open_matrix(tmp_path / "x.npy")
    blocks = matrix.blocks(1)
    next(blocks)
    save_npy(tmp_path / "x.npy", np.zeros((1, 1)))
    assert [next(blocks)[1].tolist() for _ in range(3)] == [[[1, 1]]] * 3  # the old file lives on until it is let go
    with pytest.raises(MatrixError, match=r"x\.npy: has changed since it was opened"):
        next(blocks)


@pytest.mark.parametrize("dtype", ["bfloat16", "object"])
def test_rejected_dtypes(tmp_path, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    with pytest.raises(UsageError, match=r"x.npy: .npy does not support (bfloat16|object): convert it"):
        save_npy(tmp_path / "x.npy", np.ones((2, 2)).astype(dtype))
    assert os.listdir(tmp_path) == []


def test_rejected_objects(tmp_path):
    with pytest.raises(TypeError, match="expected an array"):
        save_npy(tmp_path / "x.npy", [1, 2])
