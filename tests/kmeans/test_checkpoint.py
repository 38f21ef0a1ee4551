"""Checkpoints: a fit that is killed after any of them continues to the bits of a fit that was never interrupted."""

import json
import os
import re
import signal
import stat
import time
import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.distributed.test_sharded_engine import AllReduce
from kmeans.host_steps import RowsOnMachine
from sklearn.utils import check_random_state

from tsapps import TSKMeans
from tsapps.apps.kmeans import checkpoint as checkpoints
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.checkpoint import Checkpoint, parameters_of
from tsapps.apps.kmeans.checkpoint_files import CheckpointError, Start, read_state
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.distributed.sharded_engine import ShardedEngine
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.results import IterationResult
from tsapps.apps.kmeans.update import relocation
from tsapps.kernels.system.printable import OneLineError

FILES = {"state.json", "centers.npy", "before.npy", "best.npy"}
BEGIN = {"n_init": 1, "max_iter": 6, "tol": 0.0}


class Killed(BaseException):
    """What ends a fit; nothing may catch it."""


class Killing(Checkpoint):
    """A checkpoint that ends an unfinished fit after a number of writes."""

    left = 1

    def _write(self, *, finished=False):
        super()._write(finished=finished)
        self.left -= 1
        if self.left == 0 and not finished:
            raise Killed


@pytest.fixture
def always(monkeypatch):
    """Write a checkpoint after every iteration."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(name="X")
def samples(rng):
    return rng.standard_normal((300, 5)).astype(np.float32)


def bits(found):
    """Return all of a result that must be the same."""
    arrays = found.labels, found.centers, np.float64(found.inertia), found.cluster_sizes
    return [np.asarray(one).tobytes() for one in arrays], found.n_iter, found.converged, found.faults, found.step


def fit(engine, k=6, checkpoint=None, **options):
    given = {"init": "k-means++", "random_state": np.random.RandomState(3), **BEGIN, **options}
    return lloyd.fit(engine, k, checkpoint=checkpoint, **given)


def parameters(k=6, **options):
    options.pop("protect", None)
    given = {"init": "k-means++", **BEGIN, **options}
    return parameters_of(n_clusters=k, metric="euclidean", precision="exact", random_state=3, **given)


def fit_in_pieces(directory, engines, k=6, **options):
    """Fit, killed after every checkpoint. `engines` returns the engine of a piece; return the result and the pieces."""
    pieces = 0
    while True:
        pieces += 1
        try:
            return fit(engines(), k, Killing(directory, parameters(k, **options)), **options), pieces
        except Killed:
            assert set(os.listdir(directory)) <= FILES


def draw(X, k, random_state):
    return X[random_state.permutation(len(X))[:k]]


CASES = {
    "k-means++": {},
    "k-means||": {"init": "k-means||"},
    "random": {"init": "random", "n_init": 3},
    "converges strictly": {"max_iter": 100},
    "converges by the shift": {"max_iter": 100, "tol": 1e-2},
    "array": {"init": np.linspace(-1, 1, 30).reshape(6, 5)},
    "callable": {"init": draw, "n_init": 2},
    "empty clusters": {"init": np.repeat([[0.0], [9.0], [9.1]], 2, axis=0) * np.ones(5)},
    "protected": {"init": "random", "n_init": 2, "protect": True},
    "protected, empty clusters": {"init": np.repeat([[0.0], [9.0], [9.1]], 2, axis=0) * np.ones(5), "protect": True},
}


@pytest.mark.each_choice
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["auto", "fused"])
def test_a_fit_killed_after_every_checkpoint(tmp_path, always, X, engine, case):
    """The engine for small data and the one with the arithmetic of a GPU."""

    def engines():
        return open_engine(X, device="cpu", engine=engine)

    expected = fit(engines(), **CASES[case])
    assert expected.step == {"auto": "host", "fused": "exact_host"}[engine]
    assert expected.converged == case.startswith("converges")
    found, pieces = fit_in_pieces(tmp_path / "run", engines, **CASES[case])
    assert bits(found) == bits(expected)
    assert pieces > expected.n_iter + 1


@pytest.mark.parametrize("engine", ["auto", "fused"])
@pytest.mark.parametrize("options", [{"weighted": True}, {"metric": "cosine"}], ids=["weighted", "cosine"])
def test_weights_and_metrics(tmp_path, always, X, rng, engine, options):
    weights = rng.random(len(X)) if options.pop("weighted", False) else None

    def engines():
        return open_engine(X, device="cpu", engine=engine, sample_weight=weights, **options)

    found, _ = fit_in_pieces(tmp_path / "run", engines, init="random", n_init=2)
    assert bits(found) == bits(fit(engines(), init="random", n_init=2))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_data_out_of_range(tmp_path, always, X, scale):
    found, _ = fit_in_pieces(tmp_path / "run", lambda: open_engine(X * np.float32(scale), device="cpu"))
    assert bits(found) == bits(fit(open_engine(X * np.float32(scale), device="cpu")))


def on_machine(X, *, bounds=False, shards=0):
    """Return the engine of X on one HostMachine, or of X on several."""
    options = Options(always=True, bounds=bounds)
    if not shards:
        return DeviceEngine(RowsOnMachine(X), X.dtype, None, HostMachine(), options)
    machines = [HostMachine(1 + number) for number in range(shards)]
    return ShardedEngine(ArrayRows(X), X.dtype, None, machines, options, AllReduce, [1] * shards)


@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("n", "d", "k", "options"),
    [
        pytest.param(400, 3, 5, {}, marks=pytest.mark.exhaustive),
        (1200, 80, 7, {"bounds": True}),
        (400, 3, 5, {"protect": True}),
        pytest.param(400, 20, 70, {}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
@pytest.mark.parametrize("far", [False, True], ids=["", "empty clusters"])
def test_kernels(tmp_path, always, monkeypatch, rng, n, d, k, options, far):
    """Of a GPU, on a HostMachine: runs end at every checkpoint, or continue after it."""
    monkeypatch.setattr(relocation, "MOST_ORDERED", 0)
    X = (rng.standard_normal((n, d)) + 3 * rng.integers(0, 2, (n, d))).astype(np.float32)
    given = {"init": X[:k].astype(np.float64), "max_iter": 8, "protect": options.get("protect", False)}
    given["init"][k - 2 :] += 1000 * far
    bounds = options.get("bounds", False)
    expected = fit(on_machine(X, bounds=bounds), k, **given)
    found, pieces = fit_in_pieces(tmp_path / "run", lambda: on_machine(X, bounds=bounds), k, **given)
    assert bits(found) == bits(expected)
    assert pieces > 6
    monkeypatch.setattr(checkpoints, "SECONDS", 60.0)
    whole = fit(on_machine(X, bounds=bounds), k, Checkpoint(tmp_path / "whole", parameters(k, **given)), **given)
    assert bits(whole) == bits(expected)


def test_other_devices_with_the_same_arithmetic(tmp_path, always, monkeypatch, rng):
    monkeypatch.setattr(blocks, "SMALL", 0)
    X = rng.standard_normal((4200, 3)).astype(np.float32)
    turn = 0

    def engines():
        nonlocal turn
        turn += 1
        host = HostEngine(ArrayRows(X), X.dtype, None)
        return (on_machine(X), host, on_machine(X, shards=2))[turn % 3]

    found, pieces = fit_in_pieces(tmp_path / "run", engines, 5, init="random", n_init=2)
    expected = fit(on_machine(X), 5, init="random", n_init=2)
    assert bits(found)[:4] == bits(expected)[:4]
    assert pieces > 12


def test_last_iteration(tmp_path, monkeypatch):
    """Of a run that is to call again when a checkpoint is due."""
    now = 1000.0
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now)
    found = Checkpoint(tmp_path / "run", {})
    found.begin_run(0, Start(np.zeros((1, 1))), 0)
    done, asked = 0, []
    for seconds in (5, 10, 20, 20, 5, 5):  # 5 s each, and at last 1 s each
        asked.append(found.last_iteration(done, 300) - done)
        done, now = done + asked[-1], now + seconds
    assert asked == [1, 2, 4, 5, 1, 1]
    assert found.last_iteration(300 - 1, 300) == 300


PROTECTED = {"init": "random", "n_init": 2, "protect": True}


def killed(X, directory, left):
    """Fit with protection until a number of checkpoints are written."""
    killing = Killing(directory, parameters(**PROTECTED))
    killing.left = left
    with pytest.raises(Killed):
        fit(open_engine(X, device="cpu"), checkpoint=killing, **PROTECTED)
    return read_state(directory)


def test_a_lost_run_begins_again_at_the_checkpoint(tmp_path, always, X, monkeypatch):
    """Faults are counted over all pieces of a fit."""
    expected, calls, iterate = fit(open_engine(X, device="cpu"), **PROTECTED), [], HostStep.iterate

    def losing(self, centers, before, *arguments):
        calls.append(before)
        if len(calls) not in (2, 5):
            return iterate(self, centers, before, *arguments)
        centers[0] += 100
        return IterationResult(centers, 0, False, float("nan"), fault="a test", lost=True)

    monkeypatch.setattr(HostStep, "iterate", losing)
    assert killed(X, tmp_path / "run", 4)["faults"] == 1
    assert calls == [0, 1, 0]
    assert killed(X, tmp_path / "run", 1)["faults"] == 2
    assert calls == [0, 1, 0, 0, 1, 0, 1]
    given = {"checkpoint": Checkpoint(tmp_path / "run", parameters(**PROTECTED)), **PROTECTED}
    found = fit(open_engine(X, device="cpu"), **given)
    assert found.faults == 2
    found.faults = 0
    assert bits(found) == bits(expected)


def test_wrong_labels_of_an_earlier_run_are_noticed(tmp_path, always, X, monkeypatch):
    state, wrong, assign = killed(X, tmp_path / "run", 9), [], HostStep.assign
    assert (state["run"], state["iteration"]) == (1, 0)

    def assigning(self, centers, *, update=True, **arguments):
        found = assign(self, centers, update=update, **arguments)
        if not update and not wrong:
            wrong.append(True)
            self.labels[0] = (self.labels[0] + 1) % len(centers)
        return found

    monkeypatch.setattr(HostStep, "assign", assigning)
    given = {"checkpoint": Checkpoint(tmp_path / "run", parameters(**PROTECTED)), **PROTECTED}
    found = fit(open_engine(X, device="cpu"), **given)
    assert (found.faults, wrong) == (1, [True])
    found.faults = 0
    assert bits(found) == bits(fit(open_engine(X, device="cpu"), **PROTECTED))


def estimate(directory, X, **parameters):
    given = {"random_state": 3, "device": "cpu", "n_init": 2, "init": "random", **parameters}
    return TSKMeans(6, checkpoint=directory, **given).fit(X)


@pytest.fixture
def unfinished(tmp_path, always, X, monkeypatch):
    """Return the directory of a fit of `estimate` that was killed in its second run."""
    with monkeypatch.context() as patch:
        patch.setattr("tsapps.apps.kmeans.checkpoint.Checkpoint", Killing)
        patch.setattr(Killing, "left", 30)
        with pytest.raises(Killed):
            estimate(tmp_path / "run", X)
    state = read_state(tmp_path / "run")
    assert (state["run"], state["iteration"] > 1) == (1, True)
    assert set(os.listdir(tmp_path / "run")) == FILES
    return tmp_path / "run"


def attributes(kmeans):
    return kmeans.labels_.tobytes(), kmeans.cluster_centers_.tobytes(), kmeans.inertia_, kmeans.n_iter_


def test_the_estimator(tmp_path, unfinished, X):
    expected = estimate(tmp_path / "whole", X)
    assert attributes(estimate(str(unfinished), X)) == attributes(expected)
    protected = TSKMeans(6, random_state=3, device="cpu", n_init=2, init="random", protect=True).fit(X)
    assert attributes(protected) == attributes(expected)  # neither runs scikit-learn's fit
    np.testing.assert_array_equal(expected.predict(X), expected.labels_)
    with pytest.raises(CheckpointError, match="holds a finished fit, which is not computed again: name another"):
        estimate(unfinished, X)


def global_state():
    return check_random_state(None).get_state()[1].tobytes()


def test_a_generator_continues(tmp_path, unfinished, X, monkeypatch):
    """One that is given is set; the global one is not."""
    given = np.random.RandomState(7)
    with monkeypatch.context() as patch:
        patch.setattr("tsapps.apps.kmeans.checkpoint.Checkpoint", Killing)
        patch.setattr(Killing, "left", 2)
        for name, state in (("given", given), ("global", None)):
            with pytest.raises(Killed):
                estimate(tmp_path / name, X, random_state=state)
    with pytest.raises(CheckpointError, match=r"random_state: 'RandomState \w{16}' there, 'RandomState \w{16}' here"):
        estimate(tmp_path / "given", X, random_state=given)
    again, whole, seen = np.random.RandomState(7), np.random.RandomState(7), global_state()
    estimate(tmp_path / "given", X, random_state=again)
    estimate(tmp_path / "whole", X, random_state=whole)
    assert again.random_sample() == whole.random_sample()
    estimate(tmp_path / "global", X, random_state=None)
    assert global_state() == seen
    with pytest.raises(CheckpointError, match="need a RandomState of the MT19937 kind, got PCG64"):
        estimate(tmp_path / "other", X, random_state=np.random.RandomState(np.random.PCG64(1)))


DIFFERENT = {
    "max_iter": ({"max_iter": 20}, "max_iter: 300 there, 20 here"),
    "seed": ({"random_state": 4}, "random_state: 3 there, 4 here"),
    "init": ({"init": "k-means++"}, "init: 'random' there, 'k-means++' here"),
    "several": ({"tol": 0.5, "n_init": 3}, "n_init: 2 there, 3 here; tol: 0.0001 there, 0.5 here"),
    "metric": ({"metric": "cosine"}, "metric: 'euclidean' there, 'cosine' here"),
    "arithmetic": ({"engine": "fused"}, "arithmetic: 'host' there, 'fixed-point sums, certified labels' here"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_parameters_are_named(unfinished, X, name):
    given, message = DIFFERENT[name]
    expected = f"{unfinished}: holds an unfinished fit of other data or parameters ({message}): name another directory"
    with pytest.raises(ValueError, match=re.escape(expected)):
        estimate(unfinished, X, **given)


def test_other_data_is_named(unfinished, X):
    for other, message in (
        (X[:-1], r"shape of X: \[300, 5\] there, \[299, 5\] here; other values of X"),
        (X.astype(np.float64), "type of X: 'float32' there, 'float64' here"),
        (np.where(np.arange(1500).reshape(300, 5) == 700, np.nextafter(X, np.float32(9)), X), r"\(other values of X"),
        (ArrayRows(X.copy()), None),
    ):
        if message is None:
            estimate(unfinished, other)
        else:
            with pytest.raises(CheckpointError, match=message):
                estimate(unfinished, other)


def test_other_weights_are_named(unfinished, X):
    with pytest.raises(CheckpointError, match=r"\(other sample_weight\)"):
        TSKMeans(6, random_state=3, device="cpu", n_init=2, init="random", checkpoint=unfinished).fit(
            X, sample_weight=np.ones(len(X))
        )


def test_a_machine_that_rounds_otherwise_is_noticed(unfinished, X, monkeypatch):
    means = HostStep.next_centers
    monkeypatch.setattr(HostStep, "next_centers", lambda self, *given: np.nextafter(means(self, *given), np.float32(9)))
    with pytest.raises(CheckpointError, match=r"iteration \d+ of run 2, computed again, gives other centers"):
        estimate(unfinished, X)


def change(unfinished, name):
    """Change a checkpoint in place."""
    state = json.loads((unfinished / "state.json").read_text())
    if name == "another version":
        (unfinished / "state.json").write_text(json.dumps(state | {"tsapps": "0.0.9"}))
    elif name == "another kind":
        (unfinished / "state.json").write_text('{"kind": "something else"}')
    elif name == "no JSON":
        (unfinished / "state.json").write_text("{")
    elif name == "another number":
        (unfinished / "state.json").write_text(json.dumps(state | {"iteration": 3}))
    elif name == "another file":
        (unfinished / "notes.txt").write_text("mine")
    elif name == "no state":
        (unfinished / "state.json").unlink()
    elif name == "no array":
        (unfinished / "before.npy").unlink()
    elif name == "another array":
        np.save(unfinished / "best.npy", np.load(unfinished / "best.npy") + 1)
    elif name == "half an array":
        (unfinished / "centers.npy").write_bytes((unfinished / "centers.npy").read_bytes()[:100])


CHANGES = {
    "another version": (CheckpointError, r"was written by tsapps 0\.0\.9, and this is"),
    "another kind": (CheckpointError, 'is not of a checkpoint .its "kind" is not "tsapps kmeans checkpoint"'),
    "no JSON": (OneLineError, r"state\.json: is not valid JSON .* it is damaged: delete the checkpoint"),
    "another number": (OneLineError, r"state\.json: is damaged: delete the checkpoint, and begin the fit again"),
    "another file": (CheckpointError, r"run: holds 'notes\.txt', which is not of a checkpoint: name another one"),
    "no state": (CheckpointError, r"run: holds 'before\.npy', which is not of a checkpoint"),
    "no array": (OSError, "No such file"),
    "another array": (OneLineError, r"best\.npy: is damaged"),
    "half an array": (OneLineError, r"centers\.npy: is damaged"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_checkpoint_is_refused_and_kept(unfinished, X, name):
    change(unfinished, name)
    before = {path: path.read_bytes() for path in unfinished.iterdir()}
    kind, message = CHANGES[name]
    with pytest.raises(kind, match=message) as raised:
        estimate(unfinished, X)
    assert type(raised.value) is kind or kind is OSError
    assert {path: path.read_bytes() for path in unfinished.iterdir()} == before


def test_bits_that_flip_are_noticed(unfinished, X, rng):
    """In any file of a checkpoint."""
    for path in sorted(unfinished.iterdir()):
        content = path.read_bytes()
        for _ in range(20):
            damaged = bytearray(content)
            damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match=r"^.*$"):
                estimate(unfinished, X)
        path.write_bytes(content)


def test_places(tmp_path, always, X, monkeypatch):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    for place, message in (
        (tmp_path / "no/where", r"there is no directory .*no: create it first"),
        (tmp_path / "file", "file: exists and is not a directory"),
    ):
        with pytest.raises(CheckpointError, match=message):
            estimate(place, X)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "empty")
        with pytest.raises(CheckpointError, match="is the current directory"):
            estimate(".", X)
    estimate(tmp_path / "link", X)
    assert (tmp_path / "link").is_symlink()
    assert read_files(tmp_path / "empty") == {"state.json", "best.npy"}


def read_files(directory):
    """Return the names of the files of a directory, which only its owner may read."""
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    return set(os.listdir(directory))


@pytest.mark.parametrize("what", ["a file", "another checkpoint"])
def test_what_another_program_wrote_meanwhile_is_kept(tmp_path, always, X, what):
    place, written = tmp_path / "run", []

    class Writing(Checkpoint):
        def _write(self, **options):
            super()._write(**options)
            written.append(True)
            if len(written) == 3 and what == "a file":
                (place / "notes.txt").write_text("mine")
            elif len(written) == 3:
                with pytest.raises(Killed):
                    fit(engine(), checkpoint=Killing(place, parameters()))

    def engine():
        return open_engine(X, device="cpu")

    with pytest.raises(CheckpointError, match="run: has been changed by another program since the last checkpoint"):
        fit(engine(), checkpoint=Writing(place, parameters()))
    if what == "a file":
        assert (place / "notes.txt").read_text() == "mine"
        (place / "notes.txt").unlink()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    assert bits(fit(engine(), checkpoint=Checkpoint(place, parameters()))) == bits(fit(engine()))


def test_a_process_killed_at_random_moments(tmp_path, monkeypatch, X, rng):
    """Each next one continues; what the kills leave is removed."""
    monkeypatch.setattr(checkpoints, "SECONDS", 0.0)
    options, seen = {"init": "random", "n_init": 3, "max_iter": 40}, set()

    def begin(name):
        child = os.fork()
        if child == 0:
            with suppress(BaseException), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                engine = open_engine(X, device="cpu", engine="fused")
                found = fit(engine, checkpoint=Checkpoint(tmp_path / name, parameters(**options)), **options)
                (tmp_path / f"{name}.bits").write_text(repr(bits(found)))
            os._exit(0)
        return child

    began = time.monotonic()
    os.waitpid(begin("whole"), 0)
    seconds = time.monotonic() - began
    for number in range(10):
        child = begin("run")
        time.sleep(rng.uniform(0, 0.4 * seconds))
        os.kill(child, (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)[number % 3])
        os.waitpid(child, 0)
        with suppress(FileNotFoundError):
            state = json.loads((tmp_path / "run/state.json").read_text())
            seen.add((state["run"], state["iteration"]))
    assert len(seen) > 1
    os.waitpid(begin("run"), 0)
    expected = fit(open_engine(X, device="cpu", engine="fused"), **options)
    found = [(tmp_path / f"{name}.bits").read_text() for name in ("whole", "run")]
    assert found == [repr(bits(expected))] * 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run", "run.bits", "whole", "whole.bits"]


def test_ctrl_c(tmp_path, always, X, request):
    """Leaves the last complete checkpoint."""
    # A process in the background of a script ignores the signal.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(progress):
        if progress.iteration == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(open_engine(X, device="cpu"), checkpoint=Checkpoint(tmp_path / "run", parameters()), progress=interrupt)
    assert read_state(tmp_path / "run")["iteration"] == 3
    seen = []
    found = fit(
        open_engine(X, device="cpu"), checkpoint=Checkpoint(tmp_path / "run", parameters()), progress=seen.append
    )
    assert bits(found) == bits(fit(open_engine(X, device="cpu")))
    assert [progress.iteration for progress in seen] == [4, 5, 6]
