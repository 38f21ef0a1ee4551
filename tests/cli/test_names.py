"""Names from files and users: ``FILE:NAME`` is split in one way, and no foreign name reaches the terminal unescaped."""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unicodedata
import warnings
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import assume
from hypothesis import strategies as st
from typer.testing import CliRunner

from tsapps import abft, open_matrix
from tsapps.cli import app, output
from tsapps.errors import MatrixError, MatrixUsageError
from tsapps.names import shell_spelling, split_name

X = np.arange(6.0).reshape(3, 2)


def write_npz(path, names):
    with open(path, "wb") as file:
        np.savez(file, **{name: X + number for number, name in enumerate(names)})


def write_hdf5(path, names):
    with pytest.importorskip("h5py").File(path, "w") as file:
        for number, name in enumerate(names):
            file[name] = X + number


def write_safetensors(path, names):
    tensors = {name: X + number for number, name in enumerate(names)}
    pytest.importorskip("safetensors.numpy").save_file(tensors, path)


def write_parquet(path, names):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({name: ["text"] for name in names}), path)


CONTAINERS = {"npz": write_npz, "h5": write_hdf5, "safetensors": write_safetensors}
WRITERS = CONTAINERS | {"parquet": write_parquet}
NAMES = ["dense/kernel:0", "a:b:c", ":x", "x:", "two words", "it's", 'a"b', "$HOME", "größe", "-x", "~", "a\\b", "*"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_an_array_by_its_name(succeed, kind, name):
    CONTAINERS[kind](f"x.{kind}", ["other", name])
    path = f"x.{kind}:{name}"
    np.testing.assert_array_equal(open_matrix(path).read(), X + 1)
    found = json.loads(succeed("abft-encode", path, "--json", "--out", "x.abft"))
    assert (found["n"], found["d"]) == (3, 2)
    assert abft.verify(X + 1, abft.read_sidecar("x.abft")).clean


@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_command(succeed, kind):
    CONTAINERS[kind](f"x.{kind}", ["bias", "dense/kernel:0"])
    path = f"x.{kind}:dense/kernel:0"
    succeed("kmeans", path, "-k", "3", "--init", path, "-q", "--weights", weights(kind))
    assert sorted(os.listdir("x-dense-kernel:0-kmeans")) == ["centers.npy", "labels.npy", "summary.json"]
    succeed("predict", "x-dense-kernel:0-kmeans", path, "-q")
    assert np.load("x-dense-kernel:0-labels.npy").tolist() == [0, 1, 2]
    succeed("abft-encode", path, "-q")
    assert os.path.exists(f"x.{kind}-dense-kernel:0.abft")
    succeed("abft-verify", path, "-q")
    succeed("abft-inject", path, "--out", "y.npy", "-q")
    succeed("abft-correct", path, "--out", "z.npy", "-q")
    np.testing.assert_array_equal(np.load("z.npy"), X + 1)


def weights(kind):
    np.save("w.npy", np.ones((3, 1)))
    return "w.npy"


@pytest.mark.parametrize("kind", ["h5", "hdf5"])
def test_slashes_around_names_of_hdf5(succeed, kind):
    write_hdf5(f"x.{kind}", ["group/a:b", "other"])
    for name in ("group/a:b", "/group/a:b", "//group/a:b/"):
        succeed("abft-encode", f"x.{kind}:{name}", "--out", "x.abft", "--force", "-q")
        assert abft.verify(X, abft.read_sidecar("x.abft")).clean


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_an_empty_name(refuse, succeed, kind):
    CONTAINERS[kind](f"x.{kind}", ["", "other"])
    np.testing.assert_array_equal(open_matrix(f"x.{kind}:").read(), X)
    CONTAINERS[kind](f"y.{kind}", ["only"])
    assert f"y.{kind}: holds no array ''" in refuse(2, "abft-encode", f"y.{kind}:")


def test_an_empty_name_in_hdf5(refuse):
    write_hdf5("x.h5", ["only"])
    for name in ("", "/", "//"):
        assert "x.h5: holds no array ''" in refuse(2, "abft-encode", f"x.h5:{name}")


@pytest.mark.parametrize("kind", CONTAINERS)
def test_colons_in_the_names_of_files(succeed, kind):
    CONTAINERS[kind](f"a:b.{kind}", ["c", "d:e"])
    for path in (f"a:b.{kind}:c", f"./a:b.{kind}:d:e"):
        succeed("abft-encode", path, "--out", "x.abft", "--force", "-q")
        assert abft.verify(X + path.endswith("e"), abft.read_sidecar("x.abft")).clean
    CONTAINERS[kind]("a", ["x"])
    assert split_name(f"a:b.{kind}:c") == (f"a:b.{kind}", "c")  # the longest path that exists
    os.mkdir("dir:ectory")
    CONTAINERS[kind](f"dir:ectory/x.{kind}", ["y:z"])
    assert split_name(f"dir:ectory/x.{kind}:y:z") == (f"dir:ectory/x.{kind}", "y:z")
    assert open_matrix(f"dir:ectory/x.{kind}:y:z").shape == (3, 2)
    assert split_name("none:x") == ("none:x", None)


@pytest.mark.parametrize("path", ["x.npz:", "x.npy:0"])
def test_a_missing_file_with_a_name(refuse, path):
    assert refuse(2, "abft-encode", path) == f"tsapps: {path}: no such file: check the path\n"


def said(read, path):
    """Return the matrix's name and all warnings, or the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = repr(read(path))
        except (MatrixError, abft.SidecarError) as error:
            found = str(error)
        except ValueError as error:  # the operating system does not support such a path
            found = str(error)
    return "\n".join([found, *(str(one.message) for one in caught)])


@st.composite
def foreign_names(draw):
    """Draw text, with many characters that terminals interpret."""
    acting = st.sampled_from("\x1b\x07\r\n\t\x00\x7f\x85\x9b\u200b\u202e\u2066\u2028\ufeff:/'\"\\ $!\u0301\udcff\ud800")
    return draw(st.text(st.one_of(acting, st.characters()), min_size=1, max_size=draw(st.sampled_from([3, 12, 400]))))


def assert_printable(text):
    for character in text:
        assert character == "\n" or character.isprintable() or unicodedata.category(character) == "Zs", ascii(text)


def written(kind, names):
    """Write a file with arrays of these names in the current directory; skip the example if that fails."""
    try:
        WRITERS[kind](f"x.{kind}", names)
    except (ValueError, TypeError, OSError, RuntimeError, KeyError):  # the format does not support such names
        assume(False)
    return f"x.{kind}"


@property_test(8, 80, st.sampled_from(list(WRITERS)), foreign_names(), foreign_names())
def test_array_names_are_escaped(kind, one, other):
    with tempfile.TemporaryDirectory() as directory, chdir(directory), patch.object(output, "_LOG_SECONDS", 0):
        path = written(kind, [one, other])
        for data in (path, f"{path}:{one}", f"{path}:{one}:"):
            results = [CliRunner().invoke(app, ["abft-encode", data, "--out", "x.abft", "--force"])]
            results.append(CliRunner().invoke(app, ["kmeans", data, "-k", "2", "--out", "x-kmeans", "--force"]))
            for result in results:
                assert result.exit_code in (0, 1, 2), result.exception
                assert_printable(result.output)
            message = said(open_matrix, data)
            assert_printable(message)
            assert data != path or len(message) < 1200


@property_test(6, 60, foreign_names(), st.sampled_from(["npy", "csv", "npz", "abft", "parquet", "h5", "none"]))
def test_file_names_are_escaped(name, kind):
    name = re.sub("[\0/]", "", name)[:60].encode("utf-8", "replace")[:200].decode("utf-8", "ignore")
    with tempfile.TemporaryDirectory() as directory, chdir(directory), patch.object(output, "_LOG_SECONDS", 0):
        path = f"./{name}.{kind}"
        content = io.BytesIO()
        np.save(content, X)
        Path(path).write_bytes(b",a\n0,1.5\n1,2.5\n" if kind == "csv" else content.getvalue())
        for command in (
            ["kmeans", path, "-k", "2"],
            ["abft-encode", path],
            ["abft-verify", path],
            ["abft-verify", path, "--sidecar", path],
            ["abft-verify", path, path, "-q"],
            ["predict", path, path],
            ["abft-correct", path, "--out", f"{path}-out.npy"],
            ["abft-inject", path, "--out", f"{path}-out.npy", "--force"],
            ["sample", "iris", f"{path}-iris.npy"],
            ["sample", name, "out.npy"],
            ["kmeans", "--k", name],
        ):
            result = CliRunner().invoke(app, command)
            assert result.exit_code in (0, 1, 2, 3), (command, result.exception)
            assert_printable(result.output)
        for read in (open_matrix, abft.read_sidecar):
            assert_printable(said(read, path))


def test_undecodable_bytes_in_a_file_name(succeed):
    path = os.fsdecode(b"x\xff\x1b.npz")
    write_npz(path, ["a"])
    assert r"x\udcff\x1b.npz: 3 × 2" in succeed("abft-encode", path)


@property_test(15, 100, st.sampled_from(list(CONTAINERS)), foreign_names())
def test_the_suggested_spelling_works_in_a_shell(kind, name):
    assume(len(name) < 60 and "\0" not in name)
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        path = written(kind, [name, "zz"])
        with pytest.raises(MatrixUsageError, match="name one") as error:
            open_matrix(path)
        spelling = str(error.value).partition(", for example ")[2]
        assert_printable(spelling)
        argument = subprocess.run(["bash", "-c", f"printf %s {spelling}"], check=True, capture_output=True).stdout
        assert open_matrix(os.fsdecode(argument)).read()[0, 0] in (0, 1)


@pytest.mark.parametrize(
    ("argument", "spelling"),
    [
        ("x.npz:a", "x.npz:a"),
        ("x.npz:a b", "'x.npz:a b'"),
        ("-x.npz:a", "./-x.npz:a"),
        ("x.npz:größe", "'x.npz:größe'"),
        ("x.npz:it's\x1b[2J", r"$'x.npz:it\'s\x1b[2J'"),
        ("x.npz:\\\n\u202e", r"$'x.npz:\\\x0a\xe2\x80\xae'"),
        ("x.npz:\udcff", r"$'x.npz:\xff'"),
        ("x.npz:\ud800", None),
        ("x.npz:\0", None),
    ],
)
def test_spelling(argument, spelling):
    assert shell_spelling(argument) == spelling


def test_a_long_name_is_shortened():
    name = "a" * 5000
    write_npz("x.npz", [name, f"{name}b"])
    with pytest.raises(MatrixUsageError, match=r"holds several arrays, aaa.*…a.*: name one, as x.npz:NAME$") as error:
        open_matrix("x.npz")
    assert len(str(error.value)) < 400
    assert open_matrix(f"x.npz:{name}").name.count("a") < 200


@pytest.mark.parametrize("lend", [output.live_line, output.byte_bar])
@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_printable(monkeypatch, lend, terminal):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(output, "_LOG_SECONDS", 0)
    monkeypatch.setenv("COLUMNS", "200")
    with lend(quiet=False) as show:
        show("x\x1b]0;title\x07\u202ey", *([] if lend is output.live_line else [1, 2]))
    assert r"x\x1b]0;title\x07\u202ey" in stderr.getvalue()
    assert "\x07" not in stderr.getvalue()
    assert "\x1b]" not in stderr.getvalue()


def test_tables_are_printable(capsys):
    output.print_table({"data": "x\x1b[2J\r\u202e\udcff.npy", "cache": "/a\nb"})
    assert capsys.readouterr().out == "data   x\\x1b[2J \\u202e\\udcff.npy\ncache  /a b\n"
