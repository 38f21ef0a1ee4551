"""A cache of its own for each test, and headers to compile."""

import pytest

from tsapps.kernels.jit import compiler

_SOURCE = """
#include "inner.cuh"
template <typename T> __global__ void scale(T* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
"""


@pytest.fixture
def source():
    """A template `scale` that multiplies by FACTOR, which is 2 by the fixture `headers`."""
    return _SOURCE


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tsapps" / "cubin"


@pytest.fixture
def headers(tmp_path, monkeypatch):
    """A place for headers: inner.cuh includes factor.cuh."""
    root = tmp_path / "include"
    root.mkdir()
    (root / "inner.cuh").write_text('#include "factor.cuh"\n')
    (root / "factor.cuh").write_text("#define FACTOR 2\n")
    real = compiler.headers_of
    monkeypatch.setattr(compiler, "headers_of", lambda source: real(source, root))
    return root
