"""Bursts of GPUs of several processes, by Dask and by `fit_rank`: the bits of one process on a CPU."""

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from threading import Timer

import numpy as np
import pytest
from kmeans.distributed.cut_fits import samples
from kmeans.distributed.ranks import run_rank

from tsapps import TSKMeans
from tsapps.kernels.devices import gpus

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
needs_two = pytest.mark.skipif(len(gpus()) < 2, reason="needs two GPUs")

OPTIONS = {"init": "random", "n_init": 1, "max_iter": 100, "tol": 0, "random_state": 0}


@contextmanager
def workers(devices):
    """Yield a client of a cluster with a worker for each name in `devices`, that of the GPU that it sees."""
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("dask.array")
    of_each = [{"nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": device}} for device in devices]
    spec = {i: {"cls": distributed.Nanny, "options": options} for i, options in enumerate(of_each)}
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard_address": None}}
    with (
        distributed.SpecCluster(workers=spec, scheduler=scheduler) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def bursts(monkeypatch):
    """Return the answers to all bursts of the driver."""
    dask_crew = pytest.importorskip("tsapps.apps.kmeans.distributed.dask_crew")
    answers, ask = [], dask_crew.DaskCrew.ask_gang

    def kept(*given):
        answers.append(ask(*given))
        return answers[-1]

    monkeypatch.setattr(dask_crew.DaskCrew, "ask_gang", kept)
    return answers


def fitted(X, **options):
    import dask.array as da

    model = TSKMeans(20, device="cuda", **{**OPTIONS, **options}).fit(da.from_array(X, chunks=(50_000, X.shape[1])))
    return model, model.labels_.compute()


def same_bits(found, X, **options):
    model, labels = found
    expected = TSKMeans(20, device="cpu", engine="fused", **{**OPTIONS, **options}).fit(X)
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, expected.cluster_centers_)
    assert (model.inertia_, model.n_iter_) == (expected.inertia_, expected.n_iter_)


@pytest.mark.parametrize("devices", ["0", pytest.param("01", marks=needs_two)])
@pytest.mark.parametrize("init", ["random", "k-means++", "k-means||"])
def test_dask(devices, init, rng, bursts):
    X = samples(rng, 300_000, 72, 30)
    with workers(devices):
        found = fitted(X, init=init)
    assert sum(answers[0][1].iterations for answers in bursts) == found[0].n_iter_
    same_bits(found, X, init=init)


def test_workers_that_share_a_gpu_have_no_bursts(rng, bursts):
    X = samples(rng, 300_000, 72, 30)
    with workers("00"):
        found = fitted(X, max_iter=10)
    assert bursts == []
    same_bits(found, X, max_iter=10)


def _slow():
    """Have iterations of this process take 50 ms."""
    from tsapps.apps.kmeans.distributed.shared_iterations import SharedIterations

    launch = SharedIterations._launch

    def slow(*given, **options):
        time.sleep(0.05)
        launch(*given, **options)

    SharedIterations._launch = slow


@needs_two
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_is_killed_in_a_burst(number, rng, bursts):
    X = samples(rng, 300_000, 72, 30)
    with workers("01") as client:
        client.run(_slow)
        pids = list(client.run(os.getpid).values())
        Timer(6, os.kill, (pids[number], signal.SIGKILL)).start()
        begun = time.monotonic()
        found = fitted(X, max_iter=300)
        assert time.monotonic() - begun < 60
    assert None in bursts
    assert bursts[-1] is not None  # with the worker that replaced it
    same_bits(found, X, max_iter=300)


@needs_two
def test_ranks(rng):
    X = samples(rng, 300_000, 72, 30)
    context = multiprocessing.get_context("spawn")
    one, other = context.Pipe()
    answers, ends = context.Queue(), (one, other)
    options = [{**OPTIONS, "device": f"cuda:{rank}"} for rank in range(2)]
    rows = X[:110_000], X[110_000:]
    processes = [
        context.Process(target=run_rank, args=(i, {1 - i: ends[i]}, answers, rows[i], 20, options[i])) for i in range(2)
    ]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(60)
    expected = TSKMeans(20, device="cpu", engine="fused", **OPTIONS).fit(X)
    np.testing.assert_array_equal(np.concatenate([found[0].labels, found[1].labels]), expected.labels_)
    for one in found.values():
        np.testing.assert_array_equal(one.cluster_centers, expected.cluster_centers_)
        assert (one.inertia, one.n_iter) == (expected.inertia_, expected.n_iter_)
