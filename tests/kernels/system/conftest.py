"""The two ways in which files, and directories, take the place of others."""

import os

import pytest

from tsapps.kernels.system import atomic_write


@pytest.fixture(params=["unnamed", "named"])
def kind(request, monkeypatch, tmp_path):
    """Whether temporary files have names."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    else:
        descriptor = atomic_write._open_unnamed(str(tmp_path))
        if descriptor is None:
            pytest.skip("the file system has no O_TMPFILE")
        os.close(descriptor)
    return request.param


@pytest.fixture(params=["swapped", "renamed twice"])
def exchange(request, monkeypatch, tmp_path):
    """How a directory takes the place of another."""
    if request.param == "renamed twice":
        monkeypatch.setattr(atomic_write, "_swap", lambda one, other: False)
    else:
        for name in "ab":
            (tmp_path / name).mkdir()
        swapped = atomic_write._swap(str(tmp_path / "a"), str(tmp_path / "b"))
        for name in "ab":
            (tmp_path / name).rmdir()
        if not swapped:
            pytest.skip("the file system cannot exchange two names")
    return request.param
