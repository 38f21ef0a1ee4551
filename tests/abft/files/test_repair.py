"""repair_files and verify_files: what is restored, what is refused, and what becomes of the user's files."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from exhaustive import every

from tsapps.apps.abft.files import inspect_files, repair
from tsapps.apps.abft.files.manifest import MANIFEST
from tsapps.apps.abft.files.places import PlaceError
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.verify import verify_files
from tsapps.bench.abft.files_campaign import FAULTS, run
from tsapps.kernels.system import atomic_write


def states(reports):
    return {os.path.basename(report.path): report.state for report in reports}


def flip(path, *offsets):
    content = bytearray(path.read_bytes())
    for offset in offsets:
        content[offset] ^= 0x10
    path.write_bytes(content)


def test_by_hand(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"hidden_size": 4096}')
    list(protect_files([path]))
    status = path.stat()
    flip(path, 3)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    (report,) = verify_files([path])
    assert (report.state, report.words) == ("corrupt", 1)
    assert report.message == ("has other bytes than it had when it was protected, in 1 word: tsapps repair restores it")
    (report,) = repair_files([path])
    assert report.state == "repaired"
    assert path.read_bytes() == b'{"hidden_size": 4096}'
    assert sorted(os.listdir(tmp_path)) == ["config.json", "config.json.sidecar", MANIFEST]


def test_a_file_that_was_written_to_is_kept(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"hidden_size": 4096}')
    list(protect_files([path]))
    path.write_bytes(b'{"hidden_size": 4097}')
    os.utime(path, ns=(1, 1))
    (report,) = repair_files([path])
    assert "config.json.damaged" in report.message
    assert path.read_bytes() == b'{"hidden_size": 4096}'
    assert (tmp_path / "config.json.damaged").read_bytes() == b'{"hidden_size": 4097}'
    flip(path, 0)
    os.utime(path, ns=(1, 1))
    list(repair_files([path]))
    assert (tmp_path / "config.json.damaged-2").exists()


@pytest.fixture
def no_links(monkeypatch):
    """Pretend that no file system has hard links, and so no files without names either."""

    def refuse(number):
        def link(*_, **__):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(atomic_write, "_open_unnamed", lambda *_: None)

    return refuse


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK], ids=errno.errorcode.get)
def test_without_hard_links_what_is_kept_is_copied(tmp_path, no_links, number):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"hidden_size": 4096}')
    path.chmod(0o640)
    list(protect_files([path]))
    no_links(number)
    for version, name in (("4097", "config.json.damaged"), ("4098", "config.json.damaged-2")):
        path.write_bytes(b'{"hidden_size": ' + version.encode() + b"}")
        os.utime(path, ns=(7, 7))
        (report,) = repair_files([path])
        assert (report.state, report.message.endswith(f"what was there is now {tmp_path / name}")) == ("repaired", True)
        assert path.read_bytes() == b'{"hidden_size": 4096}'
        assert version.encode() in (tmp_path / name).read_bytes()
        status = (tmp_path / name).stat()
        assert (status.st_mode & 0o777, status.st_mtime_ns) == (0o640, 7)
    assert b"4097" in (tmp_path / "config.json.damaged").read_bytes()


def test_a_copy_that_fails_leaves_the_file_and_nothing_else(tmp_path, no_links, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"content")
    list(protect_files([path]))
    path.write_bytes(b"Content")
    os.utime(path, ns=(1, 1))
    no_links(errno.EPERM)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(repair, "pieces_of", full)
    (report,) = repair_files([path])
    assert (report.state, report.message) == ("failed", "could not be repaired: No space left on device")
    assert path.read_bytes() == b"Content"
    assert sorted(os.listdir(tmp_path)) == [MANIFEST, "x", "x.sidecar"]


def test_other_errors_of_links_are_reported(tmp_path, no_links):
    path = tmp_path / "x"
    path.write_bytes(b"content")
    list(protect_files([path]))
    path.write_bytes(b"Content")
    os.utime(path, ns=(1, 1))
    no_links(errno.EROFS)
    assert states(repair_files([path])) == {"x": "failed"}
    assert path.read_bytes() == b"Content"


def test_what_is_beyond_repair_is_left_as_it_is(tmp_path, rng):
    path = tmp_path / "x"
    path.write_bytes(rng.bytes(2048))
    list(protect_files([path]))
    flip(path, 0, 400, 800)  # three words of the only block
    damaged = path.read_bytes()
    assert states(verify_files([path])) == {"x": "lost"}
    assert states(repair_files([path])) == {"x": "lost"}
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("ratio", ["1/3", "2/3", "3/2"])
def test_as_many_files_as_there_are_parity_files_are_rebuilt(tmp_path, rng, ratio):
    if ratio != "1/3":
        pytest.importorskip("zfec")
    contents = {name: rng.bytes(int(rng.integers(1, 50_000))) for name in "abcdef"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    list(protect_files([tmp_path], parity=ratio))
    m = int(ratio[0])
    by_size = sorted(contents, key=lambda name: -len(contents[name]))
    for name in by_size[:m]:
        (tmp_path / name).unlink()
    found = states(repair_files([tmp_path]))
    assert [found[name] for name in by_size[:m]] == ["repaired"] * m
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    assert {*states(verify_files([tmp_path])).values()} == {"ok"}


def test_parity_restores_different_places_of_several_files(tmp_path, rng):
    """One parity file restores the first stripe of one file and the second stripe of another."""
    contents = {name: rng.bytes(9 << 20) for name in "ab"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    list(protect_files([tmp_path], parity="1/2"))
    flip(tmp_path / "a", 0, 1 << 14, 1 << 15)  # three words of one block: rows of words have 16 KiB
    with open(tmp_path / "b", "r+b") as file:
        file.seek(8 << 20)
        file.write(bytes(1 << 20))
    assert {*states(repair_files([tmp_path])).values()} <= {"repaired", "ok", "unprotected"}
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


def test_one_file_is_repaired_by_others_that_are_damaged_too(tmp_path, rng):
    """A bit of b is wrong, and its sidecar is corrupted: it is right in memory, and then parity restores a."""
    contents = {name: rng.bytes(3000) for name in "ab"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    list(protect_files([tmp_path], parity="1/2"))
    flip(tmp_path / "a", 0, 400, 800)  # three words of one block
    flip(tmp_path / "b", 2500)  # in the second block
    sidecar = tmp_path / "b.sidecar"
    flip(sidecar, sidecar.stat().st_size - 2 * 5 * 8)  # a sum of the first block, of the stripe of two
    others = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != "a"}
    assert {report.state for report in verify_files([tmp_path])} <= {"corrupt", "ok"}
    (report,) = repair_files([tmp_path / "a"])
    assert report.state == "repaired"
    assert report.message.endswith(f": restored from parity; what was there is now {tmp_path / 'a.damaged'}")
    assert (tmp_path / "a").read_bytes() == contents["a"]
    assert {path: path.read_bytes() for path in others} == others
    assert states(repair_files([tmp_path]))["b"] == "repaired"
    assert (tmp_path / "b").read_bytes() == contents["b"]


def test_a_file_whose_parity_cannot_be_read_says_so(tmp_path, rng, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_bytes(rng.bytes(3000))
    list(protect_files([tmp_path], parity="1/3"))
    (tmp_path / "a").unlink()
    original = inspect_files.hash_of

    def hash_of(path, *arguments):
        if path.name == "c":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *arguments)

    monkeypatch.setattr(inspect_files, "hash_of", hash_of)
    for function in (verify_files, repair_files):
        (report,) = function([tmp_path / "a"])
        assert (report.state, report.message) == (
            "lost",
            "is missing: may be restored where c, of its parity group, can be read (Permission denied)",
        )


def test_nothing_protected(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    for function in (verify_files, repair_files):
        with pytest.raises(PlaceError, match="nothing here is protected"):
            list(function([tmp_path]))


def test_a_file_that_changes_during_the_repair_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"content")
    list(protect_files([path]))
    flip(path, 0)

    def inspected(*arguments):
        found = original(*arguments)
        path.write_bytes(b"a new content")
        return found

    import tsapps.apps.abft.files.repair as module

    original = module.inspected
    monkeypatch.setattr(module, "inspected", inspected)
    (report,) = repair_files([path])
    assert report.state in ("failed", "lost")
    assert path.read_bytes() == b"a new content"


@pytest.mark.parametrize("seed", every(5, range(10)))
def test_faults_of_every_kind(seed):
    """None is missed or repaired wrongly, and what is promised is repaired bit by bit."""
    for (name, parity), outcome in run(2 * len(FAULTS), seed).items():
        assert outcome.trials == 1, (name, parity)
        assert (outcome.missed, outcome.miscorrected, outcome.broken) == (0, 0, 0), outcome.examples


_REPAIR = "import sys; from tsapps.apps.abft.files.repair import repair_files; list(repair_files([sys.argv[1]]))"


@pytest.mark.parametrize("trial", every(4, range(12)))
def test_killed_at_any_moment_of_a_repair(tmp_path, rng, trial):
    """Every file is as it was or repaired, and the next repair completes."""
    contents = {f"{number}.bin": rng.bytes(3 << 20) for number in range(4)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    list(protect_files([tmp_path], parity="1/4"))
    for name in contents:
        flip(tmp_path / name, 12345)
    damaged = {name: (tmp_path / name).read_bytes() for name in contents}
    with subprocess.Popen([sys.executable, "-c", _REPAIR, str(tmp_path)]) as process:
        time.sleep(0.35 + 0.03 * trial)
        process.send_signal(signal.SIGKILL)
    for name, content in contents.items():
        assert (tmp_path / name).read_bytes() in (content, damaged[name])
    with pytest.warns(match="removed temporaries") if list(tmp_path.glob(".*.tmp")) else nullcontext():
        list(repair_files([tmp_path]))
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents
    assert {report.state for report in verify_files([tmp_path])} <= {"ok", "unprotected"}


def test_a_directory_of_another_machine_can_be_moved(tmp_path, rng):
    """Manifests and sidecars hold no absolute paths."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "x").write_bytes(rng.bytes(1000))
    list(protect_files([data], parity="1/1"))
    moved = Path(tmp_path, "moved")
    os.rename(data, moved)
    assert {*states(verify_files([moved])).values()} == {"ok"}
    for one in moved.iterdir():
        assert str(tmp_path).encode() not in one.read_bytes()
