"""Protected products near the ends of the number range, on the CPU, by the kernels' source run on it, and on a GPU.

All are held against whole numbers, by `fractions`.
"""

from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from protected_products import Check

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products, thresholds
from tsapps.apps.abft.product.calibrate import Calibration, Depth, Scale
from tsapps.apps.abft.product.matmul import ProductFault, _bounds_of, check_product, matmul
from tsapps.apps.abft.product.rounding_model import RoundingModel

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Bits of a mantissa, and exponents: normal numbers are from 2^least up to below 2^most.
FORMATS = {
    "float64": (53, -1022, 1024),
    "float32": (24, -126, 128),
    "float16": (11, -14, 16),
    "bfloat16": (8, -126, 128),
}
M, K, W = 6, 12, 9


def calibrated(dtype, device="cpu"):
    scale = Scale(RoundingModel(), *[4 * thresholds.summed_unit(dtype)] * 4)
    return Calibration(device, dtype, 1e-9, 0.99, (Depth(10_000, 1000, scale, scale, False),))


def nearest(x, dtype):
    """A fraction rounded to a dtype, once, as a float."""
    bits, least, most = FORMATS[dtype]
    if x == 0:
        return 0.0
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    place = Fraction(2) ** (max(exponent, least) - bits + 1)
    rounded = round(x / place) * place
    return float(rounded) if abs(rounded) < Fraction(2) ** most else float("inf") * (1 if x > 0 else -1)


def exact(A, B):
    """Σab and Σ|ab|, as fractions."""
    rows, columns = ([[Fraction(float(x)) for x in line] for line in X] for X in (A, B.T))
    products = [[[x * y for x, y in zip(a, b, strict=True)] for b in columns] for a in rows]
    sums = [[sum(one, Fraction(0)) for one in line] for line in products]
    return sums, [[sum(map(abs, one), Fraction(0)) for one in line] for line in products]


def scaled(x, exponents, dtype):
    return np.ldexp(x, exponents).astype(DTYPES[dtype])


# --- Magnitudes -------------------------------------------------------------------------------------------------------


def near_the_largest(rng, dtype):
    """Σ|ab| below the largest number by a little."""
    most = FORMATS[dtype][2]
    A, B = rng.uniform(0.5, 1, (M, K)), rng.uniform(0.5, 1, (K, W))
    return scaled(A / K, most // 2, dtype), scaled(B, most - most // 2, dtype)


def cancelling_near_the_largest(rng, dtype):
    """As the false alarm that there was: Σ|ab| is beyond the largest number, and elements are not."""
    most = FORMATS[dtype][2]
    A, B = rng.uniform(0.75, 1, (M, K)), rng.uniform(0.75, 1, (K, W))
    A[:, 1::2] *= -1
    return scaled(A / 3, most // 2, dtype), scaled(B, most - most // 2, dtype)


def overflowing(rng, dtype):
    """Sums beyond the largest number, or just below."""
    most = FORMATS[dtype][2]
    A, B = rng.uniform(0.5, 1, (M, K)), rng.uniform(0.5, 1, (K, W))
    return scaled(A * 2.2 / K, most // 2, dtype), scaled(B, most - most // 2, dtype)


def ordinary(rng, dtype):
    return rng.standard_normal((M, K)).astype(DTYPES[dtype]), rng.standard_normal((K, W)).astype(DTYPES[dtype])


def of(exponent_a, exponent_b):
    """Factors of some exponents, which are a function of a format's least one."""

    def draw(rng, dtype):
        bits, least, _ = FORMATS[dtype]
        of_a, of_b = (one(least, bits) for one in (exponent_a, exponent_b))
        return scaled(rng.standard_normal((M, K)), of_a, dtype), scaled(rng.standard_normal((K, W)), of_b, dtype)

    return draw


def rows_of_any_magnitude(rng, dtype):
    _, least, most = FORMATS[dtype]
    A, B = rng.standard_normal((M, K)), rng.standard_normal((K, W))
    exponents = np.linspace(least, most - 6, M).astype(int)[:, np.newaxis]
    return scaled(A, exponents, dtype), B.astype(DTYPES[dtype])


def a_huge_column(rng, dtype):
    _, least, most = FORMATS[dtype]
    B = np.ldexp(rng.standard_normal((K, W)), least // 2)
    B[:, 2] = np.ldexp(B[:, 2], most - 6 - least // 2)
    return rng.standard_normal((M, K)).astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


def tiny_rows_of_b(rng, dtype):
    """Denormal rows of B that meet huge columns of A, beside others that meet small ones."""
    bits, least, most = FORMATS[dtype]
    A, B = rng.standard_normal((M, K)), rng.standard_normal((K, W))
    A[:, ::3] = np.ldexp(A[:, ::3], most - 4)
    B[::3] = np.ldexp(B[::3], least - bits + 4)
    return np.ldexp(A, 0).astype(DTYPES[dtype]) if dtype != "float16" else scaled(A, 0, dtype), B.astype(DTYPES[dtype])


def single_products(rng, dtype):
    """Of a row of A and a column of B, one product is not zero: of factors of all magnitudes."""
    _, least, most = FORMATS[dtype]
    exponents = np.linspace(least, most - 4, M).astype(int)
    A, B = np.zeros((M, K)), np.zeros((K, W))
    A[np.arange(M), np.arange(M)] = np.ldexp(rng.uniform(1, 2, M), exponents)
    B[np.arange(M), np.arange(M) % W] = np.ldexp(rng.uniform(1, 2, M), -exponents + 1)
    return A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


MAGNITUDES = {
    "near the largest": near_the_largest,
    "cancelling near the largest": cancelling_near_the_largest,
    "overflowing": overflowing,
    "ordinary": ordinary,
    "smallest normal": of(lambda least, bits: least // 2, lambda least, bits: least - least // 2 + 1),
    "denormal elements": of(lambda least, bits: least // 2, lambda least, bits: least - least // 2 - bits // 2),
    "products that underflow": of(lambda least, bits: least // 2, lambda least, bits: least - least // 2 - bits - 1),
    "products far below": of(lambda least, bits: least, lambda least, bits: least),
    "denormal factors": of(lambda least, bits: least - bits // 2, lambda least, bits: 0),
    "denormal factors of large ones": of(lambda least, bits: least - bits // 2, lambda least, bits: -least // 2),
    "rows of any magnitude": rows_of_any_magnitude,
    "a huge column": a_huge_column,
    "tiny rows of B": tiny_rows_of_b,
    "single products": single_products,
}


def rounded_product(A, B, dtype):
    """A · B, each element rounded once."""
    sums, _ = exact(A, B)
    return np.array([[nearest(x, dtype) for x in line] for line in sums]).astype(DTYPES[dtype])


def found_for_certain(A, B, dtype, sizes, *, flushes):
    """What an element of each row may be off by without being found, as a fraction.

    Five times what its row may be off by, and three times what it may be itself: by rounding, by underflow, and of 16
    bits by what rounding to them lost. `flushes` as for `thresholds.proven`.
    """
    (k, w), of_sum = B.shape, "float64" if dtype == "float64" else "float32"
    bits, least, _ = FORMATS[of_sum]
    lost = lost_of_row = Fraction(2) ** (least - bits + 1)
    small = np.zeros(len(A))
    if flushes and dtype in ("float32", "bfloat16"):  # what tensor cores lose of small factors, and products
        lost = 4 * Fraction(2) ** least
        a, b = (np.where(X != 0, np.maximum(abs(X.astype(np.float64)), 2.0**-100), 0) for X in (A, B))
        small = (a @ b).max(axis=1) * thresholds.element_error(k, dtype)
    bounds, most = thresholds.proven(k, w, dtype), []
    for i, line in enumerate(sizes):
        row = 5 * (Fraction(bounds.row) * sum(line) + (k * w + k + w) * lost_of_row)
        row += 3 * (Fraction(bounds.rounding) * sum(line) + w * Fraction(bounds.rounding_absolute))
        most.append(row + 3 * (k * lost + Fraction(small[i])))
    return most


def struck(C, sums, sizes, most, dtype, rng):
    """Return a copy in which an element a row is wrong by more than what is found for certain, and where."""
    wrong, places = C.copy(), []
    limit = Fraction(2) ** FORMATS[dtype][2]
    for i in range(len(C)):
        j = int(rng.integers(C.shape[1]))
        change = most[i] * Fraction(float(rng.uniform(1, 4)))
        candidates = [sums[i][j] + change, sums[i][j] - change]
        value = nearest(min(candidates, key=abs), dtype)
        if abs(sums[i][j]) >= limit or not np.isfinite(value) or abs(Fraction(value) - sums[i][j]) < most[i]:
            continue
        wrong[i, j] = value
        places.append((i, j))
    return wrong, places


def assert_repaired(found, C, A, B, dtype, sums, sizes, places):
    """Values are the exact ones but for the rounding of the exact sums themselves."""
    unit = Fraction(2) ** -53
    assert [(one.row, one.column) for one in found.faults] == places
    for one in found.faults:
        right, size = sums[one.row][one.column], sizes[one.row][one.column]
        # float64's are as if of twice the digits; those of the others come of sums in float64.
        slack = size * (unit**2 * 4 * (K + 1) ** 2 if dtype == "float64" else unit * 4 * K)
        low, high = nearest(right - slack, dtype), nearest(right + slack, dtype)
        assert low <= one.value <= high, (one, float(right))
        assert float(C[one.row, one.column]) == one.value


# --- By hand ---------------------------------------------------------------------------------------------------------


def test_a_false_alarm_by_hand():
    """Σ|ab| overflows, and was 0 · ∞ = NaN in what elements may be off by: C was repaired by an ulp."""
    A, B = np.array([[2.0**1000, 2.0**1000, 3.0]]), np.array([[2.0**23], [-(2.0**23)], [1 / 3]])
    B[0] += 2.0**-29
    C = np.array([[2.0**971 * (1 + 2.0**-52)]])
    product, magnitude = exact_products.exact_rows(A, B)
    assert product == 2.0**971
    assert magnitude == np.inf
    found = check_product(A, B, C, correct=True)
    assert found.clean
    assert C == 2.0**971 * (1 + 2.0**-52)
    C[0, 0] = 2.0**1000
    assert check_product(A, B, C, correct=True).faults == [ProductFault(0, 0, 2.0**1000, 2.0**971)]
    assert C == 2.0**971


def test_the_false_alarm_that_was_reported():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((3, 255)) * 2.0**508, rng.standard_normal((255, 130)) * 2.0**509
    found = matmul(A, B)
    with np.errstate(over="ignore"):
        assert np.isinf(abs(A) @ abs(B)).any()
    assert found.clean
    bits = found.C.tobytes()
    for threshold in ("proven", calibrated("float64"), 1e300):
        assert check_product(A, B, found.C, correct=True, threshold=threshold).clean
    assert found.C.tobytes() == bits


def test_denormals_by_hand():
    """3 · 2^-1070 · 1, and elements that are off by 2^-1060: far below what was taken for lost, 2^-1022."""
    A, B = np.array([[3 * 2.0**-1070], [2.0**-1074]]), np.array([[1.0, 0.5]])
    C = A @ B
    assert C.tolist() == [[3 * 2.0**-1070, 3 * 2.0**-1071], [2.0**-1074, 0.0]]
    assert check_product(A, B, C).clean
    C[0, 1] += 2.0**-1060
    assert check_product(A, B, C, correct=True).faults == [
        ProductFault(0, 1, 2.0**-1060 + 3 * 2.0**-1071, 3 * 2.0**-1071)
    ]
    # Nothing of a product is left, and ones are wrong.
    A, B = np.array([[2.0**-1000]]), np.array([[2.0**-1000]])
    assert check_product(A, B, np.zeros((1, 1))).clean
    assert check_product(A, B, np.ones((1, 1))).faults == [ProductFault(0, 0, 1.0, 0.0)]
    assert check_product(A, B, np.full((1, 1), 2.0**-1040)).faults == [ProductFault(0, 0, 2.0**-1040, 0.0)]


def test_infinity_by_hand():
    A, B = np.array([[2.0**1000, 2.0**1000]]), np.array([[2.0**23], [2.0**23]])
    assert check_product(A, B, np.array([[np.inf]])).clean  # 2^1024
    found = check_product(A, B, np.array([[1.7e308]]))
    assert found.faults == [ProductFault(0, 0, 1.7e308, np.inf)]
    B[1] = 2.0**22  # 1.5 · 2^1023: no sum overflows on its way
    assert check_product(A, B, np.array([[np.inf]])).faults == [ProductFault(0, 0, np.inf, 1.5 * 2.0**1023)]
    B[:] = [[2.0**23], [-(2.0**23)]]  # may have been 2^1024 - 2^1024 in parts
    assert check_product(2 * A, B, np.array([[np.nan]])).clean
    assert check_product(2 * A, B, np.array([[1.0]])).clean


def test_rounded_once_to_denormals():
    # 5 and 7 halves of the smallest number are rounded to even, but for what is lost beside them.
    rest = np.array([0.0, 2.0**-60, -(2.0**-60)])
    A = np.stack([np.ones(3), rest], axis=1)
    for halves, expected in ((5, [2, 3, 2]), (7, [4, 4, 3]), (-5, [-2, -2, -3]), (-7, [-4, -3, -4])):
        # (1, rest) · (halves, 1) · 2^-1075, of factors that are normal
        left, right = A * 2.0**-600, np.array([[halves * 2.0**-475], [2.0**-475]])
        product = exact_products.exact_product(left, right)
        assert (product.value[:, 0] / 2.0**-1074).tolist() == expected


@pytest.mark.parametrize("exponents", [(900, 100), (-500, -470), (-1000, -60), (985, -985), (0, 0), (990, 30)], ids=str)
def test_exact_products_of_any_exponents_against_fractions(exponents):
    rng = np.random.default_rng(5)
    A, B = (
        np.ldexp(rng.standard_normal(shape), e + rng.integers(-30, 30, shape))
        for shape, e in zip(((5, 40), (40, 4)), exponents, strict=True)
    )
    A[1, 20:], B[20:] = -A[1, :20], B[:20]
    A[2], B[3, 1] = 0, 0
    product, (sums, sizes) = exact_products.exact_product(A, B), exact(A, B)
    for i in range(5):
        for j in range(4):
            slack = sizes[i][j] * Fraction(2) ** -106 * 4 * 40**2
            value = float(product.value[i, j])
            assert nearest(sums[i][j] - slack, "float64") <= value <= nearest(sums[i][j] + slack, "float64")
            if product.exponent is not None:
                size = Fraction(float(product.magnitude[i, j])) * Fraction(2) ** int(product.exponent[i, j])
                assert abs(size - sizes[i][j]) <= sizes[i][j] * Fraction(2) ** -45


# --- Of every magnitude -----------------------------------------------------------------------------------------------

CASES = [(dtype, name) for dtype in DTYPES for name in MAGNITUDES]
THRESHOLDS = ["proven", "statistical"]


def drawn(dtype, name, seed, times=1):
    """Operands of a magnitude, the rows of A so many times."""
    A, B = MAGNITUDES[name](np.random.default_rng(seed), dtype)
    return np.tile(A, (times, 1)), B


def assert_judged_right(A, B, dtype, threshold, check, *, multiply=None, flushes=False, seed=0):
    """Clean products keep their bits, and what is wrong for certain is found and repaired; return of how much.

    `check(A, B, C, threshold)` checks C, repairs it and returns what was found; `multiply(A, B, threshold)` too, of a
    product that it computes.
    """
    given = calibrated(dtype, "gpu" if flushes else "cpu") if threshold == "statistical" else threshold
    sums, sizes = exact(A, B)
    C = rounded_product(A, B, dtype)
    for clean in [C.copy()] if multiply is None else [C.copy(), multiply(A, B, given)]:
        bits = clean.tobytes()
        found = check(A, B, clean, given)
        assert found.clean, found.faults
        assert clean.tobytes() == bits
    certain = found_for_certain(A, B, dtype, sizes, flushes=flushes)
    wrong, places = struck(C, sums, sizes, certain, dtype, np.random.default_rng(seed))
    found = check(A, B, wrong, given)
    assert_repaired(found, wrong, A, B, dtype, sums, sizes, places)
    return len(places)


def check_on_cpu(A, B, C, threshold):
    return check_product(A, B, C, correct=True, threshold=threshold)


def multiplied_on_cpu(A, B, threshold):
    found = matmul(A, B, threshold=threshold)
    assert found.clean, found.faults
    return found.C


def check_by_kernels(dtype):
    """As a GPU does, by its kernels' source."""

    def check(A, B, C, threshold):
        bounds = _bounds_of(*B.shape, dtype, threshold, own=False, flushes=True)
        one = Check(A, B, C, bounds)
        one.check_rows()
        found, n_wrong = one.locate()
        return SimpleNamespace(clean=n_wrong == 0, faults=[ProductFault(*each) for each in found])

    return check


def check_on_gpu(A, B, C, threshold):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    on_gpu = cupy.asarray(C)
    found = check_product(cupy.asarray(A), cupy.asarray(B), on_gpu, correct=True, threshold=threshold)
    assert found.faults is not None
    C[...] = on_gpu.get()
    return found


def multiplied_on_gpu(A, B, threshold):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    found = matmul(cupy.asarray(A), cupy.asarray(B), threshold=threshold)
    assert found.clean, found.faults
    return found.C.get()


@pytest.mark.each_choice
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_products_of_every_magnitude(dtype, name, threshold):
    A, B = drawn(dtype, name, 0)
    n = assert_judged_right(A, B, dtype, threshold, check_on_cpu, multiply=multiplied_on_cpu)
    assert n >= 2 or name in ("overflowing", "products far below"), "nothing was struck"


@pytest.mark.each_choice
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAGNITUDES)
def test_products_of_every_magnitude_by_kernels(dtype, name, threshold):
    n = assert_judged_right(*drawn(dtype, name, 0), dtype, threshold, check_by_kernels(dtype), flushes=True)
    assert n >= 2 or name in ("overflowing", "products far below"), "nothing was struck"


@pytest.mark.gpu
@pytest.mark.parametrize("times", [1, 16], ids=["by the library", "of our own"])
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(("dtype", "name"), [case for case in CASES if case[0] != "bfloat16"])
def test_products_of_every_magnitude_on_a_gpu(dtype, name, threshold, times):
    A, B = drawn(dtype, name, 0, times)
    assert_judged_right(A, B, dtype, threshold, check_on_gpu, multiply=multiplied_on_gpu, flushes=True)


def multiplied_in_order(A, B):
    """In place of `product_cpu.multiply`: BLAS of some CPUs sums terms of one sign first, which may overflow."""
    product = np.zeros((len(A), B.shape[1]), A.dtype)
    for column, row in zip(A.T, B, strict=True):
        product += np.outer(column, row)
    return product


@pytest.mark.parametrize(
    "name", ["near the largest", "cancelling near the largest", "denormal elements", "tiny rows of B"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_goes_wrong_on_the_way(dtype, name, monkeypatch):
    A, B = drawn(dtype, name, 1)
    monkeypatch.setattr(product_cpu, "multiply", multiplied_in_order)
    clean = matmul(A, B).C
    sums, sizes = exact(A, B)
    certain = found_for_certain(A, B, dtype, sizes, flushes=False)
    rows = [0, 3, M - 1]

    def struck_product(left, right):
        product = multiplied_in_order(left, right)
        for i in rows:
            product[i, i] -= product.dtype.type(float(certain[i]) * 1.5) * (1 if product[i, i] > 0 else -1)
        return product

    monkeypatch.setattr(product_cpu, "multiply", struck_product)
    found = matmul(A, B)
    assert_repaired(found, found.C, A, B, dtype, sums, sizes, [(i, i) for i in rows])
    others = ~np.isin(np.arange(M), rows)
    assert found.C[others].tobytes() == clean[others].tobytes()


@pytest.mark.parametrize("check", ["cpu", "kernels"])
@pytest.mark.parametrize("exponent", [1020, 0, -1040, -1073])
def test_numbers_as_thresholds(exponent, check):
    """Scaled along, whatever the elements are."""
    number = 2.0**exponent
    A, B = np.ldexp(np.ones((4, 1)), [[1000], [0], [-500], [-1074]]), np.array([[1.0, 2.0**-500, 2.0**20]])
    check = {"cpu": check_on_cpu, "kernels": check_by_kernels("float64")}[check]
    C = A @ B
    assert check(A, B, C.copy(), number).clean
    off = np.zeros_like(C)
    off[:, 0], off[:, 1], off[:, 2] = number, -number, 4 * number
    with np.errstate(over="ignore"):
        wrong = C + off
    exactly = [
        [Fraction(x) - Fraction(y) for x, y in zip(*lines, strict=True)]
        for lines in zip(wrong.tolist(), C.tolist(), strict=True)
    ]
    # By 2⁻⁵⁰⁰ of it more is not.
    most = Fraction(number) * (1 + Fraction(2) ** -50) + Fraction(2) ** -1074
    expected = [(i, j) for i in range(4) for j in range(3) if abs(exactly[i][j]) > most]
    assert expected or exponent == 1020
    assert [(one.row, one.column) for one in check(A, B, wrong, number).faults] == expected


def test_rows_whose_check_columns_underflow_are_looked_at():
    """x_l of B's row of denormals is off by up to half of it, which hides what is wrong in a row of large products."""
    rng = np.random.default_rng(2)
    B = rng.integers(1, 4, (3, 8)) * 2.0**-1074
    A = rng.standard_normal((5, 3)) * 2.0**1000
    assert matmul(A, B).clean
    C = rounded_product(A, B, "float64")
    bounds = thresholds.proven(3, 8, "float64")
    _, sizes = exact(A, B)
    for i in range(5):
        for j in range(8):
            wrong = C.copy()
            wrong[i, j] += 5 * bounds.row * float(sum(sizes[i]))
            assert [(one.row, one.column) for one in check_product(A, B, wrong).faults] == [(i, j)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_tensor_cores_lose_of_small_factors_is_no_fault(dtype):
    """Second parts of float32 below 2^-126 are lost, or all of a denormal; large factors make that large products."""
    check = check_by_kernels(dtype)
    A, B = np.array([[1.9921875 * 2.0**-121], [1.5 * 2.0**-127], [1.0]]), np.array([[2.0**100, 2.0**90]])
    A, B = A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])
    C = rounded_product(A, B, dtype)
    C[0] *= DTYPES[dtype](1 - 2.0**-15)
    C[1] = 0
    for threshold in ("proven", calibrated(dtype, "gpu")):
        assert check(A, B, C.copy(), threshold).clean
    C[2, 0] *= DTYPES[dtype](1.125)
    assert [(one.row, one.column) for one in check(A, B, C, "proven").faults] == [(2, 0)]


def test_squares_of_columns_neither_overflow_nor_underflow():
    """Products by a calibration are fast, too: few rows are looked at again."""
    rng = np.random.default_rng(3)
    for exponent in (-700, 0, 500):
        A, B = rng.standard_normal((2000, 20)), rng.standard_normal((20, 8)) * 2.0**exponent
        assert matmul(A, B, threshold=calibrated("float64")).suspected <= 2


def drawn_exponents(data, dtype):
    """Operands whose rows, columns and depths have any exponents."""
    bits, least, most = FORMATS[dtype]
    m, k, w = 3, data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    exponents = st.integers(least - bits, most - 3)
    of_a, of_b = (np.array([data.draw(exponents) for _ in range(n)]) for n in (m, w))
    of_k = np.array([data.draw(st.integers(least // 2, most // 2)) for _ in range(k)])
    even = data.draw(st.booleans())
    A, B = rng.standard_normal((m, k)), rng.standard_normal((k, w))
    limit = most - 3
    A = np.ldexp(A, np.clip(of_a[:, np.newaxis] + (0 if even else of_k), -1074, limit))
    B = np.ldexp(B, np.clip(of_b - (0 if even else of_k[:, np.newaxis]), -1074, limit))
    return A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


def assert_right_of_any_exponents(data, dtype, threshold, check, **how):
    with np.errstate(over="ignore"):
        A, B = drawn_exponents(data, dtype)
    if np.isfinite(A.astype(np.float64)).all() and np.isfinite(B.astype(np.float64)).all():
        assert_judged_right(A, B, dtype, threshold, check, **how)


ANY = {"data": st.data(), "dtype": st.sampled_from(list(DTYPES)), "threshold": st.sampled_from(THRESHOLDS)}


@property_test(30, 1000, **ANY)
def test_any_exponents(data, dtype, threshold):
    assert_right_of_any_exponents(data, dtype, threshold, check_on_cpu, multiply=multiplied_on_cpu)


@property_test(30, 1000, **ANY)
def test_any_exponents_by_kernels(data, dtype, threshold):
    assert_right_of_any_exponents(data, dtype, threshold, check_by_kernels(dtype), flushes=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize(("dtype", "name"), CASES)
def test_products_of_every_magnitude_at_length(dtype, name, threshold):
    for seed in range(1, 4):
        A, B = drawn(dtype, name, seed)
        assert_judged_right(A, B, dtype, threshold, check_on_cpu, multiply=multiplied_on_cpu, seed=seed)
        assert_judged_right(A, B, dtype, threshold, check_by_kernels(dtype), flushes=True, seed=seed)
