import errno
import json
import subprocess

import pytest

from tsapps.bench.common import record

GOOD = {
    "what": "kmeans",
    "engine": "cublas",
    "device": "NVIDIA H200",
    "versions": {"python": "3.12.3"},
    "commit": "abc",
    "date": "2026-11-21",
    "n": 3,
    "ms": 1.5,
}
FIELDS = {"n": (int,), "ms": (float, type(None))}
KEY = ("what", "engine", "n")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core"),
        ("Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz", "intel-xeon-platinum-8480"),
    ],
)
def test_slug(device, expected):
    assert record.slug(device) == expected
    assert record.results_path(device, "kmeans").parts[-4:] == ("bench", "results", expected, "kmeans.json")


def test_a_complete_record_passes():
    record.check(GOOD, FIELDS)
    record.check({**GOOD, "ms": None, "note": "other fields are allowed"}, FIELDS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engine": None}, "'engine' is None; expected str"),
        ({"n": 3.0}, "'n' is 3.0; expected int"),
        ({"n": True}, "'n' is True; expected int"),
        ({"ms": "1"}, "'ms' is '1'; expected float or null"),
        ({"ms": float("nan")}, "cannot be kept"),
        ({"date": "21 November"}, "cannot be kept"),
        ({"note": object()}, "cannot be kept"),
    ],
)
def test_an_invalid_record_is_rejected(change, message):
    with pytest.raises(ValueError, match=message):
        record.check({**GOOD, **change}, FIELDS)


@pytest.mark.parametrize("name", ["versions", "n"])
def test_a_missing_field_is_rejected(name):
    with pytest.raises(ValueError, match=f"lacks the field '{name}'"):
        record.check({key: value for key, value in GOOD.items() if key != name}, FIELDS)


def test_store_replaces_by_key_and_appends(tmp_path):
    path = tmp_path / "deep" / "kmeans.json"
    assert record.load(path) == []
    for one in (GOOD, {**GOOD, "n": 4}, {**GOOD, "ms": 0.5}):
        record.store(path, one, KEY, FIELDS)
    assert record.load(path) == [{**GOOD, "ms": 0.5}, {**GOOD, "n": 4}]
    assert [p.name for p in path.parent.iterdir()] == ["kmeans.json"]
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", 4)


def test_an_invalid_record_is_not_stored(tmp_path):
    path = tmp_path / "kmeans.json"
    record.store(path, GOOD, KEY, FIELDS)
    with pytest.raises(ValueError, match="'ms' is '1'"):
        record.store(path, {**GOOD, "ms": "1"}, KEY, FIELDS)
    assert record.load(path) == [GOOD]


def test_a_failed_store_leaves_the_file_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "kmeans.json"
    record.store(path, GOOD, KEY, FIELDS)

    def fail(*_):
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        record.store(path, {**GOOD, "n": 4}, KEY, FIELDS)
    assert record.load(path) == [GOOD]
    assert [p.name for p in tmp_path.iterdir()] == ["kmeans.json"]


def test_load_rejects_anything_but_a_list(tmp_path):
    path = tmp_path / "kmeans.json"
    path.write_text(json.dumps(GOOD))
    with pytest.raises(ValueError, match="holds a dict; expected a list"):
        record.load(path)


def test_commit_is_dirty_after_any_change_except_records(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e@e", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    assert record.commit_of(tmp_path) == "unknown"
    git("init")
    assert record.commit_of(tmp_path) == "unknown"
    (tmp_path / "code").write_text("1")
    git("add", ".")
    git("commit", "-m", "one")
    commit = record.commit_of(tmp_path)
    assert len(commit) == 40
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    (results / "kmeans.json").write_text("[]")
    assert record.commit_of(tmp_path) == commit
    (tmp_path / "code").write_text("2")
    assert record.commit_of(tmp_path) == f"{commit}-dirty"


def test_module_versions():
    import numpy

    versions = record.module_versions({"NumPy": "numpy", "none": "json.tool"})
    assert versions["NumPy"] == numpy.__version__
    assert versions["none"] == "unknown"
    assert versions["python"]


def test_replace_keeps_other_records_of_a_mixed_file(tmp_path):
    path, other = tmp_path / "mine.json", {**GOOD, "what": "gemm"}
    record.replace(path, [GOOD, {**GOOD, "ms": 0.5}], KEY, FIELDS)
    record.replace(path, [other], KEY, FIELDS)
    assert record.load(path) == [GOOD, {**GOOD, "ms": 0.5}, other]
    record.replace(path, [{**GOOD, "ms": 0.25}], KEY, FIELDS)
    assert record.load(path) == [other, {**GOOD, "ms": 0.25}]
    with pytest.raises(ValueError, match=r"'n' is 0\.5"):
        record.replace(path, [{**GOOD, "n": 0.5}], KEY, FIELDS)
    assert len(record.load(path)) == 2
