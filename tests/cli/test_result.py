"""Output directories of `kmeans`: written atomically, without touching foreign files."""

import os

import pytest

from tsapps.cli.result import KIND, check_place, new_directory
from tsapps.errors import UsageError
from tsapps.kernels.system import atomic_write


def write(directory, text):
    (directory / "labels.npy").write_text(text)
    (directory / "summary.json").write_text(f'{{"kind": "{KIND}", "text": "{text}"}}')


@pytest.fixture
def place(directory):
    """Write an earlier result."""
    place = directory / "place"
    place.mkdir()
    write(place, "old")
    return place


def assert_old(place):
    assert (place / "labels.npy").read_text() == "old"


def assert_old_and_alone(place):
    assert_old(place)
    assert [path.name for path in place.parent.iterdir()] == ["place"]


def replace(place, *, force, then=lambda: None):
    """Write a new result to `place`; call `then` before it is complete."""
    with new_directory(place, force=force) as temporary:
        write(temporary, "new")
        then()


def raising(error):
    def then():
        raise error

    return then


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), OSError("disk full"), MemoryError()])
def test_an_interruption_leaves_nothing(directory, error):
    with pytest.raises(type(error)):
        replace(directory / "new", force=False, then=raising(error))
    assert not list(directory.iterdir())


def test_an_interruption_keeps_the_old_result(place):
    with pytest.raises(KeyboardInterrupt):
        replace(place, force=True, then=raising(KeyboardInterrupt()))
    assert_old_and_alone(place)


def test_the_old_result_stays_until_the_new_one_is_complete(place):
    seen = []
    replace(place, force=True, then=lambda: seen.append((place / "labels.npy").read_text()))
    assert seen == ["old"]
    assert (place / "labels.npy").read_text() == "new"


def test_a_failed_rename_restores_the_old_result(place, monkeypatch):
    rename = os.rename

    def fail(source, target):
        if os.path.basename(source).endswith(".tmp"):
            raise OSError("the disk failed")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    monkeypatch.setattr(atomic_write, "_swap", lambda one, other: False)
    with pytest.raises(OSError, match="the disk failed"):
        replace(place, force=True)
    assert_old_and_alone(place)


def test_force_replaces_all_of_it(place):
    (place / "centers.npy").write_text("old")
    replace(place, force=True)
    assert (place / "labels.npy").read_text() == "new"
    assert not (place / "centers.npy").exists()
    assert [path.name for path in place.parent.iterdir()] == ["place"]


def test_new_foreign_files_are_kept(place):
    with pytest.raises(UsageError, match=r"holds 'notes\.txt'"):
        replace(place, force=True, then=lambda: (place / "notes.txt").write_text("mine"))
    assert (place / "notes.txt").read_text() == "mine"
    assert (place / "labels.npy").read_text() == "old"


def test_a_new_foreign_directory_is_kept(directory):
    with pytest.raises(UsageError, match="already exists"):
        replace(directory / "new", force=False, then=lambda: (directory / "new").mkdir())
    assert [path.name for path in directory.iterdir()] == ["new"]


def test_permissions_are_those_of_any_new_directory(directory):
    with new_directory(directory / "new", force=False):
        pass
    (directory / "other").mkdir()
    assert (directory / "new").stat().st_mode == (directory / "other").stat().st_mode


def test_the_next_run_removes_leftovers_of_a_killed_one(directory, run, iris):
    (directory / ".out.npy.0123456789abcdef.tmp").write_bytes(b"half")
    left = directory / ".iris-kmeans.0123456789abcdef.tmp"
    left.mkdir()
    write(left, "half")
    for arguments in (["sample", "iris", "out.npy"], ["kmeans", "iris.npy", "--k", 2, "--quiet"]):
        done = run(*arguments)
        assert done.exit_code == 0
        assert done.stderr.startswith("tsapps: warning: ")
        assert "removed temporaries of killed processes: ." in done.stderr
        assert done.stderr.count("\n") == 1
    assert {path.name for path in directory.iterdir()} == {"iris.npy", "out.npy", "iris-kmeans"}


def test_a_result_moved_away_by_a_killed_run_is_restored(place):
    os.rename(place, place.with_name(".place.0123456789abcdef.old"))
    with pytest.warns(UserWarning, match="restored from"):
        check_place(place, force=True)
    assert_old(place)
    assert not list(place.parent.glob(".*"))
