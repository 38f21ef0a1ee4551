"""Benchmark of checksums on the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.apps import abft
from tsapps.apps.abft import Verdict
from tsapps.bench.abft import check_sums, run, speed, speed_on_cpu
from tsapps.bench.abft.check_sums import check_verification
from tsapps.bench.abft.tasks import task_named
from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError


def recorded(name, path):
    common = run.common_of("cpu", "abft", "c")
    return list(speed.recorded(speed_on_cpu.CpuSpeed(3), task_named(name), path, common))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_encoding_and_verification(dtype, tmp_path):
    path = tmp_path / "abft.json"
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    encoded = recorded(f"encode-512-1024-{dtype}", path)
    verified = recorded(f"verify-70-9-{dtype}", path)
    assert [(one["code"], one["weights"]) for one in encoded] == [("both", 2), ("exact", 0), ("float", 2)]
    assert [(one["code"], one["weights"]) for one in verified] == [("exact", 0), ("float", 2)]
    assert record.load(path) == encoded + verified
    for one in encoded + verified:
        assert (one["engine"], one["library"], one["seed"], one["k"]) == ("cpu", "sha256", 3, None)
        assert min(one["ms"], one["floor_ms"], one["library_ms"]) > 0
    recorded(f"verify-70-9-{dtype}", path)
    assert len(record.load(path)) == 5


@pytest.mark.parametrize("code", ["exact", "float", "both"])
def test_a_verification_is_checked(code, rng, monkeypatch):
    A = rng.standard_normal((60, 50)).astype(np.float32)
    before, sidecar = A.copy(), abft.encode(A, code=code)
    check_verification(A, sidecar)
    np.testing.assert_array_equal(A, before)
    with monkeypatch.context() as patch:
        patch.setattr(check_sums.abft, "locate", lambda *_: [])
        with pytest.raises(NotRightError, match=r"verification finds \[\] wrong; expected \(30, \d+\) alone"):
            check_verification(A, sidecar)
    np.testing.assert_array_equal(A, before)
    A[3, 4] += 1
    with pytest.raises(NotRightError, match="reports corruption in an unchanged matrix"):
        check_verification(A, sidecar)


def test_wrong_sums_are_not_recorded(tmp_path, monkeypatch):
    """Sums that both sides compute in the same wrong way differ from their definitions."""

    def encode(A, code):
        found = right(A, code=code)
        return SimpleNamespace(exact=found.exact + 1, rows=found.rows, columns=found.columns)

    right = abft.encode
    monkeypatch.setattr(speed_on_cpu.abft, "encode", encode)
    monkeypatch.setattr(check_sums.abft, "verify", lambda *_: Verdict())
    (line,) = recorded("encode-512-512-f32", tmp_path / "abft.json")
    assert line == "encode-512-512-f32: wrong, not recorded: integer checksum 0 of stripe 0 is wrong"
    assert not (tmp_path / "abft.json").exists()


def test_what_a_cpu_leaves_out(tmp_path, monkeypatch):
    path = tmp_path / "abft.json"
    monkeypatch.setattr(speed_on_cpu, "available_host_memory", lambda: 1 << 30)
    assert recorded("matmul-5-6-7-f32", path) == ["matmul-5-6-7-f32: left out, matmul is only measured on a GPU"]
    (line,) = recorded("verify-100000-10000-f32", path)
    assert line == "verify-100000-10000-f32: left out, needs about 4.7 GiB of memory, 1.0 are free"


def test_a_file_that_is_damaged_during_a_run(tmp_path, monkeypatch):
    """The error of the file is not one of the measurement."""
    path = tmp_path / "abft.json"
    monkeypatch.setattr(speed_on_cpu, "_check", lambda *_: path.write_text("{}"))
    with pytest.raises(ValueError, match="holds a dict; expected a list of records"):
        recorded("verify-70-9-f32", path)


def test_the_read_covers_the_matrix():
    A = np.zeros((3, 3), np.float32)
    assert speed_on_cpu._read(A) == 0
    A.view(np.uint32)[2, 1] = 1  # in the last eight bytes
    assert speed_on_cpu._read(A) == 1 << 32


@pytest.mark.gpu
def test_jobs_on_a_gpu(tmp_path):
    from tsapps.kernels.devices import choose_device

    bench, common = run.opened(choose_device("cuda"), 3), run.common_of("cuda", "abft", "c")
    names = ("encode-2048-4096-f32", "verify-1024-512-f64", "matmul-5000-16-64-f16", "kmeans-100k-64-64-f32")
    for name in names:
        found = list(speed.recorded(bench, task_named(name), tmp_path / "abft.json", common))
        assert not [one for one in found if isinstance(one, str)], name
        assert len(found) == (3 if name.startswith("encode") else 1)
