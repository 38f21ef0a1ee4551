"""Records of the benchmark of protected linear layers."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tsapps.apps.abft.modules import on_cpu  # noqa: E402
from tsapps.bench.abft import linear  # noqa: E402
from tsapps.bench.common import record  # noqa: E402

SECONDS = {"nn.Linear": [1.0, 2.0, 4.0], "protected": [1.5, 2.5, 4.0]}


def test_records_by_hand(tmp_path):
    sizes = {"tokens": 64, "dtype": "bfloat16", "features": 256}
    found = linear.records_of("forward", sizes, SECONDS) + linear.records_of("host", sizes, SECONDS)
    assert [(one["task"], one["engine"], one["seconds"], one["ratio"]) for one in found] == [
        ("forward", "nn.Linear", 2, 1),
        ("forward", "protected", 2.5, 1.25),
        ("host", "nn.Linear", 1, 1),
        ("host", "protected", 1.5, 1.25),
    ]
    path, common = tmp_path / "records.json", record.of_run("abft-linear", "a device", {}, "c")
    record.store_sorted(path, [{**common, **one} for one in found], linear.KEY, linear.FIELDS)
    assert len(record.load(path)) == 4


def test_layers_are_checked_before_they_are_timed(monkeypatch):
    layers = linear.Layers(9, 12, "float32", device="cpu")
    layers.check()
    assert len(layers.train("protected")) == 3
    monkeypatch.setattr(on_cpu, "check", lambda *_: [])
    with pytest.raises(RuntimeError, match="a protected layer is wrong: the same bits: True, faults found: \\[\\]"):
        layers.check()
