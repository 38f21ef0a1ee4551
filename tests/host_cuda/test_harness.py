"""The runner: what it gives a kernel, and what it finds wrong."""

import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from host_cuda import harness


def run(body, *arrays, grid=1, block=64, shared=0, before="", includes=""):
    """Run the body of a kernel on arrays: float* x, float* y, … by their types."""
    names = {"float32": "float", "float64": "double", "int32": "int", "uint32": "unsigned", "uint16": "unsigned short"}
    parameters = ", ".join(f"{names[a.dtype.name]}* {n}" for a, n in zip(arrays, "xyz", strict=False))
    call = ", ".join("xyz"[: len(arrays)])
    kernels = harness.build(f"""{includes}
    {before}
    __global__ void kernel({parameters}) {{ {body} }}
    extern "C" void run({parameters}) {{ cuda_host::launch({grid}, {block}, {shared}, [=] {{ kernel({call}); }}); }}""")
    kernels.call("run", *arrays)


def floats(n):
    return np.zeros(n, np.float32)


def test_indices():
    y = np.zeros((4, 3, 2, 5, 4), np.int32)
    body = """
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    x[block * 20 + thread] = threadIdx.x + 10 * threadIdx.y + 100 * blockIdx.x + 1000 * blockIdx.y + 10000 * blockIdx.z;
    """
    run(body, y, grid="dim3(2, 3, 4)", block="dim3(4, 5)")
    z, y_block, x_block, y_thread, x_thread = np.indices(y.shape)
    np.testing.assert_array_equal(y, x_thread + 10 * y_thread + 100 * x_block + 1000 * y_block + 10000 * z)


@pytest.mark.parametrize("memory", ["__shared__ float tile[64];", "float* tile = simt::dynamic_shared<float>();"])
def test_shared_memory_begins_as_nan_in_every_block(memory):
    y = floats(5 * 64)
    body = f"{memory} x[blockIdx.x * 64 + threadIdx.x] = tile[threadIdx.x]; __syncthreads(); tile[threadIdx.x] = 1;"
    with harness.schedule(threads=2):
        run(body, y, grid=5, shared=256, includes='#include "kernels/device/simt.cuh"')
    assert np.isnan(y).all()


def test_threads_that_have_ended_are_not_waited_for():
    y = floats(64)
    run("if (threadIdx.x >= 40) return; __syncthreads(); x[threadIdx.x] = 1;", y)
    np.testing.assert_array_equal(y, np.arange(64) < 40)


def test_whether_any_thread_of_a_block_asked():
    y = floats(3 * 64)
    # Twice, for the second not to see the first.
    body = """
    int first = __syncthreads_or(blockIdx.x == 1 && threadIdx.x == 40);
    x[blockIdx.x * 64 + threadIdx.x] = 10 * first + __syncthreads_or(threadIdx.x == 3 && blockIdx.x != 1);
    """
    run(body, y, grid=3)
    np.testing.assert_array_equal(y.reshape(3, 64), np.repeat([[1], [10], [1]], 64, axis=1))


def test_chosen_bytes():
    y = np.zeros(64, np.uint32)
    run("x[threadIdx.x] = __byte_perm(0x33221100u, 0x77665544u, threadIdx.x % 2 ? 0x7610u : 0x3254u);", y)
    np.testing.assert_array_equal(y, [0x33225544, 0x77661100] * 32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint32])
def test_sums_over_a_warp_have_the_bits_of_the_kernels(dtype, rng):
    """Of numbers of all magnitudes, zeros of both signs, infinities, and integers that overflow."""
    x = rng.integers(0, 256, (300, 32 * np.dtype(dtype).itemsize), np.uint8).view(dtype)
    if np.issubdtype(dtype, np.floating):
        x[:200] = rng.standard_normal((200, 32)) * 10.0 ** rng.uniform(-9, 9, (200, 32))
        x[100] = rng.choice([0.0, -0.0], 32)
        x[101] = -0.0
    own, found = np.zeros_like(x), np.zeros_like(x)
    body = """
    const auto value = x[blockIdx.x * 32 + threadIdx.x];
    y[blockIdx.x * 32 + threadIdx.x] = simt::warp_sum<std::remove_const_t<decltype(value)>>(value);
    z[blockIdx.x * 32 + threadIdx.x] = simt::warp_sum(value);
    """
    run(body, x, own, found, grid=300, block=32, includes='#include "kernels/device/simt.cuh"')
    bits = np.dtype(f"u{x.itemsize}")
    numbers = ~np.isnan(own)
    np.testing.assert_array_equal(own[numbers].view(bits), found[numbers].view(bits))
    np.testing.assert_array_equal(np.isnan(own), np.isnan(found))
    assert own.any()


def test_a_deadlock_says_who_waits():
    body = "if (threadIdx.x < 32) __syncthreads(); else __shfl_sync(threadIdx.x < 40 ? 0x1ffu : ~0u, 1, 0);"
    message = r"deadlock.*__syncthreads at line \d+.* 64 threads 32 wait at the bl"
    with pytest.raises(harness.KernelError, match=message):
        run(body, floats(1))


def test_barriers_in_divergent_code_are_found():
    with pytest.raises(harness.KernelError, match=r"divergent code: some threads wait at line \d+, others at line \d+"):
        run("if (threadIdx.x < 32)\n __syncthreads();\n else\n __syncthreads();", floats(1))


def test_lanes_that_exchange_values_of_different_sizes():
    body = "if (threadIdx.x % 2) __shfl_sync(~0u, 1.0, 0);\n else __shfl_sync(~0u, 1.0f, 0);"
    with pytest.raises(harness.KernelError, match="__shfl_sync of 8 bytes, where other lanes exchange 4"):
        run(body, floats(1))


@pytest.mark.parametrize("arguments", [{"block": 1025}, {"block": 0}, {"grid": 0}, {"shared": 1 << 20}])
def test_a_launch_that_no_gpu_takes(arguments):
    with pytest.raises(harness.KernelError, match="no GPU takes"):
        run("x[0] = 1;", floats(1), **arguments)


def test_a_phase_of_a_barrier_that_nobody_waits_for():
    body = """
    __shared__ ptx::Mbarrier barrier;
    if (threadIdx.x == 0) ptx::mbarrier_init(&barrier, 1);
    __syncthreads();
    for (int phase = 0; phase < 2; ++phase) {
      if (threadIdx.x == 0) ptx::mbarrier_arrive(&barrier);
      if (threadIdx.x == 32 && x[0] > 0) ptx::mbarrier_wait(&barrier, phase);
      __syncthreads();
    }
    """
    run(body, np.ones(1, np.float32), includes='#include "kernels/ptx/bulk_copy.cuh"')
    with pytest.raises(harness.KernelError, match="nobody has waited for the phase before"):
        run(body, np.zeros(1, np.float32), includes='#include "kernels/ptx/bulk_copy.cuh"')


def test_after_an_error_the_next_call_runs():
    test_a_deadlock_says_who_waits()
    y = floats(64)
    run("x[threadIdx.x] = 1;", y)
    assert y.all()


def test_a_thread_that_outgrows_its_stack():
    script = """
from host_cuda import harness
kernels = harness.build('''
__global__ void kernel() { volatile char big[80 << 10]; for (int i = 0; i < (int)sizeof big; ++i) big[i] = 1; }
extern "C" void run() { cuda_host::launch(1, 2, 0, [] { kernel(); }); }''')
kernels.call("run")
"""
    harness.require_compiler()
    environment = {**os.environ, "PYTHONPATH": str(harness.HERE.parent)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "outgrew its stack" in ended.stderr


SHUFFLES = {
    "__shfl_sync(~0u, v, 5)": lambda lane: np.full(32, 5),
    "__shfl_sync(~0u, v, lane + 1, 8)": lambda lane: lane // 8 * 8 + (lane + 1) % 8,
    "__shfl_xor_sync(~0u, v, 3)": lambda lane: lane ^ 3,
    "__shfl_xor_sync(~0u, v, 8, 8)": lambda lane: np.where(lane % 16 < 8, lane, lane ^ 8),
    "__shfl_down_sync(~0u, v, 3)": lambda lane: np.where(lane < 29, lane + 3, lane),
    "__shfl_up_sync(~0u, v, 3, 16)": lambda lane: np.where(lane % 16 >= 3, lane - 3, lane),
    "(int)__popc(__ballot_sync(~0u, v < 7))": lambda lane: np.full(32, 7),
    "__any_sync(~0u, v == 9) + __all_sync(~0u, v == 9)": lambda lane: np.ones(32),
    "simt::shuffle_xor(v, 16)": lambda lane: lane ^ 16,
    "simt::shuffle_down(v, 1)": lambda lane: np.minimum(lane + 1, 31),
    "simt::shuffle_up(v, 1)": lambda lane: np.maximum(lane - 1, 0),
    "simt::shuffle(v, 7) + simt::lane()": lambda lane: 7 + lane,
    "simt::warp_sum(v)": lambda lane: np.full(32, 496),
}


@cache
def shuffled():
    """What each expression gives in two warps; v is the lane's number."""
    y = np.zeros((len(SHUFFLES), 2, 32), np.int32)
    body = "".join(f"x[{i} * 64 + threadIdx.x] = {expression};\n" for i, expression in enumerate(SHUFFLES))
    with harness.schedule(seed=7):
        run(f"int lane = threadIdx.x % 32, v = lane;\n{body}", y, includes='#include "kernels/device/simt.cuh"')
    return dict(zip(SHUFFLES, y, strict=True))


@pytest.mark.parametrize("expression", SHUFFLES)
def test_within_a_warp(expression):
    np.testing.assert_array_equal(shuffled()[expression], [SHUFFLES[expression](np.arange(32))] * 2)


def test_lanes_under_different_masks_do_not_meet():
    y = np.zeros(32, np.int32)
    body = """
    int v = threadIdx.x;
    if (v < 8) for (int i = 0; i < 3; ++i) v = __shfl_xor_sync(0xffu, v, 1);
    else v = __shfl_down_sync(0xffffff00u, v, 1);
    x[threadIdx.x] = __shfl_sync(~0u, v, threadIdx.x);
    """
    run(body, y, block=32)
    lane = np.arange(32)
    np.testing.assert_array_equal(y, np.where(lane < 8, lane ^ 1, np.minimum(lane + 1, 31)))


def test_a_lane_that_takes_no_part_gives_nothing():
    y = floats(32)
    run("if (threadIdx.x < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffu, 1.f, threadIdx.x < 8 ? 16 : 1);", y, block=32)
    assert np.isnan(y[:8]).all()
    np.testing.assert_array_equal(y[8:16], 1)


def test_atomics():
    y, counts, wide = floats(1), np.array([0, 5, 0, 100], np.uint32), np.zeros(1)
    body = """
    atomicAdd(x, 1.f); atomicAdd(y, 1u); atomicInc(y + 2, 99); atomicMin(y + 3, 7 + threadIdx.x); atomicAdd(z, 0.5);
    atomicMax(y + 1, threadIdx.x);
    """
    run(body, y, counts, wide, grid=10)
    assert y[0] == 640
    assert list(counts) == [640, 63, 40, 7]
    assert wide[0] == 320


def test_the_last_block_adds_up_in_order():
    """The blocks' partial sums are added by whichever comes last, so the bits do not depend on the order."""
    body = """
    __shared__ bool last;
    if (threadIdx.x == 0) {
      y[blockIdx.x] = 1.f / (blockIdx.x + 1);
      __threadfence();
      last = atomicInc(z, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) for (int i = 0; i < gridDim.x; ++i) x[0] += y[i];
    """
    sums, expected = [], np.float32(0)
    for i in range(20):
        expected += np.float32(1) / np.float32(i + 1)
    for seed in range(6):
        y, counter = floats(1), np.zeros(1, np.uint32)
        with harness.schedule(seed=seed):
            run(body.replace("i < gridDim", "i < (int)gridDim"), y, floats(20), counter, grid=20)
        sums.append(y[0])
        assert counter[0] == 0
    assert sums == [expected] * 6


def test_the_seed_draws_the_order_of_threads_and_blocks():
    def order(seed):
        y, counter = np.zeros(4 * 64, np.int32), np.zeros(1, np.uint32)
        with harness.schedule(seed=seed, threads=1):
            run("x[atomicAdd(y, 1u)] = blockIdx.x * 64 + threadIdx.x;", y, counter, grid=4)
        assert sorted(y) == list(range(256))
        return list(y)

    assert order(0) == list(range(256))
    assert order(1) == order(1) != order(2)
    assert order(1) != list(range(256))


def test_vectors():
    x, y = np.arange(16, dtype=np.float32), floats(16)
    body = """
    simt::Vector<float, 4> v = simt::load_streaming<4>(x);
    v[1] += 100;
    simt::store_streaming(y, v);
    const float4 four = *reinterpret_cast<float4*>(x + 4);
    *reinterpret_cast<float4*>(y + 4) = {four.x, four.y, 7, 8};
    __stcs(y + 8, __ldcs(x + 8) + __ldcg(x + 9));
    """
    run(body, x, y, block=1, includes='#include "kernels/device/simt.cuh"')
    assert list(y[:9]) == [0, 101, 2, 3, 4, 5, 7, 8, 17]


def test_float16_is_numpys():
    random = np.random.default_rng(0)
    values = random.standard_normal(4096).astype(np.float32) * np.float32(2.0) ** random.integers(-30, 18, 4096)
    values[:9] = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2**-25]
    there, back = np.zeros(4096, np.uint16), floats(4096)
    body = """
    for (int i = threadIdx.x; i < 4096; i += 64) {
      y[i] = cuda_host::half_bits(x[i]);
      z[i] = cuda_host::half_value(y[i]);
    }"""
    run(body, values.astype(np.float32), there, back)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    np.testing.assert_array_equal(back, expected.astype(np.float32))
    np.testing.assert_array_equal(there[~np.isnan(values)], expected.view(np.uint16)[~np.isnan(values)])


def test_bfloat16_rounds_to_nearest_even():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    values[:6] = [np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40]
    back = floats(4096)
    value = "cuda_host::bfloat16_value(cuda_host::bfloat16_bits(x[i]))"
    run(f"for (int i = threadIdx.x; i < 4096; i += 64) y[i] = {value};", values, back)
    np.testing.assert_array_equal(back, values.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_a_source_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "CACHE", tmp_path / "cache")
    # A runtime that is next to nothing: the harness's own takes a compiler ten seconds.
    monkeypatch.setattr(harness, "HERE", tmp_path / "runtime")
    harness.HERE.mkdir()
    (harness.HERE / "cuda_host.hpp").write_text("#pragma once\n")
    (harness.HERE / "runtime.cpp").write_text("int runtime;\n")
    source = 'extern "C" void run() {}'
    harness.build(source)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    harness.build(source)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before
    assert sorted(path.suffix for path in before) == ["", ".lock", ".lock", ".o", ".so"]
    harness.build(source + " ")
    harness.build(source, ["-DOTHER"])
    assert len(list((tmp_path / "cache").glob("*.so"))) == 3


def test_a_source_that_does_not_compile():
    with pytest.raises(RuntimeError, match=r"does not compile for the CPU(.|\n)*no_such_thing"):
        harness.build("int x = no_such_thing;")


def test_a_sanitized_library_needs_its_own_process():
    with pytest.raises(ValueError, match="run_sanitized"):
        harness.build('extern "C" void run() {}', harness.SANITIZE)


def test_schedule_puts_the_environment_back(monkeypatch):
    monkeypatch.setenv("TSA_SEED", "5")
    monkeypatch.delenv("TSA_THREADS", raising=False)
    with harness.schedule(seed=9, threads=3):
        assert os.environ["TSA_SEED"] == "9"
        assert os.environ["TSA_THREADS"] == "3"
    assert os.environ["TSA_SEED"] == "5"
    assert "TSA_THREADS" not in os.environ
    with pytest.raises(ValueError, match="'late' or 'early'"), harness.schedule(copies="never"):
        pass
