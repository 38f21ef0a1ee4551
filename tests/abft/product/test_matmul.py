"""Protected products on the CPU: clean ones, and such as were corrupted on their way or afterwards."""

from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import product_tolerance

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products
from tsapps.apps.abft.product.calibrate import Calibration, Depth, Scale
from tsapps.apps.abft.product.matmul import ProductFault, _bounds_of, check_product, matmul
from tsapps.apps.abft.product.rounding_model import RoundingModel
from tsapps.apps.abft.product.thresholds import proven

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Some that no rounding error of a test is beyond, for what takes a calibration.
SCALE = {"float64": 2.0**-50, "float32": 2.0**-21, "float16": 2.0**-21, "bfloat16": 2.0**-21}


def calibrated(dtype, p=1e-9):
    scale = Scale(RoundingModel(), *[SCALE[dtype]] * 4)
    return Calibration("cpu", dtype, p, 0.99, (Depth(10_000, 1000, scale, scale, False),))


def thresholds_of(dtype):
    return ["proven", calibrated(dtype)]


def distribution(name, shape, rng):
    return {
        "normal": lambda: rng.standard_normal(shape),
        "positive": lambda: rng.uniform(0, 1, shape),
        "wide": lambda: rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 3, shape),
        # Of A, ones of either sign in turn along a row; of B, columns of one sign.
        "cancelling": lambda: rng.normal(1, 1e-3, shape) * np.where(np.arange(shape[1]) % 2, 1, -1),
        "cancelling widely": lambda: rng.normal(1, 0.3, shape) * np.where(np.arange(shape[1]) % 2, 1, -1),
        "constant": lambda: np.full(shape, 0.1),
        "zero": lambda: np.zeros(shape),
    }[name]()


def operands(m, k, w, dtype, seed=0, name="normal"):
    rng = np.random.default_rng(seed)
    A, B = distribution(name, (m, k), rng), distribution(name, (k, w), rng)
    return A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


def exact(A, B):
    """A · B in whole numbers, rounded once."""
    return np.array(
        [
            [
                float(sum(Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True)))
                for column in B.T
            ]
            for row in A
        ]
    ).reshape(len(A), B.shape[1])


class Struck:
    """In place of `product_cpu.multiply`: what it computes is corrupted, as by a fault on the way."""

    def __init__(self, *faults):
        self.faults, self.first, self.multiply = faults, 0, product_cpu.multiply

    def __call__(self, A, B):
        sums = self.multiply(A, B)
        for row, column, change in self.faults:
            if self.first <= row < self.first + len(sums):
                sums[row - self.first, column] = change(sums[row - self.first, column])
        self.first += len(sums)
        return sums


# --- By hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_by_two_by_hand(dtype):
    A, B = (np.array(values).astype(DTYPES[dtype]) for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]]))
    found = matmul(A, B)
    assert found.C.tolist() == [[19, 22], [43, 50]]
    assert found.C.dtype == A.dtype
    assert (found.faults, found.n_faults, found.suspected, found.threshold, found.clean) == ([], 0, 0, "proven", True)
    C = np.array([[19, 22], [43, 51]]).astype(DTYPES[dtype])
    found = check_product(A, B, C)
    assert found.faults == [ProductFault(1, 1, 51.0, 50.0)]
    assert (found.n_faults, found.suspected, found.clean) == (1, 1, False)
    assert found.C is C
    assert C[1, 1] == 51
    check_product(A, B, C, correct=True)
    assert C.tolist() == [[19, 22], [43, 50]]


def test_checks_by_hand():
    bounds = replace(proven(2, 2, "float64"), row=1e-6)
    B = np.array([[5.0, 6.0], [7.0, 8.0]])
    columns = product_cpu.check_columns(B, bounds)
    assert columns[:, :2].tolist() == [[11.0, 8.5], [15.0, 11.5]]  # 5 + 6 and 5/2 + 6
    assert (abs(columns[:, 2:]) <= [[11.0], [15.0]]).all()
    assert (abs(columns[:, 2:]) >= [[5.5], [7.5]]).all()
    checks = np.array([[1.0, 2.0], [3.0, 4.0]]) @ columns
    sums = np.array([[19.0, 22.0], [43.0, 50.0]])
    assert product_cpu.flagged(sums, checks, bounds, rounded=False).tolist() == []
    # +1 and −1 cancel in the first sum, and not in the second.
    assert product_cpu.flagged(sums + np.array([[0, 0], [1, -1]]), checks, bounds, rounded=False).tolist() == [1]


def test_random_signs_are_random():
    z = product_cpu.random_signs(20_000, 6)
    assert (abs(z) >= 0.5).all()
    assert (abs(z) <= 1).all()
    # Means and correlations of 20,000 of them: five of their standard deviations.
    assert (abs(z.mean(axis=0)) < 5 * 0.77 / np.sqrt(len(z))).all()
    assert (abs(np.corrcoef(z.T) - np.eye(6)) < 5 / np.sqrt(len(z))).all()
    assert (z == product_cpu.random_signs(20_000, 6)).all()


@pytest.mark.parametrize("at_once", [exact_products._EXACT_BYTES, 8 * 61, 1])
def test_exact_rows_against_fractions(monkeypatch, at_once):
    monkeypatch.setattr(exact_products, "_EXACT_BYTES", at_once)
    rng = np.random.default_rng(1)
    A, B = rng.standard_normal((3, 61)), rng.standard_normal((61, 2))
    A[1] *= 10.0 ** rng.integers(-12, 12, 61)
    # A sum that cancels all but entirely.
    A[2, 31:] = -A[2, :30]
    B[31:] = B[:30]
    reference = exact(A, B)
    found, magnitude = exact_products.exact_rows(A, B)
    assert (abs(found - reference) <= 2.0**-52 * abs(reference) + oracle.gamma(61, np.float64) ** 2 * magnitude).all()
    np.testing.assert_allclose(magnitude, exact(abs(A), abs(B)), rtol=1e-13)


def test_rounded_once():
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    # Just above the middle of 1 and its neighbour, which float32 does not tell from the middle; and beyond the largest.
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40, 3.4e38, 1e300, 0.0, 2.0**-133])
    assert product_cpu.rounded(x, bfloat16).tolist() == [1 + 2.0**-7, 1, 1, np.inf, np.inf, 0.0, 2.0**-133]
    assert product_cpu.rounded(-x, bfloat16).tolist() == (-product_cpu.rounded(x, bfloat16)).tolist()
    rng = np.random.default_rng(3)
    mantissas = rng.integers(128, 256, 10_000) / 256 + rng.choice([0, 1, 2], 10_000) * 2.0**-9
    x = mantissas * (1 + rng.integers(-4, 5, 10_000) * 2.0**-52)
    fraction, exponent = np.frexp(x)
    assert (product_cpu.rounded(x, bfloat16) == np.ldexp(np.rint(fraction * 256), exponent - 8)).all()
    halves = rng.standard_normal(100).astype(np.float16)
    assert (product_cpu.rounded(halves.astype("f8") * (1 + 2.0**-50), halves.dtype) == halves).all()


def test_repairs_are_rounded_once():
    A, B = np.array([[1, 2.0**-8, 2.0**-40]], ml_dtypes.bfloat16), np.ones((3, 1), ml_dtypes.bfloat16)
    C = np.full((1, 1), 9, ml_dtypes.bfloat16)
    assert check_product(A, B, C, correct=True).faults == [ProductFault(0, 0, 9.0, 1 + 2.0**-7)]
    assert C.tolist() == [[1 + 2.0**-7]]


# --- Clean products ---------------------------------------------------------------------------------------------------


def test_products_are_added_up_in_runs():
    # The first is so large that ones are lost beside it, as long as they are added to it: none of later runs are.
    k = 700
    A = np.ones((1000, k), np.float32)
    A[:, 0] = 2.0**24
    kept = product_cpu.multiply(A, np.ones((k, 24), np.float32)) - np.float32(2.0**24)
    assert (kept >= k - product_cpu.RUN).all()
    assert (kept < k - 1).all()


@pytest.mark.parametrize("m", [1, 47, 48, 500, 3000, 3001])
@pytest.mark.parametrize("k", [3, 300])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_have_the_same_bits_in_a_product_of_any_size(dtype, k, m):
    """Of what cancels in pairs, where another order would lose other bits; of the same places in a tile of 48 rows."""
    A, B = operands(4800, k, 40, dtype, name="cancelling")
    every = product_cpu.multiply(A, B)
    for first in (0, 960, (4800 - m) // 48 * 48):
        assert (product_cpu.multiply(A[first : first + m], B) == every[first : first + m]).all()
    # Behind C's columns come those of the checks.
    assert (matmul(A[:m], B[:, :9]).C == matmul(A[:m], B).C[:, :9]).all()


@pytest.mark.parametrize("k", [0, 1, 5, 255, 257])
@pytest.mark.parametrize("m", [0, 1, 95, 20_000])
def test_any_size_is_multiplied(m, k):
    A, B = operands(m, k, 8, "float32", seed=m + k)
    reference, magnitude = exact_products.exact_rows(A, B)
    assert (abs(product_cpu.multiply(A, B) - reference) <= oracle.gamma(k + 1, np.float32) * magnitude).all()


def test_several_blocks_of_rows(monkeypatch):
    A, B = operands(1003, 20, 5, "float32")
    expected = matmul(A, B).C
    monkeypatch.setattr(product_cpu, "_BLOCK_BYTES", 4 * (20 + 16) * 100)
    found = matmul(A, B)
    assert found.clean
    assert (found.C == expected).all()
    bounds = proven(20, 5, "float32")
    blocks = list(product_cpu.checked_blocks(A, B, bounds, None))
    assert [first for first, _, _ in blocks] == list(range(0, 1003, 96))
    assert {checks.shape[1] for _, _, checks in blocks} == {product_cpu.CHECKS}


def test_what_has_no_squares_is_not_called_wrong():
    A, B = operands(20, 50, 4, "float64")
    A *= np.logspace(-280, 300, 20)[:, np.newaxis]
    for threshold in thresholds_of("float64"):
        bounds = _bounds_of(*B.shape, "float64", threshold, own=True)
        for C, n_wrong in ((A @ B, 0), ((A @ B) * (1 + 1e-9), 80)):
            assert sum(len(rows) for rows, *_ in product_cpu.wrong_elements(A, B, C, range(20), bounds)) == n_wrong


@pytest.mark.each_choice
@pytest.mark.parametrize("name", ["normal", "positive", "wide", "cancelling", "cancelling widely", "constant", "zero"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_false_alarms(dtype, name):
    n_rows = 0
    for seed, (m, k, w) in enumerate([(30_000, 40, 8), (10_000, 200, 16), (2_500, 900, 3)]):
        A, B = operands(m, k, w, dtype, seed, name)
        found = matmul(A, B)
        assert found.clean
        # Which is what makes it fast: next to no row is computed again.
        assert found.suspected <= m // 1000
        assert (abs(found.C.astype(np.float64) - A.astype("f8") @ B.astype("f8")) <= product_tolerance(A, B)).all()
        again = check_product(A, B, found.C)
        assert again.clean
        assert again.suspected <= m // 1000
        n_rows += m
    assert n_rows * len(DTYPES) * 7 > 10**6  # in all


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (1, 1, 1), (3, 2, 100), (100, 300, 150)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype, shape):
    A, B = operands(*shape, dtype)
    found = matmul(A, B)
    assert found.C.shape == (shape[0], shape[2])
    assert found.clean
    assert check_product(A, B, found.C).clean
    assert (abs(found.C.astype(np.float64) - A.astype("f8") @ B.astype("f8")) <= product_tolerance(A, B)).all()


@pytest.mark.parametrize("order", ["CF", "FC", "FF"])
def test_orders_and_strides(order):
    A, B = operands(500, 60, 7, "float32")
    A = np.asfortranarray(A) if order[0] == "F" else np.repeat(A, 2, axis=0)[::2]
    B = np.asfortranarray(B) if order[1] == "F" else B
    found = matmul(A, B)
    assert found.clean
    C = np.asfortranarray(found.C)
    C[77, 3] += 1
    assert [(one.row, one.column) for one in check_product(A, B, C, correct=True).faults] == [(77, 3)]
    assert (abs(C - A.astype("f8") @ B) <= product_tolerance(A, B)).all()


# --- Faults -----------------------------------------------------------------------------------------------------------


def found_for_certain(A, B, *, rounded):
    """What an element must be off by to be found, twice what its row may be off by; of each row."""
    a, b = abs(A.astype(np.float64)), abs(B.astype(np.float64)).sum(axis=1)
    k, w, half = A.shape[1], B.shape[1], A.itemsize == 2
    if A.dtype == np.float64:
        error = 2 * oracle.gamma(k + 4, np.float64) + oracle.gamma(2 * w + 14, np.float64)
    else:
        of_sum = oracle.gamma(2 * k + 8, np.float32) + 2.0**-18 if half else oracle.gamma(k + 4, "f4") + 2.0**-21
        error = 2 * of_sum + oracle.gamma(w + 10, np.float32) + 2.0**-21
    if rounded and half:
        error += float(ml_dtypes.finfo(A.dtype).eps)
    return 2.1 * error * (a @ b)


@pytest.mark.parametrize("threshold", [0, 1], ids=["proven", "statistical"])
@pytest.mark.parametrize("in_flight", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_larger_than_the_bound_is_found_and_repaired(dtype, in_flight, threshold, monkeypatch):
    m, k, w = 2000, 150, 12
    A, B = operands(m, k, w, dtype, seed=3)
    clean = matmul(A, B).C
    least = found_for_certain(A, B, rounded=not in_flight)
    rng = np.random.default_rng(4)
    rows = np.sort(rng.choice(m, 300, replace=False)).tolist()
    columns = rng.integers(0, w, 300).tolist()
    # From just what is found for certain to what is far beyond it; of 16 bits, more than is rounded away.
    places = float(ml_dtypes.finfo(DTYPES[dtype]).eps) if A.itemsize == 2 else 0.0
    off = {row: max(least[row], places * 2 * abs(float(clean[row, j]))) for row, j in zip(rows, columns, strict=True)}
    off = {row: size * 10 ** rng.uniform(0, 3) * rng.choice([-1, 1]) for row, size in off.items()}
    given = thresholds_of(dtype)[threshold]
    if in_flight:
        strikes = [(i, j, lambda x, by=off[i]: x + by) for i, j in zip(rows, columns, strict=True)]
        monkeypatch.setattr(product_cpu, "multiply", Struck(*strikes))
        found = matmul(A, B, threshold=given)
    else:
        C = clean.copy()
        for i, j in zip(rows, columns, strict=True):
            C[i, j] = DTYPES[dtype](float(C[i, j]) + off[i])
        found = check_product(A, B, C, threshold=given, correct=True)
    assert [(one.row, one.column) for one in found.faults] == list(zip(rows, columns, strict=True))
    assert found.n_faults == 300
    assert (abs(found.C.astype(np.float64) - A.astype("f8") @ B.astype("f8")) <= product_tolerance(A, B)).all()
    repaired = np.zeros((m, w), bool)
    repaired[rows, columns] = True
    assert (found.C[~repaired] == clean[~repaired]).all()
    for one in found.faults:
        assert float(found.C[one.row, one.column]) == one.value


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_found(dtype, value, monkeypatch):
    A, B = operands(300, 40, 9, dtype)
    clean = matmul(A, B).C
    monkeypatch.setattr(product_cpu, "multiply", Struck((5, 0, lambda _: value), (299, 8, lambda _: value)))
    found = matmul(A, B)
    assert [(one.row, one.column) for one in found.faults] == [(5, 0), (299, 8)]
    np.testing.assert_array_equal([one.found for one in found.faults], [value] * 2)
    assert (abs(found.C.astype(np.float64) - clean.astype("f8")) <= 2 * product_tolerance(A, B)).all()


@pytest.mark.parametrize("column", range(9, 9 + product_cpu.CHECKS))
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 0.0, -1e3])
def test_a_checksum_that_was_hit_alarms_nobody(column, value, monkeypatch):
    A, B = operands(300, 40, 9, "float32")
    clean = matmul(A, B).C
    monkeypatch.setattr(product_cpu, "multiply", Struck((17, column, lambda _: value)))
    found = matmul(A, B)
    assert found.clean
    assert found.suspected <= 1
    assert found.suspected == 1 or column > 10  # a probe that is small changes nothing
    assert found.C.tobytes() == clean.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_that_cancel_and_whole_rows(dtype, monkeypatch):
    A, B = operands(300, 40, 9, dtype)
    monkeypatch.setattr(
        product_cpu,
        "multiply",
        Struck(
            (3, 1, lambda x: x + 8),
            (3, 7, lambda x: x - 8),
            *((200, j, lambda x, j=j: x + 2 + 3 * j) for j in range(9)),
        ),
    )
    found = matmul(A, B)
    assert [(one.row, one.column) for one in found.faults] == [(3, 1), (3, 7), *((200, j) for j in range(9))]
    assert (abs(found.C.astype(np.float64) - A.astype("f8") @ B.astype("f8")) <= product_tolerance(A, B)).all()


def test_what_was_not_finite_to_begin_with_is_no_fault():
    A, B = operands(50, 40, 9, "float32")
    A[3, 5], A[4, 6] = np.nan, np.inf
    found = matmul(A, B)
    assert found.clean
    assert found.suspected >= 1
    assert np.isnan(found.C[3]).all()
    A[3, 5] = A[4, 6] = 3e38
    B *= 1e3
    found = matmul(A, B)  # overflows, as it should
    assert found.clean
    assert np.isinf(found.C[3]).any()


def test_more_faults_than_are_listed(monkeypatch):
    monkeypatch.setattr(product_cpu, "MOST_LISTED", 7)
    monkeypatch.setattr(product_cpu, "_LOCATE_BYTES", 8 * (40 + 9) * 10)
    A, B = operands(300, 40, 9, "float64")
    C = A @ B
    C[100:200, 2:5] += 1
    for correct in (False, True):
        found = check_product(A, B, C, correct=correct)
        assert (found.suspected, found.n_faults) == (100, 300)
        assert [(one.row, one.column) for one in found.faults] == [(100 + i // 3, 2 + i % 3) for i in range(7)]
    assert (abs(C - A @ B) <= product_tolerance(A, B)).all()


def test_a_number_as_threshold():
    A, B = operands(200, 40, 9, "float64")
    C = A @ B
    C[3, 4] += 1e-3
    C[5, 6] += 1e-5
    assert [one.row for one in check_product(A, B, C, threshold=1e-4).faults] == [3]
    assert [one.row for one in check_product(A, B, C, threshold=1e-6).faults] == [3, 5]
    assert check_product(A, B, C, threshold=1e-6).threshold == 1e-6
    assert [one.row for one in check_product(A, B, C, threshold=np.float32(1e-4)).faults] == [3]
    assert check_product(A, B, C, threshold=np.int64(1)).clean


@settings(max_examples=60, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(list(DTYPES)))
def test_corrupted_anyhow_c_is_within_the_bounds_or_as_close_as_its_checksums_see(data, dtype):
    m, k, w = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 50)), data.draw(st.integers(1, 20))
    A, B = operands(m, k, w, dtype, data.draw(st.integers(0, 99)), data.draw(st.sampled_from(["normal", "positive"])))
    C = matmul(A, B).C
    clean = C.copy()
    words = C.view(f"u{C.itemsize}")
    i, j = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, w - 1))
    words[i, j] ^= words.dtype.type(1 << data.draw(st.integers(0, 8 * C.itemsize - 1)))
    found = check_product(A, B, C, correct=True)
    assert {(one.row, one.column) for one in found.faults} <= {(i, j)}
    others = np.ones((m, w), bool)
    others[i, j] = False
    assert (C[others] == clean[others]).all()
    off = abs(C.astype(np.float64) - A.astype("f8") @ B.astype("f8"))[i, j]
    missed = found_for_certain(A, B, rounded=True)[i]
    assert off <= max(product_tolerance(A, B)[i, j], missed if found.clean else 0.0)


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"A": [[1.0]]}, TypeError, "A is a builtins.list; expected an array of NumPy"),
        ({"A": np.ones((4, 3), int)}, TypeError, "A has dtype int64; expected float64, float32"),
        ({"A": np.ones(3)}, ValueError, r"A has shape \(3,\); expected a matrix"),
        ({"A": np.ones((4, 2))}, ValueError, r"A has shape \(4, 2\) and B \(3, 2\)"),
        ({"B": np.ones((3, 2), np.float32)}, ValueError, "A has dtype float64 and B float32"),
        ({"C": np.ones((2, 4))}, ValueError, r"C has shape \(2, 4\); expected \(4, 2\)"),
        ({"C": np.ones((4, 2), np.float32)}, ValueError, "A has dtype float64 and C float32"),
        ({"threshold": "exact"}, ValueError, "threshold is 'exact'; expected 'proven', 'statistical', a number"),
        ({"threshold": True}, ValueError, "threshold is True"),
        ({"threshold": np.array([1.0, 2.0])}, ValueError, r"threshold is array\(\[1., 2.\]\); expected 'proven'"),
        ({"threshold": 10**400}, ValueError, "threshold is beyond the largest float64"),
        ({"threshold": float("nan")}, ValueError, "expected a number, at least 0"),
        ({"threshold": -1.0}, ValueError, "expected a number, at least 0"),
        ({"threshold": calibrated("float32")}, ValueError, "the calibration is for float32, and A has dtype float64"),
    ],
)
def test_wrong_arguments(change, error, message):
    given = {"A": np.ones((4, 3)), "B": np.ones((3, 2)), "C": np.full((4, 2), 3.0)} | change
    with pytest.raises(error, match=message):
        check_product(**given)
    if "C" not in change:
        given.pop("C")
        with pytest.raises(error, match=message):
            matmul(**given)


def test_a_product_that_cannot_be_written():
    C = np.full((4, 2), 3.0)
    C.flags.writeable = False
    assert check_product(np.ones((4, 3)), np.ones((3, 2)), C).clean
    with pytest.raises(ValueError, match="C is read-only"):
        check_product(np.ones((4, 3)), np.ones((3, 2)), C, correct=True)


def test_dlpack_alone():
    class Tensor:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    A, B, C = np.ones((4, 3)), np.ones((3, 2)), np.full((4, 2), 3.0)
    assert matmul(Tensor(A), Tensor(B)).C.tolist() == C.tolist()
    C[2, 1] = 7
    tensor = Tensor(C)
    found = check_product(Tensor(A), Tensor(B), tensor)
    assert found.faults == [ProductFault(2, 1, 7.0, 3.0)]
    assert found.C is tensor


def test_torch():
    torch = pytest.importorskip("torch")
    A, B = torch.ones(4, 3), torch.ones(3, 2)
    found = matmul(A, B)
    assert isinstance(found.C, torch.Tensor)
    found.C[2, 1] = 7
    again = check_product(A, B, found.C, correct=True)
    assert again.faults == [ProductFault(2, 1, 7.0, 3.0)]
    assert again.C is found.C
    assert (found.C == 3).all()
    A.requires_grad_()
    with pytest.raises(ValueError, match=r"A requires gradients, .* A\.detach\(\), or use abft\.Linear"):
        matmul(A, B)
    assert matmul(A.detach(), B).clean
    with torch.no_grad():
        assert matmul(A, B).clean
