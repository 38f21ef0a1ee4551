"""Bursts of parts on HostMachines, whose all-reduce is a meeting of threads: the bits of one process."""

import itertools
import threading

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.distributed.cut_fits import fitted, host_engine, parted_engine, same_bits, samples, within
from kmeans.distributed.ranks import on_threads

from tsapps import TSKMeans
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.distributed import burst, part_engines, partitioned_engine
from tsapps.apps.kmeans.distributed.burst import Burst, Gang, Member, gang_of
from tsapps.apps.kmeans.distributed.crew import LocalCrew, gang_of_parts
from tsapps.apps.kmeans.distributed.part import Part
from tsapps.apps.kmeans.engines.running_sums_step import RunningSumsStep
from tsapps.apps.kmeans.init import oversampling_chunks
from tsapps.kernels.runtime.all_reduce import GroupError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Group:
    """The all-reduce of threads, each of which has one HostMachine; `abort` sends all away."""

    def __init__(self, size):
        self.barrier, self.own, self.is_open = threading.Barrier(size, timeout=20), [None] * size, True

    def of_rank(self, rank):
        def add_up(own, total):
            (self.own[rank],) = own
            try:
                self.barrier.wait()
                found = sum(self.own)
                self.barrier.wait()
            except threading.BrokenBarrierError as error:
                raise GroupError("the group of GPUs was abandoned") from error
            total[0][...] = found

        add_up.abort = self.abort
        add_up.is_open = True
        return add_up

    def abort(self):
        self.is_open = False
        self.barrier.abort()


@pytest.fixture(autouse=True)
def machines(monkeypatch):
    """Each part has a GPU of its own; no X is small, and has as many chunks as there can be."""
    made, groups = [], {}

    def gpu_of(device):
        made.append(HostMachine())
        return made[-1]

    def join(machine, identity, rank, size):
        return groups.setdefault(identity, Group(size)).of_rank(rank)

    borrow = DeviceData._borrow
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None if data.source.device is None else borrow(data))
    monkeypatch.setattr(part_engines, "gpu_of", gpu_of)
    monkeypatch.setattr(burst, "join", join)
    monkeypatch.setattr(burst, "nccl_version", lambda: 22809)
    monkeypatch.setattr(Part, "new_identity", lambda part: (len(groups), 7))
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(partitioned_engine, "_LEAST", 3)
    monkeypatch.setattr(partitioned_engine, "_SECONDS", 0.0)
    return groups


class GangCrew(LocalCrew):
    """Parts that have bursts, as those of other processes; keeps the bursts."""

    bursts: list

    def gang(self, state):
        self.bursts = getattr(self, "bursts", [])
        return gang_of_parts(self, state)

    def ask_gang(self, gang, question, state, *arguments):
        self.bursts.append((gang, arguments[1:3]))
        return super().ask_gang(gang, question, state, *arguments)


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["random", "k-means||", "k-means++"])
@pytest.mark.parametrize("shares", [(1,), (1, 1), (1, 2, 1)])
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype", "weighted"),
    [
        (1100, 40, 5, np.float32, False),
        (1100, 17, 5, np.float32, True),
        pytest.param(1100, 20, 70, np.float64, False, marks=pytest.mark.exhaustive),
        (1100, 33, 4, np.float16, False),
        (1500, 3, 5, np.float32, False),
    ],
)
def test_the_bits_are_those_of_a_cpu(n, d, k, dtype, weighted, init, shares, rng):
    X = samples(rng, n, d, k, dtype)
    weights = rng.random(n) + 0.5 if weighted else None
    expected = fitted(host_engine(X, weights), k, init=init, n_init=2, max_iter=8)
    engine = parted_engine(X, weights, shares, crew=GangCrew, device="cuda")
    same_bits(fitted(engine, k, init=init, n_init=2, max_iter=8), expected)
    assert len(engine.data.crew.bursts) >= 2
    assert all(end - before <= 3 for _, (before, end) in engine.data.crew.bursts)


def test_many_clusters(rng):
    X = samples(rng, 700, 20, 66)
    engine = parted_engine(X, None, (1, 1), crew=GangCrew, device="cuda")
    options = {"init": X[:66].astype(np.float64), "max_iter": 4}
    same_bits(fitted(engine, 66, **options), fitted(host_engine(X), 66, **options))
    assert len(engine.data.crew.bursts) == 2


@pytest.mark.parametrize("shares", [(1, 1), (1, 2, 1)])
def test_progress_is_told(shares, rng):
    X, told = samples(rng, 1100, 40, 5), ([], [])
    engines = host_engine(X), parted_engine(X, None, shares, crew=GangCrew, device="cuda")
    same_bits(*(fitted(one, 5, progress=some.append, max_iter=7) for one, some in zip(engines, told, strict=True)))
    for mine, expected in zip(*told, strict=True):
        assert (mine.run, mine.iteration, mine.n_reassigned) == (
            expected.run,
            expected.iteration,
            expected.n_reassigned,
        )
        assert mine.inertia == pytest.approx(expected.inertia, rel=1e-6)


def test_empty_clusters(rng):
    X = samples(rng, 1100, 40, 5)
    init = X[:6].astype(np.float64)
    init[2:] += 1e3
    engine = parted_engine(X, None, (1, 1), crew=GangCrew, device="cuda")
    same_bits(fitted(engine, 6, init=init), fitted(host_engine(X), 6, init=init))
    assert len(engine.data.crew.bursts) > 1


@pytest.mark.parametrize("tol", [0.0, 1e-3, 1e9])
def test_convergence(tol, rng):
    X = samples(rng, 1100, 40, 5)
    engine = parted_engine(X, None, (1, 1), crew=GangCrew, device="cuda")
    same_bits(fitted(engine, 5, tol=tol, max_iter=50), fitted(host_engine(X), 5, tol=tol, max_iter=50))


def test_there_are_no_bursts_with_the_cosine_metric(rng):
    X = samples(rng, 1100, 17, 4)
    engine = parted_engine(X, None, (1, 1), crew=GangCrew, device="cuda", spherical=True)
    same_bits(fitted(engine, 4), fitted(host_engine(X, spherical=True), 4))
    assert engine.data.crew.bursts == []


class LosingCrew(GangCrew):
    """Loses a part in some bursts, after it has exchanged sums or before; the others are sent away."""

    lost = ()

    def ask_gang(self, gang, question, state, *arguments):
        number = len(self.bursts)
        if number not in self.lost:
            return super().ask_gang(gang, question, state, *arguments)
        self.bursts.append((gang, arguments[1:3]))
        machine = self._parts[1]._engine.data.machine
        group, exchanges = burst.join(machine, gang.identity, 1, len(self.parts)), []

        def losing(own, total):
            exchanges.append(1)
            if len(exchanges) > self.lost[number]:
                group.abort()
                raise GroupError("this process is lost")
            group(own, total)

        losing.abort, losing.is_open = group.abort, True
        join = burst.join
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(burst, "join", lambda *given: losing if given[2] == 1 else join(*given))
            with pytest.raises(GroupError):
                self.ask(question, state, *arguments, gang)
        return None


@pytest.mark.parametrize("lost", every(2, [{0: 0}, {0: 2}, {0: 1, 1: 0}, {1: 1}, dict.fromkeys(range(9), 1)]), ids=str)
def test_a_part_that_is_lost_in_a_burst(lost, rng, monkeypatch):
    X = samples(rng, 1100, 40, 5)
    expected = fitted(host_engine(X), 5, init="random", max_iter=12, tol=0.0)
    monkeypatch.setattr(LosingCrew, "lost", lost)
    engine = parted_engine(X, None, (1, 1), crew=LosingCrew, device="cuda")
    same_bits(within(100, lambda: fitted(engine, 5, init="random", max_iter=12, tol=0.0)), expected)
    bursts = engine.data.crew.bursts
    assert len({gang.identity for gang, _ in bursts}) == min(len(bursts), len(lost) + 1)
    assert len(bursts) == 4 if len(lost) == 9 else len(bursts) > len(lost)


def test_a_part_that_has_moved(rng):
    X = samples(rng, 1100, 40, 5)
    engine = parted_engine(X, None, (1, 1), crew=GangCrew, device="cuda")
    fitted(engine, 5)
    crew, (gang, _) = engine.data.crew, engine.data.crew.bursts[-1]
    moved = {first: Member("elsewhere", member.gpu, member.nccl) for first, member in gang.members.items()}
    with pytest.raises(GroupError, match=r"the part that begins with row 0 is on .*, no longer on .*elsewhere"):
        crew.ask("burst", engine.data.state, X[:5], 0, 2, 0.0, Gang(gang.identity, moved), parts=[0])


def test_results_that_differ(rng, monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr(Burst, "digest", lambda _: next(numbers))
    engine = parted_engine(samples(rng, 1100, 40, 5), None, (1, 1), crew=GangCrew, device="cuda")
    with pytest.raises(RuntimeError, match="GPUs computed different centers from the same sums"):
        fitted(engine, 5)


def member(gpu="a", process="p", nccl=22809):
    return Member(process, gpu, nccl)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([member()], True),
        ([member(nccl=None)], True),
        ([member(), member("b")], True),
        ([member(), member()], False),
        ([member(), None], False),
        ([None], False),
        ([member(), member("b", nccl=22700)], False),
        ([member(nccl=None), member("b", nccl=None)], False),
    ],
)
def test_who_is_a_gang(members, expected):
    found = gang_of(members, range(len(members)), lambda: (1, 2, 3))
    assert (found is not None) == expected
    if found is not None:
        assert found.identity == (None if len(members) == 1 else (1, 2, 3))
        assert list(found.members.values()) == members


@pytest.mark.parametrize("sizes", [(700, 400), (1100, 0), (300, 300, 500)])
def test_ranks(sizes, rng):
    X = samples(rng, 1100, 40, 5)
    expected = fitted(host_engine(X), 5, init="random", max_iter=8)
    rows = np.split(X, np.cumsum(sizes)[:-1])
    assigned, assign = [], RunningSumsStep.assign_own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningSumsStep, "assign_own", lambda *given: assigned.append(1) or assign(*given))
        found, _ = on_threads(rows, 5, init="random", max_iter=8, tol=0.0, n_init=1, device="cuda")
    np.testing.assert_array_equal(np.concatenate([one.labels for one in found]), expected.labels)
    for one in found:
        np.testing.assert_array_equal(one.cluster_centers, expected.centers)
        assert (one.inertia, one.n_iter) == (expected.inertia, expected.n_iter)
    assert len(assigned) <= 2 * len(sizes)  # that of the last centers, and no iteration


#: The groups of a test, for `leave` on Dask's workers, which are threads here.
GROUPS: dict = {}


def leave(identity):
    GROUPS.setdefault(identity, Group(2)).abort()


@pytest.fixture
def dask_fit(machines, monkeypatch):
    """Return a function that fits X on two workers of Dask, threads of this process, and the bursts of the driver."""
    da, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    from tsapps.apps.kmeans.distributed import collections, dask_crew

    monkeypatch.setattr(collections, "SMALL", 0)
    monkeypatch.setattr(dask_crew, "leave", leave)
    monkeypatch.setattr(f"{__name__}.GROUPS", machines)
    answers, ask = [], dask_crew.DaskCrew.ask_gang

    def kept(*given):
        answers.append(ask(*given))
        return answers[-1]

    monkeypatch.setattr(dask_crew.DaskCrew, "ask_gang", kept)

    def fit(X, **given):
        options = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.Client(**options):
            rows = da.from_array(X, chunks=(700, X.shape[1]))
            model = TSKMeans(4, device="cuda", random_state=0, n_init=1, init="random", **given).fit(rows)
            return model, model.labels_.compute(), answers

    return fit


def same_as_one_process(model, labels, X, **given):
    expected = TSKMeans(4, device="cpu", engine="fused", random_state=0, n_init=1, init="random", **given).fit(X)
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert (model.inertia_, model.n_iter_) == (expected.inertia_, expected.n_iter_)


def test_dask(rng, dask_fit):
    X = rng.standard_normal((3000, 17)).astype(np.float32)
    model, labels, bursts = dask_fit(X, max_iter=8, tol=0)
    assert [one[0][1][1] for one in bursts] == [3, 3, 2]
    same_as_one_process(model, labels, X, max_iter=8, tol=0)


@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_a_gpu_of_dask_that_fails_in_a_burst(at, rng, dask_fit, monkeypatch):
    """The other one waits for it until it is told to leave the group."""
    X, calls, ask = rng.standard_normal((3000, 17)).astype(np.float32), [], Part.burst

    def failing(part, *given):
        calls.append(part)
        if len(calls) == 1 + at:
            raise GroupError("this GPU is lost")
        return ask(part, *given)

    monkeypatch.setattr(Part, "burst", failing)
    model, labels, bursts = dask_fit(X, max_iter=8, tol=0)
    assert bursts.count(None) == 1
    assert bursts[-1] is not None
    same_as_one_process(model, labels, X, max_iter=8, tol=0)


def test_another_error_in_a_burst_is_raised(rng, dask_fit, monkeypatch):
    """The other GPU does not wait for the one that failed."""
    X, calls, ask = rng.standard_normal((3000, 17)).astype(np.float32), [], Part.burst

    def failing(part, *given):
        calls.append(part)
        if len(calls) == 1:
            raise MemoryError("the GPU is full")
        return ask(part, *given)

    monkeypatch.setattr(Part, "burst", failing)
    with pytest.raises(MemoryError, match="the GPU is full"):
        dask_fit(X, max_iter=8, tol=0)
    assert [group.is_open for group in GROUPS.values()] == [False]


def test_two_fits_on_the_same_gpus(rng, dask_fit, monkeypatch):
    """Without the lock, a fit has no bursts."""
    from tsapps.apps.kmeans.distributed import dask_crew

    class Lock:
        def __init__(self, names, client):
            assert len(set(names)) == 2

        def acquire(self, timeout):
            assert timeout == dask_crew._LOCK_SECONDS
            return False

    monkeypatch.setattr(dask_crew, "MultiLock", Lock)
    X = rng.standard_normal((3000, 17)).astype(np.float32)
    model, labels, bursts = dask_fit(X, max_iter=8, tol=0)
    assert bursts == [None] * (1 + partitioned_engine._MOST_LOSSES)
    same_as_one_process(model, labels, X, max_iter=8, tol=0)


def test_a_lost_worker_is_told_once():
    from tsapps.apps.kmeans.distributed.dask_crew import _Loss

    calls = []
    loss = _Loss({"a", "b"}, lambda: calls.append(1))
    for workers in ({"a", "b"}, {"a", "b", "c"}, {"a", "c"}, {"c"}):
        loss.look(workers)
    assert calls == [1]
