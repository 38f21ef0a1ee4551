"""Dask collections on a cluster of two processes: the bits of one process, whatever happens to the workers."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest
from exhaustive import every
from kmeans.distributed.cut_fits import samples, within
from kmeans.distributed.ranks import PRELOADED

dask = pytest.importorskip("dask", reason="needs the extra dask: dask is not installed")
distributed = pytest.importorskip("distributed", reason="needs the extra dask: distributed is not installed")

import dask.array as da  # noqa: E402
from distributed import Client, LocalCluster, Status  # noqa: E402
from distributed.utils import get_mp_context  # noqa: E402

from tsapps import TSKMeans  # noqa: E402
from tsapps.apps.kmeans.data import blocks  # noqa: E402
from tsapps.apps.kmeans.distributed import collections, dask_crew  # noqa: E402
from tsapps.apps.kmeans.distributed.crew import ClusterError, specs_of  # noqa: E402
from tsapps.apps.kmeans.distributed.dask_crew import DaskCrew  # noqa: E402
from tsapps.apps.kmeans.distributed.part import PartState  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are killed and stopped as on Linux")

# Workers process chunks of 8192 rows of 17 to 32 features, which tests here cannot change: 20,000 rows are two parts.
N, D, K = 20_000, 20, 4
# Seconds in which a fit must end, whatever happens, on a busy machine.
DEADLINE = 60


@pytest.fixture(scope="module")
def cluster():
    """Two workers with one thread each, which their nannies start again.

    Dask gives up a nanny whose worker is missing some time after it was lost, also if it has been lost a second time.
    Workers, also those in the place of lost ones, are forked by a server that has imported what they need.
    """
    options = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    processes = {"distributed.worker.multiprocessing-method": "forkserver"}
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour", **processes}):
        get_mp_context().set_forkserver_preload(PRELOADED)
        with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **options) as cluster:
            yield cluster


@pytest.fixture(scope="module")
def connected(cluster):
    with Client(cluster) as client:
        yield client


@pytest.fixture
def client(connected, monkeypatch):
    """A client of two workers; no X is small."""
    monkeypatch.setattr(collections, "SMALL", 0)
    monkeypatch.setattr(blocks, "SMALL", 0)
    within(DEADLINE, lambda: wait_for(lambda: len(connected.nthreads().keys() & tended(connected)) == 2))
    return connected


@pytest.fixture(scope="module")
def X():  # noqa: N802
    """Rows without clusters, for which no fit here ends early."""
    return np.random.default_rng(20261121).standard_normal((N, D)).astype(np.float32)


#: Options of the shortest fit, where the fit itself does not matter.
SHORT = {"init": np.eye(K, D), "max_iter": 1}


def estimator(k=K, **options):
    return TSKMeans(k, **{"random_state": 0, "max_iter": 4, "tol": 0, **options})


def alone(X, k=K, sample_weight=None, **options):
    """Return the fit of one process."""
    return estimator(k, device="cpu", engine="fused", **options).fit(X, sample_weight=sample_weight)


def together(X, k=K, sample_weight=None, **options):
    """Return the fit of a collection, which must end."""
    return within(DEADLINE, lambda: estimator(k, **options).fit(X, sample_weight=sample_weight))


def assert_same(found, expected):
    """Two fits have one digest."""
    np.testing.assert_array_equal(within(DEADLINE, found.labels_.compute), expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    assert found.cluster_centers_.dtype == expected.cluster_centers_.dtype
    assert (found.inertia_, found.n_iter_) == (expected.inertia_, expected.n_iter_)


# --- The digest of one process ----------------------------------------------------------------------------------------


def test_by_hand(client):
    X = np.zeros((N, D), np.float32)
    X[N // 2 :, 0], X[-1, 0] = 1, 1000
    found = together(da.from_array(X, chunks=(7001, D)), 2, init=X[[0, -1]])
    assert found.labels_.compute().tolist() == [0] * (N - 1) + [1]
    assert found.cluster_centers_[:, 0].tolist() == pytest.approx([(N / 2 - 1) / (N - 1), 1000])
    assert (found.n_iter_, found.device_, found.n_features_in_, found.faults_) == (2, "dask: 2 × cpu", D, 0)


CHUNKS = {
    "odd": 7001,
    "one": N,
    "of one row": ((1, 1, 1, N - 4, 1),),
    "many": 1111,
    "empty": ((0, 8000, 0, 0, 12_000, 0),),
    "of parts": ((16_384, N - 16_384),),
}


@pytest.mark.parametrize("name", CHUNKS)
def test_any_chunks(client, X, name):
    chunks = CHUNKS[name]
    collection = da.from_array(X, chunks=(chunks if isinstance(chunks, int) else chunks[0], D))
    found = together(collection, **SHORT)
    assert_same(found, alone(X, **SHORT))
    assert isinstance(found.labels_, da.Array)
    assert (found.labels_.chunks[0], found.labels_.dtype) == (collection.chunks[0], np.int32)
    assert type(found.cluster_centers_) is np.ndarray


CASES = {
    "float64": {"dtype": np.float64, "init": "array"},
    "float16": {"dtype": np.float16, "init": "array"},
    "integers": {"dtype": np.int16, "init": "array"},
    "random": {"init": "random", "n_init": 2},
    "k-means||": {"init": "k-means||"},
    "cosine": {"metric": "cosine"},
    "elkan": {"algorithm": "elkan", "init": "array"},
    "out of range": {"scale": 1e22, "init": "array"},
    "empty clusters": {"init": "empty"},
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_any_case(client, X, name):
    options = {"max_iter": 2, **CASES[name]}
    X = (10 * X if name == "integers" else options.pop("scale", 1) * X).astype(options.pop("dtype", np.float32))
    if options.get("init") in ("array", "empty"):
        centers = X[:K].astype(np.float64)
        if options["init"] == "empty":
            centers[1::2] = centers[0]
        options["init"] = centers
    assert_same(together(da.from_array(X, chunks=(7001, D)), **options), alone(X, **options))


def test_weights(client, X):
    weights = np.random.default_rng(0).random(N) + 0.5
    expected, collection = alone(X, sample_weight=weights), da.from_array(X, chunks=(7001, D))
    found = together(collection, sample_weight=weights)  # from drawn centers
    assert_same(found, expected)
    lazy = da.from_array(weights, chunks=3000)
    assert_same(together(collection, sample_weight=lazy, **SHORT), alone(X, sample_weight=weights, **SHORT))
    scores = [within(DEADLINE, lambda w=w: found.score(collection, sample_weight=w)) for w in (weights, lazy)]
    assert scores == pytest.approx([-expected.inertia_] * 2, rel=2.0**-19)


def test_one_weight_for_all_rows(client, X):
    collection = da.from_array(X, chunks=(7001, D))
    found = together(collection, sample_weight=2.0, **SHORT)
    assert found.inertia_ == pytest.approx(2 * alone(X, **SHORT).inertia_, rel=2.0**-19)
    twice = within(DEADLINE, lambda: found.score(collection, sample_weight=2.0))
    assert twice == pytest.approx(2 * found.score(collection))


def frame_of(X):
    """Return a data frame, and the names of its columns."""
    pandas = pytest.importorskip("pandas")
    frames = pytest.importorskip("dask.dataframe")
    names = [f"column {i}" for i in range(D)]
    return frames.from_pandas(pandas.DataFrame(X, columns=names), npartitions=3), names


def test_data_frames(client, X):
    collection, names = frame_of(X)
    found, expected = together(collection, **SHORT), alone(X, **SHORT)
    assert_same(found, expected)
    assert found.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(within(DEADLINE, lambda: found.predict(collection).compute()), expected.labels_)
    within(DEADLINE, lambda: found.fit(da.from_array(X, chunks=(7001, D))))
    assert not hasattr(found, "feature_names_in_")


def test_unknown_chunks(client, X):
    collection = da.from_array(X, chunks=(7001, D))
    unknown = collection[collection[:, 0] < np.inf]
    assert np.isnan(unknown.shape[0])
    found = together(unknown, **SHORT)
    assert_same(found, alone(X, **SHORT))
    assert found.labels_.chunks == ((7001, 7001, 5998),)


def test_what_is_lazy(client, X):
    collection, expected = da.from_array(X, chunks=(7001, D)), alone(X, **SHORT)
    found = together(collection, **SHORT)

    def refused(block):
        raise AssertionError("was computed")

    not_read = collection.map_blocks(refused, dtype=X.dtype, meta=np.zeros((0, 0), X.dtype))
    for lazy in (found.predict(not_read), found.transform(not_read)):
        assert isinstance(lazy, da.Array)
        assert lazy.chunks[0] == collection.chunks[0]
    labels, distances = found.predict(collection), found.transform(collection)
    assert (labels.shape, labels.dtype, distances.shape, distances.dtype) == ((N,), np.int32, (N, K), np.float32)
    np.testing.assert_array_equal(within(DEADLINE, labels.compute), expected.labels_)
    np.testing.assert_array_equal(within(DEADLINE, distances.compute), expected.transform(X))
    assert within(DEADLINE, lambda: found.score(collection)) == pytest.approx(-expected.inertia_, rel=2.0**-19)
    with_empty = da.concatenate([collection[:0], collection[:5], collection[5:5]])
    assert found.predict(with_empty).compute().tolist() == expected.labels_[:5].tolist()
    assert found.transform(with_empty).compute().shape == (5, K)


def test_other_methods(client, X):
    collection, expected = da.from_array(X, chunks=(7001, D)), alone(X, **SHORT)
    labels = within(DEADLINE, lambda: estimator(**SHORT).fit_predict(collection).compute())
    np.testing.assert_array_equal(labels, expected.labels_)
    distances = within(DEADLINE, lambda: estimator(**SHORT).fit_transform(collection).compute())
    np.testing.assert_array_equal(distances, expected.transform(X))


def test_small_collections_are_fitted_here(client, X, monkeypatch):
    monkeypatch.undo()
    X = X[:1000]
    expected = estimator().fit(X)
    found = together(da.from_array(X, chunks=(300, D)))
    assert_same(found, expected)
    assert found.labels_.chunks == ((300, 300, 300, 100),)
    assert found.device_ == "cpu"
    collection, names = frame_of(X)
    found = together(collection)
    assert_same(found, expected)
    assert found.feature_names_in_.tolist() == names


@pytest.mark.parametrize("init", [pytest.param("random", marks=pytest.mark.exhaustive), "k-means||"])
def test_this_process_holds_no_number_for_each_row(client, init):
    """Labels of 2 million rows take 8 MB; what the fit needs here takes less than half of that."""
    X = da.random.default_rng(0).random((2_000_000, 2), dtype=np.float32, chunks=(250_000, 2))
    tracemalloc.start()
    try:
        model = together(X, 3, init=init, n_init=1, max_iter=2)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert int((model.labels_ >= 0).sum().compute()) == len(X)


def test_what_is_computed_before_the_fit_has_a_deadline(client, X, monkeypatch):
    """Weights, and numbers of rows that are unknown."""
    waited, watched = [], dask_crew.watched

    def recorded(client, call, what):
        waited.append(what)
        return watched(client, call, what)

    monkeypatch.setattr(dask_crew, "watched", recorded)
    rows, weights = da.from_array(X, chunks=(7001, D)), np.random.default_rng(0).random(N) + 0.5
    found = together(rows[rows[:, 0] > -99], sample_weight=da.from_array(weights, chunks=5000), **SHORT)
    assert {"sample_weight", "the numbers of rows of X"} <= set(waited)
    assert_same(found, alone(X, sample_weight=weights, **SHORT))


def test_a_worker_that_joins_with_another_version():
    """It makes a part again whose worker was lost."""
    X = np.zeros((9, 2), np.float32)
    (spec,) = specs_of([range(9)], X.dtype, spherical=False)
    given = [X], [slice(0, 9)], None, spec
    assert dask_crew._part(*given, dask_crew._versions()).ask("first_row", PartState()).tolist() == [0, 0]
    with pytest.raises(ClusterError, match=r"^a worker has .*, the fit was begun with .*'tsapps': '0'.*: install the"):
        dask_crew._part(*given, dask_crew._versions() | {"tsapps": "0"})


# --- What is refused --------------------------------------------------------------------------------------------------


def test_no_client(X, monkeypatch):
    monkeypatch.setattr(collections, "SMALL", 0)
    monkeypatch.setattr("distributed.client._global_clients", weakref.WeakValueDictionary())
    with pytest.raises(ValueError, match=r"^X is a Dask collection, but there is no client: make one first") as caught:
        together(da.from_array(X, chunks=(7001, D)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("protect=True runs in one process", {"protect": True}),
        ("a callable init needs the whole of X", {"init": lambda X, k, random_state: X[:k]}),
        ("device='cuda:1': each worker of Dask computes on its CPU", {"device": "cuda:1"}),
        ("engine='cublas': workers of Dask do not use cuBLAS", {"engine": "cublas"}),
        ("precision='tf32': workers of Dask certify labels", {"device": "cuda", "precision": "tf32"}),
        ("engine must be one of", {"engine": "fast"}),
        ("metric must be one of", {"metric": "manhattan"}),
        ("precision must be one of", {"precision": "half"}),
        ("'max_iter' parameter", {"max_iter": 0}),
        (f"n_samples={N} should be >= n_clusters={N + 1}", {"k": N + 1}),
        (r"expected \(n_clusters, n_features\) = \(4, 20\)", {"init": np.zeros((3, D))}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_that_are_refused(client, X, message, options):
    with pytest.raises(ValueError, match=message):
        together(da.from_array(X, chunks=(7001, D)), **options)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("^X has 3 chunks of columns; expected one: rechunk it", lambda X: X.rechunk((7001, 7))),
        (r"^X has shape \(20000,\); expected a matrix", lambda X: X[:, 0]),
        ("Complex data not supported", lambda X: X + 1j),
        ("is masked; expected a number everywhere", lambda X: da.ma.masked_greater(X, 3)),
    ],
    ids=["chunks of columns", "one dimension", "complex", "masked"],
)
def test_collections_that_are_refused(client, X, message, change):
    with pytest.raises(ValueError, match=message):
        together(change(da.from_array(X, chunks=(7001, D))))


@pytest.mark.each_choice
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_what_is_no_number_is_named_by_its_row(client, X, value, metric):
    X = X.copy()
    X[N - 2, 3] = value
    collection = da.from_array(X, chunks=(7001, D))
    with pytest.raises(ValueError, match=rf"^X: row {N - 2}, column 3 is {value}: K-means needs finite numbers"):
        together(collection, metric=metric)


def test_weights_that_are_refused(client, X):
    collection = da.from_array(X, chunks=(7001, D))
    with pytest.raises(ValueError, match=r"^sample_weight has shape \(19999,\); expected one number per sample"):
        together(collection, sample_weight=np.ones(N - 1))
    with pytest.raises(ValueError, match=r"^sample_weight\[3\] is -1\.0"):
        together(collection, sample_weight=np.where(np.arange(N) == 3, -1.0, 1))
    found = together(collection, **SHORT)
    for length in (N - 1, N + 1):
        with pytest.raises(ValueError, match=r"^sample_weight has shape"):
            within(DEADLINE, lambda length=length: found.score(collection, sample_weight=np.ones(length)))


def test_frames_with_other_columns(client, X):
    """As scikit-learn refuses them."""
    collection, _ = frame_of(X)
    found = together(collection, **SHORT)
    for method in (found.predict, found.transform, found.score):
        with pytest.raises(ValueError, match="feature names should match"):
            method(collection.rename(columns={"column 3": "another"}))


@pytest.mark.filterwarnings("error")
def test_frames_are_predicted_without_warnings(client, X):
    collection, _ = frame_of(X)
    found = together(collection, **SHORT)
    with dask.config.set(scheduler="synchronous"):
        found.predict(collection).compute()


# --- Several fits -----------------------------------------------------------------------------------------------------


def test_two_fits_at_once(client, X):
    collection, found = da.from_array(X, chunks=(7001, D)), {}

    def fit(k):
        found[k] = estimator(k, max_iter=2).fit(collection)

    threads = [threading.Thread(target=fit, args=(k,), daemon=True) for k in (3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    for k in (3, 5):
        assert_same(found[k], alone(X, k, max_iter=2))


@pytest.mark.parametrize("count", [6, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_one_fit_after_another(client, X, count):
    X, before = X[:8500], kept(client)
    collection = da.from_array(X, chunks=(3001, D))
    options = {"init": X[:2], "max_iter": 1}
    expected = alone(X, 2, **options)
    for _ in range(count):
        found = together(collection, 2, **options)
        np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
        assert found.inertia_ == expected.inertia_
    assert_same(found, expected)
    del found
    within(DEADLINE, lambda: wait_for(lambda: kept(client) <= before))


def wait_for(condition):
    while not condition():
        time.sleep(0.05)


def kept(client):
    """Return what the scheduler knows and what the workers hold."""
    tasks = client.run_on_scheduler(lambda dask_scheduler: list(map(str, dask_scheduler.tasks)))
    held = client.run(lambda dask_worker: list(map(str, dask_worker.data)))
    return {*tasks, *(key for keys in held.values() for key in keys)}


# --- Workers that die -------------------------------------------------------------------------------------------------


def pids_of(client):
    """Return the process of each worker, by its address."""
    return client.run(os.getpid)


def tended(client):
    """Return the addresses of workers that have a nanny which starts another in their place."""
    nannies = client.cluster.workers.values()
    return {one.worker_address for one in nannies if one.process and one.process.status == Status.running}


def kill(client, count=1):
    """Kill workers, but not their nannies, and wait until the scheduler has removed them."""
    chosen = list(pids_of(client).items())[:count]
    wait_for(lambda: dict(chosen).keys() <= tended(client))
    for _, pid in chosen:
        os.kill(pid, signal.SIGKILL)
    while client.nthreads().keys() & dict(chosen).keys():
        time.sleep(0.01)


@pytest.fixture
def at(monkeypatch):
    """Return a function that has something done at the nth time that a question is asked, before or after it is sent.

    The answers are waited for after that.
    """
    asked, plans = {}, []
    original = DaskCrew.futures

    def futures(self, question, state, *arguments, parts=None):
        asked[question] = asked.get(question, 0) + 1
        now = [plan for plan in plans if plan[:2] == (question, asked[question])]
        for _, _, sent, action in now:
            if not sent:
                action()
        found = original(self, question, state, *arguments, parts=parts)
        for _, _, sent, action in now:
            if sent:
                action()
            done.append(question)
        return found

    done = []
    monkeypatch.setattr(DaskCrew, "futures", futures)

    def plan(question, number, action, *, sent=True):
        plans.append((question, number, sent, action))
        return done

    return plan


# The question, how often it has been asked, whether it has been sent, and how many workers are killed.
DEATHS = {
    "one between draws, all in an iteration": [("potentials", 2, False, 1), ("assign", 3, True, 2)],
    "one in a draw, all between iterations": [("potentials", 2, True, 1), ("assign", 3, False, 2)],
    "at the beginning": [("first_row", 1, True, 1)],
    "in the moments": [("partial_moments", 1, True, 1)],
    "all between draws": [("sums", 1, False, 2)],
    "in the sizes": [("cluster_sizes", 1, True, 1)],
    "before the labels": [("labels", 1, False, 2)],
    "three times": [("potentials", 1, True, 1), ("potentials", 3, True, 1), ("assign", 4, True, 1)],
}


@pytest.mark.parametrize("name", every(len(DEATHS), DEATHS))
def test_one_digest_if_workers_are_killed(client, X, at, name):
    for question, number, sent, count in DEATHS[name]:
        done = at(question, number, lambda count=count: kill(client, count), sent=sent)
    found = together(da.from_array(X, chunks=(7001, D)))
    assert done == [question for question, *_ in DEATHS[name]]
    assert_same(found, alone(X))


@pytest.mark.exhaustive
def test_labels_if_workers_are_killed(client, X):
    """They are found again."""
    found = together(da.from_array(X, chunks=(7001, D)))
    for count in (1, 2):
        kill(client, count)
        assert_same(found, alone(X))
        within(DEADLINE, lambda: client.wait_for_workers(2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options", [{"init": "k-means||"}, {"init": "random", "n_init": 3}, {"metric": "cosine"}], ids=str
)
def test_one_digest_of_any_fit_if_workers_are_killed(client, X, at, options):
    at("assign", 1, lambda: kill(client, 2))
    at("partners", 1, lambda: kill(client))
    at("weights_of_drawn", 1, lambda: kill(client))
    assert_same(together(da.from_array(X, chunks=(7001, D)), **options), alone(X, **options))


@pytest.mark.exhaustive
def test_nearly_equal_rows_if_workers_are_killed(client, at):
    """Whose draws depend on the last bit of a distance."""
    rng = np.random.default_rng(0)
    X = samples(rng, N, D, 5, np.float64)[rng.integers(0, 5, N)] + 1e-9 * rng.standard_normal((N, D))
    at("potentials", 7, lambda: kill(client, 2))
    assert_same(together(da.from_array(X, chunks=(7001, D)), 12), alone(X, 12))


def test_a_worker_dies_when_it_is_asked_for_its_version(client, X, monkeypatch):
    """It has been stopped, so that it does not answer; its nanny starts another."""
    pid = next(iter(pids_of(client).values()))
    os.kill(pid, signal.SIGSTOP)  # which the nanny does not notice
    watched = dask_crew.watched

    def watched_then(client, call, what):
        if what == "versions":
            os.kill(pid, signal.SIGKILL)
        return watched(client, call, what)

    monkeypatch.setattr(dask_crew, "watched", watched_then)
    monkeypatch.setattr(dask_crew, "_SECONDS", 10.0)
    monkeypatch.setattr(dask_crew, "_INTERVAL", 0.2)
    assert_same(within(30, lambda: estimator(**SHORT).fit(da.from_array(X, chunks=(7001, D)))), alone(X, **SHORT))


@pytest.mark.exhaustive
def test_rows_that_kill_their_worker(client, X, at, monkeypatch):
    """One death is one too many here; rows that the worker had in hand beside them may be named."""

    def deadly(block, block_info):
        if block_info[0]["chunk-location"][0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    collection = da.from_array(X, chunks=(7001, D)).map_blocks(deadly, dtype=X.dtype, meta=X[:0])
    client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 0))
    try:
        with pytest.raises(ClusterError, match=r"^rows \d+ to \d+ of X were lost with their workers again and again"):
            together(collection)
    finally:
        client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", 3))


def test_the_process_that_fits_is_killed(client):
    before = kept(client)
    script = f"""
import numpy as np, dask.array as da
from distributed import Client
from tsapps import TSKMeans
from tsapps.apps.kmeans.distributed import collections, dask_crew
collections.SMALL = 0
client = Client({client.scheduler.address!r})
futures = dask_crew.DaskCrew.futures
def noted(self, question, *arguments, **options):
    if question == "assign":
        print("assigns", flush=True)
    return futures(self, question, *arguments, **options)
dask_crew.DaskCrew.futures = noted
X = da.random.default_rng(0).standard_normal(({N}, {D}), chunks=(7001, {D}))
while True:
    TSKMeans(9, random_state=0, tol=0).fit(X)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert within(DEADLINE, process.stdout.readline) == "assigns\n"
        assert any("tsapps-part" in key for key in kept(client) - before)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    within(DEADLINE, lambda: wait_for(lambda: kept(client) <= before))


# --- Workers that do not answer ---------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch):
    """A fit is abandoned after three seconds of silence; workers are heard of twice in a second."""
    monkeypatch.setattr(dask_crew, "_SECONDS", 3.0)
    monkeypatch.setattr(dask_crew, "_INTERVAL", 0.1)


def test_a_worker_that_is_stopped(client, X, at, soon):
    pids, stopped = pids_of(client), []
    before = kept(client)

    def stop():
        """Stop a worker that has a part of this fit; under load, Dask may have placed all of them on the other."""
        held = {address: set(map(str, keys)) - before for address, keys in client.has_what().items()}
        stopped.append(next(one for one, keys in held.items() if any("tsapps-part" in key for key in keys)))
        os.kill(pids[stopped[0]], signal.SIGSTOP)

    at("assign", 1, stop, sent=False)
    message = r"^the worker \S+ has not been heard of for 3 s.*'assign' was waited for$"
    try:
        with pytest.raises(ClusterError, match=message) as raised:
            together(da.from_array(X, chunks=(7001, D)), **SHORT)
    finally:
        for address in stopped:
            os.kill(pids[address], signal.SIGCONT)
    assert f"the worker {stopped[0]} has" in str(raised.value)
    assert_same(together(da.from_array(X, chunks=(7001, D)), **SHORT), alone(X, **SHORT))


@pytest.mark.exhaustive
def test_a_worker_that_is_paused(client, X, soon):
    """A worker has no room: it is heard of, but does nothing."""

    def pause(dask_worker):
        dask_worker.memory_manager.memory_pause_fraction = 1e-9

    def resume(dask_worker):
        dask_worker.memory_manager.memory_pause_fraction = 0.8

    def statuses():
        return {info["status"] for info in client.scheduler_info(n_workers=-1)["workers"].values()}

    client.run(pause)
    try:
        within(DEADLINE, lambda: wait_for(lambda: statuses() == {"paused"}))
        with pytest.raises(ClusterError):
            within(15, lambda: estimator().fit(da.from_array(X, chunks=(7001, D))))
    finally:
        client.run(resume)
        within(DEADLINE, lambda: wait_for(lambda: statuses() == {"running"}))


def test_no_workers(X, soon, monkeypatch):
    monkeypatch.setattr(collections, "SMALL", 0)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as empty,
        Client(empty) as client,
    ):
        with pytest.raises(ClusterError, match=rf"^the scheduler at {client.scheduler.address} has no workers: start"):
            together(da.from_array(X, chunks=(7001, D)))
        # They were lost after the beginning.
        waits = client.submit(os.getpid)
        with pytest.raises(
            ClusterError, match=r"^no worker \(all are gone, .*\) has been running for 3 s, while 'rows' was"
        ):
            within(DEADLINE, lambda: dask_crew.watched(client, waits.result, "rows"))
        waits.release()


@pytest.mark.exhaustive
def test_a_scheduler_that_is_stopped(X, soon, monkeypatch):
    """Before a fit asks it anything; and while answers are waited for."""
    monkeypatch.setattr(collections, "SMALL", 0)
    script = "from distributed import LocalCluster; import time; c = LocalCluster(n_workers=0, dashboard_address=':0');"
    script += "print(c.scheduler_address, flush=True); time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        client = Client(within(DEADLINE, process.stdout.readline).strip(), set_as_default=False)
        waits = client.submit(os.getpid)
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(ClusterError, match=r"^the scheduler at tcp.* has not answered for 3 s"):
            within(15, lambda: dask_crew.watched(client, waits.result, "rows"))
        monkeypatch.setattr(dask_crew, "get_client", lambda: client)
        with pytest.raises(ClusterError, match=r"^the scheduler at tcp.* has not answered"):
            within(15, dask_crew.current_client)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        client.close(timeout=1)


def test_another_version(client, X, monkeypatch):
    monkeypatch.setattr(np, "__version__", "0.0.1")
    address = next(iter(client.nthreads()))
    message = rf"^the worker {address} has .*'numpy': '\d.*, this process .*'0\.0\.1'.*: install the same versions$"
    with pytest.raises(ClusterError, match=message):
        together(da.from_array(X, chunks=(7001, D)))


def test_another_version_on_one_worker(client, X):
    def become(version):
        np.__version__ = version

    right, address = np.__version__, sorted(client.nthreads())[1]
    client.run(become, "0.0.1", workers=[address])
    try:
        with pytest.raises(ClusterError, match=rf"^the worker {address} has .*'0\.0\.1'"):
            together(da.from_array(X, chunks=(7001, D)), **SHORT)
    finally:
        client.run(become, right)


def test_tls(X, monkeypatch):
    pytest.importorskip("cryptography", reason="needs cryptography, for certificates")
    from distributed.security import Security

    monkeypatch.setattr(collections, "SMALL", 0)
    monkeypatch.setattr(blocks, "SMALL", 0)
    security = Security.temporary()
    options = {"dashboard_address": ":0", "security": security, "protocol": "tls://", "processes": False}
    with LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster, Client(cluster):
        assert cluster.scheduler_address.startswith("tls://")
        assert_same(together(da.from_array(X, chunks=(7001, D)), **SHORT), alone(X, **SHORT))
