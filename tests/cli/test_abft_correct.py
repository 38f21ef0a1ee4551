"""`tsapps abft-correct`: byte-for-byte repairs, and errors."""

import json
import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from tsapps.errors import ExitCode


@pytest.fixture
def protected(succeed, blobs):
    """Write 600 × 5 float32 to blobs.npy, with its sidecar."""
    succeed("abft-encode", "blobs.npy")
    return blobs


def write(kind, X):
    """Write a matrix to a file of plain bytes; return its name."""
    if kind in ("fbin", "fvecs"):
        head = np.array(X.shape, "<u4").tobytes() if kind == "fbin" else b""
        each = b"" if kind == "fbin" else np.int32(X.shape[1]).tobytes()
        with open(f"x.{kind}", "wb") as file:
            file.write(head + b"".join(each + row.tobytes() for row in X))
        return f"x.{kind}"
    if kind == "safetensors":
        safetensors = pytest.importorskip("safetensors.numpy")
        safetensors.save_file({"a": X[:2], "weight": X, "z": -X}, "x.safetensors")
        return "x.safetensors:weight"
    np.save("x.npy", {"c": X, "fortran": np.asfortranarray(X), "swapped": X.astype(">f4")}[kind])
    return "x.npy"


@pytest.mark.parametrize("kind", ["c", "fortran", "swapped", "fbin", "fvecs", "safetensors"])
def test_files_are_restored_byte_for_byte(succeed, stop, directory, blobs, rng, kind):
    name = write(kind, blobs)
    file = directory / name.split(":")[0]
    right = file.read_bytes()
    succeed("abft-encode", name)
    damaged = blobs.copy()
    damaged[[5, 300], [0, 4]] = [np.nan, -blobs[300, 4]]
    write(kind, damaged)
    if kind == "safetensors":  # parts without checksums stay unchanged
        safetensors = pytest.importorskip("safetensors.numpy")
        safetensors.save_file({"a": blobs[:2], "weight": damaged, "z": -blobs}, file)
    assert file.read_bytes() != right
    stop("abft-verify", name)
    table = succeed("abft-correct", name, "--in-place")
    assert file.read_bytes() == right
    assert "repaired  2 elements" in table
    succeed("abft-verify", name)
    assert len(list(directory.iterdir())) == 5 if kind == "c" else 6  # the blobs, the file and its sidecar


@pytest.mark.parametrize("kind", ["csv", "npz", "fortran", "swapped"])
def test_copies_hold_the_original_matrix(succeed, directory, blobs, kind):
    def write_any(X):
        if kind == "csv":
            np.savetxt("x.csv", X, delimiter=",", fmt="%.17g")
        elif kind == "npz":
            np.savez_compressed("x.npz", X=X)
        else:
            return write(kind, X)
        return f"x.{kind}"

    name = write_any(blobs)
    succeed("abft-encode", name)
    damaged = blobs.copy()
    damaged[17, 2] = np.float32(1e30)
    write_any(damaged)
    before = (directory / name).read_bytes()
    *elements, summary = map(json.loads, succeed("abft-correct", name, "--out", "right.npy", "--json").splitlines())
    found = np.load("right.npy")
    assert found.dtype == (np.float64 if kind == "csv" else np.float32)
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, blobs)
    assert (directory / name).read_bytes() == before
    assert [(one["row"], one["column"]) for one in elements] == [(17, 2)]
    assert (summary["elements"], summary["output"]) == (1, str(directory / "right.npy"))


@pytest.mark.parametrize("dtype", ["f8", "f2", "i1", pytest.param("u8", marks=pytest.mark.exhaustive), ">i4"])
def test_every_bit_of_an_element(succeed, directory, flip, dtype, rng):
    size = np.dtype(dtype).itemsize
    X = rng.integers(0, 256, 37 * 11 * size, np.uint8).view(dtype).reshape(37, 11)
    np.save("x.npy", X)
    right = (directory / "x.npy").read_bytes()
    succeed("abft-encode", "x.npy")
    for bit in range(8 * size):
        flip("x.npy", 128 + (20 * 11 + 7) * size + bit // 8, 1 << bit % 8)
        succeed("abft-correct", "x.npy", "--in-place", "--quiet")
        assert (directory / "x.npy").read_bytes() == right


def test_two_words_of_a_block(succeed, directory):
    X = np.arange(500, dtype=np.int32).reshape(50, 10)  # one block
    np.save("x.npy", X)
    right = (directory / "x.npy").read_bytes()
    succeed("abft-encode", "x.npy")
    X[[3, 44], [0, 9]] = -1
    np.save("x.npy", X)
    succeed("abft-correct", "x.npy", "--in-place")
    assert (directory / "x.npy").read_bytes() == right


def test_three_words_of_a_block_are_not_repaired(succeed, stop):
    X = np.arange(500, dtype=np.int32).reshape(50, 10)
    np.save("x.npy", X)
    succeed("abft-encode", "x.npy")
    X[[3, 20, 44], [0, 5, 9]] = -1
    np.save("x.npy", X)
    for target in (["--in-place"], ["--out", "y.npy"]):
        result = stop("abft-correct", "x.npy", *target)
        assert result.stdout == ""
        assert result.stderr == (
            "tsapps: x.npy: has more corruption than can be repaired, in rows 0 to 49, columns 0 to 9 (tsapps "
            "abft-verify lists all): restore these from a copy\n"
        )


@pytest.mark.parametrize("code", ["float", "both"])
def test_other_codes(succeed, directory, flip, blobs, code):
    right = (directory / "blobs.npy").read_bytes()
    succeed("abft-encode", "blobs.npy", "--code", code, "--weights", 3, "--block", 256)
    flip("blobs.npy", 128 + 4 * 777 + 3, 0x40)
    succeed("abft-correct", "blobs.npy", "--in-place")
    assert (directory / "blobs.npy").read_bytes() == right


def test_in_place_writes_nothing_if_nothing_is_corrupted(succeed, directory, protected):
    before = os.stat("blobs.npy")
    table = succeed("abft-correct", "blobs.npy", "--in-place")
    after = os.stat("blobs.npy")
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "nothing: no element is corrupted" in table
    (summary,) = map(json.loads, succeed("abft-correct", "blobs.npy", "--in-place", "--json").splitlines())
    assert (summary["elements"], summary["output"]) == (0, None)
    succeed("abft-correct", "blobs.npy", "--out", "copy.npy")
    np.testing.assert_array_equal(np.load("copy.npy"), protected)


def test_permissions_and_links_are_kept(succeed, directory, flip, protected):
    right = (directory / "blobs.npy").read_bytes()
    os.chmod("blobs.npy", 0o640)
    os.symlink("blobs.npy", "link.npy")
    flip("blobs.npy", 1000)
    succeed("abft-correct", "link.npy", "--in-place", "--sidecar", "blobs.npy.abft")
    assert os.path.islink("link.npy")
    assert (directory / "blobs.npy").read_bytes() == right
    assert stat.S_IMODE(os.stat("blobs.npy").st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(succeed, flip, protected):
    os.chown("blobs.npy", 12_345, 54_321)
    flip("blobs.npy", 1000)
    succeed("abft-correct", "blobs.npy", "--in-place")
    found = os.stat("blobs.npy")
    assert (found.st_uid, found.st_gid) == (12_345, 54_321)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "expected one of --out FILE.npy, to write a copy, and --in-place"),
        (["--out", "y.npy", "--in-place"], "expected one of --out FILE.npy, to write a copy, and --in-place"),
        (["--in-place", "--force"], "--force applies to --out only"),
        (["--out", "blobs.npy", "--force"], "blobs.npy: is DATA itself: give --in-place"),
        (["--out", "y.fbin"], "y.fbin: expected a name that ends in .npy"),
        (["--out", "blobs.fbin/y.npy"], "there is no directory"),
        (["--out", "there.npy"], "there.npy: already exists"),
        (["--in-place", "--sidecar", "no.abft"], "no.abft: no such file"),
    ],
)
def test_wrong_use(refuse, flip, protected, arguments, line):
    np.save("there.npy", protected)
    flip("blobs.npy", 1000)
    assert line in refuse(ExitCode.USAGE, "abft-correct", "blobs.npy", *arguments)


@pytest.mark.parametrize("name", ["blobs.csv", "x.npz", "x.h5", "x.parquet"])
def test_in_place_needs_plain_bytes(succeed, refuse, blobs, name):
    if name == "x.npz":
        np.savez(name, X=blobs)
    elif name == "x.h5":
        with pytest.importorskip("h5py").File(name, "w") as file:
            file["X"] = blobs
    elif name == "x.parquet":
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(arrow.table({str(j): blobs[:, j] for j in range(5)}), name)
    succeed("abft-encode", name)
    line = refuse(ExitCode.USAGE, "abft-correct", name, "--in-place")
    assert f"{name}: does not hold its elements as plain bytes" in line
    assert "--out FILE.npy" in line


def test_npy_does_not_support_bfloat16(succeed, refuse, directory, flip):
    safetensors = pytest.importorskip("safetensors.numpy")
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    safetensors.save_file({"weight": np.ones((8, 5), bfloat16)}, "x.safetensors")
    right = (directory / "x.safetensors").read_bytes()
    succeed("abft-encode", "x.safetensors")
    flip("x.safetensors", -1)
    line = refuse(ExitCode.USAGE, "abft-correct", "x.safetensors", "--out", "y.npy")
    assert "y.npy: .npy does not support bfloat16: give --in-place" in line
    succeed("abft-correct", "x.safetensors", "--in-place")
    assert (directory / "x.safetensors").read_bytes() == right


def test_a_damaged_sidecar_repairs_nothing(stop, flip, protected):
    flip("blobs.npy.abft", -1)
    for target in (["--in-place"], ["--out", "y.npy"]):
        line = stop("abft-correct", "blobs.npy", *target).stderr
        assert line.startswith("tsapps: the sidecar, not the matrix: blobs.npy.abft: ")


def test_the_written_copy_is_verified(stop, flip, protected, monkeypatch):
    """A repair that does not reach the file is an error."""
    flip("blobs.npy", 1000)
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, place: len(data))
    for target in (["--in-place"], ["--out", "y.npy"]):
        assert "fails verification and was removed" in stop("abft-correct", "blobs.npy", *target).stderr


def test_force_replaces_a_file(succeed, protected):
    np.save("y.npy", [1])
    succeed("abft-correct", "blobs.npy", "--out", "y.npy", "--force")
    np.testing.assert_array_equal(np.load("y.npy"), protected)


def test_a_full_disk_leaves_the_file(directory, flip, protected):
    resource = pytest.importorskip("resource")
    flip("blobs.npy", 1000)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    done = subprocess.run(
        # -B: or bytecode of what it imports would be kept in part.
        [sys.executable, "-B", "-m", "tsapps", "abft-correct", "blobs.npy", "--in-place"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)),
    )
    assert done.returncode == ExitCode.FAILURE
    assert done.stderr.startswith("tsapps: blobs.npy: ")
    assert done.stderr.count("\n") == 1
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
