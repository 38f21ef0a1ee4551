"""Files of which the disk has lost sectors: only these are damage, which the code or parity restores."""

import errno
import io
import os

import numpy as np
import pytest

from tsapps.apps.abft.files import scan
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.verify import verify_files
from tsapps.kernels.system import atomic_write

SECTOR = 4096


def reports_by_name(reports):
    return {os.path.basename(report.path): report for report in reports}


def states(reports):
    return {name: report.state for name, report in reports_by_name(reports).items()}


class Disk:
    """A disk that has lost sectors of files: reads give the bytes before the first one, and then an error."""

    def __init__(self):
        self.lost = {}

    def lose(self, path, *sectors):
        """Lose sectors of the present content of a file, by their numbers."""
        self.lost.setdefault(path.stat().st_ino, set()).update(sectors)

    def open(self, path, mode="r", buffering=-1, **named):
        if mode != "rb":
            return open(path, mode, buffering, **named)
        return _File(path, self.lost) if buffering == 0 else io.BufferedReader(_File(path, self.lost))


class _File(io.FileIO):
    def __init__(self, path, lost):
        super().__init__(path, "rb")
        self._lost = lost.get(os.fstat(self.fileno()).st_ino, ())

    def readinto(self, buffer):
        begin = self.tell()
        good = [SECTOR * sector - begin for sector in self._lost if SECTOR * (sector + 1) > begin]
        most = min([len(buffer), *good])
        if most <= 0 < len(buffer):
            raise OSError(errno.EIO, "Input/output error")
        return super().readinto(memoryview(buffer)[:most])

    def readall(self):
        piece = bytearray(os.fstat(self.fileno()).st_size - self.tell())
        done = 0
        while done < len(piece):
            done += self.readinto(memoryview(piece)[done:])
        return bytes(piece)


@pytest.fixture
def disk(monkeypatch):
    found = Disk()
    monkeypatch.setattr(scan, "open", found.open, raising=False)
    return found


@pytest.fixture
def pair(tmp_path, rng):
    """Two files of a parity group, and their contents."""
    contents = {"a": rng.bytes(100_000), "b": rng.bytes(90_001)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    list(protect_files([tmp_path], parity="1/2"))
    return tmp_path, contents


def damage(path, *offsets):
    """Change bytes of a file in place, and keep its time of modification."""
    status = path.stat()
    with open(path, "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_reading_around_by_hand(tmp_path, rng, disk):
    """Sectors 1 and 3 of a file of 3 ⅔ sectors are lost."""
    path, content = tmp_path / "x", bytearray(rng.bytes(15_000))
    path.write_bytes(content)
    disk.lose(path, 1, 3)
    with pytest.raises(OSError, match="Input/output error"):
        scan.read_at(path, 0, 15_000)
    content[4096:8192] = bytes(4096)
    content[12_288:] = bytes(2712)
    unread = []
    assert scan.read_at(path, 0, 15_000, unread).tobytes() == content
    assert unread == [(4096, 8192), (12_288, 15_000)]
    unread = []
    assert scan.read_at(path, 5000, 200, unread).tobytes() == bytes(200)
    assert unread == [(5000, 5200)]
    unread = []
    assert scan.read_at(path, 100, 3996, unread).tobytes() == content[100:4096]
    assert unread == []


def test_other_errors_are_not_read_around(tmp_path, monkeypatch):
    (tmp_path / "x").write_bytes(b"x")

    def fill(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(scan, "_fill", fill)
    with pytest.raises(OSError, match="Stale"):
        scan.read_at(tmp_path / "x", 0, 1, [])


def test_the_code_restores_a_sector_without_parity(tmp_path, rng, disk):
    """A file of 2 MiB has blocks of columns of 1024 words: a sector has one word of each."""
    path, content = tmp_path / "x", rng.bytes(2 << 20)
    path.write_bytes(content)
    list(protect_files([path]))
    disk.lose(path, 100)
    (report,) = verify_files([path])
    assert report.state == "corrupt"
    assert report.message.startswith("has 4,096 bytes that cannot be read, the first at offset 409,600, in 1,")
    (report,) = repair_files([path])
    assert report.state == "repaired"
    assert report.message.endswith("restored from its sidecar")
    assert path.read_bytes() == content


def test_parity_restores_only_what_was_lost(pair, disk):
    """Both files have lost more than the code restores, at different offsets of the same stripe."""
    directory, contents = pair
    disk.lose(directory / "a", 0, 1, 2)
    disk.lose(directory / "b", 3, 4, 5, 21)
    found = reports_by_name(verify_files([directory]))
    assert found["a"].message == (
        "has 12,288 bytes that cannot be read, the first at offset 0: tsapps repair restores it from parity"
    )
    assert states(repair_files([directory])) == {"a": "repaired", "b": "repaired", "tsapps-parity-001-1": "ok"}
    assert {name: (directory / name).read_bytes() for name in contents} == contents


def test_parity_restores_sectors_without_a_sidecar(pair, disk):
    directory, contents = pair
    for name in contents:
        (directory / f"{name}.sidecar").unlink()
    disk.lose(directory / "a", 7)
    disk.lose(directory / "b", 8)
    assert states(repair_files([directory]))["b"] == "repaired"
    assert {name: (directory / name).read_bytes() for name in contents} == contents


def test_lost_sectors_and_a_changed_byte_elsewhere(pair, disk):
    """The byte is in a block that can be decoded, the sectors are not."""
    directory, contents = pair
    disk.lose(directory / "a", 0, 1, 2)
    damage(directory / "a", 50_000)
    assert states(repair_files([directory]))["a"] == "repaired"
    assert (directory / "a").read_bytes() == contents["a"]


def test_lost_at_the_same_offset_is_beyond_repair(pair, disk):
    directory, contents = pair
    for name in contents:
        disk.lose(directory / name, 2, 3, 4)
    found = states(repair_files([directory]))
    assert (found["a"], found["b"]) == ("lost", "lost")
    assert {name: (directory / name).read_bytes() for name in contents} == contents  # they were left as they are


def test_lost_zeros_are_no_intact_file(tmp_path, disk):
    """What is put in place of them gives the right hash, and yet they cannot be read."""
    path = tmp_path / "x"
    path.write_bytes(bytes(10_000))
    list(protect_files([path]))
    disk.lose(path, 1)
    assert states(verify_files([path])) == {"x": "corrupt"}
    assert states(repair_files([path])) == {"x": "repaired"}
    assert states(verify_files([path])) == {"x": "ok"}


def test_what_cannot_be_read_is_not_protected(tmp_path, rng, disk):
    (tmp_path / "x").write_bytes(rng.bytes(10_000))
    disk.lose(tmp_path / "x", 1)
    (report,) = protect_files([tmp_path])
    assert (report.state, report.message) == ("failed", "Input/output error")
    assert not (tmp_path / "x.sidecar").exists()


def test_parity_is_not_computed_around_lost_sectors(pair, disk):
    directory, _ = pair
    before = (directory / "tsapps-parity-001-1").read_bytes()
    (directory / "c").write_bytes(b"a new file")
    disk.lose(directory / "a", 1)
    assert states(protect_files([directory], parity="1/2"))["tsapps-parity-001-1"] == "failed"
    assert (directory / "tsapps-parity-001-1").read_bytes() == before


def test_lost_sectors_of_a_sidecar(tmp_path, rng, disk, monkeypatch):
    """The sums that are left restore a word of another block."""
    path, content = tmp_path / "x", rng.bytes(2 << 20)
    path.write_bytes(content)
    list(protect_files([path]))
    sidecar = tmp_path / "x.sidecar"
    disk.lose(sidecar, 0)
    monkeypatch.setattr("tsapps.apps.abft.at_rest.sidecar.open", disk.open, raising=False)
    monkeypatch.setattr("tsapps.apps.abft.files.file_sidecar.open", disk.open, raising=False)
    damage(path, 4 * 1000)
    assert states(repair_files([path])) == {"x": "repaired", "x.sidecar": "repaired"}
    assert path.read_bytes() == content


def test_a_file_that_was_written_to_is_kept_without_what_was_lost(tmp_path, rng, disk, monkeypatch):
    """On a file system without hard links, the copy has zeros for it."""
    path, content = tmp_path / "x", bytearray(rng.bytes(2 << 20))
    path.write_bytes(content)
    list(protect_files([path]))
    os.utime(path, ns=(1, 1))
    disk.lose(path, 1)

    def link(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(atomic_write, "_open_unnamed", lambda *_: None)
    assert states(repair_files([path])) == {"x": "repaired"}
    assert path.read_bytes() == content
    content[4096:8192] = bytes(4096)
    assert (tmp_path / "x.damaged").read_bytes() == content


def test_many_lost_sectors(pair, disk, rng):
    """Whatever is lost of one file is restored from the other and the parity."""
    directory, contents = pair
    sectors = np.flatnonzero(rng.random(25) < 0.5).tolist()
    disk.lose(directory / "a", *sectors)
    disk.lose(directory / "b", *({*range(22)} - {*sectors}))
    found = states(repair_files([directory]))
    assert (found["a"], found["b"]) == ("repaired", "repaired")
    assert {name: (directory / name).read_bytes() for name in contents} == contents
