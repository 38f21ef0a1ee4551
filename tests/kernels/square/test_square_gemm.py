"""SquareGemm and gemm_square.cuh, on the CPU and on a GPU: products of small integers, which are exact."""

import ml_dtypes
import numpy as np
import pytest
from host_cuda import harness
from host_cuda.machine import HostMachine, placed

from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.square_gemm import SIDE_ROWS, SquareGemm, blocks_of, column_tiles, is_supported, utilization

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
STORING = np.dtype([("side", "u8"), ("bias", "u8"), ("m", "i4"), ("n", "i4")])
HEADER = "tests/kernels/square/storing_epilogue.cuh"


class Product:
    """Operands with elements −1, 0 and 1; rows of A and C have `spare` more elements."""

    def __init__(self, dtype, m, n, k, rng, spare=0):
        self.dtype, self.shape = dtype, (m, n, k)
        self.A = self.drawn(rng, m, k, spare)
        self.B, self.side = (self.drawn(rng, rows, k) for rows in (n, SIDE_ROWS))
        self.bias = self.drawn(rng, 1, n)[0]
        self.C = placed(np.full((m, n + spare), 7, DTYPES[dtype]))
        self.of_side = placed(np.full((column_tiles(n), m, SIDE_ROWS), np.nan, np.float32))

    def drawn(self, rng, rows, columns, spare=0):
        return placed(rng.integers(-1, 2, (rows, columns + spare)).astype(DTYPES[self.dtype]))

    def compute(self, machine, **buffers):
        (m, n, k), (A, B, C, side, bias, of_side) = self.shape, map(machine.on_gpu, self.arrays())
        epilogue = Epilogue(HEADER, f"tsm2::StoringEpilogue<{ELEMENT[self.dtype]}>", STORING)
        values = structure(STORING, side=None, bias=None, m=m, n=n)
        strides = self.A.shape[1], k, self.C.shape[1]
        shared = {"epilogue_shared_bytes": 512, "side": True, **buffers}
        gemm = SquareGemm(machine, self.dtype, self.shape, strides, epilogue, values, **shared)
        pointers = [address_of(one) for one in (A, B, C, side)]
        gemm(machine.current_stream().ptr, *pointers, (address_of(of_side), address_of(bias)))
        self.C, self.of_side = (as_numpy(one, like) for one, like in ((C, self.C), (of_side, self.of_side)))

    def arrays(self):
        for one in (self.A, self.B, self.C, self.side, self.bias):
            yield one.view(np.uint16)  # a type that CuPy has
        yield self.of_side

    def check(self):
        (_, n, k), wide = self.shape, np.float64
        A = self.A[:, :k].astype(wide)
        exact = A @ self.B.astype(wide).T + self.bias.astype(wide)
        assert (self.C[:, :n].astype(wide) == exact).all()
        assert (self.C[:, n:].astype(wide) == 7).all()
        assert (self.of_side.sum(0, dtype=wide) == A @ self.side.astype(wide).T).all()


def address_of(array):
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def as_numpy(array, like):
    return (array if isinstance(array, np.ndarray) else array.get()).view(like.dtype)


class Aligned(HostMachine):
    """A machine whose arrays are aligned as those of a GPU."""

    def on_gpu(self, array):
        return placed(array)


# Ragged in every dimension; more chunks than column tiles and the reverse; column tiles in two groups; one pair of
# tiles for each cluster, several, and clusters without any.
SHAPES = [(1, 8, 8), (128, 256, 64), (257, 264, 72), (300, 520, 200), (130, 2328, 136), (600, 776, 64)]


@pytest.mark.each_choice
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize("multiprocessors", [2, 6])
@pytest.mark.parametrize("buffers", [{}, {"stages": 3, "stores": 4}, {"stages": 2, "stores": 2}], ids=str)
@pytest.mark.parametrize("spare", [0, 16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_exact(dtype, shape, spare, buffers, multiprocessors, copies, seed, rng):
    product = Product(dtype, *shape, rng, spare)
    with harness.schedule(seed=seed, copies=copies):
        product.compute(Aligned(multiprocessors), **buffers)
    product.check()


@pytest.mark.gpu
@pytest.mark.parametrize("buffers", [{}, {"stages": 3, "stores": 4}], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (4096, 4096, 192), (5000, 3000, 248)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_on_a_gpu(dtype, shape, buffers, rng):
    from tsapps.kernels.runtime.machine import cuda_machine

    machine = cuda_machine(0)
    if not machine.gpu.has_wgmma:
        pytest.skip("the kernel needs compute capability 9.0")
    for spare in (0, 16):
        product = Product(dtype, *shape, rng, spare)
        product.compute(machine, **buffers)
        product.check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ptx::mbarrier_wait(pipeline_.full + stage.index, stage.parity);", ""),
        ("ptx::mbarrier_wait(empty + stage.index, stage.parity ^ 1);", ""),
        ("if (issues) ptx::tensor_store_wait<kBuffers - 2>();", ""),
        ("      ptx::barrier_sync(1 + group, kGroupThreads);\n      if (issues) {", "      if (issues) {"),
        ("    ptx::barrier_sync(1 + group, kGroupThreads);\n#pragma unroll\n    for (int part", "    for (int part"),
        (
            "if (lane < 2) ptx::mbarrier_arrive_in_block(empty + stage, lane);",
            "if (lane < 1) ptx::mbarrier_arrive(empty + stage);",
        ),
        ("pipeline_.release(before);\n      store(", "store("),
        ("    simt::sync_warp();\n    ptx::cluster_sync();\n", ""),
    ],
    ids=["full", "empty", "store", "written", "columns", "peer", "last release", "end"],
)
def test_what_is_not_waited_for_is_caught(old, new, rng, tmp_path, monkeypatch):
    texts = {}
    for name in ("gemm_square.cuh", "square_pipeline.cuh"):
        text = (harness.ROOT / "kernels/square" / name).read_text(encoding="utf-8")
        texts[name] = text
    assert sum(text.count(old) for text in texts.values()) == 1
    changed = "\n".join(text.replace(old, new).replace("#pragma once", "") for text in reversed(texts.values()))
    changed = changed.replace('#include "kernels/square/square_pipeline.cuh"', "")
    storing = (harness.ROOT / HEADER).read_text(encoding="utf-8").replace("#pragma once", "")
    storing = storing.replace('#include "kernels/square/gemm_square.cuh"', "")
    found = False
    for seed in range(8):
        product = Product("bfloat16", 300, 520, 320, rng)
        try:
            with harness.schedule(seed=seed, copies="late" if seed % 2 else "early"):
                product.compute(Aligned(4, edit=lambda _: changed + storing), stages=2)
            product.check()
        except (harness.KernelError, AssertionError):
            found = True
            break
    assert found


def test_utilization_by_hand():
    """66 clusters compute 66 pairs of tiles, of 65,536 elements, at a time."""
    assert utilization(66 * 256, 256, 132) == 1
    assert utilization(66 * 256 + 1, 256, 132) == pytest.approx(0.5, rel=1e-3)
    assert utilization(2048, 4096, 132) == 2048 * 4096 / (2 * 66 * 65536)


def test_blocks_by_hand():
    assert blocks_of(4096, 4096, 132) == 128  # 256 pairs in 4 turns of 64 clusters
    assert blocks_of(2048, 4096, 132) == 128  # 128 pairs in 2 turns of 64
    assert blocks_of(100, 100, 132) == 2
    assert blocks_of(257, 256, 132) == 4
    assert blocks_of(3 * 256, 256, 4) == 4  # 2 turns of 2 clusters, one of which has one pair


def test_what_is_supported():
    h200 = KNOWN["H200"]
    assert is_supported(h200, "bfloat16", (5, 8, 16), (16, 24, 8))
    assert not is_supported(h200, "float32", (5, 8, 16), (16, 24, 8))
    assert not is_supported(KNOWN["A100"], "bfloat16", (5, 8, 16), (16, 24, 8))
    assert not is_supported(KNOWN["B200"], "bfloat16", (5, 8, 16), (16, 24, 8))
    assert not is_supported(h200, "bfloat16", (5, 8, 16), (0, 24, 8))  # the same row again and again
    for shape, strides in [
        ((0, 8, 8), (8,) * 3),
        ((5, 12, 8), (8, 8, 16)),
        ((5, 8, 12), (16,) * 3),
        ((5, 8, 8), (8, 12, 8)),
    ]:
        assert not is_supported(h200, "bfloat16", shape, strides)


@pytest.mark.compile
@pytest.mark.parametrize("buffers", [(4, 3), (3, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_neither_spills_nor_waits(dtype, buffers):
    element = ELEMENT[dtype]
    name = "tsm2::gemm_square<{}, {}, {}, tsm2::StoringEpilogue<{}>>".format(element, *buffers, element)
    (used,) = build(f'#include "{HEADER}"\n', [name], "sm_90a", announces=False).resources.values()
    assert (used.spill_stores, used.spill_loads, used.waits) == (0, 0, False)
    assert used.shared == 0  # dynamic shared memory then begins at a multiple of 1024
