"""HDF5 files that name other files: rejected unless allowed, and then either complete or rejected."""

import json
import os

import numpy as np
import pytest

from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix

h5py = pytest.importorskip("h5py")

X = np.arange(60.0).reshape(20, 3)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Change to a directory next to a file that must not be read."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("secret.h5", "w") as file:
        file["X"] = X
    (tmp_path / "secret.bin").write_bytes(X.tobytes())
    return tmp_path


def link():
    with h5py.File("x.h5", "w") as file:
        file["L"] = h5py.ExternalLink("secret.h5", "/X")
    return "x.h5:L"


def link_behind_soft_links():
    with h5py.File("x.h5", "w") as file:
        file["far"] = h5py.ExternalLink("secret.h5", "/")
        file["g/on"] = h5py.SoftLink("/far/X")
        file["S"] = h5py.SoftLink("g/on")
    return "x.h5:S"


def link_to_a_group():
    with h5py.File("x.h5", "w") as file:
        file["g/far"] = h5py.ExternalLink("secret.h5", "/")
    return "x.h5:/g/far/X"


def storage():
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("E", X.shape, X.dtype, external=[("secret.bin", 0, 240), ("secret.bin", 240, 240)])
    return "x.h5"


def storage_without_an_end():
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("E", X.shape, X.dtype, external=[("secret.bin", 0, h5py.h5f.UNLIMITED)])
    return "x.h5:E"


def virtual():
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource("secret.h5", "X", X.shape)
    with h5py.File("x.h5", "w") as file:
        file.create_virtual_dataset("V", layout, fillvalue=-1)
    return "x.h5"


WAYS = [link, link_behind_soft_links, link_to_a_group, storage, storage_without_an_end, virtual]


@pytest.mark.parametrize("make", WAYS)
def test_refused(make):
    path = make()
    with pytest.raises(MatrixError, match=r"^x\.h5.*(another file|other files).*--allow-external"):
        open_matrix(path)


@pytest.mark.parametrize("make", WAYS)
def test_allowed(make):
    matrix = open_matrix(make(), allow_external=True)
    np.testing.assert_array_equal(matrix.read(), X)
    np.testing.assert_array_equal(matrix.rows([7, 3]), X[[7, 3]])
    np.testing.assert_array_equal(np.concatenate([piece.ravel() for *_, piece in matrix.pieces(2)]), X.ravel())


@pytest.mark.parametrize("make", [storage, storage_without_an_end, virtual])
@pytest.mark.parametrize("damage", ["missing", "short"])
def test_allowed_and_incomplete(make, damage):
    """HDF5 would return fill values."""
    path = make()
    if damage == "missing":
        os.unlink("secret.bin")
        os.unlink("secret.h5")
    else:
        os.truncate("secret.bin", 479)
        with h5py.File("secret.h5", "w") as file:
            file.create_dataset("X", X.shape, X.dtype, chunks=(5, 3))[:5] = X[:5]
    with pytest.raises(MatrixError, match=r"has elements in .*secret"):
        open_matrix(path, allow_external=True)


def test_elements_missing_from_all_files():
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:10] = h5py.VirtualSource("secret.h5", "X", X.shape)[:10]
    with h5py.File("x.h5", "w") as file:
        file.create_virtual_dataset("V", layout, fillvalue=-1)
    with pytest.raises(MatrixError, match="has 60 elements, and other files have 30 of them"):
        open_matrix("x.h5", allow_external=True)


@pytest.mark.parametrize(("make", "variable"), [(storage, "HDF5_EXTFILE_PREFIX"), (virtual, "HDF5_VDS_PREFIX")])
def test_directories_from_the_environment_are_rejected(make, variable, monkeypatch):
    monkeypatch.setenv(variable, "/elsewhere")
    with pytest.raises(MatrixError, match=f"unset {variable}"):
        open_matrix(make(), allow_external=True)


def test_a_dataset_that_becomes_a_link():
    with h5py.File("x.h5", "w") as file:
        file["X"] = X
    matrix = open_matrix("x.h5")
    with h5py.File("x.h5", "w") as file:
        file["X"] = h5py.ExternalLink("secret.h5", "/X")
    with pytest.raises(MatrixError, match="has changed since it was opened"):
        matrix.read()


class TestLinksWithinAFile:
    def test_groups_in_a_circle(self):
        with h5py.File("x.h5", "w") as file:
            a = file.create_group("a")
            a["b/a"], a["root"] = a, file["/"]
            file["X"] = X
            a["same"] = file["X"]
        for path in ("x.h5", "x.h5:X", "x.h5:a/root/a/b/a/same"):
            np.testing.assert_array_equal(open_matrix(path).read(), X)

    @pytest.mark.parametrize("name", ["a", "b", "up/up/up/a", "c"])
    def test_soft_links_in_a_circle(self, name):
        with h5py.File("x.h5", "w") as file:
            file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("a")
            file["up"], file["c"] = h5py.SoftLink("/"), h5py.SoftLink("c/c")
            file["X"] = X
        with pytest.raises(MatrixError, match=rf"^x\.h5:/{name}: is a chain of more than 16 soft links"):
            open_matrix(f"x.h5:{name}")

    def test_soft_links(self):
        with h5py.File("x.h5", "w") as file:
            file["g/h/X"] = X
            file["g/short"], file["g/h/long"], file["up"] = (
                h5py.SoftLink("h/X"),
                h5py.SoftLink("/g/short"),
                h5py.SoftLink("/"),
            )
        for name in ("g/short", "g/h/long", "up/up/g/./h//long"):
            np.testing.assert_array_equal(open_matrix(f"x.h5:{name}").read(), X)

    @pytest.mark.parametrize("name", ["none", "X/Y", "dangling"])
    def test_nothing_there(self, name):
        with h5py.File("x.h5", "w") as file:
            file["X"], file["dangling"] = X, h5py.SoftLink("/none")
        with pytest.raises(MatrixError, match=rf"x\.h5: holds no array '{name}': name one of X"):
            open_matrix(f"x.h5:{name}")


COMMANDS = [
    ("kmeans", "{}", "--k", "2", "--out", "r", "--force"),
    ("kmeans", "plain.npy", "--k", "20", "--init", "{}", "--out", "r", "--force"),
    ("predict", "model", "{}", "--force"),
    ("abft-encode", "{}", "--out", "r.abft", "--force"),
    ("abft-verify", "{}", "--sidecar", "plain.npy.abft"),
    ("abft-correct", "{}", "--sidecar", "plain.npy.abft", "--out", "r.npy", "--force"),
    ("abft-inject", "{}", "--out", "r.npy", "--force"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command(command):
    from typer.testing import CliRunner

    from tsapps.cli import app

    def run(*args):
        return CliRunner().invoke(app, list(args))

    np.save("plain.npy", X)
    os.mkdir("model")
    np.save("model/centers.npy", X[:2])
    with open("model/summary.json", "w") as file:
        json.dump({"kind": "tsapps kmeans", "k": 2, "d": 3, "dtype": "float64"}, file)
    run("abft-encode", "plain.npy")
    arguments = [argument.format(storage()) for argument in command]
    refused = run(*arguments)
    assert refused.exit_code == 1, refused.output
    assert refused.stderr.startswith("tsapps: x.h5:/E: stores elements in other files")
    assert refused.stderr.count("\n") == 1
    allowed = run(*arguments, "--allow-external")
    assert allowed.exit_code == 0, allowed.output
