"""`tsapps abft-encode`: the sidecar, its place, and errors."""

import json
import os

import numpy as np
import pytest

from tsapps.apps import abft
from tsapps.apps.abft.at_rest.exact_code import last_weight
from tsapps.apps.abft.at_rest.sidecar import read_sidecar
from tsapps.errors import ExitCode


def test_by_hand(succeed, directory):
    np.save("x.npy", np.array([[7], [0], [5]], np.int32))
    table = succeed("abft-encode", "x.npy")
    # 7 + 0 + 5; then weights r, r(r + 1)/2, … and the weights of the last sum, with r = 3 and 1 for the two words.
    sums = [12, 3 * 7 + 5, 6 * 7 + 5, 10 * 7 + 5, 7 * last_weight(3) + 5 * last_weight(1)]
    sidecar = read_sidecar("x.npy.abft")
    assert (sidecar.shape, sidecar.dtype, sidecar.exact.ravel().tolist()) == ((3, 1), "int32", sums)
    assert "data     x.npy: 3 × 1 int32, 12 bytes\n" in table
    assert "written  x.npy.abft: " in table
    assert {path.name for path in directory.iterdir()} == {"x.npy", "x.npy.abft"}


def test_files_and_layouts_have_the_same_checksums(succeed, blobs):
    np.save("fortran.npy", np.asfortranarray(blobs))
    np.save("swapped.npy", blobs.astype(">f4"))
    np.savez("one.npz", X=blobs)
    names = ["blobs.npy", "blobs.fbin", "fortran.npy", "swapped.npy", "one.npz"]
    for name in names:
        succeed("abft-encode", name, "--quiet")
    expected = abft.encode(_matrix(blobs), code="exact").exact
    for name in names:
        np.testing.assert_array_equal(read_sidecar(f"{name}.abft").exact, expected)
    succeed("abft-encode", "blobs.csv", "--out", "text.abft")
    expected = abft.encode(_matrix(blobs.astype(np.float64)), code="exact").exact
    np.testing.assert_array_equal(read_sidecar("text.abft").exact, expected)


def _matrix(array):
    from tsapps.matrix import open_matrix

    return open_matrix(array)


def test_default_sidecar_is_next_to_the_data(succeed, directory):
    h5py = pytest.importorskip("h5py")
    (directory / "below").mkdir()
    with h5py.File("below/x.h5", "w") as file:
        file["a/b"] = np.eye(3)
        file["c"] = np.eye(4)
    succeed("abft-encode", "below/x.h5:a/b")
    assert (directory / "below/x.h5-a-b.abft").exists()


def test_as_json(succeed, directory, blobs):
    summary = json.loads(succeed("abft-encode", "blobs.npy", "--json"))
    assert (summary["n"], summary["d"], summary["dtype"], summary["bytes"]) == (600, 5, "float32", 12_000)
    assert summary["output"] == str(directory / "blobs.npy.abft")
    assert summary["sidecar_bytes"] == os.path.getsize("blobs.npy.abft")
    assert (summary["code"], summary["weights"], summary["block"]) == ("exact", None, None)


def test_the_float_code(succeed, blobs):
    arguments = ("--code", "both", "--weights", 3, "--block", 256)
    summary = json.loads(succeed("abft-encode", "blobs.npy", *arguments, "--json"))
    assert (summary["code"], summary["weights"], summary["block"]) == ("both", 3, 256)
    sidecar = read_sidecar("blobs.npy.abft")
    assert (sidecar.rows.shape, sidecar.columns.shape) == ((1, 3, 600), (3, 3, 5))
    np.testing.assert_allclose(sidecar.rows[0, 0], blobs.astype(np.float64).sum(axis=1), rtol=1e-12, atol=1e-12)
    assert sidecar.exact is not None


@pytest.mark.parametrize("arguments", [["--weights", "5"], ["--weights", "0"], ["--block", "300"], ["--code", "sha"]])
def test_wrong_options(run, directory, blobs, arguments):
    assert run("abft-encode", "blobs.npy", *arguments).exit_code == ExitCode.USAGE
    assert not (directory / "blobs.npy.abft").exists()


def test_quiet_prints_nothing(succeed, blobs):
    assert succeed("abft-encode", "blobs.npy", "--quiet") == ""


def test_an_earlier_sidecar_is_kept(succeed, refuse, directory, blobs):
    succeed("abft-encode", "blobs.npy")
    before = (directory / "blobs.npy.abft").read_bytes()
    np.save("blobs.npy", blobs + 1)
    assert "blobs.npy.abft: already exists" in refuse(ExitCode.USAGE, "abft-encode", "blobs.npy")
    succeed("abft-encode", "blobs.npy", "--force")
    assert (directory / "blobs.npy.abft").read_bytes() != before


def test_never_replaces_the_data(refuse, blobs):
    line = refuse(ExitCode.USAGE, "abft-encode", "blobs.npy", "--out", "blobs.npy", "--force")
    assert "blobs.npy: is DATA itself" in line


def test_rejects_missing_files(refuse, blobs):
    assert "no.npy: no such file" in refuse(ExitCode.USAGE, "abft-encode", "no.npy")
    line = refuse(ExitCode.USAGE, "abft-encode", "blobs.npy", "--out", "no/x.abft")
    assert "there is no directory" in line


def test_rejects_files_without_a_matrix(refuse, directory):
    (directory / "x.npy").write_bytes(b"\x93NUMPY")
    assert "x.npy: " in refuse(ExitCode.FAILURE, "abft-encode", "x.npy")


def test_changing_data_get_no_sidecar(run, directory, blobs, monkeypatch):
    encode = abft.encode

    def slowly(*args, **kwargs):
        found = encode(*args, **kwargs)
        with open("blobs.npy", "ab") as file:
            file.write(b"\0")
        return found

    monkeypatch.setattr(abft, "encode", slowly)
    result = run("abft-encode", "blobs.npy")
    assert result.exit_code == ExitCode.FAILURE
    assert "blobs.npy: has changed" in result.stderr
    assert not (directory / "blobs.npy.abft").exists()
