"""Directories of sidecars that lie inside other protected trees: these leave them alone, and say so."""

import os

import pytest

from tsapps.apps.abft.files.manifest import MANIFEST, SIDECARS_MANIFEST
from tsapps.apps.abft.files.places import PlaceError
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.verify import verify_files


def states(reports):
    return {os.path.basename(report.path): report.state for report in reports}


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def outer(tmp_path, rng):
    """A directory `outer` with a file x, and in it the sidecars `kept` of the directory `other`."""
    for name in ("outer/x", "other/y", "other/below/z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(rng.bytes(3000))
    list(protect_files([tmp_path / "other"], sidecars=tmp_path / "outer" / "kept", parity="1/2"))
    return tmp_path / "outer"


def test_every_command_leaves_sidecars_of_others_alone(outer):
    (outer / "kept" / "notes.txt").write_text("a file of the user")
    before = contents(outer / "kept")
    assert states(protect_files([outer])) == {"x": "protected", "kept": "skipped"}
    assert states(protect_files([outer], update=True, parity="1/2"))["kept"] == "skipped"
    assert states(verify_files([outer])) == {"x": "ok", "tsapps-parity-001-1": "ok", "kept": "skipped"}
    (outer / "x").unlink()
    assert states(repair_files([outer])) == {"x": "repaired", "tsapps-parity-001-1": "ok", "kept": "skipped"}
    assert contents(outer / "kept") == before
    assert "kept" not in (outer / MANIFEST).read_text()
    other = outer.parent / "other"
    (other / "y").unlink()
    assert states(repair_files([other], sidecars=outer / "kept"))["y"] == "repaired"


def test_the_line_says_why(outer):
    (report,) = (one for one in protect_files([outer]) if one.state == "skipped")
    assert (report.path, report.kind) == (str(outer / "kept"), "directory")
    assert report.message == "holds the sidecars of another directory: is left alone, with all in it"


def test_sidecars_of_a_part_of_the_tree(outer):
    """The sidecars of outer/models lie in outer/models-sidecars."""
    (outer / "models").mkdir()
    (outer / "models" / "m").write_bytes(b"weights")
    list(protect_files([outer / "models"], sidecars=outer / "models-sidecars"))
    for _ in range(2):
        found = states(protect_files([outer], update=True))
        assert (found["m"], found["models-sidecars"]) in [("protected", "skipped"), ("unchanged", "skipped")]
    assert states(verify_files([outer / "models"], sidecars=outer / "models-sidecars")) == {"m": "ok"}


def test_a_corrupted_manifest_marks_them_too(outer):
    list(protect_files([outer]))
    (outer / "kept" / SIDECARS_MANIFEST).write_bytes(b"\0" * 100)
    before = contents(outer / "kept")
    assert states(protect_files([outer], update=True))["kept"] == "skipped"
    assert states(repair_files([outer]))["kept"] == "skipped"
    assert contents(outer / "kept") == before
    assert states(repair_files([outer.parent / "other"], sidecars=outer / "kept"))[SIDECARS_MANIFEST] == "repaired"


def test_a_stopped_run_has_marked_them(outer, rng):
    """It is stopped after the first sidecar: the next run continues."""
    (outer.parent / "third").mkdir()
    for name in "ab":
        (outer.parent / "third" / name).write_bytes(rng.bytes(100))
    reports = protect_files([outer.parent / "third"], sidecars=outer / "third", workers=1)
    next(reports)
    reports.close()
    assert states(protect_files([outer], update=True))["third"] == "skipped"
    assert states(protect_files([outer.parent / "third"], sidecars=outer / "third"))["a"] == "unchanged"


def test_sidecars_inside_a_directory_of_sidecars(outer, rng):
    """`kept` has the sidecars of `other`, and kept/third those of `third`, which is no part of `other`."""
    third, other = outer.parent / "third", outer.parent / "other"
    third.mkdir()
    (third / "a").write_bytes(rng.bytes(100))
    list(protect_files([third], sidecars=outer / "kept" / "third"))
    before = contents(outer / "kept")
    for function in (verify_files, repair_files, lambda *of, **named: protect_files(*of, update=True, **named)):
        assert "a" not in states(function([other], sidecars=outer / "kept"))
    assert contents(outer / "kept").keys() == before.keys()
    assert states(verify_files([third], sidecars=outer / "kept" / "third")) == {"a": "ok"}


def test_a_lost_directory_is_restored_from_its_sidecars_all_the_same(outer):
    other = outer.parent / "other"
    before = (other / "below" / "z").read_bytes()
    (other / "below" / "z").unlink()
    (other / "below").rmdir()
    assert states(repair_files([other], sidecars=outer / "kept"))["z"] == "repaired"
    assert (other / "below" / "z").read_bytes() == before


def test_files_in_a_directory_of_sidecars(outer):
    """They were asked for, so this is a failure."""
    (outer / "kept" / "notes.txt").write_text("a file of the user")
    before = contents(outer / "kept")
    (report,) = protect_files([outer / "kept" / "notes.txt"])
    assert report.state == "failed"
    assert states(protect_files([outer / "kept"])) == {"kept": "skipped"}
    with pytest.raises(PlaceError, match="nothing here is protected"):
        list(verify_files([outer / "kept"]))
    assert contents(outer / "kept") == before


def test_sidecars_may_not_lie_among_other_protected_files(outer):
    list(protect_files([outer]))
    for function in (protect_files, verify_files, repair_files):
        with pytest.raises(PlaceError, match="has protected files of its own: give a directory without them"):
            list(function([outer.parent / "other"], sidecars=outer))
    assert not (outer / "y.sidecar").exists()


def test_sidecars_in_the_directory_itself_are_beside_the_files(outer, monkeypatch):
    monkeypatch.chdir(outer.parent)
    list(protect_files(["outer"], sidecars=outer))
    assert (outer / MANIFEST).exists()
    assert states(verify_files([outer])) == {"x": "ok", "kept": "skipped"}
