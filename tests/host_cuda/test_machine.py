"""HostMachine keeps what `Machine` promises, and CudaMachine has the same methods."""

import inspect
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from host_cuda import harness
from host_cuda.machine import HostMachine, build_together, placed
from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime import machine as runtime
from tsapps.kernels.runtime.launch import structure

SOURCE = """
struct Line { double slope; const float* x; int n; };
__global__ void fill(float* y, float value, long long n) {
  const long long i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = value;
}
template <int kTimes> __global__ void line(Line of, float* y) {
  if ((int)threadIdx.x < of.n) y[threadIdx.x] = kTimes * of.slope * of.x[threadIdx.x];
}
__global__ void sizes(unsigned* y) {
  if (threadIdx.x + threadIdx.y == 0) y[blockIdx.x + gridDim.x * blockIdx.y] = blockDim.x * 100 + blockDim.y;
}
"""
LINE = np.dtype([("slope", "f8"), ("x", "u8"), ("n", "i4"), ("padding", "i4")])
X, Y = np.array([1, 2, 3], np.float32), np.zeros(4, np.float32)


@pytest.fixture(scope="module", autouse=True)
def _build_together():
    build_together([(SOURCE, ("fill", "line<1>", "line<2>", "sizes"))])


@pytest.fixture
def machine():
    return HostMachine()


@pytest.fixture
def fill(machine):
    return machine.kernels(SOURCE, "fill")[0]


def number_of(machine, source, name="number"):
    """Return what a kernel writes."""
    (kernel,), y = machine.kernels(source, name), np.zeros(1, np.int32)
    kernel((1,), (1,), (y,))
    return y[0]


# --- Kernels ----------------------------------------------------------------------------------------------------------


def test_kernels_of_a_text_and_of_a_file(machine, tmp_path):
    (tmp_path / "source.cuh").write_text(SOURCE, encoding="utf-8")
    for source in (SOURCE, tmp_path / "source.cuh"):
        y, sizes = machine.xp.zeros(100, np.float32), machine.xp.zeros((3, 2), np.uint32)
        fill, *lines, write_sizes = machine.kernels(source, "fill", "line<1>", "line<2>", "sizes")
        fill((4,), (32,), (y, np.float32(2.5), np.int64(99)))
        assert y.tolist() == [2.5] * 99 + [0]
        for times, kernel in enumerate(lines, 1):
            kernel((1,), (32,), (structure(LINE, slope=0.5, x=X, n=3), y))
            assert y[:3].tolist() == (times * X / 2).tolist()
        write_sizes((2, 3), (4, 5), (sizes,))
        assert (sizes == 405).all()


def test_kernels_that_are_built_together(monkeypatch):
    """Sources with a structure of one name."""
    text = "struct Plan {{ static constexpr int kNumber = {}; }};\ntemplate <typename P>\n"
    text = f"#include <cstring>\n{text}__global__ void number(int* y) {{{{ *y = P::kNumber; }}}}\n"
    sources, built, build = [text.format(number) for number in (3, 7, 9)], [], harness.build
    monkeypatch.setattr(harness, "build", lambda source, flags: built.append(source) or build(source, flags))
    build_together(((source, ("number<Plan>",)) for source in sources), share=2)
    assert [number_of(HostMachine(), source, "number<Plan>") for source in sources] == [3, 7, 9]
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


def test_an_edited_source_and_flags(monkeypatch):
    source, given, build = "__global__ void number(int* y) { *y = 3; }\n", [], harness.build
    monkeypatch.setattr(harness, "build", lambda source, flags: given.append(flags) or build(source))
    assert number_of(HostMachine(flags=["-g"]), source) == 3
    assert number_of(HostMachine(edit=lambda text: text.replace("3", "4")), source) == 4
    assert given == [("-g",), ()]


# --- What a launch refuses --------------------------------------------------------------------------------------------

ONE, FOUR = np.float32(1), np.int64(4)
OTHERS = {
    "too few": (Y, ONE),
    "too many": (Y, ONE, FOUR, FOUR),
    "wide": (Y, np.float64(1), FOUR),
    "narrow": (Y, ONE, np.int32(4)),
    "an integer for a float": (Y, np.int32(1), FOUR),
    "a float for an integer": (Y, ONE, np.float64(4)),
    "an integer for an address": (FOUR, ONE, FOUR),
    "an address for an integer": (Y, ONE, Y),
    "a structure for an address": (np.zeros((), [("y", "u8")])[()], ONE, FOUR),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_arguments_are_refused(machine, fill, case):
    for launch in (lambda: fill((1,), (32,), OTHERS[case]), machine.bind(fill, (1,), (32,), OTHERS[case])):
        with pytest.raises(AssertionError, match="fill has the parameters"):
            launch()
    assert not Y.any()


def test_a_structure_of_another_size_is_refused(machine):
    (kernel,) = machine.kernels(SOURCE, "line<1>")
    with pytest.raises(AssertionError, match="line<1> has the parameters"):
        kernel((1,), (32,), (np.zeros((), [("slope", "f8"), ("x", "u8")])[()], Y))


def test_more_shared_memory_is_to_be_asked_for(machine, fill):
    for most in (48 << 10, 100 << 10):
        y = np.zeros(4, np.float32)
        fill((1,), (32,), (y, ONE, FOUR), shared_mem=most)
        assert y.tolist() == [1] * 4
        for launch in (fill, lambda *given, shared_mem: machine.bind(fill, *given, shared_mem)()):
            with pytest.raises(AssertionError, match="shared memory was not asked for"):
                launch((1,), (32,), (y, ONE, FOUR), shared_mem=most + 1)
        fill.max_dynamic_shared_size_bytes = 100 << 10


# --- Launches, memory, streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dependent", [True, False])
def test_a_bound_launch(machine, fill, dependent):
    y, other = np.zeros((2, 40), np.float32)
    launch = machine.bind(fill, (2,), (32,), (np.uint64(address(y)), np.float32(3), np.int64(40)), dependent=dependent)
    assert not y.any()
    launch()
    assert (y == 3).all()
    launch.change(2, 39)
    launch.change(0, address(other))
    launch()
    assert other.tolist() == [3] * 39 + [0]


def test_a_word_of_a_bound_structure(machine):
    (kernel,), y = machine.kernels(SOURCE, "line<1>"), np.zeros(3, np.float32)
    launch = machine.bind(kernel, (1,), (32,), (structure(LINE, slope=2, x=X, n=2), y))
    launch()
    assert y.tolist() == [2, 4, 0]
    launch.change(0, address(X[1:]), word=1)
    launch()
    assert y.tolist() == [4, 6, 0]


def test_memory(machine):
    """What was never written can be told."""
    for array in (machine.xp.empty((3, 5)), machine.xp.empty((3, 5), "f4", "F"), machine.pinned((2, 2), np.float16)):
        assert np.isnan(array).all()
    assert (machine.xp.empty(7, np.int32) == -1).all()
    for offset in (0, 3):
        array = placed(np.arange(12, dtype=np.float32).reshape(3, 4), offset)
        assert address(array) % 256 == 4 * offset
        assert array.ravel().tolist() == list(range(12))
    machine = HostMachine(7, KNOWN["A100"], memory=1000)
    assert (machine.gpu.multiprocessors, machine.gpu.name, machine.free_bytes()) == (7, "A100", 1000)


def test_copies_and_bytes(machine):
    x, y = np.arange(6.0), np.zeros((2, 3))
    machine.copy(y, x, machine.stream())
    assert y.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(AssertionError, match="40 bytes to 48"):
        machine.copy(y, x[:5])
    again = machine.bind_copy(address(y), address(x), 16)
    for x[0] in (7, 8):
        again()
        assert y.ravel().tolist() == [x[0], 1, 2, 3, 4, 5]
    machine.fill(y, 0xFF)
    assert np.isnan(y).all()


def test_workspaces_share_their_counts_as_on_a_gpu(machine):
    scratch, counts = machine.workspace(100, 10)
    assert np.isnan(scratch[:100].view(np.float32)).all()
    assert (counts.dtype, counts.tolist()) == (np.uint32, [0] * 10)
    assert machine.workspace(0, 5)[1] is counts
    assert machine.workspace(0, 20)[1].size >= 20
    machine.counts[3] = 1
    with pytest.raises(AssertionError, match="left counts that are not zero"):
        machine.workspace(100, 10)


def test_what_streams_and_events_wait_for_is_done(machine, fill):
    x, y = np.zeros((2, 4), np.float32)
    copies, copied = machine.stream(), machine.event()
    with machine.current():
        fill((1,), (32,), (x, np.float32(5), FOUR))
        machine.copy(y, x, copies)
        copied.record(copies)
        machine.current_stream().wait_event(copied)
        fill((1,), (32,), (x, np.float32(6), FOUR))
    for one in (copied, copies, machine.current_stream()):
        one.synchronize()
    assert (x.tolist(), y.tolist(), machine.current_stream().ptr) == ([6] * 4, [5] * 4, 0)


# --- The protocol -----------------------------------------------------------------------------------------------------


def methods_of(kind):
    """Return the public methods of a class, and their parameters."""
    methods = {name: member for name, member in vars(kind).items() if inspect.isfunction(member) and name[0] != "_"}
    given = {name: inspect.signature(member).parameters.values() for name, member in methods.items()}
    return {name: [(one.name, one.kind, one.default) for one in them] for name, them in given.items()}


def test_both_machines_have_the_methods_of_the_protocol(machine, monkeypatch):
    expected = methods_of(runtime.Machine)
    assert methods_of(HostMachine) == expected
    # CudaMachine takes the others from CuPy as they are; this one has only names.
    from_cupy = {"pinned", "workspace", "stream", "current_stream", "event"}
    assert methods_of(runtime.CudaMachine) == {name: of for name, of in expected.items() if name not in from_cupy}
    cuda = SimpleNamespace(get_current_stream=print, Stream=print, Event=print)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=print))
    monkeypatch.setattr(runtime, "live", lambda index: KNOWN["H200"])
    for one in (machine, runtime.CudaMachine(0)):
        assert all(hasattr(one, name) for name in (*expected, *runtime.Machine.__annotations__))
