"""The benchmark of sweeps over k, on the CPU."""

import numpy as np
import pytest

from tsapps.bench.common import record
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.kmeans import sweep


def test_measurements_have_the_fields(tmp_path):
    X = sweep.drawn("blobs", 400, 5)
    one = sweep.measured(X, 4, "cpu", CpuClock(), 1)
    assert one["ratio"] == one["sweep_ms"] / one["fit_ms"]
    assert one["all_iterations"] > one["iterations"]
    common = record.of_run("kmeans-sweep", "a device", {}, "c")
    given = {"engine": "tsapps", "data": "blobs", "where": "host", "n": 400, "d": 5, "k": 4}
    record.store_sorted(tmp_path / "records.json", [{**common, **given, **one}], sweep.KEY, sweep.FIELDS)


def test_what_is_wrong_is_not_stored(monkeypatch):
    X = sweep.drawn("normal", 300, 4)
    sweep.checked(X, 3, "cpu")
    with monkeypatch.context() as during:
        during.setattr("sklearn.metrics.silhouette_score", lambda *_: 0.9)
        with pytest.raises(RuntimeError, match="the silhouette of k = 2 is wrong"):
            sweep.checked(X, 3, "cpu")
    monkeypatch.setattr(sweep, "to_host", lambda labels: np.zeros_like(labels))
    with pytest.raises(RuntimeError, match="the clustering of k = 2 is not that of a single fit"):
        sweep.measured(X, 3, "cpu", CpuClock(), 1)


def test_table_by_hand():
    one = {"data": "blobs", "where": "host", "k": 20, "fit_ms": 31.8, "fits_ms": 428.7, "sweep_ms": 57.7, "ratio": 1.81}
    *_, last = sweep.sweep_table([one]).splitlines()
    assert last == "| 12 blobs | host memory | 32 ms | 429 ms | 58 ms | 1.8 times the fit |"
