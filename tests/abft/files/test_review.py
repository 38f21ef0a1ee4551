"""Cases in which files could be lost, damage missed, or a run stopped by one file."""

import errno
import json
import os
import shutil
import struct

import numpy as np
import pytest

from tsapps.apps.abft.files import inspect_files, protect, write_parity
from tsapps.apps.abft.files.file_sidecar import FileSidecar, read_file_sidecar, write_file_sidecar
from tsapps.apps.abft.files.manifest import MANIFEST, SIDECARS_MANIFEST, FileEntry, Manifest, ManifestError, _digest
from tsapps.apps.abft.files.places import PlaceError, targets_of
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.report import BAD
from tsapps.apps.abft.files.verify import verify_files


def states(reports):
    return {os.path.basename(report.path): report.state for report in reports}


def rewrite(path, change):
    """Change a manifest, and give it the right digest."""
    content = json.loads(path.read_text())
    del content["digest"]
    change(content)
    path.write_text(json.dumps({**content, "digest": _digest(content)}))


def corrupt(path, *, keep_time=True):
    """Overwrite more of a file than its sidecar restores; return what it was."""
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(bytes(len(content)))
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return content


@pytest.fixture
def three(tmp_path, rng):
    """A directory of the files a, b and c of different sizes."""
    for name, size in (("a", 9000), ("b", 5000), ("c", 7000)):
        (tmp_path / name).write_bytes(rng.bytes(size))
    return tmp_path


# Parity


@pytest.mark.parametrize("keep_time", [True, False])
def test_parity_is_not_computed_from_a_corrupted_file(three, keep_time):
    """The old parity still restores it, and the next run covers the new file."""
    list(protect_files([three], parity="1/8"))
    before = corrupt(three / "b", keep_time=keep_time)
    (three / "d").write_bytes(b"a new file")
    found = states(protect_files([three]))
    assert (found["d"], found["tsapps-parity-001-1"]) == ("protected", "failed")
    assert states(repair_files([three]))["b"] == "repaired"
    assert (three / "b").read_bytes() == before
    (three / "b.damaged").unlink(missing_ok=True)
    assert states(protect_files([three]))["tsapps-parity-001-1"] == "protected"
    (three / "d").unlink()
    assert states(repair_files([three]))["d"] == "repaired"


def test_a_missing_file_keeps_its_parity(three):
    list(protect_files([three], parity="1/8"))
    (three / "b").unlink()
    (three / "d").write_bytes(b"a new file")
    assert {report.state for report in protect_files([three / "d"])} == {"protected", "failed"}
    assert states(repair_files([three]))["b"] == "repaired"


def test_stale_parity_is_noticed(three, monkeypatch):
    """A run is stopped after it wrote the sidecars, and a repair enters them in the manifest."""
    list(protect_files([three], parity="1/8"))
    (three / "a").write_bytes(b"new content, on purpose")

    def stop(*_arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(protect, "parity_written", stop)
        with pytest.raises(KeyboardInterrupt):
            list(protect_files([three], update=True))
    list(repair_files([three]))
    assert states(verify_files([three]))["tsapps-parity-001-1"] == "corrupt"
    assert states(protect_files([three]))["tsapps-parity-001-1"] == "protected"
    assert not {*states(verify_files([three])).values()} & {*BAD}
    (three / "a").unlink()
    list(repair_files([three]))
    assert (three / "a").read_bytes() == b"new content, on purpose"


def test_the_ratio_is_that_which_was_asked_for(three, rng):
    (three / "b").unlink()
    (three / "c").unlink()
    list(protect_files([three], parity="1/8"))
    for name in "bcd":
        (three / name).write_bytes(rng.bytes(100))
    list(protect_files([three]))
    assert [len(group.files) for group in Manifest.read(three / MANIFEST).parity] == [4]


def test_a_sidecar_written_again_names_no_group(three):
    list(protect_files([three], parity="1/8"))
    (three / "a.sidecar").unlink()
    list(repair_files([three]))
    assert read_file_sidecar(three / "a.sidecar").entry.group is None
    (three / "tsapps-parity-001-1.sidecar").unlink()
    list(repair_files([three]))
    assert read_file_sidecar(three / "tsapps-parity-001-1.sidecar").entry.group.files == ("a", "b", "c")


def test_bad_sectors_are_restored_from_parity(three, monkeypatch):
    list(protect_files([three], parity="1/8"))
    before = (three / "b").read_bytes()
    original = inspect_files.hash_of

    def hash_of(path, *arguments):
        if path.name == "b":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return original(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(inspect_files, "hash_of", hash_of)
        assert states(repair_files([three]))["b"] == "repaired"
    assert (three / "b").read_bytes() == before


def test_an_unreadable_member_does_not_stop_a_repair(three, monkeypatch):
    pytest.importorskip("zfec")
    list(protect_files([three], parity="2/3"))
    (three / "a").unlink()
    original = inspect_files.hash_of

    def hash_of(path, *arguments):
        if path.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *arguments)

    monkeypatch.setattr(inspect_files, "hash_of", hash_of)
    found = states(repair_files([three]))
    assert (found["a"], found["b"], found["c"]) == ("repaired", "failed", "ok")


def test_a_full_disk_keeps_the_old_parity(three, monkeypatch):
    list(protect_files([three], parity="1/8"))
    (three / "d").write_bytes(b"a new file")
    original = write_parity.replacing

    def full(*_arguments, **_named):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(write_parity, "replacing", full)
        assert states(protect_files([three]))["tsapps-parity-001-1"] == "failed"
    assert write_parity.replacing is original
    (three / "a").unlink()
    assert states(repair_files([three]))["a"] == "repaired"


# Files that are not ours


def test_a_sidecar_of_another_program_is_not_overwritten(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / "x.sidecar").write_bytes(b"notes of the user")
    for update in (False, True):
        (report,) = protect_files([tmp_path], update=update)
        assert report.state == "failed"
        assert "move it away" in report.message
    assert (tmp_path / "x.sidecar").read_bytes() == b"notes of the user"


def test_a_corrupted_file_without_manifest_and_sidecar_is_not_protected(three):
    list(protect_files([three]))
    (three / MANIFEST).unlink()
    (three / "a.sidecar").write_bytes(b"\0" * 1000)
    assert states(verify_files([three]))["a"] == "lost"
    assert states(repair_files([three]))["a"] == "lost"
    assert states(verify_files([three]))["a"] == "lost"  # with the manifest of the others
    assert states(verify_files([three / "a"]))["a"] == "lost"
    assert states(protect_files([three]))["a"] == "failed"


@pytest.mark.parametrize("content", [b'{"name": "of another program"}', b"", b"[]", b'{"format": "tsapps-manifest"}'])
def test_a_manifest_of_another_program_is_not_overwritten(tmp_path, content):
    (tmp_path / "x").write_bytes(b"x")
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(PlaceError, match="move it away"):
        list(protect_files([tmp_path]))
    assert states(verify_files([tmp_path]))[MANIFEST] == "lost"
    assert states(repair_files([tmp_path]))[MANIFEST] == "lost"
    assert (tmp_path / MANIFEST).read_bytes() == content


def test_a_manifest_that_names_a_file_as_parity_deletes_nothing(three):
    list(protect_files([three], parity="1/8"))
    rewrite(three / MANIFEST, lambda content: content["parity"][0].update(parity=["b"]))
    with pytest.raises(ManifestError, match="parity files"):
        Manifest.read(three / MANIFEST)
    list(protect_files([three], parity="1/2"))
    assert (three / "b").exists()


# Sidecars and manifests that cannot be read


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_a_sidecar_that_is_no_file(three, kind):
    list(protect_files([three]))
    (three / "a.sidecar").unlink()
    os.mkdir(three / "a.sidecar") if kind == "directory" else os.mkfifo(three / "a.sidecar")
    found = states(verify_files([three]))
    assert (found["a"], found["a.sidecar"], found["b"]) == ("ok", "failed", "ok")
    assert states(repair_files([three]))["a.sidecar"] == "failed"
    assert "b" in states(protect_files([three]))
    os.utime(three / "a", ns=(1, 1))
    assert "b" in states(protect_files([three], update=True))


def test_a_manifest_that_is_a_fifo_does_not_block(three):
    list(protect_files([three]))
    (three / MANIFEST).unlink()
    os.mkfifo(three / MANIFEST)
    assert states(verify_files([three]))[MANIFEST] == "missing"


def test_an_entry_of_wrong_types(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * 100)
    list(protect_files([tmp_path]))

    class Wrong(FileEntry):
        def as_json(self, hash_name):
            return {**super().as_json(hash_name), "tensors": []}

    good = read_file_sidecar(tmp_path / "x.sidecar")
    entry = Wrong(good.entry.n_bytes, good.entry.modified, good.entry.hash)
    write_file_sidecar(tmp_path / "x.sidecar", FileSidecar("blake3", entry, good.sums), 0o666)
    assert states(verify_files([tmp_path])) == {"x": "ok", "x.sidecar": "corrupt"}


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["files"].update({"\ud800": content["files"]["a"]}),
        lambda content: content["files"].update({"n" * 300: content["files"]["a"]}),
        lambda content: content["files"].update({"a/b": content["files"]["a"]}),
        lambda content: content["files"]["a"].update(bytes=1 << 63),
        lambda content: content["files"]["a"].update(modified=(1 << 64) - 1),
        lambda content: content["files"]["a"].update(modified="1"),
        lambda content: content["files"]["a"].update(tensors=[]),
        lambda content: content["files"]["tsapps-parity-001-1"].update(bytes=1 << 60),
        lambda content: content["files"]["a"].update(bytes=1 << 60, blake3="0"),
        lambda content: content["files"].pop("b"),
        lambda content: content["parity"].append(content["parity"][0]),
        lambda content: content["parity"][0].update(files=["a", "a"]),
        lambda content: content["parity"][0].update(files=["a", "unknown"]),
        lambda content: content["parity"][0].update(files=[]),
        lambda content: content["parity"][0].update(of=5, per=10**9),
        lambda content: content.update(directories=["\ud800"]),
        lambda content: content.update(directories=[5]),
        lambda content: content.update(files=[]),
    ],
)
def test_a_manifest_of_wrong_content(three, change):
    """Its digest is right. Nothing is lost, and no exception but one of a line comes out."""
    list(protect_files([three], parity="1/8"))
    before = {name: (three / name).read_bytes() for name in "abc"}
    rewrite(three / MANIFEST, change)
    for function in (verify_files, repair_files, verify_files, protect_files):
        assert list(function([three]))
    assert {name: (three / name).read_bytes() for name in "abc"} == before


def test_a_sidecar_of_another_file_without_a_manifest(tmp_path):
    """Nothing says which of both is right: what is replaced is kept."""
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(f"content of {name}".encode())
        os.utime(tmp_path / name, ns=(0, 0))
    list(protect_files([tmp_path]))
    (tmp_path / MANIFEST).unlink()
    shutil.copyfile(tmp_path / "x.sidecar", tmp_path / "y.sidecar")
    list(repair_files([tmp_path]))
    assert b"content of y" in ((tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name[0] == "y")


# Tensors


@pytest.mark.parametrize("name", ["\ud800", "\udcc3\udca9", "ü"])
def test_tensors_of_any_name(tmp_path, name):
    header = json.dumps({name: {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    list(protect_files([tmp_path]))
    assert list(Manifest.read(tmp_path / MANIFEST).files["x.safetensors"].tensors) == [name]
    assert states(verify_files([tmp_path])) == {"x.safetensors": "ok"}


@pytest.mark.parametrize("shape", [[-8], [1 << 70], [2**63, 0]])
def test_impossible_shapes_are_no_tensors(tmp_path, shape):
    header = json.dumps({"t": {"dtype": "U8", "shape": shape, "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    list(protect_files([tmp_path]))
    assert states(verify_files([tmp_path])) == {"x.safetensors": "ok"}


@pytest.mark.parametrize("text", ["{'a': (", "{'descr': '<f8'\n  x\n y", "\x00", "((((", "'''", "{'shape': (1L, }"])
def test_damaged_headers_of_npy(tmp_path, text):
    header = text.encode()
    content = np.lib.format.magic(1, 0) + struct.pack("<H", len(header)) + header
    (tmp_path / "x.npy").write_bytes(content)
    assert states(protect_files([tmp_path])) == {"x.npy": "protected"}


# Directories


def test_sidecars_deep_inside_the_tree(tmp_path):
    inside = tmp_path / "data" / "one" / "kept"
    inside.mkdir(parents=True)
    (tmp_path / "data" / "x").write_bytes(b"x")
    for _ in range(3):
        list(protect_files([tmp_path / "data"], sidecars=inside))
    assert sorted(one.name for one in inside.rglob("*")) == [SIDECARS_MANIFEST, "x.sidecar"]
    assert states(verify_files([tmp_path / "data"], sidecars=inside)) == {"x": "ok"}


def test_sidecars_around_the_tree_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(PlaceError, match="a directory of its own"):
        list(protect_files([tmp_path / "data"], sidecars=tmp_path))


def test_one_directory_by_two_paths(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert states(protect_files(["a", tmp_path / "b"])) == {"a": "protected", "b": "protected"}


def test_a_removed_directory_is_forgotten_on_request(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"x")
    list(protect_files([tmp_path]))
    shutil.rmtree(tmp_path / "one")
    assert states(protect_files([tmp_path]))["one"] == "missing"
    assert states(protect_files([tmp_path], update=True))["one"] == "forgotten"
    assert states(verify_files([tmp_path])) == {"x": "ok"}


def test_the_last_file_is_forgotten(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    list(protect_files([tmp_path]))
    (tmp_path / "x").unlink()
    assert states(protect_files([tmp_path], update=True)) == {"x": "forgotten"}
    assert not list(verify_files([tmp_path]))


def test_a_directory_that_may_not_be_listed(tmp_path, monkeypatch):
    for name in ("lost+found", "model"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"x")
    monkeypatch.setattr("tsapps.apps.abft.files.places.os.access", lambda path, _: path.name != "lost+found")
    for function in (protect_files, verify_files, repair_files):
        found = states(function([tmp_path]))
        assert (found["lost+found"], found["x"]) == ("failed", "ok" if function is not protect_files else "protected")


def test_many_directories_are_listed_once(tmp_path, monkeypatch):
    for number in range(20):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "x").write_bytes(b"x")
    calls = []
    original = protect.Place.file_names
    monkeypatch.setattr(protect.Place, "file_names", lambda place: (calls.append(place), original(place))[1])
    list(protect_files([tmp_path]))
    assert len(calls) <= 2 * len(targets_of([tmp_path]))


def test_a_name_that_does_not_exist(three):
    list(protect_files([three]))
    (report,) = verify_files([three / "typo"])
    assert (report.state, "no such file" in report.message) == ("failed", True)


# Several runs


def test_two_runs_enter_different_files(three):
    """The second begins and ends while the first reads."""
    first = protect_files([three / "a"])
    next(first)
    list(protect_files([three / "b"]))
    list(first)
    assert set(Manifest.read(three / MANIFEST).files) == {"a", "b"}


def test_a_stopped_update_continues_without_reading_again(three, monkeypatch):
    list(protect_files([three]))
    for name in "abc":
        (three / name).write_bytes(b"new")
    reports = protect_files([three], update=True, workers=1)
    next(reports)
    reports.close()
    assert states(protect_files([three], update=True))["a"] == "unchanged"
    assert not {*states(verify_files([three])).values()} & {*BAD}


def test_a_repaired_file_has_its_time_of_modification(three):
    list(protect_files([three], parity="1/8"))
    before = {name: (three / name).stat().st_mtime_ns for name in "ab"}
    (three / "a").unlink()
    content = bytearray((three / "b").read_bytes())
    content[0] ^= 1
    (three / "b").write_bytes(content)
    list(repair_files([three]))
    assert {name: (three / name).stat().st_mtime_ns for name in "ab"} == before


def test_temporaries_are_looked_for_once(three, monkeypatch):
    calls = []
    monkeypatch.setattr("tsapps.kernels.system.atomic_write.remove_leftovers", lambda path, *_: calls.append(path))
    list(protect_files([three]))
    assert calls == [str(three / MANIFEST)]


def test_temporaries_of_a_killed_run_are_removed(three):
    (three / f".a.sidecar.{'0' * 16}.tmp").write_bytes(b"half")
    with pytest.warns(match="removed temporaries"):
        list(protect_files([three]))
    assert not list(three.glob(".*"))
