"""Arrays repaired in memory: of any strides, byte order and library; in place, as a copy, or not at all."""

import numpy as np
import pytest

import tsapps
from tsapps.apps.abft import AmbiguousError, ChangedError, correct, encode, locate, verify
from tsapps.apps.abft.at_rest import correct as module
from tsapps.apps.abft.at_rest.correct import overwrite
from tsapps.matrix import open_matrix


def test_the_door():
    assert tsapps.abft.encode is encode
    assert "abft" in dir(tsapps)


def damaged_one(A):
    damaged = A.copy("K")
    damaged[3, 5] = 99
    damaged[170, 0] = -1
    return damaged


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("code", ["exact", "float", "both"])
@pytest.mark.parametrize("kind", ["c", "fortran", "swapped", "strided"])
def test_strides_and_byte_order(kind, code, in_place, rng):
    A = rng.standard_normal((300, 20)).astype(np.float32)
    if code != "float":
        A[0, :4] = np.array([0x7FA00001, 0xFFC12345, 0x80000000, 1], np.uint32).view(np.float32)
    expected = A.copy()
    A = {
        "c": lambda: A.copy(),
        "fortran": lambda: np.asfortranarray(A),
        "swapped": lambda: A.astype(">f4"),
        "strided": lambda: np.repeat(np.repeat(A, 2, 0), 3, 1)[::2, ::3],
    }[kind]()
    sidecar = encode(A, code=code)
    damaged = damaged_one(A)
    before = damaged.copy()
    assert locate(damaged, sidecar) == [(3, 5), (170, 0)]
    found = correct(damaged, sidecar, in_place=in_place)
    assert (found is damaged) == in_place
    assert found.dtype == A.dtype
    assert found.astype("<f4").tobytes() == expected.tobytes()
    if not in_place:
        np.testing.assert_array_equal(damaged, before)


def test_one_dimension_is_one_row(rng):
    x = rng.standard_normal(5000)
    sidecar = encode(x, code="exact")
    assert sidecar.shape == (1, 5000)
    damaged = x.copy()
    damaged[77] = 0
    assert locate(damaged, sidecar) == [(0, 77)]
    found = correct(damaged, sidecar)
    assert found.shape == x.shape
    np.testing.assert_array_equal(found, x)
    strided = np.repeat(x, 2)[::2]
    strided[5] = np.nan
    np.testing.assert_array_equal(correct(strided, sidecar, in_place=True), x)


def test_other_libraries(rng):
    A = rng.standard_normal((50, 4))
    sidecar = encode(A)
    damaged = A.copy()
    damaged[3, 3] = 5

    class Shared:  # any object with DLPack
        def __dlpack__(self, **arguments):
            return damaged.__dlpack__(**arguments)

        def __dlpack_device__(self):
            return damaged.__dlpack_device__()

    assert encode(Shared(), code="exact").exact.tobytes() != sidecar.exact.tobytes()
    np.testing.assert_array_equal(correct(Shared(), sidecar), A)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(damaged)
    np.testing.assert_array_equal(correct(frame, sidecar), A)
    with pytest.raises(TypeError, match="frame cannot be repaired in place"):
        correct(frame, sidecar, in_place=True)


def test_torch(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        A = torch.from_numpy(100 * rng.standard_normal((600, 7))).to(dtype)
        sidecar = encode(A)
        damaged = A.clone()
        damaged[500, 6] = 0
        damaged[500, 6] = 1 if A[500, 6] == 0 else damaged[500, 6]
        found = correct(damaged, sidecar)
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, A)
        assert correct(damaged, sidecar, in_place=True) is damaged
        assert torch.equal(damaged, A)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_on_a_gpu(dtype, rng):
    cupy = pytest.importorskip("cupy")
    A = (100 * rng.standard_normal((700, 30))).astype(dtype)
    there = cupy.asarray(A)
    sidecar = encode(there)
    np.testing.assert_array_equal(sidecar.exact, encode(A).exact)
    there[600, 7] = 77 if A[600, 7] != 77 else 0
    assert locate(there, sidecar) == [(600, 7)]
    found = correct(there, sidecar)
    assert isinstance(found, cupy.ndarray)
    assert found.get().tobytes() == A.tobytes()
    assert correct(there, sidecar, in_place=True) is there
    assert there.get().tobytes() == A.tobytes()


@pytest.mark.parametrize("in_place", [False, True])
def test_what_is_ambiguous_is_left_alone(in_place, rng):
    A = rng.standard_normal((3000, 4))
    sidecar = encode(A)
    damaged = A.copy()
    damaged[10:900] = 0
    before = damaged.copy()
    with pytest.raises(AmbiguousError, match="the array in memory: more was changed"):
        correct(damaged, sidecar, in_place=in_place)
    with pytest.raises(AmbiguousError):
        locate(damaged, sidecar)
    np.testing.assert_array_equal(damaged, before)


def test_what_changes_meanwhile_is_left_alone(rng, monkeypatch):
    A = rng.standard_normal((30, 4))
    sidecar = encode(A)
    damaged = A.copy()
    damaged[3, 3] = 7
    asked = []

    def other(X, sidecar):
        asked.append(X)
        if len(asked) == 2:
            damaged[20, 1] = 8
        return verify(X, sidecar)

    monkeypatch.setattr(module, "verify", other)
    with pytest.raises(ChangedError):
        correct(damaged, sidecar, in_place=True)
    assert (damaged[3, 3], damaged[20, 1]) == (7, 8)


def test_what_cannot_be_repaired(tmp_path, rng):
    A = rng.standard_normal((30, 4))
    sidecar = encode(A)
    with pytest.raises(TypeError, match="got str: of a file"):
        correct(str(tmp_path / "A.npy"), sidecar)
    with pytest.raises(TypeError, match="of a file"):
        correct(open_matrix(A), sidecar)
    A.flags.writeable = False
    with pytest.raises(ValueError, match="may not be written to"):
        correct(A, sidecar, in_place=True)
    np.testing.assert_array_equal(correct(A, sidecar), A)
    with pytest.raises(ValueError, match="its sidecar is of a matrix of 30 × 4 float64"):
        correct(A.T.copy(), sidecar)


def test_bytes_are_overwritten_as_they_lie():
    A = np.arange(6, dtype=">u2").reshape(2, 3)
    before = overwrite(A, np.array([3, 4]), np.array([1, 9], np.uint8))
    assert before.tolist() == [0, 2]
    assert A.tolist() == [[0, 257, 9], [3, 4, 5]]
