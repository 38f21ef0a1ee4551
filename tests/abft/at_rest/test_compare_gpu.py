"""Exact sums compared on a GPU: the launchers on a `HostMachine`, and the verdicts that follow."""

import gc
import weakref

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.machine import HostMachine
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest import float_decode
from tsapps.apps.abft.at_rest.correct import correct
from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.gpu import compare as exact_gpu
from tsapps.apps.abft.at_rest.gpu import encode as checksums_gpu
from tsapps.apps.abft.at_rest.interleave import ROWS
from tsapps.apps.abft.at_rest.sidecar import read_sidecar, write_sidecar
from tsapps.apps.abft.at_rest.verify import encode, verify


def test_by_hand():
    """Of two stripes of three blocks, the second of the first and the last of the other."""
    expected = np.arange(2 * SUMS * 3, dtype=np.uint64).reshape(2, SUMS, 3)
    found = expected.copy()
    found[0, 4, 1], found[1, 0, 2] = 1000, 2000
    blocks, sums = exact_gpu.mismatches(HostMachine(), found, expected)
    assert blocks.tolist() == [1, 5]
    assert sums.tolist() == [[1, 4, 7, 10, 1000], [2000, 20, 23, 26, 29]]


@settings(max_examples=40, deadline=None)
@given(
    stripes=st.integers(1, 5),
    width=st.integers(1, 700),
    share=st.sampled_from([0, 0.003, 0.5, 1]),
    seed=st.integers(0, 999),
)
def test_blocks_that_differ_are_listed_once(stripes, width, share, seed):
    rng = np.random.default_rng(seed)
    expected = rng.integers(0, 2**64, (stripes, SUMS, width), np.uint64)
    wrong = rng.random((stripes, width)) < share
    # One bit of one sum, whichever.
    which, bits = rng.integers(SUMS, size=wrong.shape), rng.integers(0, 64, wrong.shape, np.uint64)
    changes = wrong[:, None] & (np.arange(SUMS)[:, None] == which[:, None])
    found = np.where(changes, expected ^ (np.uint64(1) << bits[:, None]), expected)
    with harness.schedule(seed=seed):
        blocks, sums = exact_gpu.mismatches(HostMachine(), found, expected)
    np.testing.assert_array_equal(blocks, np.flatnonzero(wrong))
    np.testing.assert_array_equal(sums, found.transpose(0, 2, 1)[wrong])


@pytest.fixture
def comparisons(monkeypatch):
    """How many blocks differed, of every comparison."""
    seen, compare = [], exact_gpu.mismatches_of

    def counted(*given):
        blocks, sums = compare(*given)
        seen.append(len(blocks))
        return blocks, sums

    monkeypatch.setattr(exact_gpu, "mismatches_of", counted)
    return seen


@pytest.fixture
def as_on_a_gpu(comparisons, monkeypatch):
    """Return a function that has passes run on a `HostMachine`, in pieces of some stripes."""
    machine = HostMachine()

    def pieces(stripes):
        monkeypatch.setattr(exact_gpu, "machine_of", lambda source, device: machine)
        monkeypatch.setattr(checksums_gpu, "_PIECE_BYTES", 4 * SHAPE[1] * ROWS * stripes)

    return pieces


def one_word(A, rng):
    A[700, 99] = -A[700, 99]
    return 1, 0


def two_words_of_a_block(A, rng):
    A[[3, 500], 17] += 1
    return 2, 0


def three_words_of_a_block(A, rng):
    A[[1030, 1031, 1500], 519] += 1
    return 0, 1


def many_words(A, rng):
    """One of every block of two stripes, and a stripe that is another one."""
    A[[100, 1599]] = np.nan
    A[ROWS : 2 * ROWS] = rng.standard_normal((ROWS, A.shape[1]), np.float32)
    return 2 * A.shape[1], A.shape[1]


def every_word(A, rng):
    A[:] = rng.standard_normal(A.shape, np.float32)
    return 0, 4 * A.shape[1]


def no_word(A, rng):
    return 0, 0


DAMAGES = [no_word, one_word, two_words_of_a_block, three_words_of_a_block, many_words, every_word]
#: Four stripes, the last of 64 rows; rows of words are the matrix's own.
SHAPE = 3 * ROWS + 64, 520


def damaged(damage, rng):
    """Return a matrix, a sidecar of what it was, what the CPU finds of it, and how many faults and regions that is."""
    A = rng.standard_normal(SHAPE, np.float32)
    sidecar = encode(A, code="exact")
    counts = damage(A, rng)
    expected = verify(A, sidecar)
    assert (len(expected.faults), len(expected.refused)) == counts
    return A, sidecar, expected


def verdicts_are_the_same(found, expected):
    assert found.clean == expected.clean
    np.testing.assert_array_equal(found.faults.array, expected.faults.array)
    np.testing.assert_array_equal(found.refused.array, expected.refused.array)


@pytest.mark.each_choice
@pytest.mark.parametrize("stripes", [1, 3, 4])
@pytest.mark.parametrize("damage", DAMAGES)
def test_verdicts_are_those_of_the_cpu(damage, stripes, as_on_a_gpu, comparisons, rng):
    A, sidecar, expected = damaged(damage, rng)
    as_on_a_gpu(stripes)
    verdicts_are_the_same(verify(A, sidecar), expected)
    assert len(comparisons) == -(-4 // stripes)
    assert (sum(comparisons) > 0) == (not expected.clean)


def test_sums_in_host_memory_decide(as_on_a_gpu, monkeypatch, rng):
    """Blocks that only seem to differ, as the copy on the GPU went wrong, have no faults."""
    A = rng.standard_normal((1100, 520), np.float32)
    sidecar = encode(A, code="exact")
    as_on_a_gpu(3)

    def all_seem_to_differ(machine, piece, plans, expected):
        (plan,), (stripes, _, width) = plans, expected.shape
        found = checksums_gpu.add_checksums(machine, piece, plan)["exact"]
        return np.arange(stripes * width), found.transpose(0, 2, 1).reshape(-1, SUMS)

    monkeypatch.setattr(exact_gpu, "mismatches_of", all_seem_to_differ)
    assert verify(A, sidecar).clean
    A[1000, 3] += 1
    assert verify(A, sidecar).elements(sidecar) == [(1000, 3)]


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_the_kernel_does_not_spill(arch):
    used = exact_gpu.compiled(arch).resources[exact_gpu.KERNEL]
    assert (used.spill_stores, used.spill_loads) == (0, 0)


# --- On a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def at_the_start_of_memory(cupy, A):
    return cupy.asarray(A)


def at_any_address(cupy, A):
    array = cupy.empty(A.size + 1, A.dtype)[1:].reshape(A.shape)
    array[...] = cupy.asarray(A)
    return array


def by_columns(cupy, A):
    # As whole numbers: of floating-point numbers, CuPy lets cuBLAS do that, which alters NaNs.
    return cupy.asfortranarray(cupy.asarray(A.view(f"u{A.itemsize}"))).view(A.dtype)


def with_gaps(cupy, A):
    array = cupy.zeros((A.shape[0], 2, A.shape[1]), A.dtype)
    array[:, 0] = cupy.asarray(A)
    return array[:, 0]


def in_host_memory(cupy, A):
    return A


@pytest.mark.gpu
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("lies", [at_the_start_of_memory, at_any_address, by_columns, with_gaps, in_host_memory])
def test_verdicts_by_a_gpu_are_those_of_the_cpu(lies, damage, cupy, comparisons, monkeypatch, rng):
    monkeypatch.setattr(checksums_gpu, "_PIECE_BYTES", 1 << 20)  # a stripe
    A, sidecar, expected = damaged(damage, rng)
    told = []
    verdicts_are_the_same(verify(lies(cupy, A), sidecar, device="cuda", progress=told.append), expected)
    assert len(comparisons) == len(told) == (1 if lies is at_the_start_of_memory else 4)
    assert (told[-1], sum(comparisons) > 0) == (A.nbytes, not expected.clean)


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "dtype"), [((20_000, 64), np.float32), ((700, 40_000), np.int8), ((64, 8192), "f8")])
def test_other_layouts(shape, dtype, cupy, comparisons, rng):
    """Rows of words that are several of elements, a stripe and a part of one, and words that are dealt out."""
    A = rng.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, np.uint8).view(dtype).reshape(shape)
    sidecar = encode(A, code="exact")
    assert verify(cupy.asarray(A), sidecar).clean
    A.view(np.uint8)[[5, -1], [7, -1]] ^= 1
    verdicts_are_the_same(verify(cupy.asarray(A), sidecar), verify(A, sidecar))
    assert comparisons == [0, 2]


@pytest.mark.gpu
def test_sums_are_sent_once_and_stay_as_long_as_the_sidecar(cupy, comparisons, rng):
    A = cupy.asarray(rng.standard_normal(SHAPE, np.float32))
    sidecar = encode(A, code="exact")
    assert verify(cupy.asnumpy(A), sidecar, device="cuda").clean
    assert sidecar not in exact_gpu._kept  # of what is in host memory nothing stays
    addresses = set()
    for i in range(3):
        assert verify(A, sidecar).clean
        addresses.add(exact_gpu._kept[sidecar][A.device.id].data.ptr)
        assert len(verify(A + 1, sidecar).refused) == comparisons[-1] == 4 * SHAPE[1]
        A[700, i] += 1
        assert verify(A, sidecar).elements(sidecar) == [(700, i)]
        A = correct(A, sidecar)
    assert len(addresses) == 1
    still_there = weakref.ref(sidecar)
    del sidecar
    gc.collect()
    assert still_there() is None


@pytest.mark.gpu
def test_a_copy_on_the_gpu_that_goes_wrong_is_no_fault(cupy, comparisons, rng):
    A = cupy.asarray(rng.standard_normal(SHAPE, np.float32))
    sidecar = encode(A, code="exact")
    assert verify(A, sidecar).clean
    exact_gpu._kept[sidecar][A.device.id][1, 2, 3] ^= cupy.uint64(1 << 40)
    assert verify(A, sidecar).clean
    A[600, 3] += 1
    assert verify(A, sidecar).elements(sidecar) == [(600, 3)]
    assert comparisons == [0, 1, 1]


@pytest.mark.gpu
def test_sidecars_from_files_and_other_streams(cupy, comparisons, rng, tmp_path):
    A = rng.standard_normal(SHAPE, np.float32)
    write_sidecar(tmp_path / "A.abft", encode(A, code="both"))
    there = cupy.asarray(A)
    there.device.synchronize()
    for _ in range(5):
        sidecar = read_sidecar(tmp_path / "A.abft")
        for _ in range(2):
            with cupy.cuda.Stream(non_blocking=True):
                assert verify(there, sidecar).clean
    there[1234, 56] = np.nan
    assert verify(there, sidecar).elements(sidecar) == [(1234, 56)]
    assert comparisons == [0] * 10 + [1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_float_code_reads_what_is_clean_on_the_gpu_alone(dtype, cupy, monkeypatch, rng):
    A = rng.standard_normal(SHAPE).astype(dtype)
    A[600, 300] = np.inf
    there = cupy.asarray(A)
    sidecar, on_the_cpu = encode(there, code="float"), encode(A, code="float")
    with monkeypatch.context() as alone:
        alone.setattr(float_decode, "parts", None)
        for _ in range(3):
            assert verify(there, sidecar).clean
    assert verify(there, on_the_cpu).clean
    A[1030, 519] = 1000
    there[1030, 519] = 1000
    for one in (sidecar, on_the_cpu):
        told = []
        verdicts_are_the_same(verify(there, one, progress=told.append), verify(A, one))
        assert not verify(A, one).clean
        assert told == [A.nbytes]
