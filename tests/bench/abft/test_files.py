"""Benchmark of checksums of a file beside hashes and PAR2."""

import numpy as np
import pytest

from tsapps.apps.abft import Verdict
from tsapps.bench.abft import file_tools, files
from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file of records; one repetition of each measurement, on one core or two."""
    monkeypatch.setattr(files, "_SECONDS", 0)
    monkeypatch.setattr(files, "available_cores", lambda: 2)
    monkeypatch.setattr(files, "_COLUMNS", (7, 1 << 20))  # the second has no whole row
    return tmp_path / "records.json"


def run(path, *options):
    return files.main(["--gigabytes", "0.001", "--out", str(path), "--commit", "c", "--seed", "3", *options])


def test_encoding_and_verification(path, capsys):
    assert run(path, "--engine", "tsapps") == 0
    records = record.load(path)
    assert {one["engine"] for one in records} >= {"tsapps-numpy"}
    of_numpy = [one for one in records if one["engine"] == "tsapps-numpy"]
    assert [(one["where"], one["width"], one["job"], one["cores"]) for one in of_numpy] == [
        (where, width, job, cores)
        for where, width in (("memory", 488), ("file", 488), ("memory", 448))
        for job in ("encode", "verify")
        for cores in (1, 2)
    ]
    assert all(one["stored_bytes"] >= one["bytes"] * 5 / 256 * 0.99 for one in records)
    assert "tsapps-numpy encode memory 488, cores: 1: " in capsys.readouterr().out


def test_hashes(path, monkeypatch):
    pytest.importorskip("blake3")
    assert run(path, "--engine", "sha256", "--engine", "blake3") == 0
    found = [(one["engine"], one["where"], one["cores"]) for one in record.load(path)]
    blake3 = [("blake3", where, cores) for where in ("memory", "file") for cores in (1, 2)]
    openssl = [("sha256-openssl", where, 1) for where in ("memory", "file")]
    assert found == openssl + ([("sha256sum", "file", 1)] if file_tools.which("sha256sum") else []) + blake3


def test_tools_that_are_not_installed(path, monkeypatch, capsys):
    monkeypatch.setattr(file_tools, "which", lambda name: None)
    monkeypatch.setattr(files, "compiled_adder", lambda: None)
    assert run(path, "--engine", "par2", "--engine", "b3sum", "--engine", "tsapps-numpy") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tsapps: left out, numba is not installed" in lines
    assert [line for line in lines if line.endswith("is not installed")][1:] == [
        f"{name}: left out, is not installed" for name in ("sha256sum", "b3sum", "par2")
    ]
    assert {one["engine"] for one in record.load(path)} == {"tsapps-numpy"}


PAR2 = """#!/bin/sh
# A stand-in whose redundancy is a copy of the file.
case "$1" in
-V) echo "par2-imitation version 1.2.3" ;;
create) cp data.npy data.npy.vol0.par2 ;;
verify) cmp -s data.npy data.npy.vol0.par2 ;;
repair) {repair} ;;
esac
"""


@pytest.mark.parametrize("repair", ["cp data.npy.vol0.par2 data.npy", "true"])
def test_par2(path, tmp_path, monkeypatch, capsys, repair):
    (tmp_path / "par2").write_text(PAR2.format(repair=repair))
    (tmp_path / "par2").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(file_tools, "_PAR2_BLOCKS", (9,))
    assert run(path, "--engine", "par2") == (repair == "true")
    if repair == "true":
        assert "one changed word is not repaired" in capsys.readouterr().out
        assert record.load(path) == []
        return
    records = record.load(path)
    assert [(one["job"], one["cores"]) for one in records] == [(job, n) for job in ("create", "verify") for n in (1, 2)]
    assert {(one["engine"], one["options"]) for one in records} == {("par2-imitation", "-r2 -b9")}
    assert records[0]["versions"]["par2"] == "1.2.3"


def test_wrong_results_are_not_recorded(path, monkeypatch, capsys):
    monkeypatch.setattr(files.abft, "verify", lambda *_: Verdict())
    assert run(path, "--engine", "tsapps-numpy") == 1
    assert "verification finds 0 changed words, expected 1" in capsys.readouterr().out
    assert record.load(path) == []


def test_a_hash_that_is_always_the_same(tmp_path):
    data = file_tools.Data(tmp_path, 1 << 10, 1)
    before = data.array.copy()
    with pytest.raises(NotRightError, match="the hash of other bytes is the same"):
        files.measured(file_tools._hash_job("none", "file", data, 1, lambda _: "00", "00"), 1)
    np.testing.assert_array_equal(data.array, before)
    assert data.digest_of_file() == data.file_sha256
