"""tsapps.bench.paper on stand-ins for a GPU, on which NumPy computes; and on a GPU."""

import json

import numpy as np
import pytest

from tsapps.bench.abft import speed
from tsapps.bench.common import roofline
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.roofline import Streams
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.gemm import libraries
from tsapps.bench.paper import run
from tsapps.bench.paper.experiments import EXPERIMENTS, PAPER, Case, cases
from tsapps.kernels import matmul


@pytest.fixture
def on(numpy_for_cupy, monkeypatch):
    """Return an `OnGpu` on which NumPy computes; a read of 4 GB takes a second, and cuBLAS 2 ms."""

    def best(A, B, out, *, check, **_):
        np.matmul(A, B, out=out)
        check()
        return "cublas", 2.0

    monkeypatch.setattr(speed, "GpuClock", CpuClock)
    monkeypatch.setattr(roofline, "measure_streams", lambda _: Streams(((0.0, 4.0), (1.0, 4.0))))
    monkeypatch.setattr(libraries, "best", best)
    monkeypatch.setattr(run, "tsm2_paper", lambda _, A, B, out: np.matmul(A, B, out=out))
    monkeypatch.setattr(matmul, "matmul", lambda A, B, out: np.matmul(A, B, out=out))
    return run.OnGpu(3)


def stored(on, case, path):
    return list(run.recorded(on, case, path, run.common_fields(on, "abc")))


def test_sizes_are_those_of_the_paper():
    products = list(cases("bandwidth"))
    assert len(products) == len(list(cases("versions"))) == 2 * 5 * 4
    assert {(one.m, one.k) for one in products} == {(m, m) for m in (10_240, 15_360, 20_480, 25_600, 30_720)}
    assert {one.n for one in products} == {2, 4, 8, 16}
    assert [one.m for one in cases("kmeans")] == [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144]
    assert {(one.k, one.n, one.dtype) for one in cases("kmeans")} == {(4096, 16, "float64")}
    assert {experiment for experiment, *_ in PAPER} == set(EXPERIMENTS)
    assert all(one.m % 512 == 0 for one in cases("checksums"))  # blocks of the float code


def test_versions_are_compared_with_the_version_before(on, tmp_path):
    found = stored(on, Case("versions", 300, 300, 4, "float32"), tmp_path / "paper.json")
    assert [(one["engine"], one["baseline"]) for one in found] == [
        ("tsm2_v1", "tsm2_v0"),
        ("tsm2_v2", "tsm2_v1"),
        ("tsm2_v3", "tsm2_v2"),
    ]
    assert found[1]["baseline_ms"] == found[0]["ms"]
    assert found[0]["paper_speedup"] == [2.2, None, 4.7]
    assert json.loads((tmp_path / "paper.json").read_text()) == found


def test_bandwidth(on, tmp_path):
    found = stored(on, Case("bandwidth", 256, 256, 2, "float64"), tmp_path / "paper.json")
    assert [one["engine"] for one in found] == ["tsm2_v3", "tsapps"]
    n_bytes = 8 * (256 * 256 + 256 * 2 + 256 * 2)
    for one in found:
        assert (one["baseline_ms"], one["peak_gbs"]) == (2.0, 4.0)
        assert one["speedup"] == 2.0 / one["ms"]
        assert one["gbs"] == pytest.approx(n_bytes / one["ms"] / 1e6)
        assert one["baseline_gbs"] == pytest.approx(n_bytes / 2e6)
        assert one["paper_points"] == [17.0, 34.7, 47.6]


def test_wrong_products_are_not_recorded(on, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "tsm2_paper", lambda _, A, B, out: np.add(A @ B, 0.1, out=out))
    (line,) = stored(on, Case("versions", 64, 64, 2, "float64"), tmp_path / "paper.json")
    assert line.startswith("versions 64 × 64 · 2 float64: wrong, not recorded")
    assert not (tmp_path / "paper.json").exists()


def test_checksums_are_those_of_the_other_benchmark(on, tmp_path, monkeypatch):
    asked = []

    def measure(_, task):
        asked.append(task)
        yield {"ms": 0.5, "library_ms": 1.0}

    monkeypatch.setattr(speed.Speed, "measure", measure)
    (one,) = stored(on, Case("checksums", 1024, 1024, 2, "float64"), tmp_path / "paper.json")
    assert (one["ms"], one["baseline_ms"], one["speedup"]) == (0.5, 1.0, 2.0)
    assert one["gbs"] == pytest.approx(8 * 1024 * 1024 / 0.5e6)
    assert [(task.name, task.codes) for task in asked] == [("encode-1024-1024-f64", ("float",))]


def test_kmeans_by_a_stand_in(on, tmp_path, monkeypatch):
    import tsapps

    engines = []

    fits = tsapps.TSKMeans

    def on_the_cpu(k, *, engine, **options):
        engines.append(engine)
        return fits(k, device="cpu", **options)

    monkeypatch.setattr(tsapps, "TSKMeans", on_the_cpu)
    (one,) = stored(on, Case("kmeans", 300, 20, 4, "float64"), tmp_path / "paper.json")
    assert engines == ["auto", "cublas"]
    assert one["speedup"] == one["baseline_ms"] / one["ms"]
    assert one["gbs"] is one["peak_gbs"] is one["paper_points"] is None


def test_labels_are_checked(rng):
    X, centers = rng.random((200, 7)), rng.random((5, 7))
    labels = ((X[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    run.check_labels(np, X, labels, centers)
    labels[3] = (labels[3] + 1) % 5
    with pytest.raises(NotRightError, match="1 of 200 labels"):
        run.check_labels(np, X, labels, centers)


def test_what_does_not_fit_is_left_out(on, tmp_path, monkeypatch):
    monkeypatch.setattr(on.xp.cuda.runtime, "memGetInfo", lambda: (1 << 20, 1 << 30))
    (line,) = stored(on, Case("versions", 64, 64, 2, "float64"), tmp_path / "paper.json")
    assert line.startswith("versions 64 × 64 · 2 float64: left out, needs about 1.0 GiB")


def test_no_gpu(monkeypatch, capsys):
    monkeypatch.setattr(run, "gpus", lambda: ())
    assert run.main(["kmeans"]) == 1
    assert "no GPU to time" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run.main(["speed"])
    assert "experiment 'speed': expected versions, bandwidth, kmeans, checksums" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Case("versions", 700, 512, 4, "float32"),
        Case("bandwidth", 700, 512, 4, "float64"),
        Case("kmeans", 1500, 300, 16, "float64"),
        Case("checksums", 1024, 1024, 2, "float64"),
    ],
    ids=lambda case: case.name,
)
def test_on_a_gpu(case, tmp_path):
    pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    found = stored(run.OnGpu(1), case, tmp_path / "paper.json")
    assert all(isinstance(one, dict) and one["ms"] > 0 for one in found), found
    assert len(found) == sum(experiment == case.experiment for experiment, *_ in PAPER)
