"""``tsapps bench abft`` on the CPU, on a stand-in for a GPU, and on a GPU."""

import json

import pytest

from tsapps.bench.abft import check_sums
from tsapps.bench.abft import speed as bench
from tsapps.bench.common.roofline import Streams
from tsapps.bench.common.timing import CpuClock
from tsapps.errors import ExitCode
from tsapps.kernels import devices
from tsapps.kernels.gpu_specs import KNOWN

SHAPES = ["--shapes", "encode-64-32-f32, verify-70-9-f64"]
OUT = "tsapps-bench.json"
PROBE = devices._probe


@pytest.fixture
def gpu(numpy_for_cupy, stand_in_gpu, monkeypatch):
    """A stand-in GPU on which NumPy computes, and a read of 4 GB takes a second."""
    stand_in_gpu(KNOWN["H200"])
    monkeypatch.setattr(bench, "GpuClock", CpuClock)
    monkeypatch.setattr(bench.roofline, "measure_streams", lambda _: Streams(((0.0, 4.0), (1.0, 4.0))))


def test_without_a_gpu(succeed, directory):
    text = succeed("bench", "abft", *SHAPES)
    assert text.startswith("Checksums on the CPU: CuPy is not installed")
    assert text.endswith("5 records in tsapps-bench.json\n")
    for part in ("encode-64-32-f32", "verify-70-9-f64", "GB/s", "of read", "of library", "overhead"):
        assert part in text
    records = json.loads((directory / OUT).read_text())
    assert [(one["job"], one["code"], one["engine"]) for one in records] == [
        *(("encode", code, "cpu") for code in ("both", "exact", "float")),
        *(("verify", code, "cpu") for code in ("exact", "float")),
    ]
    row = next(line for line in text.splitlines() if line.split()[:2] == ["verify-70-9-f64", "exact"]).split()
    verify = records[3]
    assert row[-2:] == [f"{verify[name] / verify['ms']:.1%}" for name in ("floor_ms", "library_ms")]


def test_json_and_quiet(succeed, directory):
    found = json.loads(succeed("bench", "abft", *SHAPES, "--out", "mine.json", "--json"))
    assert found == {"file": "mine.json", "left_out": [], "records": json.loads((directory / "mine.json").read_text())}
    assert succeed("bench", "abft", *SHAPES, "--out", "mine.json", "--quiet") == ""
    assert len(json.loads((directory / "mine.json").read_text())) == 5  # replaced


def test_two_devices_in_one_file(succeed, directory, gpu):
    names = "verify-70-9-f64,matmul-500-16-64-f32"
    succeed("bench", "abft", "--shapes", names, "--device", "cpu")
    text = succeed("bench", "abft", "--shapes", names)
    assert text.splitlines()[0].rstrip() == "Checksums on NVIDIA H200"
    records = json.loads((directory / OUT).read_text())
    assert [(one["engine"], one["job"], one["code"]) for one in records] == [
        ("cpu", "verify", "exact"),
        ("cpu", "verify", "float"),
        ("cuda", "verify", "exact"),
        ("cuda", "matmul", "proven"),
    ]
    product = records[3]
    assert product["floor_ms"] == pytest.approx(4 * (500 * 64 + 64 * 16 + 500 * 16) / 4e6)
    assert f"{product['ms'] / product['unprotected_ms'] - 1:+.1%}" in text
    succeed("bench", "abft", "--shapes", names)
    assert len(json.loads((directory / OUT).read_text())) == 4


def test_what_a_gpu_leaves_out(succeed, gpu):
    names = "encode-500-512-f32,matmul-500-16-64-bf16"
    found = json.loads(succeed("bench", "abft", "--shapes", names, "--json"))
    assert found["left_out"] == [
        "encode-500-512-f32: left out, expected multiples of 512 as rows and columns of a matrix to encode on a GPU",
        "matmul-500-16-64-bf16: left out, protected products of bfloat16 are not measured",
    ]


def test_a_matrix_that_does_not_fit_the_gpu(succeed, gpu, monkeypatch):
    import cupy

    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (1 << 20, 8 << 30))
    found = json.loads(succeed("bench", "abft", "--shapes", "verify-10000-10000-f32,verify-70-9-f64", "--json"))
    assert found["left_out"] == [
        "verify-10000-10000-f32: left out, needs about 1.1 GiB of memory, 0.0 are free",
    ]
    assert [one["m"] for one in found["records"]] == [70]


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_fault_that_is_not_found(run, directory, gpu, monkeypatch, device):
    monkeypatch.setattr(check_sums.abft, "locate", lambda *_: [(0, 0)])
    result = run("bench", "abft", "--shapes", "verify-70-9-f64", "--device", device)
    assert result.exit_code == ExitCode.FAILURE
    assert result.stderr.startswith(
        "tsapps: wrong results: 1 (verify-70-9-f64: wrong, not recorded: verification finds"
    )
    assert not (directory / OUT).exists()


def test_list(succeed, directory):
    text = succeed("bench", "abft", "--list")
    for part in (
        "encode-30720-30720-f16",
        "matmul-10000000-16-64-f64",
        "kmeans-10M-128-64-f32",
        "verify-8192-4096-f32",
    ):
        assert part in text
    assert not list(directory.iterdir())


@pytest.mark.parametrize("shape", ["", "5-6-f32", "encode-5-f32", "encode-5-6-f8", "kmeans-5-f32", "verify-5-6-f32,"])
def test_a_shape_that_is_none(refuse, shape):
    line = refuse(ExitCode.USAGE, "bench", "abft", f"--shapes={shape}")
    assert "expected encode-m-n-dtype, verify-m-n-dtype, matmul-m-n-k-dtype or kmeans-n-d-k-dtype" in line


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--device", "gpu"], ExitCode.USAGE, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--device", "cuda"], ExitCode.NO_DEVICE, "device 'cuda' was asked for, but CuPy is not installed"),
        (["--out", "absent/mine.json"], ExitCode.USAGE, "absent/mine.json: there is no directory"),
    ],
)
def test_wrong_options(refuse, arguments, code, what):
    assert what in refuse(code, "bench", "abft", *arguments)


@pytest.mark.gpu
def test_on_a_gpu(succeed, monkeypatch):
    monkeypatch.setattr(devices, "_probe", PROBE)
    names = "encode-1024-2048-f32,verify-1024-2048-bf16,matmul-5000-16-64-f32,kmeans-100k-64-64-f32"
    found = json.loads(succeed("bench", "abft", "--shapes", names, "--json"))
    assert found["left_out"] == []
    jobs = ["encode", "encode", "encode", "verify", "matmul", "kmeans"]
    assert [one["job"] for one in found["records"]] == jobs
