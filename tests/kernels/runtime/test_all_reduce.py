"""`NcclAllReduce` on a stand-in for NCCL, and on GPUs."""

import sys
from contextlib import nullcontext
from threading import Event
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from tsapps.kernels.devices import NoDeviceError, gpus
from tsapps.kernels.runtime import all_reduce
from tsapps.kernels.runtime.all_reduce import GroupError, NcclAllReduce


class NcclError(RuntimeError):
    pass


class Communicator:
    """A communicator of one GPU of a group; `initAll` returns some for all GPUs of this process."""

    nccl = None

    def __init__(self, size, identity, rank):
        assert isinstance(identity, bytes)
        self.nccl.joined.append((size, identity, rank))
        self.allReduce, self.destroy, self.abort = self.nccl.all_reduce, self.nccl.destroy, self.nccl.abort
        if size > 2:
            raise NcclError("NCCL_ERROR_REMOTE_ERROR")

    @classmethod
    def initAll(cls, indices):  # noqa: N802
        return cls.nccl.init_all(indices)


class Nccl(ModuleType):
    """NCCL for arrays of NumPy, which adds them up at the end of a group."""

    NcclError = NcclError
    NCCL_INT64, NCCL_SUM = 4, 0

    def __init__(self, arrays):
        super().__init__("cupy.cuda.nccl")
        self.arrays, self.group, self.open, self.destroyed, self.aborted = arrays, [], 0, 0, 0
        self.NcclCommunicator, self.joined = Communicator, []
        Communicator.nccl = self

    def get_unique_id(self):
        return bytes(range(128))

    def get_version(self):
        return 22809

    def init_all(self, indices):
        if len(indices) > 2:
            raise NcclError("NCCL_ERROR_SYSTEM_ERROR")
        of = {"allReduce": self.all_reduce, "destroy": self.destroy, "abort": self.abort}
        return [SimpleNamespace(**of) for _ in indices]

    def abort(self):
        assert self.open == 0, "a group is open"
        self.aborted += 1

    def destroy(self):
        self.destroyed += 1

    def groupStart(self):  # noqa: N802
        self.open += 1

    def all_reduce(self, own, total, count, kind, operation, stream):
        assert (self.open, kind, operation) == (1, self.NCCL_INT64, self.NCCL_SUM)
        self.group.append((self.arrays[own], self.arrays[total], count))

    def groupEnd(self):  # noqa: N802
        self.open -= 1
        found = sum(own for own, _, _ in self.group)
        for _, total, count in self.group:
            total[:count] = found
        self.group.clear()


@pytest.fixture
def arrays():
    return {}


@pytest.fixture
def nccl(arrays, monkeypatch):
    monkeypatch.setattr(all_reduce, "_connected", {})
    monkeypatch.setattr(all_reduce, "_joined", {})
    module = Nccl(arrays)
    cuda = ModuleType("cupy.cuda")
    cuda.nccl = module
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    stream = SimpleNamespace(ptr=0)
    machine = SimpleNamespace(current=nullcontext, current_stream=lambda: stream, index=0)
    monkeypatch.setattr(all_reduce, "cuda_machine", lambda index: machine)
    monkeypatch.setattr(all_reduce, "address", id)
    return module


def test_every_total_is_the_sum(nccl, arrays):
    own = [np.array([1, -5, 1 << 60]), np.array([2, 3, 4])]
    total = [np.zeros(3, np.int64), np.zeros(3, np.int64)]
    arrays.update((id(array), array) for array in (*own, *total))
    add_up = NcclAllReduce.of_indices((0, 1))
    add_up(own, total)
    for array in total:
        assert array.tolist() == [3, -2, (1 << 60) + 4]
    assert own[0].tolist() == [1, -5, 1 << 60]
    add_up.close()
    add_up.close()
    assert nccl.destroyed == 2


def test_a_group_is_ended_after_an_error(nccl):
    add_up = NcclAllReduce.of_indices((0, 1))
    assert add_up.is_open
    with pytest.raises(KeyError):
        add_up([np.zeros(1, np.int64)] * 2, [np.zeros(1, np.int64)] * 2)
    assert (nccl.open, nccl.aborted, add_up.is_open) == (0, 2, False)


def test_ctrl_c_in_the_middle_of_a_call(nccl, arrays, monkeypatch):
    """The first GPU would wait for the second forever."""
    own, total = [np.ones(1, np.int64)] * 2, [np.zeros(1, np.int64)] * 2
    arrays.update((id(array), array) for array in (*own, *total))
    all_reduce_, calls = nccl.all_reduce, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        all_reduce_(*arguments)

    monkeypatch.setattr(nccl, "all_reduce", interrupted)
    add_up = NcclAllReduce.of_indices((0, 1))
    with pytest.raises(KeyboardInterrupt):
        add_up(own, total)
    assert (nccl.open, nccl.aborted) == (0, 2)


@pytest.mark.parametrize("error", [NcclError("remote error"), KeyboardInterrupt()])
def test_an_error_at_the_end_of_a_call(error, nccl, arrays, monkeypatch):
    """The GPUs that have begun would wait for the others forever."""
    own, total = [np.ones(1, np.int64)] * 2, [np.zeros(1, np.int64)] * 2
    arrays.update((id(array), array) for array in (*own, *total))
    ends = []

    def failing():
        nccl.open = 0
        ends.append(1)
        if len(ends) == 1:
            raise error

    monkeypatch.setattr(nccl, "groupEnd", failing)
    add_up = NcclAllReduce.of_indices((0, 1))
    with pytest.raises(type(error)):
        add_up(own, total)
    assert (nccl.open, nccl.aborted, add_up.is_open) == (0, 2, False)


def test_a_gpu_that_does_not_even_abort(nccl, monkeypatch):
    add_up = NcclAllReduce.of_indices((0, 1))
    first, _ = add_up._communicators

    def failing():
        raise NcclError("unhandled CUDA error")

    first.abort = failing
    add_up.abort()
    assert (nccl.aborted, add_up.is_open) == (1, False)


def test_gpus_are_connected_once_and_again_after_an_abort(nccl):
    machines = [SimpleNamespace(index=0), SimpleNamespace(index=1)]
    first = all_reduce.connect(machines)
    assert all_reduce.connect(machines) is first
    first.abort()
    second = all_reduce.connect(machines)
    assert second is not first
    assert second.is_open


def test_gpus_that_nccl_cannot_connect(nccl):
    with pytest.raises(NoDeviceError, match=r"NCCL cannot connect cuda:0, cuda:1, cuda:2: NCCL_ERROR_SYSTEM_ERROR"):
        NcclAllReduce.of_indices((0, 1, 2))


def test_without_nccl(monkeypatch):
    cuda = ModuleType("cupy.cuda")
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    with pytest.raises(NoDeviceError, match=r"several GPUs need NCCL, .*pip install nvidia-nccl-cu13"):
        NcclAllReduce.of_indices((0, 1))


def test_a_gpu_joins_a_group_once(nccl, arrays):
    machine, identity = all_reduce.cuda_machine(0), all_reduce.new_identity()
    assert identity == bytes(range(128)).hex()
    joined = all_reduce.join(machine, identity, 1, 2)
    assert all_reduce.join(machine, identity, 1, 2) is joined
    assert nccl.joined == [(2, bytes(range(128)), 1)]
    own, total = np.array([5, -6]), np.zeros(2, np.int64)
    arrays.update({id(own): own, id(total): total})
    joined([own], [total])
    assert total.tolist() == [5, -6]


def test_a_gpu_leaves_its_last_group(nccl):
    machine = all_reduce.cuda_machine(0)
    first = all_reduce.join(machine, "00", 0, 2)
    second = all_reduce.join(machine, "ff", 0, 2)
    assert (first.is_open, second.is_open, nccl.aborted) == (False, True, 1)
    all_reduce.leave("00")
    assert second.is_open
    all_reduce.leave("ff")
    assert not second.is_open
    for call in (lambda: second([], []), lambda: all_reduce.join(machine, "ff", 0, 2)):
        with pytest.raises(GroupError, match="the group of GPUs was abandoned"):
            call()


def test_a_group_that_cannot_be_joined(nccl, monkeypatch):
    machine, forever = all_reduce.cuda_machine(0), Event()
    with pytest.raises(GroupError, match="NCCL cannot connect GPU 1 of 3: NCCL_ERROR_REMOTE_ERROR"):
        all_reduce.join(machine, "00", 1, 3)
    monkeypatch.setattr(all_reduce, "_SECONDS", 0.01)
    monkeypatch.setattr(Communicator, "__init__", lambda *_: forever.wait())
    with pytest.raises(GroupError, match="2 GPUs did not join within 0 s: one is lost"):
        all_reduce.join(machine, "00", 1, 2)
    forever.set()


def test_the_version_of_nccl(nccl, monkeypatch):
    assert all_reduce.nccl_version() == 22809
    monkeypatch.setitem(sys.modules, "cupy.cuda", ModuleType("cupy.cuda"))
    assert all_reduce.nccl_version() is None


@pytest.mark.gpu
@pytest.mark.skipif(len(gpus()) < 2, reason="needs two GPUs")
@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_on_gpus(size, rng):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    count = len(gpus())
    numbers = rng.integers(-(1 << 60), 1 << 60, (count, size))
    own, total = [], []
    for index in range(count):
        with cupy.cuda.Device(index):
            own.append(cupy.asarray(numbers[index]))
            total.append(cupy.empty(size, np.int64))
    add_up = NcclAllReduce.of_indices(range(count))
    add_up(own, total)
    for index in range(count):
        with cupy.cuda.Device(index) as device:
            device.synchronize()
            np.testing.assert_array_equal(cupy.asnumpy(total[index]), numbers.sum(axis=0))
            np.testing.assert_array_equal(cupy.asnumpy(own[index]), numbers[index])
    add_up.close()
