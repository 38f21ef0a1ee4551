"""The disk is asked for room before the work: one line, exit 1, and nothing computed or written."""

import os
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.cli.options import check_room
from tsapps.errors import ExitCode


@pytest.fixture
def room(monkeypatch):
    """Let every file system have so many bytes free."""

    def room(free, blocks=100):
        system = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks)
        monkeypatch.setattr("os.statvfs", lambda path: system)

    return room


@pytest.fixture
def no_work(monkeypatch):
    """Let work be a fault."""

    def work(*_, **__):
        raise AssertionError("something was computed")

    for name in (
        "apps.kmeans.open_engine.open_engine",
        "apps.abft.encode",
        "apps.abft.verify",
        "matrix.copy.copy_file",
    ):
        monkeypatch.setattr(f"tsapps.{name}", work)


# Outputs and their least bytes, of 1000 × 4 float32.
COMMANDS = [
    (["kmeans", "x.npy", "--k", 3, "--out", "r"], "r", 4 * 1000),
    (["predict", "model", "x.npy", "--out", "r.npy"], "r.npy", 4 * 1000),
    (["abft-encode", "x.npy", "--out", "r.abft"], "r.abft", 5 * 8 * (4000 // 512)),
    (["abft-encode", "x.npy", "--out", "r.abft", "--code", "both"], "r.abft", 2 * 8 * 1000 + 2 * 2 * 8 * 4),
    (["abft-correct", "x.npy", "--out", "r.npy"], "r.npy", 4 * 4000),
    (["abft-inject", "x.npy", "--out", "r.npy"], "r.npy", 4 * 4000),
    (["abft-inject", "x.npy", "--in-place"], "x.npy", 4 * 4000),
]


@pytest.fixture
def files(succeed, rng):
    np.save("x.npy", rng.standard_normal((1000, 4)).astype(np.float32))
    succeed("kmeans", "x.npy", "--k", 3, "--out", "model")
    succeed("abft-encode", "x.npy")


@pytest.mark.parametrize(("command", "output", "size"), COMMANDS)
def test_a_full_disk(files, refuse, room, no_work, command, output, size):
    room(size - 1)
    line = refuse(ExitCode.FAILURE, *command)
    assert line.startswith(f"tsapps: {output}: ")
    assert "its disk has" in line


@pytest.mark.parametrize(("command", "output", "size"), COMMANDS)
def test_room_enough(files, succeed, room, command, output, size):
    room(size + 20_000)
    succeed(*command)
    assert os.path.exists(output)


def test_what_is_damaged_is_repaired_in_place_only_with_room(files, flip, refuse, succeed, room, monkeypatch):
    flip("x.npy", 300)
    room(16_000)
    assert refuse(ExitCode.FAILURE, "abft-correct", "x.npy", "--in-place").startswith(
        "tsapps: x.npy: the output takes 16.13 kB"
    )
    flip("x.npy", 300)
    room(0)
    succeed("abft-correct", "x.npy", "--in-place")  # nothing is wrong, and nothing is written


@pytest.mark.parametrize("command", [["kmeans", "x.npy", "--k", 3], ["predict", "model", "x.npy"]])
def test_memory_that_is_not_there(files, refuse, monkeypatch, command):
    monkeypatch.setattr("tsapps.apps.kmeans.engines.cpu.available_host_memory", lambda: 4000)
    line = refuse(ExitCode.FAILURE, *command)
    assert line.startswith("tsapps: out of memory: x.npy: 0.00 GiB are needed besides the data, and 0.00 GiB are ")


def test_a_file_system_that_tells_nothing(room, directory):
    room(0, blocks=0)
    check_room(directory / "x", 1000)


def test_all_files_together(room, directory):
    room(1000)
    check_room(directory / "x", 400, 600)
    with pytest.raises(OSError, match=r"the output takes 1\.00 kB"):
        check_room(directory / "x", 400, 601)


def test_a_missing_file_on_another_disk_by_a_link(directory, monkeypatch):
    """The disk is that of the file that a link points to."""
    (directory / "far").mkdir()
    (directory / "x").symlink_to("far/x")
    asked = []
    monkeypatch.setattr(
        "os.statvfs", lambda path: asked.append(path) or SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=1)
    )
    check_room(directory / "x", 1000)
    assert asked == [str(directory / "far")]


def test_a_limit_of_the_process(files, refuse, no_work, monkeypatch):
    """As by ulimit -f."""
    monkeypatch.setattr(
        "resource.getrlimit", lambda limit: (3000, 3000) if limit == resource.RLIMIT_FSIZE else (-1, -1)
    )
    assert "r: the output takes 8.10 kB, but this process may only write files of 3.00 kB" in refuse(
        ExitCode.FAILURE, "kmeans", "x.npy", "--k", 3, "--out", "r"
    )
