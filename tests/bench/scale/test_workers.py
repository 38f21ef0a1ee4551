"""tsapps.bench.scale.workers, with two workers and few rows."""

import json

import numpy as np
import pytest

from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.distributed import collections
from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.scale import workers
from tsapps.bench.scale.workers import Case

pytest.importorskip("distributed", reason="needs the extra dask")


@pytest.fixture
def _quick(monkeypatch):
    """No X is small, and fits are short."""
    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(collections, "SMALL", 0)
    for name, value in (("_SHORT", 1), ("_FIT", 2), ("_LONG", 3), ("_REPEATS", 1), ("_CHUNK", 1500)):
        monkeypatch.setattr(workers, name, value)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_quick")
def test_a_case_and_its_record(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(workers, "CASES", (Case(4000, 20, 5),))
    assert workers.main(["--workers", "2", "--seed", "3", "--out", str(tmp_path / "scale.json")]) == 0
    (one,) = json.loads((tmp_path / "scale.json").read_text())
    assert (one["mode"], one["parts"], one["n"], one["device"]) == ("dask", 2, 4000, record.cpu_name())
    assert one["fit_ms"] > 0  # the others are differences of short times
    assert "on 2 workers" in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_quick")
def test_another_digest_is_wrong(monkeypatch):
    digests = iter(("0123", "4567"))
    monkeypatch.setattr(workers, "digest_of", lambda _: next(digests))
    with pytest.raises(NotRightError, match="the digests are 0123 and 4567"):
        workers.OnWorkers(2, np.random.default_rng(0).integers(99)).measured(Case(4000, 20, 5))
