"""kernels/ptx/wgmma.cuh: every instruction's host body, and on a GPU the instruction itself, in the same kernel.

One warpgroup multiplies, another loads B for it, handed over by barriers of half the block; small integers are exact.
"""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness

KERNEL = """
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"

// D (64 × 8·blocks) = 2 · A · B for `rounds` matrices B one after the other, added up. A word is 32 bits: of halves,
// two that follow each other along K. A (64 × 8 words) is row-major, B (8·blocks × 8 words) column by column.
template <typename T, int blocks>
__global__ void product(const unsigned* A, const unsigned* B, float* D, int rounds) {
  __shared__ __align__(16) unsigned matrix[2][64 * blocks];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, full = 1, empty = 3;
  if (warp >= 4) {
    ptx::fewer_registers<56>();
    for (int round = 0; round < rounds; ++round) {
      const int place = round % 2;
      if (round >= 2) ptx::barrier_sync(empty + place, 256);
      for (int i = warp - 4; i < 2 * blocks; i += 4) {  // a word of a block of columns
        matrix[place][32 * i + lane] = B[((round * blocks + i / 2) * 8 + g) * 8 + 4 * (i % 2) + t];
      }
      ptx::async_fence();
      ptx::barrier_arrive(full + place, 256);
    }
    return;
  }
  ptx::more_registers<200>();
  unsigned a[1][1][4];
  for (int i = 0; i < 4; ++i) a[0][0][i] = A[(16 * warp + g + 8 * (i % 2)) * 8 + 4 * (i / 2) + t];
  float sums[blocks][4] = {}, alone[blocks][4];
  for (int round = 0; round < rounds; ++round) {
    const int place = round % 2;
    ptx::barrier_sync(full + place, 256);
    ptx::wgmma_fence(a);
    ptx::wgmma<true, T>(alone, a[0][0], matrix[place]);
    ptx::wgmma_commit();
    ptx::wgmma<false, T>(sums, a[0][0], matrix[place]);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>(alone);
    ptx::wgmma_wait<0>(sums);
    if (round + 2 < rounds) ptx::barrier_arrive(empty + place, 256);
    for (int i = 0; i < 4 * blocks; ++i) sums[i / 4][i % 4] += alone[i / 4][i % 4];
  }
  for (int i = 0; i < 4 * blocks; ++i) {
    D[(16 * warp + g + 8 * (i % 4 / 2)) * 8 * blocks + i / 4 * 8 + 2 * t + i % 2] = sums[i / 4][i % 4];
  }
}
"""

ELEMENTS = {"float32": "float", "float16": "ptx::Half", "bfloat16": "ptx::Bfloat16"}
ROUNDS = 5


def name_of(dtype, blocks):
    return f"product<{ELEMENTS[dtype]}, {blocks}>"


def entry(dtype, blocks):
    return f"""
extern "C" void run_{dtype}_{blocks}(const unsigned* A, const unsigned* B, float* D) {{
  cuda_host::launch(1, 256, 0, [=] {{ {name_of(dtype, blocks)}(A, B, D, {ROUNDS}); }});
}}
"""


@cache
def library():
    return harness.build(KERNEL + "".join(entry(dtype, blocks) for dtype in ELEMENTS for blocks in range(1, 9)))


def on_cpu(dtype, blocks, *arrays):
    library().call(f"run_{dtype}_{blocks}", *arrays)


def on_gpu(dtype, blocks, A, B, D):
    import cupy

    from tsapps.kernels.jit import compiler

    architecture = compiler.architecture(0)
    if architecture != "sm_90a":
        pytest.skip(f"warpgroups need sm_90a, and this GPU is {architecture}")
    name = name_of(dtype, blocks)
    cubin = compiler.build(KERNEL, [name], architecture)
    there = cupy.asarray(D)
    cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[name])(
        (1,), (256,), (cupy.asarray(A), cupy.asarray(B), there, np.int32(ROUNDS))
    )
    D[...] = there.get()


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_machine(request):
    return on_cpu if request.param == "cpu" else on_gpu


def words(values, dtype):
    """Return rows of elements as rows of 32-bit words."""
    if dtype == "bfloat16":
        halves = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        halves = values.astype(dtype)
    return np.ascontiguousarray(halves).view(np.uint32)


def operands(dtype, blocks):
    random, k = np.random.default_rng(blocks), 8 if dtype == "float32" else 16
    return random.integers(-9, 10, (64, k)), random.integers(-9, 10, (ROUNDS, 8 * blocks, k))


@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize("blocks", range(1, 9))
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_products_of_warpgroups(on_machine, dtype, blocks, copies):
    A, B = operands(dtype, blocks)
    D = np.full((64, 8 * blocks), np.nan, np.float32)
    with harness.schedule(copies=copies, seed=1):
        on_machine(dtype, blocks, words(A, dtype), words(B, dtype), D)
    np.testing.assert_array_equal(D, 2 * sum(A @ one.T for one in B))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ptx::barrier_sync(full + place, 256);", ""),
        ("if (round >= 2) ptx::barrier_sync(empty + place, 256);", ""),
        ("ptx::wgmma_wait<0>(sums);", ""),
        ("ptx::barrier_arrive(full + place, 256);", ""),
        ("ptx::barrier_arrive(full + place, 256);", "ptx::barrier_arrive(full + place, 128);"),
    ],
)
def test_what_is_not_waited_for_is_caught(old, new):
    assert old in KERNEL
    wrong = harness.build(KERNEL.replace(old, new) + entry("float32", 2))
    A, B = operands("float32", 2)
    expected = 2 * sum(A @ one.T for one in B)
    found = False
    for seed in range(6):
        D = np.full((64, 16), np.nan, np.float32)
        try:
            with harness.schedule(copies="late", seed=seed):
                wrong.call("run_float32_2", words(A, "float32"), words(B, "float32"), D)
        except harness.KernelError:
            found = True
        found |= not np.array_equal(D, expected)
    assert found
