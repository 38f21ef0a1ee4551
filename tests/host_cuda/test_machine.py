"""HostMachine keeps what `Machine` promises, and its members are those of CudaMachine."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from host_cuda import harness
from host_cuda.machine import HostMachine, altered, build_together, placed
from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime import machine as runtime
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import CudaMachine, Machine

SOURCE = """
struct Line { double slope; const float* x; int n; };
__global__ void fill(float* y, float value, long long n) {
  const long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = value;
}
template <int kTimes>
__global__ void line(Line of, float* y) {
  for (int i = threadIdx.x; i < of.n; i += blockDim.x) y[i] = kTimes * of.slope * of.x[i];
}
__global__ void sizes(unsigned* y) {
  if (threadIdx.x + threadIdx.y == 0) y[blockIdx.x + gridDim.x * blockIdx.y] = blockDim.x * 100 + blockDim.y;
}
"""
LINE = np.dtype([("slope", "f8"), ("x", "u8"), ("n", "i4"), ("padding", "i4")])


@pytest.fixture(scope="module", autouse=True)
def _build_together():
    build_together([(SOURCE, ("fill", "line<1>", "line<2>", "sizes"))])


@pytest.fixture
def machine():
    return HostMachine()


def fill_of(machine):
    (kernel,) = machine.kernels(SOURCE, "fill")
    return kernel


# --- Kernels ----------------------------------------------------------------------------------------------------------


def test_kernels_of_a_text_and_of_a_file(machine, tmp_path):
    (tmp_path / "source.cuh").write_text(SOURCE, encoding="utf-8")
    for source in (SOURCE, tmp_path / "source.cuh"):
        y = machine.xp.zeros(100, np.float32)
        fill, once, twice = machine.kernels(source, "fill", "line<1>", "line<2>")
        fill((4,), (32,), (y, np.float32(2.5), np.int64(99)))
        assert y.tolist() == [2.5] * 99 + [0]
        for times, kernel in ((1, once), (2, twice)):
            z = machine.xp.empty(3, np.float32)
            x = np.array([1, 2, 3], np.float32)
            kernel((1,), (32,), (structure(LINE, slope=0.5, x=x, n=3), z))
            assert z.tolist() == (times * x / 2).tolist()


def test_grids_and_blocks_have_up_to_three_dimensions(machine):
    (kernel,) = machine.kernels(SOURCE, "sizes")
    y = machine.xp.zeros((3, 2), np.uint32)
    kernel((2, 3), (4, 5), (y,))
    assert (y == 405).all()


def test_kernels_that_are_built_together(monkeypatch):
    """Two sources with a structure of one name, and their headers before them."""
    text = """#include <cstring>
    struct Plan { static constexpr int kNumber = %d; };
    template <typename P> __global__ void number(int* y) { *y = P::kNumber; }
    """.replace("\n    ", "\n")
    sources = [(text % number, ("number<Plan>",)) for number in (3, 7, 9)]
    built, build = [], harness.build
    monkeypatch.setattr(harness, "build", lambda source, flags: built.append(source) or build(source, flags))
    build_together(sources, share=2)
    for (source, names), number in zip(sources, (3, 7, 9), strict=True):
        (kernel,) = HostMachine().kernels(source, *names)
        y = np.zeros(1, np.int32)
        kernel((1,), (1,), (y,))
        assert y[0] == number
    assert [source.count("struct Plan") for source in built] == [2, 1]


def test_private_kernels(machine):
    source = "__device__ int offset = 40;\n__global__ void add(int* y) { *y += offset; }\n"
    (kernel,), variable = machine.private_kernels(source, ["add"], "offset")
    y = np.array([2], np.int32)
    kernel((1,), (1,), (y,))
    assert y[0] == 42
    machine.bind_copy(variable, address(y), 4)()
    kernel((1,), (1,), (y,))
    assert y[0] == 84


def test_an_edited_source():
    header = "kernels/tsm2/simt/tsm2l_rows.cuh"
    text = altered(f'#include "{header}"\n', header, "__global__", "/* the first */ __global__")
    assert text.count("/* the first */") == 1
    assert '#include "kernels' not in text
    with pytest.raises(ValueError, match="'no such text' is not in"):
        altered(f'#include "{header}"\n', header, "no such text", "")
    with pytest.raises(ValueError, match="no header of the kernel"):
        altered(SOURCE, header, "__global__", "")

    y = np.zeros(4, np.float32)
    fill_of(HostMachine(edit=lambda source: source.replace("= value", "= 2 * value")))(
        (1,), (32,), (y, np.float32(3), np.int64(4))
    )
    assert y.tolist() == [6] * 4


def test_flags_reach_the_compiler(monkeypatch):
    given, build = [], harness.build
    monkeypatch.setattr(harness, "build", lambda source, flags: given.append(flags) or build(source))
    for flags in (harness.SANITIZE, ()):
        (kernel,) = HostMachine(flags=flags).kernels("__global__ void three(int* y) { *y = 3; }\n", "three")
        y = np.zeros(1, np.int32)
        kernel((1,), (1,), (y,))
        assert y[0] == 3
    assert given == [harness.SANITIZE, ()]


# --- What a launch refuses --------------------------------------------------------------------------------------------

Y = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    "arguments",
    [
        (Y, np.float32(1)),
        (Y, np.float32(1), np.int64(4), np.int64(4)),
        (Y, np.float64(1), np.int64(4)),
        (Y, np.int32(1), np.int64(4)),
        (Y, np.float32(1), np.int32(4)),
        (Y, np.float32(1), np.float64(4)),
        (np.int64(0), np.float32(1), np.int64(4)),
        (Y, np.float32(1), Y),
        (np.zeros((), LINE)[()], np.float32(1), np.int64(4)),
    ],
    ids=["too few", "too many", "wide", "integer", "narrow", "floating", "no address", "address", "structure"],
)
def test_other_arguments_are_refused(machine, arguments):
    kernel = fill_of(machine)
    for launch in (lambda: kernel((1,), (32,), arguments), machine.bind(kernel, (1,), (32,), arguments)):
        with pytest.raises(AssertionError, match="fill has the parameters"):
            launch()
    assert not Y.any()


def test_an_address_is_an_array_or_an_integer(machine):
    y = np.zeros(4, np.float32)
    for value, one in enumerate((y, np.uint64(address(y)))):
        fill_of(machine)((1,), (32,), (one, np.float32(value + 1), np.int64(4)))
        assert (y == value + 1).all()


def test_structures_have_the_size_of_their_class(machine):
    (kernel,) = machine.kernels(SOURCE, "line<1>")
    with pytest.raises(AssertionError, match="parameters"):
        kernel((1,), (32,), (np.zeros((), [("slope", "f8"), ("x", "u8")])[()], Y))


def test_more_shared_memory_is_asked_for(machine):
    kernel, y = fill_of(machine), np.zeros(4, np.float32)
    arguments = (y, np.float32(1), np.int64(4))
    kernel((1,), (32,), arguments, shared_mem=48 << 10)
    with pytest.raises(AssertionError, match="shared memory was not asked for"):
        kernel((1,), (32,), arguments, shared_mem=(48 << 10) + 1)
    kernel.max_dynamic_shared_size_bytes = 100 << 10
    kernel((1,), (32,), arguments, shared_mem=100 << 10)
    with pytest.raises(AssertionError, match="shared memory was not asked for"):
        machine.bind(kernel, (1,), (32,), arguments, (100 << 10) + 1)()


# --- Launches that are bound ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dependent", [True, False])
def test_a_bound_launch(machine, dependent):
    y, other = np.zeros(40, np.float32), np.zeros(40, np.float32)
    launch = machine.bind(fill_of(machine), (2,), (32,), (y, np.float32(3), np.int64(40)), dependent=dependent)
    assert not y.any()
    launch()
    assert (y == 3).all()
    y[:] = 0
    launch.change(2, 39)
    launch()
    assert y.tolist() == [3] * 39 + [0]
    launch.change(0, address(other))
    launch()
    assert other.tolist() == [3] * 39 + [0]


def test_a_word_of_a_bound_structure(machine):
    (kernel,) = machine.kernels(SOURCE, "line<1>")
    x, other, y = np.array([[1, 2], [3, 4], [0, 0]], np.float32)
    launch = machine.bind(kernel, (1,), (32,), (structure(LINE, slope=2, x=x, n=2), y))
    launch()
    assert y.tolist() == [2, 4]
    launch.change(0, address(other), word=1)
    launch()
    assert y.tolist() == [6, 8]


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_what_was_never_written_can_be_told(machine):
    assert np.isnan(machine.xp.empty((3, 5), np.float32)).all()
    assert np.isnan(machine.xp.empty((3, 5), order="F")).all()
    assert (machine.xp.empty(7, np.int32) == -1).all()
    assert np.isnan(machine.pinned((2, 2), np.float64)).all()
    assert not machine.xp.zeros(7).any()


def test_copies_and_bytes(machine):
    x, y = np.arange(6.0), np.zeros((2, 3))
    machine.copy(y, x, machine.stream())
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(AssertionError, match="40 bytes to 48"):
        machine.copy(y, x[:5])
    again = machine.bind_copy(address(y), address(x), 16)
    for first in (7, 8):
        x[0] = first
        again()
        assert y[0].tolist() == [first, 1, 2]
    machine.fill(y, 0xFF)
    assert np.isnan(y).all()
    machine.fill(y, 0)
    assert not y.any()


def test_workspaces(machine):
    scratch, counts = machine.workspace(100, 10)
    assert scratch.nbytes >= 100
    assert np.isnan(scratch[:96].view(np.float32)).all()
    assert counts.dtype == np.uint32
    assert counts.size >= 10
    assert not counts.any()
    # As on a GPU, launches share the counts.
    assert machine.workspace(100, 5)[1] is counts
    assert machine.workspace(0, 20)[1].size >= 20
    machine.counts[3] = 1
    with pytest.raises(AssertionError, match="left counts that are not zero"):
        machine.workspace(100, 10)


@pytest.mark.parametrize("offset", [0, 3])
def test_arrays_placed_as_on_a_gpu(offset):
    array = placed(np.arange(12, dtype=np.float32).reshape(3, 4), offset)
    assert address(array) % 256 == 4 * offset
    assert array.ravel().tolist() == list(range(12))


def test_the_gpu_that_it_stands_for():
    machine = HostMachine(7, KNOWN["A100"], memory=1000)
    assert (machine.gpu.multiprocessors, machine.gpu.name) == (7, KNOWN["A100"].name)
    assert machine.free_bytes() == 1000
    assert machine.index == 0
    with machine.current():
        pass


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_what_streams_and_events_wait_for_is_done(machine):
    """Launches and copies are done when they return, so that whoever waits for an event finds them done."""
    x, y = np.zeros(4, np.float32), np.zeros(4, np.float32)
    copies, copied = machine.stream(), machine.event()
    fill_of(machine)((1,), (32,), (x, np.float32(5), np.int64(4)))
    machine.copy(y, x, copies)
    copied.record(copies)
    machine.current_stream().wait_event(copied)
    fill_of(machine)((1,), (32,), (x, np.float32(6), np.int64(4)))
    copied.synchronize()
    copies.synchronize()
    machine.current_stream().synchronize()
    assert y.tolist() == [5] * 4
    assert x.tolist() == [6] * 4
    assert machine.current_stream().ptr == 0


# --- The protocol -----------------------------------------------------------------------------------------------------

METHODS = [name for name, member in vars(Machine).items() if inspect.isfunction(member) and not name.startswith("_")]


def parameters(function):
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.fixture
def cuda_machine(monkeypatch):
    """A `CudaMachine` of a CuPy that has only names."""
    cuda = SimpleNamespace(get_current_stream=print, Stream=print, Event=print)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=print))
    monkeypatch.setattr(runtime, "live", lambda index: KNOWN["H200"])
    return CudaMachine(0)


def test_both_machines_have_what_the_protocol_names(machine, cuda_machine):
    assert {"kernels", "bind", "workspace", "event"} <= set(METHODS)
    for one in (machine, cuda_machine):
        for name in (*METHODS, *Machine.__annotations__):
            assert hasattr(one, name), f"{type(one).__name__} has no {name}"


@pytest.mark.parametrize("of", [HostMachine, CudaMachine])
def test_methods_have_the_signatures_of_the_protocol(of):
    seen = 0
    for name, member in vars(of).items():
        if not inspect.isfunction(member) or name.startswith("_"):
            continue
        assert name in METHODS, f"{of.__name__}.{name} is no part of Machine"
        assert parameters(member) == parameters(getattr(Machine, name)), name
        seen += 1
    # Those that CudaMachine takes from CuPy have the signatures that CuPy gives them.
    assert seen == len(METHODS) - (5 if of is CudaMachine else 0)
