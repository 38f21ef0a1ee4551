"""What is told while initial centers are chosen: how many of how many, at no cost to the choice."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.init.host_draw import blobs, data_of, trials_of

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.init.chosen import Finished
from tsapps.apps.kmeans.init.oversampling import ROUNDS
from tsapps.apps.kmeans.init.plusplus_launch import draw_plus_plus
from tsapps.apps.kmeans.initial_centers import draw_centers
from tsapps.apps.kmeans.open_engine import open_engine


class Event:
    """An event of a GPU, that nothing may wait for."""

    done = False

    def record(self):
        pass


class Machine:
    """A machine whose events a test ends."""

    def __init__(self):
        self.events = []

    def event(self):
        self.events.append(Event())
        return self.events[-1]


def test_a_gpu_tells_what_has_finished():
    """Four steps are launched: after two of them the first has ended, after the third none more, then all."""
    machine, told = Machine(), []
    finished = Finished(machine, lambda *report: told.append(report), 4)
    finished.launched()
    assert told == []
    machine.events[0].done = True
    finished.launched()
    assert told == [(1, 4)]
    finished.launched()
    assert told == [(1, 4)]
    machine.events[1].done = machine.events[2].done = True
    finished.launched()
    assert told == [(1, 4), (3, 4)]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_center_on_the_cpu(dtype, small, monkeypatch):
    if not small:
        monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
    X, told = blobs(200, 3, 6).astype(dtype), []
    engines = [open_engine(X, device="cpu") for _ in range(2)]
    found = draw_centers(engines[0], "k-means++", 6, np.random.RandomState(0), lambda *report: told.append(report))
    assert told == [(done, 6) for done in range(2, 7)]
    np.testing.assert_array_equal(found, draw_centers(engines[1], "k-means++", 6, np.random.RandomState(0)))


def test_every_center_on_a_gpu(rng):
    """Of a HostMachine, whose launches end when they return."""
    data, told = data_of(blobs(300, 4, 9), "float32"), []
    draws = rng.random((8, trials_of(9)))
    found = draw_plus_plus(data, 5, draws, lambda *report: told.append(report))
    assert told == [(done, 9) for done in range(1, 10)]
    assert found.tolist() == draw_plus_plus(data, 5, draws).tolist()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_passes_of_oversampling(device):
    X, told = blobs(400, 4, 9).astype(np.float32), []
    if device == "cpu":
        engine = open_engine(X, device="cpu")
    else:
        engine = DeviceEngine(ArrayRows(X), X.dtype, None, HostMachine(), Options(always=True))
        engine.center(engine.data.moments()[0], 5)
    draw_centers(engine, "k-means||", 5, np.random.RandomState(0), lambda *report: told.append(report))
    assert told == [(done, ROUNDS) for done in range(1, ROUNDS + 1)]


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
def test_a_fit_tells_the_run(init):
    X, told = blobs(200, 3, 6), []
    lloyd.fit(
        open_engine(X, device="cpu"),
        4,
        init=init,
        n_init=2,
        random_state=np.random.RandomState(0),
        choosing=lambda *report: told.append(report),
    )
    runs = {"k-means++": [(done, 4) for done in (2, 3, 4)], "k-means||": [(d, 5) for d in range(1, 6)], "random": []}
    assert told == [(run, *report) for run in range(2) for report in runs[init]]
