"""Privacy: results, sidecars and temporary files are readable by no more users than their inputs."""

import os
import stat
from contextlib import contextmanager

import numpy as np
import pytest

from tsapps.kernels.system import atomic_write, file_attributes
from tsapps.kernels.system.permissions import mode_of_result
from tsapps.matrix import copy, open_matrix


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@contextmanager
def umask(bits):
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


@pytest.fixture
def temporary_modes(monkeypatch):
    """Record the permissions of every temporary file, at every write and copy."""
    seen = set()
    original = os.fsync

    def fsync(descriptor):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            seen.add(stat.S_IMODE(os.fstat(descriptor).st_mode))
        original(descriptor)

    for name in ("_open_unnamed", "_make_file"):
        make = getattr(atomic_write, name)

        def made(*args, make=make, **kwargs):
            descriptor = make(*args, **kwargs)
            if descriptor is not None:
                seen.add(stat.S_IMODE(os.fstat(descriptor).st_mode))
            return descriptor

        monkeypatch.setattr(atomic_write, name, made)
    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_mode_by_hand(tmp_path):
    def made(name, bits):
        (tmp_path / name).write_bytes(b"")
        os.chmod(tmp_path / name, bits)
        return tmp_path / name

    out = tmp_path / "out"
    a, b, c = made("a", 0o644), made("b", 0o640), made("c", 0o604)
    assert mode_of_result(out, []) == 0o666
    assert mode_of_result(out, [a]) == 0o666
    assert mode_of_result(out, [b]) == 0o660
    assert mode_of_result(out, [a, c]) == 0o606
    assert mode_of_result(out, [b, c]) == 0o600
    made("out", 0o600)
    assert mode_of_result(out, [a]) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_another_group(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"")
    for bits, expected in ((0o640, 0o600), (0o604, 0o600), (0o644, 0o666)):
        os.chown(path, -1, os.getegid() + 1)
        os.chmod(path, bits)
        assert mode_of_result(tmp_path / "out", [path]) == expected


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o644])
@pytest.mark.parametrize("named", [True, False])
def test_results_of_every_command(directory, succeed, iris, bits, named, monkeypatch, temporary_modes):
    if named:  # as on file systems without O_TMPFILE
        monkeypatch.setattr(os, "O_TMPFILE", None, raising=False)
        monkeypatch.delattr(os, "O_TMPFILE")
    np.save("weights.npy", np.ones((150, 1)))
    os.chmod("iris.npy", bits)
    with umask(0o022):
        succeed("abft-encode", "iris.npy", "-q")
        succeed("kmeans", "iris.npy", "-k", "3", "-q", "--out", "model", "--weights", "weights.npy")
        succeed("predict", "model", "iris.npy", "-q", "--out", "labels.npy")
        succeed("abft-inject", "iris.npy", "--out", "damaged.npy", "-q")
        succeed("abft-correct", "damaged.npy", "--sidecar", "iris.npy.abft", "--out", "corrected.npy", "-q")
        assert temporary_modes == {bits}
        succeed("abft-inject", "iris.npy", "--in-place", "-q")
        succeed("abft-correct", "iris.npy", "--in-place", "-q")
    outputs = ["iris.npy.abft", "labels.npy", "damaged.npy", "corrected.npy", "iris.npy"]
    outputs += [f"model/{name}" for name in ("labels.npy", "centers.npy", "summary.json")]
    assert {name: mode(name) for name in outputs} == dict.fromkeys(outputs, bits)
    assert mode("model") == bits | 0o100 | (bits & 0o044) >> 2
    assert temporary_modes == {0o600, bits}


def test_private_weights_make_the_result_private(succeed, iris):
    np.save("weights.npy", np.ones((150, 1)))
    os.chmod("weights.npy", 0o600)
    succeed("kmeans", "iris.npy", "-k", "3", "-q", "--out", "model", "--weights", "weights.npy")
    assert mode("model") == 0o700
    assert mode("model/labels.npy") == 0o600
    succeed("predict", "model", "iris.npy", "-q", "--out", "labels.npy")
    assert mode("labels.npy") == 0o600


def has_attributes(directory):
    try:
        os.setxattr(directory / "iris.npy", "user.origin", b"a lab")
    except (AttributeError, OSError):
        return False
    return True


def test_extended_attributes_are_kept(directory, succeed, run, iris, monkeypatch):
    if not has_attributes(directory):
        pytest.skip("this file system has no extended attributes")
    succeed("abft-encode", "iris.npy", "-q")
    succeed("abft-inject", "iris.npy", "--in-place", "-q")
    succeed("abft-correct", "iris.npy", "--in-place", "-q")
    assert os.getxattr("iris.npy", "user.origin") == b"a lab"

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    succeed("abft-inject", "iris.npy", "--in-place", "-q")
    monkeypatch.setattr(os, "setxattr", refuse)
    result = run("abft-correct", "iris.npy", "--in-place", "-q")
    assert result.exit_code == 0
    assert "does not keep the extended attribute user.origin: Operation not permitted" in result.stderr
    assert result.stderr.count("\n") == 1


def test_access_lists_of_the_directory_do_not_widen(directory, iris, monkeypatch):
    # A copy inherits the access list of the directory, which the original does not have.
    lists, removed = {"original": ["user.a"], "copy": ["system.posix_acl_access"]}, []
    with open("iris.npy", "rb") as original, open("copy", "w+b") as made:
        names = {original.fileno(): "original", made.fileno(): "copy"}
        monkeypatch.setattr(os, "listxattr", lambda of: lists[names[of]])
        monkeypatch.setattr(os, "getxattr", lambda of, name: b"1")
        monkeypatch.setattr(os, "setxattr", lambda of, name, value: lists["copy"].append(name))
        monkeypatch.setattr(os, "removexattr", lambda of, name: removed.append((names[of], name)))
        file_attributes._copy_extended_attributes("iris.npy", original.fileno(), made.fileno())
    assert removed == [("copy", "system.posix_acl_access")]
    assert "user.a" in lists["copy"]
    monkeypatch.setattr(os, "listxattr", lambda of: ["system.posix_acl_access"])
    assert mode_of_result("out", ["iris.npy"]) == 0o600


def test_owner_and_mode_of_a_copy(directory, iris):
    os.chmod("iris.npy", 0o640)
    matrix = open_matrix("iris.npy")
    with open("copy", "w+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        copy.copy_file(matrix, file, lambda done: None)
    assert mode("copy") == 0o640
