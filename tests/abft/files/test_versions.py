"""Sidecars and manifests of a later version of the format: an error says so, and nothing replaces or deletes them."""

import hashlib
import json
import os
import struct

import pytest

from tsapps.apps.abft.files.manifest import MANIFEST, LaterVersionError
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.report import BAD
from tsapps.apps.abft.files.verify import verify_files

SAID = "was made by a later version of tsapps: has format version 2, expected version 1 or lower: upgrade tsapps"
FUNCTIONS = pytest.mark.parametrize(
    "function",
    [verify_files, repair_files, protect_files, lambda paths: protect_files(paths, update=True)],
    ids=["verify", "repair", "protect", "update"],
)


def states(reports):
    return {os.path.basename(report.path): report.state for report in reports}


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def later_manifest(path):
    """Make a manifest one of version 2, with another entry and the right digest."""
    content = json.loads(path.read_text()) | {"version": 2, "new": 1}
    del content["digest"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({**content, "digest": hashlib.sha256(text.encode()).hexdigest()}))
    return path.read_bytes()


def later_sidecar(path):
    """Make a sidecar one of version 2, with another tensor and the right digest."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = header.pop("__metadata__")
    del metadata["digest"]
    metadata["version"] = "2"
    header["zone"] = {"dtype": "U8", "shape": [3], "data_offsets": [len(data), len(data) + 3]}
    data += b"new"
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True, separators=(",", ":")).encode())
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        digest.update(name.encode() + b"\0" + data[begin:end])
    text = json.dumps({"__metadata__": {**metadata, "digest": digest.hexdigest()}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path.read_bytes()


@pytest.fixture
def two(tmp_path, rng):
    """A protected directory of the files a and b, with parity."""
    for name in "ab":
        (tmp_path / name).write_bytes(rng.bytes(3000))
    list(protect_files([tmp_path], parity="1/2"))
    return tmp_path


@FUNCTIONS
def test_a_later_manifest(two, function):
    """The other directories are looked into all the same."""
    (two / "below").mkdir()
    (two / "below" / "c").write_bytes(b"c")
    list(protect_files([two / "below"]))
    later_manifest(two / MANIFEST)
    before = contents(two)
    first, *others = function([two])
    assert (first.path, first.kind, first.state, first.message) == (str(two / MANIFEST), "manifest", "failed", SAID)
    assert {os.path.basename(one.path): one.state in ("ok", "unchanged") for one in others} == {"c": True}
    assert contents(two) == before


def test_a_manifest_with_a_wrong_bit_in_its_version_is_corrupted(two):
    text = (two / MANIFEST).read_text()
    (two / MANIFEST).write_text(text.replace('"version": 1', '"version": 3'))
    assert states(verify_files([two]))[MANIFEST] == "corrupt"
    assert states(repair_files([two]))[MANIFEST] == "repaired"


def test_a_manifest_that_another_process_replaces_meanwhile(two):
    """That process is of a later version, and ends before this one writes its own manifest."""
    (two / "c").write_bytes(b"a new file")
    reports = protect_files([two])
    next(reports)
    after = later_manifest(two / MANIFEST)
    assert states(reports)[MANIFEST] == "failed"
    assert (two / MANIFEST).read_bytes() == after


@FUNCTIONS
def test_a_later_sidecar_of_an_intact_file(two, function):
    later_sidecar(two / "a.sidecar")
    before = contents(two)
    reports = {os.path.basename(one.path): one for one in function([two])}
    assert not {one.state for one in reports.values()} & {*BAD}
    assert reports["a"].state in ("ok", "unchanged")
    if function in (verify_files, repair_files):
        assert (reports["a.sidecar"].state, reports["a.sidecar"].message) == ("failed", SAID)
    assert contents(two) == before


def test_a_later_sidecar_of_a_file_that_is_loaded(two):
    pytest.importorskip("torch", reason="torch is not installed")
    from tsapps.apps.abft.files.load import load_file

    later_sidecar(two / "a.sidecar")
    with pytest.raises(LaterVersionError, match=SAID):
        load_file(two / "a")


@FUNCTIONS
def test_a_later_sidecar_of_a_file_that_differs(two, function):
    """A later version may have written both, so the file is no corrupted one."""
    (two / "a").write_bytes(b"other content")
    later_sidecar(two / "a.sidecar")
    before = contents(two)
    reports = {os.path.basename(one.path): one for one in function([two])}
    assert reports["a"].state == "failed"
    assert reports["a"].message.endswith(f"its sidecar {SAID}")
    assert not {one.state for one in reports.values()} & {*BAD}
    assert contents(two) == before


def test_a_later_sidecar_of_a_missing_file_is_not_removed(two):
    (two / "a").unlink()
    after = later_sidecar(two / "a.sidecar")
    (report,) = (one for one in protect_files([two], update=True) if one.path == str(two / "a"))
    assert (report.state, report.message) == ("failed", f"is missing, and its sidecar {SAID}")
    assert states(repair_files([two]))["a"] == "repaired"  # from parity
    assert (two / "a.sidecar").read_bytes() == after


@FUNCTIONS
@pytest.mark.parametrize("manifest", [None, b"damaged"])
def test_a_manifest_is_not_restored_from_sidecars_of_a_later_version(two, function, manifest):
    (two / MANIFEST).unlink() if manifest is None else (two / MANIFEST).write_bytes(manifest)
    later_sidecar(two / "b.sidecar")
    before = contents(two)
    (report,) = function([two])
    assert (report.path, report.kind, report.state) == (str(two / "b.sidecar"), "sidecar", "failed")
    assert report.message == SAID
    assert contents(two) == before


def test_a_later_sidecar_of_a_file_that_is_not_in_the_manifest(two):
    """A later save_file wrote both."""
    (two / "c").write_bytes(b"c")
    (two / "c.sidecar").write_bytes((two / "a.sidecar").read_bytes())
    after = later_sidecar(two / "c.sidecar")
    for function in (verify_files, repair_files):
        found = states(function([two]))
        assert found == {"a": "ok", "b": "ok", "tsapps-parity-001-1": "ok", "c.sidecar": "failed"}
        assert states(function([two / "c"])) == {"c.sidecar": "failed"}
    assert states(protect_files([two]))["c"] == "failed"
    assert (two / "c.sidecar").read_bytes() == after


def test_parity_of_a_later_version_is_neither_replaced_nor_removed(two, rng):
    sidecar, parity = two / "tsapps-parity-001-1.sidecar", two / "tsapps-parity-001-1"
    after, before = later_sidecar(sidecar), parity.read_bytes()
    (two / "c").write_bytes(rng.bytes(5000))
    found = states(protect_files([two], parity="1/8"))
    assert (found["c"], found["tsapps-parity-001-1"]) == ("protected", "failed")
    for name in "abc":
        (two / name).unlink()
    list(protect_files([two], update=True))
    assert (sidecar.read_bytes(), parity.read_bytes()) == (after, before)


def test_a_sidecar_with_a_wrong_bit_in_its_version_is_corrupted(two):
    content = (two / "a.sidecar").read_bytes()
    assert content.count(b'"version": "1"') == 1
    (two / "a.sidecar").write_bytes(content.replace(b'"version": "1"', b'"version": "3"'))
    assert states(verify_files([two]))["a.sidecar"] == "corrupt"
    assert states(repair_files([two]))["a.sidecar"] == "repaired"
    assert (two / "a.sidecar").read_bytes() == content


def test_a_corrupted_later_sidecar_is_a_corrupted_one(two):
    """Nothing says which byte is right: the version may be what is wrong."""
    content = bytearray(later_sidecar(two / "a.sidecar"))
    content[-1] ^= 1
    (two / "a.sidecar").write_bytes(content)
    assert states(verify_files([two]))["a.sidecar"] == "corrupt"
