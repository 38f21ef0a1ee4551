"""Files and directories are written whole or not at all, reach the disk, and leave nothing of a killed process."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import warnings

import numpy as np
import pytest
from forked import at_line, in_child

from bench.common import record
from tsapps.apps.abft.at_rest.sidecar import write_sidecar
from tsapps.apps.abft.at_rest.verify import encode
from tsapps.cli import result
from tsapps.kernels.plan import user_table
from tsapps.kernels.system import atomic_write
from tsapps.kernels.system.atomic_write import remove_leftovers, replacing, replacing_directory, write_bytes
from tsapps.matrix import save_npy

HEX = "0123456789abcdef"
NAMES = {"a.npy", "summary.json"}


@pytest.fixture(params=["unnamed", "named"])
def kind(request, monkeypatch, tmp_path):
    """Whether temporary files have names."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    else:
        descriptor = atomic_write._open_unnamed(str(tmp_path))
        if descriptor is None:
            pytest.skip("the file system has no O_TMPFILE")
        os.close(descriptor)
    return request.param


@pytest.fixture(params=["swapped", "renamed twice"])
def exchange(request, monkeypatch, tmp_path):
    """How a directory takes the place of another."""
    if request.param == "renamed twice":
        monkeypatch.setattr(atomic_write, "_swap", lambda one, other: False)
    else:
        for name in "ab":
            (tmp_path / name).mkdir()
        swapped = atomic_write._swap(str(tmp_path / "a"), str(tmp_path / "b"))
        for name in "ab":
            (tmp_path / name).rmdir()
        if not swapped:
            pytest.skip("the file system cannot exchange two names")
    return request.param


def write_directory(path, text):
    with replacing_directory(path, NAMES) as directory:
        for name in NAMES:
            (directory / name).write_text(text)


def assert_directory(path, text):
    assert {entry.name: entry.read_text() for entry in path.iterdir()} == dict.fromkeys(NAMES, text)


@pytest.mark.parametrize("old", [b"old", None])
def test_a_file_by_hand(tmp_path, kind, old):
    path = tmp_path / "x"
    if old is not None:
        path.write_bytes(old)
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        with open(file.name, "rb") as again:
            assert again.read() == b"new"
        assert (path.read_bytes() if path.exists() else None) == old
        assert len(os.listdir(tmp_path)) == (old is not None) + (kind == "named")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(tmp_path, kind, umask):
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "deep" / "x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "deep" / "x").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("old", [b"old", None])
def test_an_interruption_just_after_the_name_is_no_other_error(tmp_path, kind, old, monkeypatch):
    if old is not None:
        (tmp_path / "x").write_bytes(old)

    def and_interrupted(call):
        def called(source, target, **options):
            call(source, target, **options)
            if os.fspath(target) == str(tmp_path / "x"):
                raise KeyboardInterrupt

        return called

    monkeypatch.setattr(os, "link", and_interrupted(os.link))
    monkeypatch.setattr(os, "replace", and_interrupted(os.replace))
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


def test_errors_name_the_path_that_was_given(tmp_path, kind, monkeypatch):
    with pytest.raises(FileNotFoundError) as found, replacing(tmp_path / "no" / "x"):
        pass
    assert found.value.filename == str(tmp_path / "no" / "x")
    with pytest.raises(FileNotFoundError) as found, replacing(tmp_path / "x"):  # of another file: as it is
        open(tmp_path / "absent").close()
    assert found.value.filename == str(tmp_path / "absent")


# Every writer of whole files: `write(path, value)`.
def write_record(path, value):
    common = {name: "2026-11-26" if name == "date" else types[0]() for name, types in record.COMMON.items()}
    record.store(path, common | {"value": value}, ["value"], {})


def write_result(path, value):
    with result.new_directory(path, force=True) as directory:
        save_npy(directory / "labels.npy", np.full(3, value))
        (directory / "summary.json").write_text(json.dumps({"kind": result.KIND}))


WRITERS = {
    "save_npy": lambda path, value: save_npy(path, np.full(3, value)),
    "write_sidecar": lambda path, value: write_sidecar(path, encode(np.full((2, 2), value))),
    "write_table": lambda path, value: user_table.write_table(path, [{"value": value}]),
    "record": write_record,
    "new_directory": write_result,
}


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_is_durable(tmp_path, monkeypatch, writer, old):
    """The content reaches the disk, then it gets its name, and then the directory of the name reaches the disk."""
    path, events = tmp_path / "x", []
    if old:
        WRITERS[writer](path, 1.0)

    def watch(module, name, event_of):
        call = getattr(module, name)

        def watched(*args, **options):
            events.append(event_of(*args))
            return call(*args, **options)

        monkeypatch.setattr(module, name, watched)

    watch(os, "fsync", lambda descriptor: ("fsync", os.path.realpath(f"/proc/self/fd/{descriptor}")))
    for name in ("link", "replace", "rename"):
        watch(os, name, lambda source, target: ("name", os.fspath(target)))
    watch(atomic_write, "_swap", lambda source, target: ("name", os.fspath(target)))
    WRITERS[writer](path, 2.0)
    named = events.index(("name", str(path)))
    assert events[-1] == ("fsync", str(tmp_path))
    assert any(what == "fsync" and where != str(tmp_path) for what, where in events[:named])
    if writer == "new_directory":
        synced = {os.path.basename(where) for what, where in events[:named] if what == "fsync"}
        assert {"labels.npy", "summary.json"} <= synced


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
    assert text.startswith(f"{path}: removed what a killed process left of it: ")
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


@pytest.mark.parametrize("old", [True, False])
def test_a_directory_by_hand(tmp_path, exchange, old):
    path = tmp_path / "x"
    if old:
        write_directory(path, "old")
    with replacing_directory(path, NAMES) as directory:
        (directory / "a.npy").write_text("new")
        if old:
            assert_directory(path, "old")
    assert [entry.name for entry in path.iterdir()] == ["a.npy"]
    assert os.listdir(tmp_path) == ["x"]


def test_an_exchange_takes_no_rename_between_which_neither_is_there(tmp_path, exchange, monkeypatch):
    if exchange != "swapped":
        pytest.skip("where two renames are needed, the next writer restores: see the tests of killed processes")
    write_directory(tmp_path / "x", "old")
    monkeypatch.setattr(os, "rename", None)
    write_directory(tmp_path / "x", "new")
    assert_directory(tmp_path / "x", "new")


def test_files_that_came_meanwhile_are_not_deleted(tmp_path, exchange):
    path = tmp_path / "x"
    write_directory(path, "old")

    def replace():
        with replacing_directory(path, NAMES) as directory:
            (directory / "a.npy").write_text("new")
            (path / "notes.txt").write_text("mine")

    with pytest.warns(UserWarning, match="holds other files") as caught:
        replace()
    only_warning(caught)
    for _ in range(2):  # nor by the next writer
        (notes,) = tmp_path.glob(".x.*/notes.txt")
        assert notes.read_text() == "mine"
        assert [entry.name for entry in path.iterdir()] == ["a.npy"]
        with replacing_directory(path, NAMES) as directory:
            (directory / "a.npy").write_text("newer")


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


# The same at every line of the writers: a child that is killed, or interrupted, when it has come to the nth one.
def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    raise KeyboardInterrupt


def at_every_line(stop, write, check):
    """Let `write` be stopped at each of its lines in turn, and `check` after each; return at how many."""
    for n in range(1, 1000):

        def stopped(n=n):
            at_line(n, [atomic_write], stop)
            try:
                write()
            except KeyboardInterrupt:
                os._exit(1)

        status = in_child(stopped)
        check()
        if status == 0:
            return n - 1
        assert status in (-signal.SIGKILL, 1)
    raise AssertionError("the writer has no end")


@pytest.fixture
def without_fsync(monkeypatch):
    """Of which nothing is to be seen but time, as long as the machine itself does not stop."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


STOPS = pytest.mark.parametrize("stop", [kill, interrupt], ids=["killed", "interrupted"])


@STOPS
@pytest.mark.each_choice
@pytest.mark.usefixtures("without_fsync")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore:.*killed process")
def test_a_file_is_whole_at_every_line(tmp_path, kind, old, stop):
    path = tmp_path / "x"

    def start_again():
        write_bytes(path, b"old")
        assert os.listdir(tmp_path) == ["x"]
        if not old:
            path.unlink()

    def check():
        assert (path.read_bytes() if path.exists() else None) in (b"new", b"old" if old else None)
        if stop is interrupt and kind == "unnamed" and not old:
            assert os.listdir(tmp_path) in ([], ["x"])
        start_again()

    start_again()
    assert at_every_line(stop, lambda: write_bytes(path, b"new"), check) > 20


@STOPS
@pytest.mark.each_choice
@pytest.mark.usefixtures("without_fsync")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore:.*killed process")
def test_a_directory_is_whole_at_every_line(tmp_path, exchange, old, stop):
    path = tmp_path / "x"

    def start_again():
        write_directory(path, "old")
        assert os.listdir(tmp_path) == ["x"]
        if not old:
            shutil.rmtree(path)

    def check():
        if stop is kill and exchange == "renamed twice":
            remove_leftovers(path, NAMES)
        if path.exists():
            assert_directory(path, "old" if old and (path / "a.npy").read_text() == "old" else "new")
        else:
            assert not old
        start_again()

    start_again()
    assert at_every_line(stop, lambda: write_directory(path, "new"), check) > 20
