"""Killed processes leave nothing of files and directories: the next writer removes it, and restores what was there."""

import errno
import fcntl
import os
import subprocess
import sys
import warnings

import pytest
from whole_directory import NAMES, assert_directory, write_directory

from tsapps.kernels.system.atomic_write import remove_leftovers, replacing, replacing_directory, write_bytes

HEX = "0123456789abcdef"

# A process that writes to x, and is killed before it is done.
KILLED = """
import os, signal, sys
from tsapps.kernels.system import atomic_write
how, path = sys.argv[1:]
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if how in ("named", "unnamed"):
    if how == "named":
        del os.O_TMPFILE
    with atomic_write.replacing(path) as file:
        file.write(b"half")
        file.flush()
        kill()
def write(text):
    with atomic_write.replacing_directory(path, {"a.npy", "summary.json"}) as directory:
        for name in ("a.npy", "summary.json"):
            with atomic_write.replacing(directory / name) as file:
                file.write(text)
            if how == "directory":
                with open(directory / ".a.npy.0123456789abcdef.tmp", "w"):
                    kill()
if how == "swapped":
    swap = atomic_write._swap
    atomic_write._swap = lambda one, other: swap(one, other) and kill()
if how == "between":
    rename = os.rename
    atomic_write._swap = lambda one, other: False
    os.rename = lambda one, other: kill() if one.endswith(".tmp") else rename(one, other)
write(b"new")
"""


def killed(how, path):
    done = subprocess.run([sys.executable, "-c", KILLED, how, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-9, "")


def only_warning(caught):
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "\n" not in text
    return text


def test_nothing_is_left_of_a_killed_process_where_files_need_no_name(tmp_path, kind):
    killed(kind, tmp_path / "x")
    assert len(os.listdir(tmp_path)) == (kind == "named")


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path):
    path = tmp_path / "x"
    killed("named", path)
    (left,) = tmp_path.iterdir()
    left.with_name(f".x.{HEX}.tmp").write_bytes(left.read_bytes())
    left = os.listdir(tmp_path)
    with pytest.warns(UserWarning, match="removed") as caught:
        write_bytes(path, b"new")
    text = only_warning(caught)
    assert all(name in text for name in left)
    assert text.startswith(f"{path}: removed temporaries of killed processes: ")
    assert os.listdir(tmp_path) == ["x"]


def test_a_writer_that_lives_is_left_alone_whatever_its_age(tmp_path, kind):
    path = tmp_path / "x"
    with warnings.catch_warnings(), replacing(path) as first:
        warnings.simplefilter("error")
        first.write(b"first")
        if kind == "named":
            os.utime(first.name, (0, 0))
        write_bytes(path, b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["x"]


def test_a_directory_that_is_being_written_is_left_alone(tmp_path, exchange):
    path = tmp_path / "x"
    with warnings.catch_warnings(), replacing_directory(path, NAMES) as first:
        warnings.simplefilter("error")
        write_directory(path, "second")
        assert_directory(path, "second")
        for name in NAMES:
            (first / name).write_text("first")
    assert_directory(path, "first")
    assert os.listdir(tmp_path) == ["x"]


def test_what_is_no_temporary_of_this_path_is_left_alone(tmp_path):
    others = [".x.notes.tmp", f".y.{HEX}.tmp", f".x.{HEX}.old", f".x.{HEX}0.tmp", f".xx.{HEX}.tmp", f"x.{HEX}.tmp"]
    for name in others:
        (tmp_path / name).write_text("mine")
    os.symlink("y", tmp_path / f".x.{HEX[::-1]}.tmp")
    (tmp_path / f".x.{HEX}.tmp").mkdir()
    os.mkfifo(tmp_path / f".x.{'0' * 16}.tmp")
    before = set(os.listdir(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_bytes(tmp_path / "x", b"new")
    assert set(os.listdir(tmp_path)) == before | {"x"}


def test_what_belongs_to_another_user_is_left_alone(tmp_path, monkeypatch):
    killed("named", tmp_path / "x")
    left = os.listdir(tmp_path)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    remove_leftovers(tmp_path / "x")
    assert os.listdir(tmp_path) == left


def test_without_locks_files_are_written_and_leftovers_stay(tmp_path, kind, monkeypatch):
    killed("named", tmp_path / "x")
    left = os.listdir(tmp_path)

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    write_bytes(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == [*left, "x"]
    write_directory(tmp_path / "d", "new")
    assert_directory(tmp_path / "d", "new")


def test_a_temporary_that_is_taken_for_a_leftover_before_it_is_locked(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    flock, taken = fcntl.flock, []

    def late(descriptor, operation):
        if not taken:
            taken.extend(tmp_path.glob(".x.*"))
            taken[0].rmdir() if taken[0].is_dir() else taken[0].unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write_bytes(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert taken
    (tmp_path / "x").unlink()
    taken.clear()
    write_directory(tmp_path / "x", "new")
    assert_directory(tmp_path / "x", "new")
    assert taken


@pytest.mark.parametrize(
    ("how", "old", "left", "says"),
    [
        ("directory", None, None, "removed"),
        ("directory", "old", "old", "removed"),
        ("swapped", "old", "new", "removed"),
        ("between", "old", "old", "restored"),
    ],
)
def test_directories_of_killed_processes(tmp_path, how, old, left, says):
    path = tmp_path / "x"
    if old:
        write_directory(path, old)
    killed(how, path)
    assert len(list(tmp_path.glob(".x.*"))) == (2 if how == "between" else 1)
    with pytest.warns(UserWarning, match=says):
        remove_leftovers(path, NAMES)
    assert os.listdir(tmp_path) == ([] if left is None else ["x"])
    if left is not None:
        assert_directory(path, left)
    write_directory(path, "newer")
    assert_directory(path, "newer")
