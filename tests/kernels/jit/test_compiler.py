"""Compiling, and what is kept of it; and kernels for every architecture, without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tsapps.apps.kmeans import open_engine
from tsapps.kernels.jit import compiler

pytestmark = pytest.mark.compile
ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
KMEANS = Path(open_engine.__file__).parent


def test_second_build_is_the_first_ones_file(cache, headers, source):
    first = compiler.build(source, ["scale<float>", "scale<double>"], "sm_90")
    written = first.path.stat().st_mtime_ns
    second = compiler.build(source, ["scale<float>", "scale<double>"], "sm_90")
    assert second == first
    assert second.path.stat().st_mtime_ns == written
    assert first.path.read_bytes()[:4] == b"\x7fELF"
    assert "scale" in first.names["scale<float>"]
    assert first.resources["scale<float>"].registers > 0
    assert first.resources["scale<double>"].spill_stores == 0
    assert sorted(p.suffix for p in cache.iterdir()) == [".cubin", ".json"]


@pytest.mark.parametrize("damage", ["description", "description's digest", "code", "no code", "no description"])
def test_a_damaged_entry_is_compiled_again(cache, headers, damage, source):
    first = compiler.build(source, ["scale<float>"], "sm_90")
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
    again = compiler.build(source, ["scale<float>"], "sm_90")
    assert (again.path, again.names, again.resources) == (first.path, first.names, first.resources)
    assert again.path.read_bytes() == code
    assert compiler.build(source, ["scale<float>"], "sm_90") == again


@pytest.mark.parametrize("change", ["source", "header", "arch", "flags", "kernels"])
def test_every_ingredient_is_in_the_key(cache, headers, change, source):
    arguments = {"source": source, "kernels": ["scale<float>"], "arch": "sm_90", "flags": ()}
    first = compiler.build(**arguments)
    if change == "header":
        (headers / "factor.cuh").write_text("#define FACTOR 3\n")
    else:
        arguments |= {
            "source": {"source": source + "\n"},
            "arch": {"arch": "sm_80"},
            "flags": {"flags": ("-use_fast_math",)},
            "kernels": {"kernels": ["scale<double>"]},
        }[change]
    assert compiler.build(**arguments).path != first.path


def test_an_error_is_the_compilers_first(cache, headers, source):
    with pytest.raises(RuntimeError, match=r"does not compile \(.*-arch=sm_90.*\): .*FACTOR"):
        compiler.build(source.replace('#include "inner.cuh"', ""), ["scale<float>"], "sm_90")
    assert not cache.exists()


def test_a_missing_header_is_named(cache):
    with pytest.raises(FileNotFoundError, match=r"absent\.cuh"):
        compiler.build('#include "absent.cuh"', [], "sm_90")


def test_a_slow_compile_says_so_once(cache, headers, capsys, monkeypatch, source):
    monkeypatch.setattr(compiler, "PATIENCE_SECONDS", 0)
    compiler.build(source, ["scale<float>"], "sm_90")
    assert capsys.readouterr().err.count("compiled a kernel in") == 1
    compiler.build(source, ["scale<float>"], "sm_90")
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


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("scalar", ["float", "double"])
def test_kmeans_kernels_compile_without_spills(cache, scalar, arch):
    elements = ("float", "ptx::Half", "ptx::Bfloat16") if scalar == "float" else ("double",)
    blocks = [f"{element}, {scalar}, {of}" for element in elements for of in ("false", "true")]
    passes = [f"{name}<{block}>" for name in ("own_distances", "column_moments") for block in blocks]
    passes += [f"add_in_order<{scalar}, {squares}>" for squares in ("false", "true")]
    of_file = {
        "engines/cublas_step.cuh": [f"{name}<{scalar}>" for name in ("nearest", "segment_sums")],
        "data/passes.cuh": [*passes, f"point_distances<{scalar}>", "fold_moments"],
    }
    for file, kernels in of_file.items():
        for kernel, used in compiler.build((KMEANS / file).read_text(), kernels, arch).resources.items():
            assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
            # A block of add_in_order is one warp.
            assert used.registers <= (255 if "add_in_order" in kernel else 128), kernel
