"""Instructions of kernels/ptx: their host bodies, and on a GPU the instructions themselves, in the same kernels.

The kernels deal matrices to the lanes as the PTX ISA's formulas say. The numbers are small integers, so that products
and sums are exact and every format must give the same.
"""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from host_cuda import harness

KERNELS = """
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"

// One element a register. A (M × K) and B (K × 8) are row-major; d = A·B + d.
#define PRODUCT(name, T, M, K, instruction)                                                                           \\
  __global__ void name(const T* A, const T* B, T* D) {                                                                \\
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;                                                               \\
    T a[M * K / 32], b[K / 4], d[M / 4];                                                                              \\
    for (int i = 0; i < M * K / 32; ++i) {                                                                            \\
      const int row = M == 16 && i % 2 ? g + 8 : g, column = M == 8 ? t : i % 2 ? i * 2 - 2 + t : i * 2 + t;          \\
      a[i] = A[row * K + column];                                                                                     \\
    }                                                                                                                 \\
    for (int i = 0; i < K / 4; ++i) b[i] = B[(t + 4 * i) * 8 + g];                                                    \\
    for (int i = 0; i < M / 4; ++i) d[i] = D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];                              \\
    instruction(d, a, b);                                                                                             \\
    for (int i = 0; i < M / 4; ++i) D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = d[i];                              \\
  }

PRODUCT(tf32_16_8, float, 16, 8, ptx::mma_m16n8k8)
PRODUCT(f64_8_4, double, 8, 4, ptx::mma_m8n8k4)
#ifndef NO_SM_90
PRODUCT(f64_16_4, double, 16, 4, ptx::mma_m16n8k4)
PRODUCT(f64_16_8, double, 16, 8, ptx::mma_m16n8k8)
PRODUCT(f64_16_16, double, 16, 16, ptx::mma_m16n8k16)
#endif

// Two 16-bit elements a register, the lower one in the lower half.
#define PAIRS(name, instruction)                                                                                      \\
  __global__ void name(const unsigned short* A, const unsigned short* B, float* D) {                                  \\
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;                                                               \\
    unsigned a[4] = {}, b[2] = {};                                                                                    \\
    float d[4];                                                                                                       \\
    for (int i = 0; i < 8; ++i) {                                                                                     \\
      const int row = i < 2 || (4 <= i && i < 6) ? g : g + 8, column = t * 2 + (i & 1) + (i < 4 ? 0 : 8);             \\
      a[i / 2] |= (unsigned)A[row * 16 + column] << 16 * (i & 1);                                                     \\
    }                                                                                                                 \\
    for (int i = 0; i < 4; ++i) b[i / 2] |= (unsigned)B[(t * 2 + (i & 1) + (i < 2 ? 0 : 8)) * 8 + g] << 16 * (i & 1); \\
    for (int i = 0; i < 4; ++i) d[i] = D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];                                  \\
    instruction(d, a, b);                                                                                             \\
    for (int i = 0; i < 4; ++i) D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = d[i];                                  \\
  }

PAIRS(f16_16_16, ptx::mma_m16n8k16_f16)
PAIRS(bf16_16_16, ptx::mma_m16n8k16_bf16)

// Four bytes a register, unsigned ones of A and signed ones of B.
__global__ void bytes_16_32(const unsigned char* A, const signed char* B, int* D) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  unsigned a[4] = {}, b[2] = {};
  int d[4];
  for (int i = 0; i < 16; ++i) {
    const int row = g + i / 4 % 2 * 8, column = 4 * t + i % 4 + i / 8 * 16;
    a[i / 4] |= (unsigned)A[row * 32 + column] << 8 * (i % 4);
  }
  for (int i = 0; i < 8; ++i) b[i / 4] |= (B[(4 * t + i % 4 + i / 4 * 16) * 8 + g] & 255u) << 8 * (i % 4);
  for (int i = 0; i < 4; ++i) d[i] = D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)];
  ptx::mma_m16n8k32_u8_s8(d, a, b);
  for (int i = 0; i < 4; ++i) D[(i < 2 ? g : g + 8) * 8 + t * 2 + (i & 1)] = d[i];
}

// The four 8 × 8 matrices of a row-major 16 × 16 one: upper left, lower left, upper right, lower right.
template <bool transposed>
__global__ void matrices(const unsigned short* x, unsigned* y) {
  __shared__ __align__(16) unsigned short tile[16 * 16];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = x[i];
  __syncthreads();
  const int matrix = threadIdx.x / 8, row = threadIdx.x % 8;
  unsigned to[4];
  ptx::ldmatrix_x4<transposed>(to, tile + (row + matrix % 2 * 8) * 16 + matrix / 2 * 8);
  for (int i = 0; i < 4; ++i) y[i * 32 + threadIdx.x] = to[i];
}

// The same matrix stored again from what the lanes have of it.
__global__ void matrices_back(const unsigned short* x, unsigned short* y) {
  __shared__ __align__(16) unsigned short tile[16 * 16], copy[16 * 16];
  for (int i = threadIdx.x; i < 256; i += 32) tile[i] = x[i];
  __syncthreads();
  const int matrix = threadIdx.x / 8, at = (threadIdx.x % 8 + matrix % 2 * 8) * 16 + matrix / 2 * 8;
  unsigned of_lane[4];
  ptx::ldmatrix_x4<true>(of_lane, tile + at);
  ptx::stmatrix_x4_transposed(copy + at, of_lane);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += 32) y[i] = copy[i];
}

__global__ void pairs_of_halves(const float* x, unsigned* y) {
  y[2 * threadIdx.x] = ptx::to_half_pair(x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
  y[2 * threadIdx.x + 1] = ptx::to_bfloat16s(x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
}

__global__ void root(const float* x, float* y) { y[threadIdx.x] = ptx::square_root(x[threadIdx.x]); }

// The largest of the first number and of others but one, −2 … 29 by the lane: of 28 by a byte's bits, and of one.
__global__ void largest_of_others(const float* x, float* y) {
  __shared__ signed char label[32];
  label[threadIdx.x] = (signed char)((int)threadIdx.x - 2);
  __syncthreads();
  const int one = ptx::shared_byte(label + threadIdx.x);
  const unsigned skipped = ptx::skip_bit(one);
  float of[4][7], most = x[0];
  for (int i = 0; i < 28; ++i) of[i / 7][i % 7] = x[1 + 32 * i + threadIdx.x];
  most = ptx::max_unless_skipped<0>(most, of[0], skipped);
  most = ptx::max_unless_skipped<1>(most, of[1], skipped);
  most = ptx::max_unless_skipped<2>(most, of[2], skipped);
  y[threadIdx.x] = ptx::max_unless_skipped<3>(most, of[3], skipped);
  y[32 + threadIdx.x] = ptx::max_unless(x[0], of[0][0], one, 7);
}

// Each of 64 threads copies one piece of a tile and writes out its neighbour's, while the next tile is on its way. The
// last piece of the last tile is not there.
template <int bytes>
__global__ void pipeline(const float* x, float* y, int tiles) {
  constexpr int floats = bytes / 4, width = 64 * floats;
  __shared__ __align__(16) float buffer[2][width];
  const int mine = threadIdx.x * floats, neighbour = (threadIdx.x + 1) % 64 * floats;
  auto fetch = [&](int tile) {
    const bool present = tile < tiles - 1 || threadIdx.x < 63;
    if (tile < tiles) ptx::cp_async<bytes>(&buffer[tile % 2][mine], x + tile * width + mine, present ? bytes : 0);
    ptx::cp_async_commit();
  };
  fetch(0);
  for (int tile = 0; tile < tiles; ++tile) {
    fetch(tile + 1);
    ptx::cp_async_wait<1>();
    __syncthreads();  // all pieces have landed
    for (int i = 0; i < floats; ++i) y[tile * width + mine + i] = buffer[tile % 2][neighbour + i];
    __syncthreads();  // the tile may be written over
  }
}
"""

# Format, M, K, and the kernel's parameters.
PRODUCTS = {
    "tf32_16_8": (np.float32, 16, 8, "const float*, const float*, float*"),
    "f64_8_4": (np.float64, 8, 4, "const double*, const double*, double*"),
    "f64_16_4": (np.float64, 16, 4, "const double*, const double*, double*"),
    "f64_16_8": (np.float64, 16, 8, "const double*, const double*, double*"),
    "f64_16_16": (np.float64, 16, 16, "const double*, const double*, double*"),
    "f16_16_16": (np.float16, 16, 16, "const unsigned short*, const unsigned short*, float*"),
    "bf16_16_16": ("bfloat16", 16, 16, "const unsigned short*, const unsigned short*, float*"),
}
PARAMETERS = {call: parameters for call, (_, _, _, parameters) in PRODUCTS.items()} | {
    "bytes_16_32": "const unsigned char*, const signed char*, int*",
    "matrices<false>": "const unsigned short*, unsigned*",
    "matrices<true>": "const unsigned short*, unsigned*",
    "matrices_back": "const unsigned short*, unsigned short*",
    "pairs_of_halves": "const float*, unsigned*",
    "root": "const float*, float*",
    "largest_of_others": "const float*, float*",
    "pipeline<4>": "const float*, float*, int",
    "pipeline<8>": "const float*, float*, int",
    "pipeline<16>": "const float*, float*, int",
}
TILES = 3


def threads(call):
    return 64 if call.startswith("pipeline") else 32


def symbol(call):
    return "run_" + call.replace("<", "_").replace(">", "")


def entry(call):
    """An entry point that takes the kernel's pointers; a number, where it asks for one, is that of the tiles."""
    kinds = PARAMETERS[call].split(", ")
    pointers = ", ".join(f"{kind} p{i}" for i, kind in enumerate(kinds) if kind != "int")
    arguments = ", ".join(str(TILES) if kind == "int" else f"p{i}" for i, kind in enumerate(kinds))
    launch = f"cuda_host::launch(1, {threads(call)}, 0, [=] {{ {call}({arguments}); }});"
    return f'extern "C" void {symbol(call)}({pointers}) {{ {launch} }}\n'


@cache
def library():
    return harness.build(KERNELS + "".join(map(entry, PARAMETERS)))


def on_cpu(call):
    return lambda *arrays: library().call(symbol(call), *arrays)


def on_gpu(call, *flags):
    """The same kernel, as a function that works on NumPy arrays."""
    import cupy

    from tsapps.kernels.jit import compiler

    architecture = compiler.architecture(0)
    old = int(architecture[3:].rstrip("a")) < 90
    if old and call.startswith("f64_16"):
        pytest.skip(f"{call} needs sm_90, and this GPU is {architecture}")
    cubin = compiler.build(KERNELS, [call], architecture, flags=(*flags, "-DNO_SM_90") if old else flags)
    function = cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[call])

    def run(*arrays):
        there = [cupy.asarray(array) for array in arrays]
        numbers = [np.int32(TILES)] if "int" in PARAMETERS[call].split(", ") else []
        function((1,), (threads(call),), (*there, *numbers))
        for array, result in zip(arrays, there, strict=True):
            array[...] = result.get()

    return run


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def on_machine(request):
    return on_cpu if request.param == "cpu" else on_gpu


def bits(values, dtype):
    """Small integers as the 16-bit format's bits, and other formats as they are."""
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype).view(np.uint16) if dtype == np.float16 else values.astype(dtype)


@pytest.mark.parametrize("name", PRODUCTS)
def test_product(on_machine, name):
    dtype, rows, k, _ = PRODUCTS[name]
    random = np.random.default_rng(0)
    A, B, D = (random.integers(-9, 10, shape) for shape in ((rows, k), (k, 8), (rows, 8)))
    sums = D.astype(np.float64 if dtype == np.float64 else np.float32)
    on_machine(name)(bits(A, dtype), bits(B, dtype), sums)
    np.testing.assert_array_equal(sums, A @ B + D)


def test_a_product_of_bytes(on_machine, rng):
    A, B = rng.integers(0, 256, (16, 32), np.uint8), rng.integers(-128, 128, (32, 8), np.int8)
    A[0], B[:, 0] = 255, -128  # the largest sum
    D = rng.integers(-(2**30), 2**30, (16, 8), np.int32)
    expected = A.astype(np.int64) @ B.astype(np.int64) + D
    on_machine("bytes_16_32")(A, B, D)
    np.testing.assert_array_equal(D, expected)


def test_a_product_ignores_the_bits_below_tf32(on_machine):
    A = np.zeros((16, 8), np.float32)
    A[:, 0] = 1 + 2.0**-11  # the last bit of a tf32 is worth 2⁻¹⁰
    B, D = np.ones((8, 8), np.float32), np.zeros((16, 8), np.float32)
    on_machine("tf32_16_8")(A, B, D)
    np.testing.assert_array_equal(D, 1)


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(on_machine, transposed):
    x = np.arange(256, dtype=np.uint16).reshape(16, 16)
    y = np.zeros((4, 32), np.uint32)
    on_machine(f"matrices<{str(transposed).lower()}>")(x, y)
    for i, (row, column) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
        matrix = x[row : row + 8, column : column + 8]
        matrix = matrix.T if transposed else matrix
        np.testing.assert_array_equal(y[i].astype("<u4").view("<u2").reshape(8, 8), matrix)


def test_stmatrix_is_the_way_back(on_machine):
    x = np.arange(256, dtype=np.uint16)
    y = np.zeros_like(x)
    on_machine("matrices_back")(x, y)
    np.testing.assert_array_equal(y, x)


@pytest.mark.gpu
def test_what_stands_for_stmatrix_on_older_gpus():
    x = np.arange(256, dtype=np.uint16)
    y = np.zeros_like(x)
    on_gpu("matrices_back", "-DTSA_NO_STMATRIX")(x, y)
    np.testing.assert_array_equal(y, x)


def test_pairs_of_halves(on_machine):
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    x[:4] = 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8  # ties of both formats
    y = np.zeros(64, np.uint32)
    on_machine("pairs_of_halves")(x, y)
    halves = np.stack([x.astype(kind).view("<u2") for kind in (np.float16, ml_dtypes.bfloat16)])
    expected = halves.reshape(2, 32, 2).transpose(1, 0, 2)
    np.testing.assert_array_equal(y.astype("<u4").view("<u2").reshape(32, 2, 2), expected)


def test_square_root(on_machine):
    x = np.geomspace(1.2e-38, 3e38, 32).astype(np.float32)
    x[:4] = 0, 1e-39, 1, np.inf
    y = np.zeros(32, np.float32)
    on_machine("root")(x, y)
    assert y[:4].tolist() == [0, 0, 1, np.inf]
    np.testing.assert_allclose(y[4:], np.sqrt(x[4:].astype(np.float64)), rtol=2.0**-22)


def test_the_largest_of_others(on_machine, rng):
    x = np.concatenate([[0.25], rng.standard_normal(28 * 32)]).astype(np.float32)
    y = np.zeros(64, np.float32)
    on_machine("largest_of_others")(x, y)
    of = x[1:].reshape(28, 32)
    for lane in range(32):
        label = lane - 2
        # Label 1 is bit 0; a byte has seven.
        others = [of[i, lane] for i in range(28) if label != 8 * (i // 7) + i % 7 + 1]
        assert y[lane] == max(0.25, *others)
        assert y[32 + lane] == (0.25 if label == 7 else max(0.25, of[0, lane]))


def neighbours(x, bytes_):
    """What `pipeline` should write."""
    pieces = x.reshape(TILES, 64, bytes_ // 4).copy()
    pieces[-1, -1] = 0
    return np.roll(pieces, -1, axis=1).ravel()


@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize("bytes_", [4, 8, 16])
def test_asynchronous_copies(on_machine, bytes_, copies):
    x = np.arange(1, 3 * 16 * bytes_ + 1, dtype=np.float32)
    y = np.zeros_like(x)
    with harness.schedule(copies=copies, seed=1):
        on_machine(f"pipeline<{bytes_}>")(x, y)
    np.testing.assert_array_equal(y, neighbours(x, bytes_))


@pytest.mark.parametrize(
    ("old", "new", "copies"),
    [
        ("cp_async_wait<1>", "cp_async_wait<2>", "late"),
        ("__syncthreads();  // all pieces have landed", "", "late"),
        ("__syncthreads();  // all pieces have landed", "", "early"),
        ("__syncthreads();  // the tile may be written over", "", "early"),
    ],
)
def test_a_wrong_pipeline_is_caught(old, new, copies):
    assert old in KERNELS
    wrong = harness.build(KERNELS.replace(old, new) + entry("pipeline<8>"))
    x = np.arange(1, 385, dtype=np.float32)
    y = np.zeros_like(x)
    with harness.schedule(copies=copies):
        wrong.call(symbol("pipeline<8>"), x, y)
    assert not np.array_equal(y, neighbours(x, 8))


def test_a_misaligned_copy_is_named():
    run = on_cpu("pipeline<16>")
    memory = np.zeros(3 * 256 + 4, np.float32)
    first = -memory.ctypes.data % 16 // 4 + 1
    with pytest.raises(harness.KernelError, match=r"cp\.async of 16 bytes at an address that is no multiple"):
        run(memory[first:], np.zeros(3 * 256, np.float32))


def test_half_a_warp_has_no_product():
    source = (
        KERNELS
        + """
    extern "C" void run(const double* A, const double* B, double* D) {
      cuda_host::launch(1, 16, 0, [=] { f64_8_4(A, B, D); });
    }"""
    )
    with pytest.raises(harness.KernelError, match="mma needs every lane"):
        harness.build(source).call("run", np.zeros((8, 4)), np.zeros((4, 8)), np.zeros((8, 8)))
