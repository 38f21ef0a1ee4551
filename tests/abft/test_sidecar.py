"""The sidecar: a round trip, what another program reads of it, and every byte of it that is wrong."""

import io
import json
import struct

import numpy as np
import pytest

from tsapps.apps.abft.rest import encode
from tsapps.apps.abft.sidecar import Sidecar, SidecarError, read_sidecar, write_sidecar
from tsapps.matrix import open_matrix


def written(sidecar):
    file = io.BytesIO()
    write_sidecar(file, sidecar)
    return file.getvalue()


@pytest.fixture
def path(tmp_path, rng):
    path = tmp_path / "A.npy.abft"
    path.write_bytes(written(encode(open_matrix(rng.standard_normal((40, 30)).astype(np.float32)))))
    return path


@pytest.mark.parametrize(("shape", "dtype"), [((1, 1), "int8"), ((700, 3), "float64"), ((30, 5000), "float16")])
def test_round_trip(shape, dtype, tmp_path, rng):
    sidecar = encode(open_matrix((100 * rng.standard_normal(shape)).astype(dtype)))
    (tmp_path / "A.abft").write_bytes(written(sidecar))
    again = read_sidecar(tmp_path / "A.abft")
    assert (again.shape, again.dtype, again.n_bytes) == (shape, dtype, sidecar.n_bytes)
    np.testing.assert_array_equal(again.exact, sidecar.exact)


def test_another_program_reads_it(path):
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed (pip install 'tsapps[io]')")
    expected = read_sidecar(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert list(file.keys()) == ["exact"]
        assert file.metadata()["format"] == "tsapps-abft"
        assert json.loads(file.metadata()["shape"]) == [40, 30]
        np.testing.assert_array_equal(file.get_tensor("exact"), expected.exact)


def test_every_byte_of_it_is_watched(path):
    whole = path.read_bytes()
    expected = read_sidecar(path)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = read_sidecar(path)
        except SidecarError:
            continue
        # What is no part of what it says: a space of the header's.
        assert (found.shape, found.dtype, found.n_bytes) == (expected.shape, expected.dtype, expected.n_bytes)
        np.testing.assert_array_equal(found.exact, expected.exact)


def test_every_length_of_it_is_watched(path):
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SidecarError, match=r"A\.npy\.abft"):
            read_sidecar(path)


def test_says_what_it_is(path):
    def rewritten(**changes):
        text = json.dumps({"__metadata__": changes}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)

    rewritten(format="pt")
    with pytest.raises(SidecarError, match="its format is 'pt'"):
        read_sidecar(path)
    rewritten(format="tsapps-abft", version="7")
    with pytest.raises(SidecarError, match="version 7, and only 1 is known: update tsapps"):
        read_sidecar(path)
    path.write_bytes(b"\x93NUMPY and so on, and on")
    with pytest.raises(SidecarError, match="no sidecar of abft-encode"):
        read_sidecar(path)
    with pytest.raises(FileNotFoundError):
        read_sidecar(path.with_name("another"))


def test_sums_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"uint64 of shape \(1, 5, 1\), got uint64 of shape \(1, 5, 2\)"):
        Sidecar((1, 4), "int8", 4, np.zeros((1, 5, 2), np.uint64))
