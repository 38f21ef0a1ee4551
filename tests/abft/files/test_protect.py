"""protect_files: sidecars, manifests, and what a second run does."""

import hashlib
import json
import os

import blake3
import numpy as np
import pytest

from tsapps.apps.abft import read_sidecar
from tsapps.apps.abft.files.manifest import MANIFEST, Manifest
from tsapps.apps.abft.files.places import PlaceError
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.verify import verify_files


def states(reports):
    return {os.path.basename(report.path): report.state for report in reports}


def test_by_hand(tmp_path):
    """Two words: S₀ = a + b, S₁ = 2a + b, S₂ = 3a + b, S₃ = 4a + b."""
    (tmp_path / "x").write_bytes(np.array([5, 7], "<u4").tobytes())
    assert states(protect_files([tmp_path / "x"])) == {"x": "protected"}
    sums = read_sidecar(tmp_path / "x.sidecar").exact
    assert sums.shape == (1, 5, 1)
    assert sums[0, :4, 0].tolist() == [12, 17, 22, 27]
    (entry,) = json.loads((tmp_path / MANIFEST).read_text())["files"].values()
    assert entry["bytes"] == 8
    assert entry["blake3"] == blake3.blake3((tmp_path / "x").read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 2047, 2048, 2049, 100_001, (1 << 22) + 1])
@pytest.mark.parametrize("hash_name", ["blake3", "sha256"])
def test_hashes_are_those_of_other_programs(tmp_path, rng, size, hash_name):
    content = rng.bytes(size)
    (tmp_path / "x.bin").write_bytes(content)
    list(protect_files([tmp_path], hash_name=hash_name))
    entry = json.loads((tmp_path / MANIFEST).read_text())["files"]["x.bin"]
    expected = hashlib.sha256(content) if hash_name == "sha256" else blake3.blake3(content)
    assert entry[hash_name] == expected.hexdigest()
    assert states(verify_files([tmp_path])) == {"x.bin": "ok"}


def test_manifest_round_trip(tmp_path, rng):
    for name in ("a", "ü", "with space", "b\udcff"):
        (tmp_path / os.fsencode(name).decode("utf-8", "surrogateescape")).write_bytes(rng.bytes(1000))
    list(protect_files([tmp_path], parity="1/2"))
    found = Manifest.read(tmp_path / MANIFEST)
    before = (tmp_path / MANIFEST).read_bytes()
    found.write(tmp_path / MANIFEST)
    assert (tmp_path / MANIFEST).read_bytes() == before
    assert set(found.files) == {"a", "ü", "with space", "b\udcff", *found.parity_files}


def test_a_second_run_reads_nothing_again(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"content")
    list(protect_files([tmp_path]))

    def fail(*_):
        raise AssertionError("was read")

    monkeypatch.setattr("tsapps.apps.abft.files.protect.scan", fail)
    monkeypatch.setattr("tsapps.apps.abft.files.protect.hash_of", fail)
    assert states(protect_files([tmp_path])) == {"a": "unchanged"}


def test_a_stopped_run_continues(tmp_path, rng, monkeypatch):
    for name in "abcd":
        (tmp_path / name).write_bytes(rng.bytes(100))
    reports = protect_files([tmp_path], workers=1)
    next(reports)
    reports.close()  # stopped before the manifest was written
    assert not (tmp_path / MANIFEST).exists()
    assert (tmp_path / "a.sidecar").exists()
    found = states(protect_files([tmp_path]))
    assert found["a"] == "unchanged"
    assert set(Manifest.read(tmp_path / MANIFEST).files) == {*"abcd"}
    assert {*states(verify_files([tmp_path])).values()} == {"ok"}


def test_a_changed_file_is_not_protected_again(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"first")
    list(protect_files([path]))
    path.write_bytes(b"other")
    (report,) = protect_files([path])
    assert report.state == "changed"
    assert "--update" in report.message
    assert states(verify_files([path])) == {"a": "corrupt"}
    assert states(protect_files([path], update=True)) == {"a": "protected"}
    assert states(verify_files([path])) == {"a": "ok"}


def test_a_touched_file_is_unchanged(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"first")
    list(protect_files([path]))
    os.utime(path, ns=(1, 1))
    (report,) = protect_files([path])
    assert report.state in ("unchanged", "protected")
    assert states(verify_files([path])) == {"a": "ok"}


def test_a_removed_file_is_forgotten_on_request(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"content of " + name.encode())
    list(protect_files([tmp_path]))
    (tmp_path / "a").unlink()
    assert states(protect_files([tmp_path])) == {"a": "missing", "b": "unchanged"}
    assert states(verify_files([tmp_path]))["a"] == "lost"
    assert states(protect_files([tmp_path], update=True)) == {"a": "forgotten", "b": "unchanged"}
    assert states(verify_files([tmp_path])) == {"b": "ok"}
    assert not (tmp_path / "a.sidecar").exists()


def test_sidecars_of_a_read_only_directory(tmp_path, rng):
    data, sidecars = tmp_path / "data", tmp_path / "sidecars"
    (data / "below").mkdir(parents=True)
    (data / "a").write_bytes(rng.bytes(5000))
    (data / "below" / "b").write_bytes(rng.bytes(5000))
    list(protect_files([data], sidecars=sidecars, parity="1/1"))
    assert sorted(os.listdir(data)) == ["a", "below"]
    assert os.listdir(data / "below") == ["b"]
    assert (sidecars / "below" / "b.sidecar").exists()
    before = (data / "below" / "b").read_bytes()
    (data / "below" / "b").unlink()
    (data / "below").rmdir()
    assert states(verify_files([data], sidecars=sidecars))["b"] == "missing"
    assert states(repair_files([data], sidecars=sidecars))["b"] == "repaired"
    assert (data / "below" / "b").read_bytes() == before


def test_a_missing_subdirectory_is_noticed(tmp_path):
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "x").write_bytes(b"x")
    list(protect_files([tmp_path]))
    os.rename(tmp_path / "one", tmp_path.parent / f"{tmp_path.name}-elsewhere")
    (report,) = verify_files([tmp_path])
    assert (report.kind, report.state) == ("directory", "lost")


def test_globs_name_each_file_once(tmp_path):
    for name in ("a.bin", "b.bin", "c.txt"):
        (tmp_path / name).write_bytes(b"x")
    list(protect_files([tmp_path / "*.bin", tmp_path / "a.bin"]))
    assert set(Manifest.read(tmp_path / MANIFEST).files) == {"a.bin", "b.bin"}
    list(protect_files([tmp_path / "*"]))  # the sidecars match too, and are left out
    assert set(Manifest.read(tmp_path / MANIFEST).files) == {"a.bin", "b.bin", "c.txt"}


def test_symbolic_links_lead_to_the_file(tmp_path, rng):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    blob = tmp_path / "blobs" / "0a"
    blob.write_bytes(rng.bytes(3000))
    (tmp_path / "snapshot" / "model.bin").symlink_to(blob)
    before = blob.read_bytes()
    list(protect_files([tmp_path / "snapshot"]))
    blob.write_bytes(before[:100] + b"\0" + before[101:] if before[100] else before[:100] + b"\1" + before[101:])
    assert states(repair_files([tmp_path / "snapshot"]))["model.bin"] == "repaired"
    assert blob.read_bytes() == before
    assert (tmp_path / "snapshot" / "model.bin").is_symlink()


@pytest.mark.parametrize(
    ("name", "message"),
    [("absent", "no such file"), ("x.sidecar", "is a file of tsapps protect"), ("*.none", "no file has a name")],
)
def test_what_cannot_be_protected(tmp_path, name, message):
    (tmp_path / "x.sidecar").write_bytes(b"")
    with pytest.raises(PlaceError, match=message):
        list(protect_files([tmp_path / name]))


def test_another_hash_than_that_of_the_manifest_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    list(protect_files([tmp_path], hash_name="sha256"))
    with pytest.raises(PlaceError, match="has sha256 hashes"):
        list(protect_files([tmp_path], hash_name="blake3"))
    with pytest.raises(ValueError, match="expected one of"):
        list(protect_files([tmp_path], hash_name="md5"))


def test_permissions_are_no_wider_than_those_of_the_file(tmp_path):
    (tmp_path / "x").write_bytes(b"secret")
    (tmp_path / "x").chmod(0o600)
    list(protect_files([tmp_path], parity="1/1"))
    for one in tmp_path.iterdir():
        assert one.stat().st_mode & 0o077 == 0, one
