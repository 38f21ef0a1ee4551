"""Compilation of a set of kernels into the cache."""

import pytest

from tsapps.kernels.jit import cache, compiler, precompile


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Return a source file of two kernels; the cache is in another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(precompile, "INCLUDE_ROOT", tmp_path)
    path = tmp_path / "kernels.cuh"
    path.write_text("template <class T> __global__ void scale(T* x) { x[threadIdx.x] *= 2; }\n")
    return path


@pytest.mark.compile
def test_what_is_cached_is_not_compiled_again(source, monkeypatch, capsys):
    monkeypatch.setattr(compiler, "PATIENCE_SECONDS", 0)
    sources = [(source, ("scale<float>",)), ('#include "kernels.cuh"\n', ("scale<int>", "scale<double>"))]
    headers = {"kernels.cuh": source.read_text()}
    monkeypatch.setattr(compiler, "headers_of", lambda text: headers if "#include" in text else {})
    first, second = (precompile.compile_into_cache(some, "sm_90a") for some in (sources[:1], sources))
    assert [(one.source, one.kernels, one.was_cached) for one in first] == [("kernels.cuh", ("scale<float>",), False)]
    assert [(one.source, one.was_cached) for one in second] == [("kernels.cuh", True), ("kernels.cuh", False)]
    found = compiler.cached(source.read_text(), ("scale<float>",), "sm_90a")
    assert found is not None
    assert found.path.is_file()
    assert compiler.cached(source.read_text(), ("scale<float>",), "sm_80") is None
    assert capsys.readouterr().err == ""


@pytest.mark.compile
def test_an_error_of_the_compiler(source):
    with pytest.raises(RuntimeError, match="a kernel does not compile"):
        list(precompile.compile_into_cache([(source, ("scale<Nothing>",))], "sm_90a"))


@pytest.mark.compile
def test_a_kernel_that_cannot_be_kept(source, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    with (
        pytest.warns(UserWarning, match="compiled kernels are not cached"),
        pytest.raises(OSError, match="could not be written: free some space, or set XDG_CACHE_HOME"),
    ):
        list(precompile.compile_into_cache([(source, ("scale<float>",))], "sm_90a"))


def test_a_cache_that_cannot_be_written(source, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(OSError, match=r"the cache cannot be written \(.*\): free some space") as caught:
        list(precompile.compile_into_cache([(source, ("scale<float>",))], "sm_90a"))
    assert caught.value.filename == str(tmp_path / "cache" / "tsapps" / "cubin")


def test_no_place_for_a_cache(source, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "not/absolute")
    with pytest.raises(OSError, match="set HOME or XDG_CACHE_HOME"):
        list(precompile.compile_into_cache([(source, ("scale<float>",))], "sm_90a"))
