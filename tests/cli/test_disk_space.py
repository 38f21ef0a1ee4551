"""Disk space is checked before the work: one line, exit 1, nothing computed and nothing written."""

import os
import resource
from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.cli.options import check_disk_space
from tsapps.errors import ExitCode


@pytest.fixture
def free_bytes(monkeypatch):
    """Set the free bytes of every file system."""

    def free_bytes(free, blocks=100):
        system = SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks)
        monkeypatch.setattr("os.statvfs", lambda path: system)

    return free_bytes


@pytest.fixture
def no_work(monkeypatch):
    """Fail the test if any work starts."""

    def work(*_, **__):
        raise AssertionError("something was computed")

    for name in (
        "apps.kmeans.open_engine.open_engine",
        "apps.abft.encode",
        "apps.abft.verify",
        "matrix.copy.copy_file",
    ):
        monkeypatch.setattr(f"tsapps.{name}", work)


# Outputs of each command and their minimum sizes, for 1000 × 4 float32.
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
def test_a_full_disk(files, refuse, free_bytes, no_work, command, output, size):
    free_bytes(size - 1)
    line = refuse(ExitCode.FAILURE, *command)
    assert line.startswith(f"tsapps: {output}: ")
    assert "its disk has" in line


@pytest.mark.parametrize(("command", "output", "size"), COMMANDS)
def test_enough_space(files, succeed, free_bytes, command, output, size):
    free_bytes(size + 20_000)
    succeed(*command)
    assert os.path.exists(output)


def test_in_place_repair_needs_space(files, flip, refuse, succeed, free_bytes, monkeypatch):
    flip("x.npy", 300)
    free_bytes(16_000)
    assert refuse(ExitCode.FAILURE, "abft-correct", "x.npy", "--in-place").startswith(
        "tsapps: x.npy: the output takes 16.13 kB"
    )
    flip("x.npy", 300)
    free_bytes(0)
    succeed("abft-correct", "x.npy", "--in-place")  # nothing is corrupted, so nothing is written


@pytest.mark.parametrize("command", [["kmeans", "x.npy", "--k", 3], ["predict", "model", "x.npy"]])
def test_not_enough_memory(files, refuse, monkeypatch, command):
    monkeypatch.setattr("tsapps.apps.kmeans.data.host_data.available_host_memory", lambda: 4000)
    line = refuse(ExitCode.FAILURE, *command)
    assert line.startswith("tsapps: out of memory: x.npy: 0.00 GiB are needed besides the data, and 0.00 GiB are ")


def test_a_file_system_that_reports_no_size(free_bytes, directory):
    free_bytes(0, blocks=0)
    check_disk_space(directory / "x", 1000)


def test_all_files_together(free_bytes, directory):
    free_bytes(1000)
    check_disk_space(directory / "x", 400, 600)
    with pytest.raises(OSError, match=r"the output takes 1\.00 kB"):
        check_disk_space(directory / "x", 400, 601)


def test_a_dangling_link_to_another_disk(directory, monkeypatch):
    """The check uses the disk of the link's target."""
    (directory / "far").mkdir()
    (directory / "x").symlink_to("far/x")
    asked = []
    monkeypatch.setattr(
        "os.statvfs", lambda path: asked.append(path) or SimpleNamespace(f_blocks=0, f_bavail=0, f_frsize=1)
    )
    check_disk_space(directory / "x", 1000)
    assert asked == [str(directory / "far")]


def test_a_limit_of_the_process(files, refuse, no_work, monkeypatch):
    """A limit as set by ulimit -f."""
    monkeypatch.setattr(
        "resource.getrlimit", lambda limit: (3000, 3000) if limit == resource.RLIMIT_FSIZE else (-1, -1)
    )
    assert "r: the output takes 8.10 kB, but this process may only write files of 3.00 kB" in refuse(
        ExitCode.FAILURE, "kmeans", "x.npy", "--k", 3, "--out", "r"
    )
