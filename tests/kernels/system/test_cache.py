"""The cache directory: private, never another user's, and no reason to stop where it cannot be used."""

import json
import os
import stat
import sys
import warnings
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tsapps.apps.abft.product.calibration_file import load_calibration
from tsapps.kernels.jit import cache as kernel_cache
from tsapps.kernels.jit import compiler
from tsapps.kernels.plan import user_table as tables
from tsapps.kernels.system import cache

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
SOURCE = "__global__ void f() {}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The cache directory, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.warn_once.cache_clear()
    return tmp_path / "tsapps"


@pytest.fixture
def compiled(monkeypatch):
    """The sources that a stand-in for NVRTC has compiled."""
    found = []
    log = (
        "Compiling entry function 'f'\n0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 8 registers"
    )
    nvrtc = SimpleNamespace(
        NVRTCError=RuntimeError,
        getVersion=lambda: (13, 0),
        createProgram=lambda source, *_: source,
        addNameExpression=lambda *_: None,
        compileProgram=lambda source, flags: found.append(source),
        getProgramLog=lambda _: log,
        getLoweredName=lambda _, kernel: kernel,
        getCUBIN=lambda _: b"code",
        getPTX=lambda source: "trap;" if "trap" in source else "",
        destroyProgram=lambda _: None,
    )
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cuda.nvrtc = nvrtc
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(compiler, "_no_cache", lambda: ())
    monkeypatch.setattr(kernel_cache, "_not_kept", {})
    monkeypatch.setattr(compiler, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    return found


def built():
    return compiler.build(SOURCE, ["f"], "sm_90")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_is_private(place, compiled):
    before = os.umask(0)
    try:
        first = built()
    finally:
        os.umask(before)
    assert built() == first
    assert len(compiled) == 1
    assert [mode(path) for path in (place, place / "cubin")] == [0o700, 0o700]
    assert {mode(path) for path in (place / "cubin").iterdir()} == {0o600}


def writable(entry):
    entry.chmod(0o666)


def given_away(entry):
    os.chown(entry, 12345, -1)


def a_link(entry):
    entry.with_suffix(".else").write_bytes(b"a file of the user's")
    entry.unlink()
    entry.symlink_to(entry.with_suffix(".else"))
    os.chown(entry, 12345, -1, follow_symlinks=False)


def truncated(entry):
    entry.write_bytes(entry.read_bytes()[:-1])


def of_another_version(entry):
    # With the right digest: a program that describes kernels otherwise has written it.
    description = {"names": {}, "resources": {"f": {"lanes": 3}}, "seconds": 1}
    code = entry.with_suffix(".cubin").read_bytes()
    entry.with_suffix(".json").write_text(json.dumps(description | {"digest": kernel_cache._digest(description, code)}))


ODD = [writable, truncated, of_another_version, Path.unlink]
ODD += [pytest.param(odd, marks=AS_ROOT) for odd in (given_away, a_link)]


@pytest.mark.parametrize("suffix", [".json", ".cubin"])
@pytest.mark.parametrize("odd", ODD)
def test_anything_odd_is_compiled_again(place, compiled, suffix, odd):
    first = built()
    odd(first.path.with_suffix(suffix))
    assert built() == first
    assert len(compiled) == 2
    assert built() == first
    assert len(compiled) == 2
    assert {mode(path) for path in (place / "cubin").iterdir() if path.suffix != ".else"} == {0o600}
    assert all(path.read_bytes() == b"a file of the user's" for path in (place / "cubin").glob("*.else"))


def test_an_entry_that_is_a_directory(place, compiled):
    first = built()
    entry = first.path.with_suffix(".json")
    entry.unlink()
    entry.mkdir()
    with pytest.warns(UserWarning, match="cubin: cannot be written"):
        again = built()
    assert (len(compiled), again.names) == (2, first.names)
    assert again.path.read_bytes() == b"code"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert built() == again  # said once, and not compiled again in this process
    assert len(compiled) == 2


def test_a_directory_that_others_may_write_to_is_closed(place, compiled):
    first = built()
    (place / "cubin").chmod(0o777)
    assert built() == first
    assert len(compiled) == 2  # nobody knows who wrote what was there
    assert mode(place / "cubin") == 0o755


@AS_ROOT
def test_the_directory_of_another_user_is_not_used(place, compiled):
    place.mkdir()
    os.chown(place, 12345, -1)
    with pytest.warns(UserWarning, match="cannot be written .belongs to another user"):
        found = built()
    assert found.path.read_bytes() == b"code"
    assert list(place.iterdir()) == []
    assert mode(found.path.parent) == 0o700
    assert built() == found
    assert len(compiled) == 1


def no_home(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)


def test_no_home(place, compiled, monkeypatch):
    no_home(monkeypatch)
    with pytest.warns(UserWarning, match="not cached: there is no home directory for a cache"):
        found = built()
    assert found.path.read_bytes() == b"code"
    assert built() == found
    assert len(compiled) == 1
    with pytest.warns(UserWarning, match="no home directory .*: your tuning table is not used"):
        tables.user_table("NVIDIA H200")
    with pytest.raises(ValueError, match=r"there is no calibration .*no home directory.*: make one"):
        load_calibration("float32")


@pytest.mark.parametrize("reason", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
def test_a_full_or_read_only_cache(place, compiled, monkeypatch, reason):
    write = cache.write_cached

    def refuse(path, content):
        if place in path.parents:
            raise reason
        write(path, content)

    monkeypatch.setattr(kernel_cache, "write_cached", refuse)
    with pytest.warns(UserWarning, match=f"cubin: cannot be written .{reason.strerror}.: compiled") as said:
        found = built()
    assert len(said) == 1
    assert built() == found
    assert len(compiled) == 1


def test_a_table_that_others_may_write_to_is_not_used(place):
    path = tables.user_path("NVIDIA H200")
    tables.write_table(path, [])
    place.chmod(0o700)
    path.parent.chmod(0o700)
    path.chmod(0o666)
    with pytest.warns(UserWarning, match=r"other users may write to it: .*: your tuning table is not used"):
        assert tables.user_table("NVIDIA H200") == list(tables.user_table("NVIDIA H200"))
    with pytest.raises(PermissionError):  # nor replaced by tsapps tune
        tables.own_table("NVIDIA H200")


@pytest.mark.parametrize("path", ["cubin/x.json", "abft/x.json"])
def test_writable(place, path):
    cache.check_cache_writable(place / path)
    assert list((place / path).parent.iterdir()) == []
    (place / "file").write_bytes(b"")
    with pytest.raises((NotADirectoryError, FileExistsError)):
        cache.check_cache_writable(place / "file" / "x.json")


def test_a_kernel_that_compiles_to_a_trap_is_refused(place, compiled):
    """The compiler's answer to undefined behavior, such as an atomic operation on a local variable."""
    with pytest.raises(RuntimeError, match="compiles to a trap"):
        compiler.build("trap", ["f"], "sm_90")
    assert not list(place.rglob("*.cubin"))
