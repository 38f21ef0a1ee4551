"""Certified labels in NumPy, against distances in Python's integers: they are exact wherever float64 distances are."""

import itertools

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.kmeans.assign import host_labels
from tsapps.apps.kmeans.assign.host_labels import HostCenters

DTYPES = [np.float32, np.float64]
#: Rows, features, clusters.
SHAPES = [(1, 1, 1), (90, 1, 7), (120, 2, 1), (150, 3, 5), (150, 16, 32), (15, 5, 60), (90, 33, 17), (80, 17, 40)]


class Recorded(HostCenters):
    """Centers that keep the rows that they rescored, in float64, and the candidates of each."""

    def __init__(self, centers):
        super().__init__(centers)
        self.rescored = []

    def _nearest(self, rows, candidates):
        self.rescored += zip(rows, candidates, strict=True)
        return super()._nearest(rows, candidates)


@pytest.fixture(params=["by center", "by row"])
def layout(request, monkeypatch):
    """Have scores in one of the two layouts, whatever the sizes."""
    monkeypatch.setattr(host_labels, "_MOST_FEATURES", 1 << 30 if request.param == "by center" else -1)
    monkeypatch.setattr(host_labels, "_MOST_SCORE_BYTES", 1 << 30)


def labels_of(X, centers, made=HostCenters):
    found = made(centers)
    labels = found.labels(X, found.largest_norms(X))
    assert (labels.dtype, labels.shape) == (np.int32, (len(X),))
    return labels


def whole_distances(X, centers):
    """Return ‖x − c‖² (n, k), exact but for a power of two, as Python's integers."""
    rows, points, _ = oracle.whole_numbers(X, centers)
    return ((rows[:, np.newaxis] - points) ** 2).sum(axis=2)


def assert_nearest(X, centers, labels):
    """Assert that no center is nearer, but for the error of two float64 distances."""
    distances = whole_distances(X, centers)
    least, own = distances.min(axis=1), distances[np.arange(len(X)), labels]
    error = int(np.ceil(2 * oracle.gamma(X.shape[1] + 2, np.float64) * 2.0**80))
    late = np.flatnonzero(((own - least) << 80) > error * least)
    assert not late.size, f"row {late[0]} has label {labels[late[0]]}, and {distances[late[0]].argmin()} is nearer"


def on_bisectors(n, centers, dtype, rng, away=1.0):
    """Return rows whose distances to two centers are equal but for rounding the rows."""
    pairs = np.sort(rng.permuted(np.tile(np.arange(len(centers)), (n, 1)), axis=1)[:, :2])
    first, second = centers.astype(np.float64)[pairs.T]
    axis, aside = second - first, away * rng.standard_normal((n, centers.shape[1]))
    aside -= axis * ((aside * axis).sum(axis=1) / (axis * axis).sum(axis=1))[:, np.newaxis]
    return ((first + second) / 2 + aside).astype(dtype)


def test_by_hand():
    centers = np.array([[0.0], [2], [5]])
    assert labels_of(np.array([[-1.0], [1], [1.5], [3.5], [3.75], [6]]), centers).tolist() == [0, 0, 1, 1, 2, 2]


def test_rows_of_which_scores_say_nothing_by_hand():
    # Scores are about 2²⁵, where float32 numbers are 2 or more apart; distances are about 1, and differ by 2⁻⁹.
    ulp = 2.0**-11
    centers = np.array([[4096], [4098]], np.float32)
    X = np.array([[4097 - ulp], [4097], [4097 + ulp]], np.float32)
    assert labels_of(X, centers).tolist() == [0, 0, 1]
    assert labels_of(X, centers[::-1].copy()).tolist() == [1, 0, 0]


def drawn(kind, n, d, k, dtype, rng):
    """Return rows and centers of a kind; the labels of no row depend on the rounding of float64 distances."""
    X = rng.standard_normal((n, d))
    centers = X[rng.integers(0, n, k)] + 0.1 * rng.standard_normal((k, d))
    scale = 1.0
    if kind == "whole numbers":
        X, centers = rng.integers(-3, 4, (n, d)), rng.integers(-3, 4, (k, d))
    elif kind == "away":
        X, centers = X + 1000, centers + 1000
    elif kind == "equal centers":
        centers = centers[rng.integers(0, min(3, k), k)]
    elif kind == "a far center":
        centers[rng.integers(k)] *= 1e6
    elif kind == "far rows":
        X[::7] *= 1e5
    elif kind == "many scales":
        X, centers = (10.0 ** rng.integers(-6, 7, (len(one), 1)) * one for one in (X, centers))
    elif kind == "large":
        scale = 1e18 if dtype == np.float32 else 1e150
    elif kind == "small":
        scale = 1e-20 if dtype == np.float32 else 1e-140
    elif kind == "tiny":  # squares are zero
        scale = 1e-30 if dtype == np.float32 else 1e-160
        X, centers = np.rint(4 * X), np.rint(4 * centers)
    return (X * scale).astype(dtype), (centers * scale).astype(dtype)


KINDS = [
    "spread",
    "whole numbers",
    "away",
    "equal centers",
    "a far center",
    "far rows",
    "many scales",
    "large",
    "small",
]


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_labels_are_the_first_nearest_centers(n, d, k, kind, dtype, layout, rng):
    X, centers = drawn(kind, n, d, k, dtype, rng)
    np.testing.assert_array_equal(labels_of(X, centers), whole_distances(X, centers).argmin(axis=1))


def test_float32_rows_whose_squares_are_zero(layout, rng):
    for n, d, k in ((150, 3, 5), (80, 17, 40)):
        X, centers = drawn("tiny", n, d, k, np.float32, rng)
        assert not (X * X).any()
        np.testing.assert_array_equal(labels_of(X, centers), whole_distances(X, centers).argmin(axis=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_and_equal_centers(dtype, layout):
    X = np.array([[0.0, 0], [1, 1], [-1, 0]], dtype)
    assert labels_of(X, np.zeros((5, 2), dtype)).tolist() == [0, 0, 0]
    # Zeros of either sign are one center.
    centers = np.array([[2.0, 2], [0, -0.0], [-0.0, 0], [2, 2], [-1, 0]], dtype)
    assert labels_of(X, centers).tolist() == [1, 0, 4]  # (1, 1) is as far from 0 as from 1
    made = Recorded(centers)
    made.labels(X, made.largest_norms(X))
    assert all(not candidates[[2, 3]].any() for _, candidates in made.rescored)
    assert len(made.rescored) >= 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("away", [0.0, 100.0, 1e4])
@pytest.mark.parametrize(("d", "k"), [(1, 3), (3, 6), (20, 6)])
def test_rows_between_two_centers(d, k, away, dtype, layout, rng):
    """Of which the nearest center is often not the one of the lowest score."""
    centers = (away + rng.standard_normal((k, d))).astype(dtype)
    X = on_bisectors(200, centers, dtype, rng)
    assert_nearest(X, centers, labels_of(X, centers))
    scores = X @ (-2 * centers.T) + (centers * centers).sum(axis=1)
    wrong = scores.argmin(axis=1) != whole_distances(X, centers).argmin(axis=1)
    assert wrong.any() or d == 1 or not away, "choose rows of which scores decide less"


@pytest.mark.parametrize(("of_rows", "of_centers"), [(1e19, 1e18), (1e20, 1e17), (1e25, 1e12), (1e30, 1e7)])
def test_rows_whose_norms_overflow(of_rows, of_centers, layout, rng):
    """Scores do not; and other rows of the same block have the labels that they have without these."""
    X, centers = (rng.standard_normal(shape) for shape in ((120, 3), (9, 3)))
    X[::2] *= of_rows
    X[1::2] *= of_centers
    X, centers = X.astype(np.float32), (of_centers * centers).astype(np.float32)
    with np.errstate(over="ignore"):
        labels = labels_of(X, centers)
        assert (~np.isfinite((X * X).sum(axis=1))).sum() > 20
    assert_nearest(X, centers, labels)
    assert len(set(labels[::2].tolist())) > 2
    np.testing.assert_array_equal(labels[1::2], labels_of(X[1::2].copy(), centers))


def test_scores_that_are_not_numbers(layout):
    # Of far rows: +∞ for some centers, and ∞ − ∞ for others.
    centers = np.array([[-1e25], [1e25], [2e25]], np.float32)
    X = np.array([[1e30], [-1e30], [1e27], [3e25], [-2e25]], np.float32)
    assert labels_of(X, centers).tolist() == [2, 0, 2, 2, 0]
    assert labels_of(X, centers[::-1].copy()).tolist() == [0, 2, 0, 0, 2]
    assert labels_of(X, centers[[1, 2]]).tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("dtype", "far"), [(np.float32, 1e12), (np.float32, 1e30), (np.float64, 1e30), (np.float64, 1e200)]
)
def test_a_center_whose_norm_overflows_is_of_no_row(dtype, far, layout, rng):
    X, centers = drawn("spread", 150, 3, 5, dtype, rng)
    expected = whole_distances(X, centers).argmin(axis=1)
    for at in range(6):
        np.testing.assert_array_equal(
            labels_of(X, np.insert(centers, at, far, axis=0)), expected + (expected >= at).astype(int)
        )


@property_test(
    80,
    2000,
    kind=st.sampled_from([*KINDS, "on bisectors"]),
    n=st.integers(1, 40),
    d=st.integers(1, 20),
    k=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_labels_of_any_rows(kind, n, d, k, dtype, seed):
    rng = np.random.default_rng(seed)
    X, centers = drawn(kind, n, d, k, dtype, rng)
    if kind == "on bisectors" and k > 1:
        X = on_bisectors(n, 10 + centers, dtype, rng)
        centers = 10 + centers
    assert_nearest(X, centers, labels_of(X, centers))


@pytest.mark.parametrize(("d", "k"), [(3, 5), (16, 32), (17, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_labels_do_not_depend_on_blocks(d, k, dtype, rng, monkeypatch):
    """Nor on the pieces of a block that are multiplied together, of which each has its own bound."""
    monkeypatch.setattr(host_labels, "_LEAST_ROWS", 7)
    centers = (30 + rng.standard_normal((k, d))).astype(dtype)
    X = np.concatenate([on_bisectors(300, centers, dtype, rng), (30 + rng.standard_normal((300, d))).astype(dtype)])
    X = rng.permutation(X)
    X[::50] *= 1000
    expected = labels_of(X, centers)
    assert_nearest(X, centers, expected)
    for elements in (1, 100 * k, 1 << 17):
        monkeypatch.setattr(host_labels, "_SCORE_ELEMENTS", elements)
        monkeypatch.setattr(host_labels, "_DIFFERENCES", elements)
        made = HostCenters(centers)
        assert made.piece == max(7, elements // k)
        np.testing.assert_array_equal(labels_of(X, centers), expected)
        cuts = [0, *sorted(rng.integers(1, 600, 5).tolist()), 600]
        blocks = [labels_of(X[first:last], centers) for first, last in itertools.pairwise(cuts) if first < last]
        np.testing.assert_array_equal(np.concatenate(blocks), expected)


# What the certificate rests on: the error bounds.


def scores_of(X, centers, made):
    """Return ‖c‖² − 2·x·c as BLAS has it, and added up in order and backwards; three arrays (n, k)."""
    products = X[:, np.newaxis] * (-2 * centers)
    squares = centers * centers
    yield X @ made._minus_2_centers + made._norms
    for step in (1, -1):
        dots, norms = (np.cumsum(one[..., ::step], axis=-1)[..., -1] for one in (products, squares))
        yield dots + norms


def adding_up_losses(d, dtype, scale=1.0):
    """Return a row and a center of d elements, of whose product and norm every addition loses almost half an ulp."""
    lost = np.sqrt(0.49 * np.finfo(dtype).eps)
    return np.array([[1.0, *[lost] * (d - 1)]]) * scale


@property_test(
    100,
    2000,
    kind=st.sampled_from(["spread", "away", "whole numbers", "large", "small", "tiny", "many scales", "losses"]),
    d=st.integers(1, 40),
    k=st.integers(1, 6),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_errors_of_scores_are_within_their_bounds(kind, d, k, dtype, seed):
    """For the norm of the row itself, and of all centers that can be the nearest."""
    rng = np.random.default_rng(seed)
    if kind == "losses":
        X = adding_up_losses(d, dtype).astype(dtype)
        centers = (X * rng.choice([1, -1, 2], (k, 1))).astype(dtype)
    else:
        X, centers = drawn(kind, 8, d, k, dtype, rng)
    made = HostCenters(np.unique(centers, axis=0))
    centers, wide = made.centers, made.centers.astype(np.float64)
    row_norms, norms = (np.sqrt((one.astype(np.float64) ** 2).sum(axis=1)) for one in (X, wide))
    can_be_nearest = norms <= 2 * row_norms[:, np.newaxis] + norms.min()
    bounds = made._bounds(row_norms * (1 + 2.0**-20), np.dtype(dtype))
    assert bounds.dtype == dtype
    known = bounds < np.inf  # of other rows, scores may overflow, and every center is a candidate
    X, bounds, can_be_nearest = X[known], bounds[known], can_be_nearest[known]
    for scores in scores_of(X, centers, made) if known.any() else ():
        x, c, computed, limits, exponent = oracle.whole_numbers(X, centers, scores, bounds)
        exact = (c * c).sum(axis=1) - 2 * (x @ c.T)
        late = 2 * abs((computed << exponent) - exact) > (limits << exponent)[:, np.newaxis]
        assert not (late & can_be_nearest).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [64, 400])
def test_bounds_are_not_far_from_errors(d, dtype):
    # The product loses almost d/2 ulps of 1, twice. A tenth more for the bound, which counts the norm's error besides.
    X = adding_up_losses(d, dtype).astype(dtype)
    made = HostCenters(X)
    products, exact = np.cumsum(X * X)[-1], (X.astype(np.longdouble) ** 2).sum()
    error = 2 * float(exact - products)
    (bound,) = made._bounds(np.ones(1), np.dtype(dtype)) / 2
    assert 0.5 * bound < error < bound


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e15, 1e-15, 1e-30])
@pytest.mark.parametrize("d", [1, 7, 300])
def test_largest_norms_are_upper_bounds(d, scale, dtype, rng, monkeypatch):
    monkeypatch.setattr(host_labels, "_SCORE_ELEMENTS", 1)
    made = HostCenters(np.zeros((3, d), dtype))
    X = (scale * rng.standard_normal((made.piece + 40, d))).astype(dtype)
    X[-20:] = adding_up_losses(d, dtype, scale * 20)
    norms = made.largest_norms(X)
    assert norms.shape == (2,)
    squares = np.square(X.astype(np.longdouble)).sum(axis=1)
    exact = np.sqrt([squares[: made.piece].max(), squares[made.piece :].max()])
    assert (norms >= exact).all()
    slack = np.sqrt(np.finfo(dtype).tiny)
    assert (norms <= exact * (1 + 2 * (d + 8) * np.finfo(dtype).eps) + slack).all()


@property_test(
    60,
    1000,
    d=st.integers(1, 24),
    k=st.integers(2, 12),
    away=st.sampled_from([0.0, 10.0, 1e3]),
    aside=st.sampled_from([0.1, 10.0, 1e3]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
def test_the_nearest_center_is_a_candidate(d, k, away, aside, dtype, seed):
    """Of rows between two centers, whose products cancel. A row that is not rescored has one candidate, its label."""
    rng = np.random.default_rng(seed)
    centers = (away + rng.standard_normal((k, d))).astype(dtype)
    X = on_bisectors(25, centers, dtype, rng, aside)
    made = Recorded(centers)
    labels, nearest = made.labels(X, made.largest_norms(X)), whole_distances(X, centers).argmin(axis=1)
    rescored = {row.tobytes(): candidates for row, candidates in made.rescored}
    for row, label, first in zip(X.astype(np.float64), labels, nearest, strict=True):
        candidates = rescored.get(row.tobytes())
        assert label == first if candidates is None else candidates[first]


def test_few_rows_are_rescored(layout, rng):
    """Of rows in general position, one in a thousand, also with a distant center, or with centers that are equal."""
    X, centers = (rng.standard_normal((n, 8)).astype(np.float32) for n in (4000, 9))
    far, equal = centers.copy(), centers[np.arange(18) % 9]
    far[4] *= 1e6
    for some in (centers, far, equal):
        made = Recorded(some)
        labels = made.labels(X, made.largest_norms(X))
        np.testing.assert_array_equal(labels, oracle.square_distances(X, some).argmin(axis=1))
        assert len(made.rescored) <= 4


@pytest.mark.parametrize("at", [1, 2])
def test_so_many_features_that_bounds_are_not_valid(at):
    # 2⁻⁵ is exceeded from 2¹⁹ − 7 features on: then all centers are candidates.
    for d, valid in (((1 << 19) - 8, True), ((1 << 19) - 7, False)):
        centers = np.ones((3, d), np.float32)
        centers[at] = 5
        centers[3 - at] = 9
        X = np.full((2, d), 5, np.float32)
        X[1] = 8
        made = Recorded(centers)
        assert made.labels(X, made.largest_norms(X)).tolist() == [at, 3 - at]
        assert [candidates.tolist() for _, candidates in made.rescored].count([True] * 3) == (0 if valid else 2)


# What a protected fit compares.


@pytest.mark.parametrize("name", ["centers", "_minus_2_centers", "_norms", "_lengths"])
def test_a_bit_that_changed_shows(name, rng):
    centers = rng.standard_normal((5, 3)).astype(np.float32)
    made = HostCenters(centers.copy())
    assert made.is_equal(HostCenters(centers))
    array = getattr(made, name)
    for element in (0, array.size - 1):
        for bit in (0, 8 * array.itemsize - 1):
            bits = array.reshape(-1).view(f"u{array.itemsize}")
            bits[element] ^= np.array(1 << bit, bits.dtype)
            assert not made.is_equal(HostCenters(centers))
            bits[element] ^= np.array(1 << bit, bits.dtype)
    assert made.is_equal(HostCenters(centers))


@pytest.mark.parametrize("d", [3, 20])
def test_a_center_whose_scores_are_no_numbers_is_of_no_row(d, rng):
    X = rng.standard_normal((300, d)).astype(np.float32)
    centers = X[:4].copy()
    centers[3] = 2e38  # −2·c is infinite
    made = HostCenters(centers)
    expected = ((X[:, np.newaxis].astype(np.float64) - centers) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(made.labels(X, made.largest_norms(X)), expected)


@pytest.mark.parametrize("d", [2, 20])
def test_a_center_that_is_no_number_is_of_no_row(d, rng):
    X = rng.standard_normal((300, d)).astype(np.float32)
    centers = X[:4].copy()
    centers[1, 1] = np.nan
    made = HostCenters(centers)
    assert 1 not in made.labels(X, made.largest_norms(X))
