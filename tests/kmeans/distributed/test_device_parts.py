"""Parts on GPUs, on a HostMachine each: the bits of one process on a CPU."""

import pickle
from threading import Lock

import ml_dtypes
import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.distributed.cut_fits import fitted, host_engine, labels_of, parted_engine, same_bits, samples
from kmeans.distributed.ranks import on_threads

from tsapps import TSKMeans
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.distributed import collections, part_engines
from tsapps.apps.kmeans.distributed.crew import specs_of
from tsapps.apps.kmeans.distributed.part import Part, PartState
from tsapps.apps.kmeans.engines.streamed_step import StreamedStep
from tsapps.apps.kmeans.init import oversampling_chunks
from tsapps.kernels.devices import NoDeviceError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(autouse=True)
def machines(monkeypatch):
    """Each part has a GPU of its own; no X is small, and has as many chunks as there can be."""
    made = []

    def gpu_of(device):
        assert device == "cuda"
        made.append(HostMachine())
        return made[-1]

    borrow = DeviceData._borrow
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None if data.source.device is None else borrow(data))
    monkeypatch.setattr(part_engines, "gpu_of", gpu_of)
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(oversampling_chunks, "_CHUNK_ELEMENTS", 1)
    return made


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["random", "k-means||", "k-means++"])
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype", "weighted"),
    [
        (1100, 40, 5, np.float32, False),
        (700, 17, 5, np.float32, True),
        pytest.param(700, 20, 70, np.float64, False, marks=pytest.mark.exhaustive),
        (700, 33, 4, np.float16, False),
        (1100, 33, 4, ml_dtypes.bfloat16, False),
    ],
)
def test_the_bits_are_those_of_a_cpu(n, d, k, dtype, weighted, init, rng, machines):
    X = samples(rng, n, d, k, dtype)
    weights = rng.random(n) + 0.5 if weighted else None
    expected = fitted(host_engine(X, weights), k, init=init)
    for shares in ((1,), (1, 2, 1)):
        engine = parted_engine(X, weights, shares, device="cuda")
        assert len(machines) == len(engine.data.crew.parts)
        same_bits(fitted(engine, k, init=init), expected)
        machines.clear()


def test_few_features(rng):
    """A step that reads X itself, with labels of 8 bits."""
    X = samples(rng, 1500, 3, 5)
    same_bits(fitted(parted_engine(X, device="cuda"), 5), fitted(host_engine(X), 5))


def test_rows_that_a_gpu_does_not_hold(rng, monkeypatch):
    X = samples(rng, 1100, 40, 5)
    monkeypatch.setattr(DeviceData, "fits", lambda data, size: False)
    monkeypatch.setattr(DeviceData, "available_bytes", lambda data: 0)
    assigned, assign = [], StreamedStep.assign

    def counted(*arguments, **options):
        assigned.append(arguments)
        return assign(*arguments, **options)

    monkeypatch.setattr(StreamedStep, "assign", counted)
    same_bits(fitted(parted_engine(X, device="cuda"), 5), fitted(host_engine(X), 5))
    assert len(assigned) >= 4


def test_empty_clusters(rng):
    X = samples(rng, 1100, 40, 3)
    init = np.concatenate([X[:4], X[:1] + 1e3, X[:1] - 1e3])
    found = fitted(parted_engine(X, device="cuda"), 6, init=init)
    same_bits(found, fitted(host_engine(X), 6, init=init))
    assert (found.cluster_sizes > 0).all()


def test_values_out_of_range(rng):
    """Squares of distances overflow, so rows are scaled."""
    X = samples(rng, 1100, 17, 3) * np.float32(1e25)
    same_bits(fitted(parted_engine(X, device="cuda"), 3), fitted(host_engine(X), 3))


def test_cosine(rng):
    """Norms are of unit rows, which are computed on the host here."""
    X = samples(rng, 1100, 17, 4)
    found = fitted(parted_engine(X, spherical=True, device="cuda"), 4, init="random")
    expected = fitted(host_engine(X, spherical=True), 4, init="random")
    np.testing.assert_array_equal(labels_of(found), labels_of(expected))


def test_a_part_that_is_made_again_answers_the_same(rng):
    """After its process was lost, as a pickled part has only its rows."""
    X = samples(rng, 256, 40, 3)
    engine = parted_engine(X, shares=(1,), device="cuda")
    fitted(engine, 3)
    state = engine.data.state
    (spec,) = specs_of([range(256)], np.dtype(np.float32), spherical=False, devices=["cuda"])
    part = Part(X, None, spec)
    asked = [("labels", ()), ("cluster_sizes", ()), ("assign", (state.centers[::-1].copy(),)), ("labels", ())]
    for question, arguments in asked:
        again = pickle.loads(pickle.dumps(part))
        answers = (one.ask(question, state, *arguments) for one in (part, again))
        for one, other in zip(*(found if isinstance(found, tuple) else (found,) for found in answers), strict=True):
            np.testing.assert_array_equal(one, other)


def test_no_gpu(monkeypatch, rng):
    monkeypatch.undo()
    (spec,) = specs_of([range(9)], np.dtype(np.float32), spherical=False, devices=["cuda:77"])
    with pytest.raises(NoDeviceError):
        Part(samples(rng, 9, 3, 2), None, spec)


def test_too_many_clusters_for_the_kernels(rng, monkeypatch):
    (spec,) = specs_of([range(256)], np.dtype(np.float32), spherical=False, devices=["cuda"])
    part = Part(samples(rng, 256, 3, 2), None, spec)
    engine = parted_engine(samples(rng, 256, 3, 2), shares=(1,), device="cuda")
    monkeypatch.setattr("tsapps.apps.kmeans.engines.select_step.MOST_LARGE_K", 65)
    with pytest.raises(NoDeviceError, match="needs the kernels of this package, but k = 66 exceeds the limit"):
        fitted(engine, 66)
    assert part.ask("first_row", PartState()).shape == (3,)


def test_ranks(rng):
    """`fit_rank` on three threads, each with its own GPU."""
    X = samples(rng, 1100, 40, 5)
    expected = TSKMeans(5, device="cpu", engine="fused", random_state=0).fit(X)
    found, _ = on_threads(np.split(X, [200, 900]), 5, device="cuda")
    for one in found:
        np.testing.assert_array_equal(one.cluster_centers, expected.cluster_centers_)
        assert (one.inertia, one.n_iter) == (expected.inertia_, expected.n_iter_)
    np.testing.assert_array_equal(np.concatenate([one.labels for one in found]), expected.labels_)


def test_one_rank_has_no_gpu(rng, monkeypatch):
    """No rank waits for it."""
    X, gpu_of, lock = samples(rng, 1100, 40, 5), part_engines.gpu_of, Lock()
    calls = iter(range(9))

    def second_is_missing(device):
        with lock:
            if next(calls) == 1:
                raise NoDeviceError("'cuda' was asked for, but CUDA finds no GPU")
        return gpu_of(device)

    monkeypatch.setattr(part_engines, "gpu_of", second_is_missing)
    found, _ = on_threads(np.split(X, [200, 900]), 5, device="cuda")
    assert all(isinstance(one, ValueError) and "NoDeviceError: 'cuda' was asked for" in str(one) for one in found)


def test_dask(rng, monkeypatch):
    """Workers that are threads of this process, each with its own GPU."""
    da, distributed = pytest.importorskip("dask.array"), pytest.importorskip("distributed")
    X = samples(rng, 3000, 17, 4)
    monkeypatch.setattr(collections, "SMALL", 0)
    expected = TSKMeans(4, device="cpu", engine="fused", random_state=0).fit(X)
    options = {"processes": False, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(**options):
        model = TSKMeans(4, device="cuda", random_state=0).fit(da.from_array(X, chunks=(700, 17)))
        np.testing.assert_array_equal(model.labels_.compute(), expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert (model.inertia_, model.n_iter_) == (expected.inertia_, expected.n_iter_)
    assert model.device_ == "dask: 2 × cuda"
