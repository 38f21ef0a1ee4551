"""What the package logs, by the module logging, which it does not configure."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps import TSKMeans, choose_k, open_matrix
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.kernels.jit import compiler
from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.system.logs import logger_of, timed


@pytest.fixture
def said(caplog):
    """Return a function that returns what was logged at a level, as (name without the package's, message)."""
    caplog.set_level(logging.DEBUG, "tsapps")

    def said(level=logging.INFO):
        of_level = [one for one in caplog.records if one.levelno == level and one.name.startswith("tsapps.")]
        return [(one.name.removeprefix("tsapps."), one.getMessage()) for one in of_level]

    return said


def test_a_fit_of_a_matrix(said, rng, tmp_path):
    np.save(tmp_path / "x.npy", rng.standard_normal((90, 3)))
    TSKMeans(4, device="cpu", random_state=0).fit(open_matrix(tmp_path / "x.npy"))
    found = said()
    assert ("apps.kmeans.lloyd", "k = 4: step host: small data follows scikit-learn's rounding") in found
    assert ("apps.kmeans.open_engine", f"{tmp_path / 'x.npy'}: device cpu: the CPU was asked for") in found
    (opened,) = [message for name, message in found if name == "matrix.registry"]
    assert opened.startswith(f"opened {tmp_path / 'x.npy'}: 90 × 3 float64 in 0.")
    details = [message for name, message in said(logging.DEBUG) if name == "apps.kmeans.run"]
    assert details
    assert all(one.startswith("after iteration ") for one in details)


def test_a_fit_by_scikit_learn(said, rng):
    model = TSKMeans(4, device="cpu", random_state=0).fit(rng.standard_normal((90, 3)))
    message = f"k = 4: fitted by scikit-learn on the CPU, {model.n_iter_} iterations"
    assert said() == [("apps.kmeans.scikit_learn", message)]


def test_a_fit_on_a_gpu_says_which_kernels(said, rng):
    X = rng.standard_normal((300, 20)).astype(np.float32)
    engine = DeviceEngine(ArrayRows(X), X.dtype, None, HostMachine(), Options(always=True))
    found = lloyd.fit(engine, 33, max_iter=2, random_state=np.random.RandomState(0))
    assert ("apps.kmeans.lloyd", f"k = 33: step {found.step}: {found.step_reason}") in said()
    ((_, plan),) = [one for one in said(logging.DEBUG) if one[0] == "apps.kmeans.engines.device_engine"]
    assert plan.startswith(f"k = 33: StepPlan(step={found.step!r}, ")


def test_a_sweep_says_why_it_opens_data_again(said, rng, monkeypatch):
    monkeypatch.setattr("tsapps.apps.kmeans.engines.engine.HostEngine.is_reusable", False)
    choose_k(rng.standard_normal((60, 2)), (2, 3), device="cpu")
    assert ("apps.kmeans.shared_copy", "X is opened again: the last fit left no copy for the next") in said()


def test_a_fault_is_a_warning(said):
    Protection().found("labels differed", "iteration 3")
    assert said(logging.WARNING) == [("apps.kmeans.protect.checks", "a fault in iteration 3: labels differed")]


def test_compilation(said, monkeypatch, tmp_path, capsys):
    made = Cubin(tmp_path / "kernel.cubin", {}, {}, 2.5)
    monkeypatch.setattr(compiler, "_inputs", lambda *_: ({}, (), tmp_path / "kernel"))
    monkeypatch.setattr(compiler, "_compile", lambda *_: made)
    monkeypatch.setattr(compiler, "load", lambda _: None)
    compiler.build("", ["one<float>", "two", "three"], "sm_90a")
    assert said() == [("kernels.jit.compiler", "compiled one<float> and 2 more for sm_90a in 2.50 s")]
    assert capsys.readouterr().err.startswith("tsapps: compiled a kernel in 2.5 s and saved it in ")
    monkeypatch.setattr(compiler, "load", lambda _: made)
    compiler.build("", ["one<float>"], "sm_90a")
    assert said(logging.DEBUG) == [("kernels.jit.compiler", f"loaded one<float> for sm_90a from {made.path}")]


def test_an_error_is_not_timed(said):
    with pytest.raises(ValueError, match="a test"), timed(logger_of("tsapps.a.test"), "did %s", "this"):
        raise ValueError("a test")
    with timed(logger_of("tsapps.a.test"), "did %s", "that"):
        pass
    ((_, message),) = said()
    assert message.startswith("did that in 0.")


def test_nothing_is_printed_unless_the_application_asks():
    """Not even warnings, which Python would print without a handler."""
    code = (
        "import logging, numpy as np, tsapps\n"
        "from tsapps.apps.kmeans.protect.checks import Protection\n"
        "tsapps.TSKMeans(2, device='cpu').fit(np.arange(20.).reshape(10, 2))\n"
        "Protection().found('a test', 'iteration 1')\n"
        "assert logging.getLogger('tsapps').level == logging.NOTSET and not logging.getLogger().handlers"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
