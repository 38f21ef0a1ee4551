"""Files and directories are written whole or not at all, reach the disk, and leave nothing of a killed process."""

import os
import shutil
import signal
import stat

import pytest
from forked import at_line, in_child
from whole_directory import NAMES, assert_directory, write_directory

from tsapps.kernels.system import atomic_write
from tsapps.kernels.system.atomic_write import remove_leftovers, replacing, replacing_directory, write_bytes


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

    with pytest.warns(UserWarning, match="contained unexpected files") as caught:
        replace()
    assert ["\n" in str(one.message) for one in caught] == [False]
    for _ in range(2):  # nor by the next writer
        (notes,) = tmp_path.glob(".x.*/notes.txt")
        assert notes.read_text() == "mine"
        assert [entry.name for entry in path.iterdir()] == ["a.npy"]
        with replacing_directory(path, NAMES) as directory:
            (directory / "a.npy").write_text("newer")


# Every line of the writers: a child that is killed, or interrupted, when it has come to the nth one.
def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt():
    raise KeyboardInterrupt


def at_every_line(stop, write, check, step):
    """Let `write` be stopped at each step-th of its lines in turn, and `check` after each; return how many it has."""
    for n in range(1 + (step > 1 and stop is interrupt), 1000, step):

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
#: Every second line, the odd ones if it is killed and the even if interrupted; all of them in exhaustive runs.
STEPS = pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.exhaustive)])


@STOPS
@STEPS
@pytest.mark.each_choice
@pytest.mark.usefixtures("without_fsync")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore:.*killed process")
def test_a_file_is_whole_at_every_line(tmp_path, kind, old, stop, step):
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
    assert at_every_line(stop, lambda: write_bytes(path, b"new"), check, step) > 20


@STOPS
@STEPS
@pytest.mark.each_choice
@pytest.mark.usefixtures("without_fsync")
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.filterwarnings("ignore:.*killed process")
def test_a_directory_is_whole_at_every_line(tmp_path, exchange, old, stop, step):
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
    assert at_every_line(stop, lambda: write_directory(path, "new"), check, step) > 20
