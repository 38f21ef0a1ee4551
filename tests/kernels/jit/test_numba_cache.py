"""Machine code by numba in the user's cache directory, and what is done where that is not possible."""

import os

import pytest

numba = pytest.importorskip("numba")

from tsapps.kernels.jit.numba_cache import compile_function  # noqa: E402

SIGNATURE = numba.types.int64(numba.types.int64)


def twice(x):
    return 2 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tsapps" / "numba"


def kept(folder):
    return sorted(path.suffix for path in folder.rglob("*.nb*"))


def test_machine_code_is_kept(folder):
    compiled = compile_function(twice, SIGNATURE)
    assert compiled(21) == 42
    assert kept(folder) == [".nbc", ".nbi"]
    assert numba.config.CACHE_DIR == ""
    again = compile_function(twice, SIGNATURE)
    assert again(21) == 42
    assert list(again.stats.cache_hits.values()) == [1]


def test_a_cache_that_cannot_be_written(folder):
    folder.parent.write_text("a file where the directory would be")
    assert compile_function(twice, SIGNATURE)(21) == 42
    assert folder.parent.is_file()


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"no pickle", bytes(1000)])
def test_damaged_files(folder, suffix, content):
    compile_function(twice, SIGNATURE)
    (path,) = folder.rglob(f"*{suffix}")
    path.write_bytes(content)
    assert compile_function(twice, SIGNATURE)(21) == 42


def test_files_that_others_may_write_are_not_read(folder):
    compile_function(twice, SIGNATURE)
    (path,) = folder.rglob("*.nbc")
    os.chmod(path, 0o666)
    again = compile_function(twice, SIGNATURE)
    assert again(21) == 42
    assert not again.stats.cache_hits


def test_the_users_own_directory(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "own"))
    assert compile_function(twice, SIGNATURE)(21) == 42
    assert (kept(tmp_path / "own"), kept(folder)) == ([".nbc", ".nbi"], [])
    assert str(tmp_path / "own") == numba.config.CACHE_DIR
