"""The sidecar: a round trip, what another program reads of it, and every byte of it that is wrong."""

import io
import json
import struct

import numpy as np
import pytest

from tsapps.apps.abft.at_rest.sidecar import Sidecar, SidecarError, dump_sidecar, read_sidecar, write_sidecar
from tsapps.apps.abft.at_rest.verify import encode

NAMES = "exact", "rows", "columns"


@pytest.fixture(params=["exact", "float", "both"])
def path(request, tmp_path, rng):
    path = tmp_path / "A.npy.abft"
    write_sidecar(path, encode(rng.standard_normal((12, 9)).astype(np.float32), code=request.param))
    return path


def assert_same(found, expected):
    assert found.metadata == expected.metadata
    for name in NAMES:
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("code", ["exact", "float", "both"])
@pytest.mark.parametrize(("shape", "dtype"), [((1, 1), "int8"), ((700, 3), "float64"), ((30, 5000), "float16")])
def test_round_trip(shape, dtype, code, tmp_path, rng):
    sidecar = encode((100 * rng.standard_normal(shape)).astype(dtype), code=code, weights=3, block=256)
    write_sidecar(tmp_path / "A.abft", sidecar)
    again = read_sidecar(tmp_path / "A.abft")
    assert (again.shape, again.dtype, again.code) == (shape, dtype, code)
    assert (again.weights, again.block) == ((0, 0) if code == "exact" else (3, 256))
    assert_same(again, sidecar)


def test_written_whole_or_not_at_all(tmp_path, rng):
    path = tmp_path / "A.abft"
    sidecar = encode(rng.standard_normal((5, 4)))
    write_sidecar(path, sidecar)
    whole = path.read_bytes()
    file = io.BytesIO()
    dump_sidecar(file, sidecar)
    assert file.getvalue() == whole
    object.__setattr__(sidecar, "dtype", b"no text")  # fails when the header is made
    with pytest.raises(TypeError):
        write_sidecar(path, sidecar)
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        write_sidecar(tmp_path / "no" / "A.abft", sidecar)


def test_another_program_reads_it(path):
    safetensors = pytest.importorskip("safetensors", reason="safetensors is not installed (pip install safetensors)")
    expected = read_sidecar(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert sorted(file.keys()) == sorted(name for name in NAMES if getattr(expected, name) is not None)
        assert file.metadata()["format"] == "tsapps-abft"
        assert json.loads(file.metadata()["shape"]) == [12, 9]
        for name in file.keys():  # noqa: SIM118 it is no dictionary
            np.testing.assert_array_equal(file.get_tensor(name), getattr(expected, name))


#: Every eleventh byte, or length; all of them in exhaustive runs.
STEPS = pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.exhaustive)])


@STEPS
def test_every_byte_of_it_is_watched(path, step):
    whole = path.read_bytes()
    expected = read_sidecar(path)
    for place in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = read_sidecar(path)
        except SidecarError:
            continue
        # What is no part of what it says: a space of the header's.
        assert_same(found, expected)


@STEPS
def test_every_length_of_it_is_watched(path, step):
    whole = path.read_bytes()
    for length in {*range(0, len(whole), step), *range(12), *range(len(whole) - 12, len(whole))}:
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
    with pytest.raises(SidecarError, match="version '7', and only 1 is known: update tsapps"):
        read_sidecar(path)
    path.write_bytes(b"\x93NUMPY and so on, and on")
    with pytest.raises(SidecarError, match="no sidecar of abft-encode"):
        read_sidecar(path)
    with pytest.raises(FileNotFoundError):
        read_sidecar(path.with_name("another"))


def test_what_was_does_not_change(path):
    for sums in read_sidecar(path).tensors.values():
        with pytest.raises(ValueError, match="read-only"):
            sums[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        encode(np.ones((3, 4))).exact[0] = 0


def test_repr():
    exact = np.zeros((1, 5, 1), np.uint64)
    rows, columns = np.zeros((1, 2, 1)), np.zeros((1, 2, 4))
    kind = (1, 4), "int8", 4
    weighted = {"rows": rows, "columns": columns, "block": 512, "weights": 2}
    assert repr(Sidecar(*kind, exact)) == "<Sidecar of 1 × 4 int8: code 'exact', 40 bytes of checksums>"
    of_float = "<Sidecar of 1 × 4 int8: code 'float', 2 weights, blocks of 512, 80 bytes of checksums>"
    assert repr(Sidecar(*kind, **weighted)) == of_float
    of_both = "<Sidecar of 1 × 4 int8: code 'both', 2 weights, blocks of 512, 120 bytes of checksums>"
    assert repr(Sidecar(*kind, exact, **weighted)) == of_both


def test_sums_that_do_not_fit_are_refused():
    exact = np.zeros((1, 5, 1), np.uint64)
    rows, columns = np.zeros((1, 2, 1)), np.zeros((1, 2, 4))
    Sidecar((1, 4), "int8", 4, exact)
    Sidecar((1, 4), "int8", 4, rows=rows, columns=columns, block=512, weights=2)
    with pytest.raises(ValueError, match=r"uint64 of shape \(1, 5, 1\), got uint64 of shape \(1, 5, 2\)"):
        Sidecar((1, 4), "int8", 4, np.zeros((1, 5, 2), np.uint64))
    with pytest.raises(ValueError, match=r"rows sums of 1 × 4 float16 are float32 of shape \(1, 2, 1\), got float64"):
        Sidecar((1, 4), "float16", 8, rows=rows, columns=columns, block=512, weights=2)
    with pytest.raises(ValueError, match="1 × 4 elements cannot have 5 bytes"):
        Sidecar((1, 4), "int8", 5, exact)
    with pytest.raises(ValueError, match="one of both is missing"):
        Sidecar((1, 4), "int8", 4, exact, rows=rows, block=512, weights=2)
    with pytest.raises(ValueError, match="no sums of either code"):
        Sidecar((1, 4), "int8", 4)
    with pytest.raises(ValueError, match="blocks of 512 and 2 weights"):
        Sidecar((1, 4), "int8", 4, exact, block=512, weights=2)
