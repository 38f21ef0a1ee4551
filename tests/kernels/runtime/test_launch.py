"""Arguments of a kernel, packed: each is read back from where its address points to."""

import ctypes

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps.kernels import gemm
from tsapps.kernels.devices import gpus
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.jit.kernel import Kernel
from tsapps.kernels.plan.mma import MmaPlan, instantiate
from tsapps.kernels.problem import Layout, Problem
from tsapps.kernels.runtime import launch as packed_launches
from tsapps.kernels.runtime.launch import BoundLaunch, DependentLaunch, pack, structure

PAIR = np.dtype([("pointer", "u8"), ("count", "i4"), ("scale", "f4")])


class OnGpu:
    """What is an array on a GPU to whoever takes its address."""

    def __init__(self, address):
        self.data = type("Memory", (), {"ptr": address})()


def read(address, dtype):
    return np.frombuffer(ctypes.string_at(int(address), np.dtype(dtype).itemsize), dtype)[0]


def test_each_argument_is_where_its_address_points():
    pair = np.array((2**63 + 5, -7, 0.5), PAIR)[()]
    given = np.int32(-3), OnGpu(0x7F0012345678), np.bool_(True), pair, np.float64(0.1), np.uint64(2**64 - 1)
    values, addresses = pack(given)
    types = np.int32, np.uint64, np.bool_, PAIR, np.float64, np.uint64
    found = [read(address, dtype) for address, dtype in zip(addresses, types, strict=True)]
    assert found == [-3, 0x7F0012345678, True, pair, 0.1, 2**64 - 1]
    # As far apart, and in memory of `values`: no argument lies on another.
    assert (np.diff(addresses.astype(np.int64)) >= [np.dtype(dtype).itemsize for dtype in types[:-1]]).all()
    assert (np.diff(addresses.astype(np.int64)) % 16 == 0).all()
    assert addresses[0] == values.ctypes.data
    assert addresses[-1] + 8 <= values.ctypes.data + len(values)


def test_what_is_packed_stays_as_it_was():
    given = np.array((1, 2, 3.0), PAIR)
    _, addresses = kept = pack([given[()].copy()])
    given["count"] = 9
    assert read(addresses[0], PAIR)["count"] == 2
    assert len(kept) == 2


def test_no_arguments():
    values, addresses = pack([])
    assert (len(values), len(addresses)) == (0, 0)


def test_an_argument_that_points_elsewhere(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    launched = []

    def launch(function, *others):
        *sizes, stream, first, extra = others
        addresses = (ctypes.c_uint64 * 3).from_address(first)
        found = [
            read(address, dtype) for address, dtype in zip(addresses, (np.int32, np.uint64, np.int32), strict=True)
        ]
        launched.append((function, sizes, stream, found, extra))

    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", launch)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 5}))
    kernel = type("Function", (), {"ptr": 77})
    packed = BoundLaunch(kernel, (3, 2), (64,), (np.int32(1), OnGpu(2**40), np.int32(-9)), 128)
    packed()
    packed.change(1, 2**40 + 24)
    packed()
    sizes = [3, 2, 1, 64, 1, 1, 128]
    assert launched == [(77, sizes, 5, [1, 2**40, -9], 0), (77, sizes, 5, [1, 2**40 + 24, -9], 0)]


def test_a_word_of_a_structure_that_is_another(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    launched, kind = [], np.dtype([("from", "u8"), ("size", "i8"), ("to", "u8")])
    behind = np.float32(1.5)

    def launch(function, *others):
        given, after = (ctypes.c_uint64 * 2).from_address(others[-2])
        launched.append((*read(given, kind).item(), read(after, np.float32)))

    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", launch)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 0}))
    pair = np.array((1, -2, 3), kind)[()]
    packed = BoundLaunch(type("Function", (), {"ptr": 77}), (1,), (32,), (pair, behind))
    for word, value in ((2, 2**63 + 1), (0, 9)):
        packed.change(0, value, word)
        packed()
    assert launched == [(1, -2, 2**63 + 1, 1.5), (9, -2, 2**63 + 1, 1.5)]


def test_what_the_driver_is_told_of_a_launch_that_overlaps(monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    launched, given = [], (np.int32(7), OnGpu(2**40))

    def launch(reference, function, first, extra):
        # As cuda.h has it: grid, block, bytes of shared memory, stream, attributes and their number.
        numbers = np.frombuffer(ctypes.string_at(ctypes.addressof(reference._obj), 56), np.uint32).tolist()
        stream, attributes = np.array(numbers[8:12], np.uint32).view(np.uint64).tolist()
        kind, _, value = np.frombuffer(ctypes.string_at(attributes, 72), np.int32)[:3].tolist()
        addresses = (ctypes.c_uint64 * 2).from_address(first.value)
        found = [read(address, dtype) for address, dtype in zip(addresses, (np.int32, np.uint64), strict=True)]
        launched.append((function.value, numbers[:7], stream, numbers[12], (kind, value), found, extra))
        return 0

    monkeypatch.setattr(packed_launches, "_launch_function", lambda device: launch)
    monkeypatch.setattr(cupy.cuda, "Device", lambda: type("Device", (), {"id": 0}))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: type("Stream", (), {"ptr": 2**33 + 5}))
    overlapping = DependentLaunch(type("Function", (), {"ptr": 77}), (3, 2), (64,), given, 128)
    overlapping()
    overlapping.change(1, 2**40 + 24)
    overlapping()
    told = 77, [3, 2, 1, 64, 1, 1, 128], 2**33 + 5, 1, (6, 1)
    assert launched == [(*told, [7, 2**40], None), (*told, [7, 2**40 + 24], None)]


class RecordedKernel:
    """A kernel that remembers the bytes of its arguments."""

    def __init__(self):
        self.launched = []

    def launch(self, grid, block, arguments, addresses, shared_mem, cluster):
        sizes = [one.nbytes if isinstance(one, np.generic) else 8 for one in arguments]
        self.launched.append([ctypes.string_at(int(at), size) for at, size in zip(addresses, sizes, strict=True)])


def test_a_product_that_is_run_has_the_arguments_of_a_bound_one():
    kernel, machine = RecordedKernel(), HostMachine()
    workspaces = iter([(OnGpu(1 << 20), OnGpu(2 << 20)), (OnGpu(3 << 20), OnGpu(4 << 20))] * 2)
    machine.kernels = lambda source, name: [kernel]
    machine.workspace = lambda size, counts: next(workspaces)
    problem = Problem(900, 700, 16, "float32", Layout(True, 700, 16, 16), Layout(False, 16, 16, 16))
    plan = instantiate(MmaPlan("float32", 64, 16, 32), problem)
    epilogue = Epilogue("", "", np.dtype([("size", "u8"), ("to", "u8")]))
    product = gemm.Gemm(plan, problem, machine, epilogue)
    products = (7 << 20, 8 << 20, 11 << 20), (9 << 20, 10 << 20, 12 << 20)
    one = product.unbound(structure(epilogue.arguments, size=5, to=6))
    for A, B, C in products:
        product.bind(A, B, structure(epilogue.arguments, size=5, to=C))()
    for A, B, C in products:
        product.run(one, A, B, [(1, C)])
    assert kernel.launched[:2] == kernel.launched[2:]
    assert kernel.launched[0] != kernel.launched[1]


def test_a_structure_has_every_field_by_its_name():
    of = np.dtype([("array", "u8"), ("absent", "u8"), ("inner", PAIR), ("padding", "i4"), ("flag", "i4")])
    array, inner = np.zeros(3), structure(PAIR, pointer=OnGpu(9), count=-7, scale=0.5)
    made = structure(of, flag=True, array=array, absent=None, inner=inner)
    assert made.tolist() == (array.ctypes.data, 0, (9, -7, 0.5), 0, 1)
    with pytest.raises(TypeError, match=r"has fields \['count', 'pointer', 'scale'\], got \['count', 'pointer'\]"):
        structure(PAIR, pointer=0, count=1)
    with pytest.raises(TypeError, match=r"got .*'size'"):
        structure(PAIR, pointer=0, count=1, scale=1, size=2)


@pytest.mark.gpu
def test_launches_that_overlap_wait_for_each_other():
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    assert gpus()
    # Each adds 1 to what the block behind it has left, which takes its time.
    source = """
    #include "kernels/ptx/dependent_launch.cuh"
    __global__ void behind(const int* from, int* to) {
      ptx::griddepcontrol_wait();
      const int i = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
      const int found = from[(i + blockDim.x) % all];
      for (long long end = clock64() + 1000 * (blockIdx.x % 7); clock64() < end;) {
      }
      to[i] = found + 1;
    }
    """
    kernel = Kernel(source, ["behind"], "behind", cupy.cuda.Device().id)
    numbers = cupy.arange(300 * 128, dtype=np.int32), cupy.zeros(300 * 128, np.int32)
    there, back = (DependentLaunch(kernel, (300,), (128,), pair) for pair in (numbers, numbers[::-1]))
    for _ in range(100):
        there()
        back()
    np.testing.assert_array_equal(numbers[0].get(), np.roll(np.arange(300 * 128), -200 * 128) + 200)


@pytest.mark.gpu
def test_a_launch_that_the_driver_refuses():
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing").kernel
    for kind in (BoundLaunch, DependentLaunch):
        with pytest.raises(cupy.cuda.driver.CUDADriverError, match="INVALID_VALUE"):
            kind(kernel, (1,), (4096,), ())()


@pytest.mark.gpu
def test_a_launch_is_that_of_cupy():
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    assert gpus()
    source = """
    struct Pair { unsigned long long offset; int count; float scale; };
    extern "C" __global__ void scaled(const float* from, Pair pair, bool negative, float* to) {
      extern __shared__ float held[];
      const int i = blockIdx.y * gridDim.x * blockDim.x + blockIdx.x * blockDim.x + threadIdx.x;
      if (i >= pair.count) return;
      held[threadIdx.x] = from[i + pair.offset] * pair.scale;
      to[i] += negative ? -held[threadIdx.x] : held[threadIdx.x];
    }
    """
    kernel = cupy.RawKernel(source, "scaled").kernel
    given, found = cupy.arange(1000, dtype=np.float32), cupy.zeros(700, np.float32)
    cupy.cuda.Device().synchronize()  # a stream that does not block waits for no other
    pair = np.array((100, 700, 0.5), [("offset", "u8"), ("count", "i4"), ("scale", "f4")])[()]
    launch = BoundLaunch(kernel, (3, 2), (128,), (given, pair, np.bool_(True), found), 4 * 128)
    expected = -0.5 * np.arange(100, 800)
    for times in (1, 2, 3):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            launch()
            stream.synchronize()
        np.testing.assert_array_equal(found.get(), times * expected)
    launch.change(0, given.data.ptr + 8 * given.itemsize)
    launch()
    np.testing.assert_array_equal(found.get(), 3 * expected - 0.5 * np.arange(108, 808))
