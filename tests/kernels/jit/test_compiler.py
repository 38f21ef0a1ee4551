"""Compiling and its cache; and every kernel for every architecture, without a GPU."""

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest

from tsapps.apps.kmeans import open_engine
from tsapps.kernels.jit import compiler

pytestmark = pytest.mark.compile
ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
KMEANS = Path(open_engine.__file__).parent / "engines/cublas_step.cuh"

SOURCE = """
#include "inner.cuh"
template <typename T> __global__ void scale(T* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= FACTOR;
}
"""


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


def test_second_build_is_the_first_ones_file(cache, headers):
    first = compiler.build(SOURCE, ["scale<float>", "scale<double>"], "sm_90")
    written = first.path.stat().st_mtime_ns
    second = compiler.build(SOURCE, ["scale<float>", "scale<double>"], "sm_90")
    assert second == first
    assert second.path.stat().st_mtime_ns == written
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert "scale" in first.names["scale<float>"]
    assert first.resources["scale<float>"].registers > 0
    assert first.resources["scale<double>"].spill_stores == 0
    assert sorted(p.suffix for p in cache.iterdir()) == [".cubin", ".json"]


@pytest.mark.parametrize("damage", ["description", "description's digest", "code", "no code", "no description"])
def test_a_damaged_entry_is_compiled_again(cache, headers, damage):
    first = compiler.build(SOURCE, ["scale<float>"], "sm_90")
    code, entry = first.path.read_bytes(), first.path.with_suffix(".json")
    if damage == "description":
        entry.write_bytes(entry.read_bytes()[:-1])
    elif damage == "description's digest":
        entry.write_text(entry.read_text().replace('"registers": ', '"registers": 1'))
    elif damage == "code":
        first.path.write_bytes(code[:-1] + b"x")
    elif damage == "no code":
        first.path.unlink()
    else:
        entry.unlink()
    again = compiler.build(SOURCE, ["scale<float>"], "sm_90")
    assert (again.path, again.names, again.resources) == (first.path, first.names, first.resources)
    assert again.path.read_bytes() == code
    assert compiler.build(SOURCE, ["scale<float>"], "sm_90") == again


@pytest.mark.parametrize("change", ["source", "header", "arch", "flags", "kernels"])
def test_every_ingredient_is_in_the_key(cache, headers, change):
    arguments = {"source": SOURCE, "kernels": ["scale<float>"], "arch": "sm_90", "flags": ()}
    first = compiler.build(**arguments)
    if change == "header":
        (headers / "factor.cuh").write_text("#define FACTOR 3\n")
    else:
        arguments |= {
            "source": {"source": SOURCE + "\n"},
            "arch": {"arch": "sm_80"},
            "flags": {"flags": ("-use_fast_math",)},
            "kernels": {"kernels": ["scale<double>"]},
        }[change]
    assert compiler.build(**arguments).path != first.path


def test_an_error_is_the_compilers_first(cache, headers):
    with pytest.raises(RuntimeError, match=r"does not compile \(.*-arch=sm_90.*\): .*FACTOR"):
        compiler.build(SOURCE.replace('#include "inner.cuh"', ""), ["scale<float>"], "sm_90")
    assert not cache.exists()


def test_a_missing_header_is_named(cache):
    with pytest.raises(FileNotFoundError, match=r"absent\.cuh"):
        compiler.build('#include "absent.cuh"', [], "sm_90")


def test_a_slow_compile_says_so_once(cache, headers, capsys, monkeypatch):
    monkeypatch.setattr(compiler, "PATIENCE_SECONDS", 0)
    compiler.build(SOURCE, ["scale<float>"], "sm_90")
    assert capsys.readouterr().err.count("compiled a kernel in") == 1
    compiler.build(SOURCE, ["scale<float>"], "sm_90")
    assert capsys.readouterr().err == ""


def test_spills_are_seen(cache):
    source = """
    __global__ void __launch_bounds__(1024) hungry(double* x) {
      double v[64];
      for (int i = 0; i < 64; ++i) v[i] = x[i * 1024 + threadIdx.x];
      for (int j = 0; j < 64; ++j) for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i * 7 + j) % 64] + v[j];
      for (int i = 0; i < 64; ++i) x[i * 1024 + threadIdx.x] = v[i];
    }"""
    used = compiler.build(source, ["hungry"], "sm_90").resources["hungry"]
    assert used.spill_stores + used.stack > 0


@pytest.mark.parametrize(("wait", "waits"), [("ptx::wgmma_wait<0>(d);", False), ("", True)])
def test_waits_of_the_compilers_own_are_seen(cache, wait, waits):
    source = f"""
#include "kernels/ptx/wgmma.cuh"
__global__ void product(unsigned* in, float* out) {{
  __shared__ __align__(16) unsigned b[64];
  unsigned a[1][1][4] = {{{{{{in[0], in[1], in[2], in[3]}}}}}};
  float d[1][4];
  ptx::wgmma_fence(a);
  ptx::wgmma<true, float>(d, a[0][0], b);
  ptx::wgmma_commit();
  {wait}
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[0][i];
}}
"""
    assert compiler.build(source, ["product"], "sm_90a").resources["product"].waits == waits


def test_two_processes_at_once(tmp_path):
    script = (
        "from tsapps.kernels.jit.compiler import build; "
        "print(build('__global__ void f(int* x) { *x = 1; }', ['f'], 'sm_90').path.read_bytes()[:4])"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == [r"b'\x7fELF'"] * 3
    assert len(list((tmp_path / "tsapps" / "cubin").iterdir())) == 2


# Dynamic shared memory that a kernel may have if nobody says so: 48 KiB less what it has besides, here 128 bytes.
LEFT = (48 << 10) - 128


class Loaded:
    """What stands in for a `cupy.RawKernel`, which needs a GPU."""

    kernel, max_dynamic_shared_size_bytes = SimpleNamespace(ptr=77), LEFT

    def __init__(self, path, name):
        self.path, self.name, self.launched = path, name, []

    def __call__(self, *sizes_and_arguments, shared_mem):
        self.launched.append((*sizes_and_arguments, shared_mem))


@pytest.fixture
def stand_in(monkeypatch):
    """No GPU is needed to load a kernel."""
    import cupy

    monkeypatch.setattr(compiler, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(compiler, "_begun", functools.cache(compiler._begun.__wrapped__))
    monkeypatch.setattr(cupy.cuda, "Device", lambda device: nullcontext())
    module = functools.partial(functools.partial, Loaded)
    monkeypatch.setattr(cupy, "RawModule", lambda path: SimpleNamespace(get_function=module(Path(path))))


def test_a_kernel_is_loaded_once_and_as_it_was_set(cache, headers, stand_in):
    names = ["scale<float>", "scale<double>"]
    kernels = [compiler.Kernel(SOURCE, names, name, 0) for name in names]
    assert [kernel.max_dynamic_shared_size_bytes for kernel in kernels] == [0, 0]
    kernels[0].max_dynamic_shared_size_bytes = 48 << 10
    built = compiler.build(SOURCE, names, "sm_90")
    for kernel, name in zip(kernels, names, strict=True):
        assert kernel.ptr == 77
        assert kernel.loaded is kernel.loaded
        assert (kernel.loaded.path, kernel.loaded.name) == (built.path, built.names[name])
    assert [kernel.loaded.max_dynamic_shared_size_bytes for kernel in kernels] == [48 << 10, LEFT]
    kernels[1].max_dynamic_shared_size_bytes = 100 << 10
    assert kernels[1].loaded.max_dynamic_shared_size_bytes == 100 << 10
    kernels[1]((2,), (64,), (1, 2), shared_mem=8)
    kernels[1]((3,), (64,), ())
    assert kernels[1].loaded.launched == [((2,), (64,), (1, 2), 8), ((3,), (64,), (), 0)]
    assert len(list(cache.iterdir())) == 2


def test_kernels_are_compiled_beside_each_other(cache, headers, stand_in, monkeypatch):
    both, real = Barrier(2, timeout=60), compiler._compile

    def compiled(*arguments):
        both.wait()  # which one alone would never pass
        return real(*arguments)

    monkeypatch.setattr(compiler, "_compilers", functools.cache(lambda: ThreadPoolExecutor(2)))
    monkeypatch.setattr(compiler, "_compile", compiled)
    names = ["scale<float>", "scale<double>"]
    kernels = [compiler.Kernel(SOURCE, [name], name, 0) for name in names]
    assert {kernel.loaded.path for kernel in kernels} == set(cache.glob("*.cubin"))
    assert not both.broken


def test_a_kernel_that_does_not_compile_says_so_whenever_it_is_wanted(cache, headers, stand_in):
    (headers / "factor.cuh").write_text("#define FACTOR missing\n")
    kernel = compiler.Kernel(SOURCE, ["scale<float>"], "scale<float>", 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="missing"):
            _ = kernel.loaded
    (headers / "factor.cuh").write_text("#define FACTOR 3\n")
    assert kernel.loaded.path.exists()


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar", ["float", "double"])
def test_kmeans_kernels_compile_without_spills(cache, scalar, arch):
    names = ("nearest", "segment_sums", "point_distances")
    kernels = [f"{name}<{scalar}>" for name in names]
    elements = ("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",)
    blocks = [f"{element}, {scalar}, {of}" for element in elements for of in ("false", "true")]
    kernels += [f"{name}<{block}>" for name in ("own_distances", "column_moments") for block in blocks]
    kernels += [f"add_in_order<{scalar}, {squares}>" for squares in ("false", "true")]
    kernels.append("fold_moments")
    for kernel, used in compiler.build(KMEANS.read_text(), kernels, arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
        # A block of add_in_order is one warp.
        assert used.registers <= (255 if "add_in_order" in kernel else 128), kernel
