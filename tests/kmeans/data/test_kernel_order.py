"""Sums in the order of CUDA threads, against Python's floats added one by one."""

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.kmeans.data.kernel_order import block_sum, sum_in_order, warp_sum
from tsapps.apps.kmeans.results import square_shift

#: The largest float64 to which 1 cannot be added, but 2 can.
FULL = 2.0**53


def of_many_scales(shape, rng, dtype=np.float64):
    """Return numbers whose sums have other bits in another order."""
    return (10.0 ** rng.integers(-3, 4, shape) * rng.standard_normal(shape)).astype(dtype)


def one_by_one(values):
    """Return the sum of a sequence of NumPy numbers, each added to the sum of those before."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def of_a_warp(values):
    """Return what lane 0 of 32 has after it took the sum of the lane 16, 8, 4, 2 and 1 places away, as all lanes do."""
    for bits in (16, 8, 4, 2, 1):
        values = [values[lane] + values[lane ^ bits] for lane in range(32)]
    return values[0]


def of_a_block(values):
    """Return the sum that a block of 256 threads has: of a thread, of the lanes of a warp, then of the warps."""
    of_threads = []
    for thread in range(256):
        total = 0.0
        for value in values[thread::256]:
            total += float(value)
        of_threads.append(total)
    return one_by_one([of_a_warp(of_threads[first : first + 32]) for first in range(0, 256, 32)])


def test_sums_in_order_by_hand():
    # In order, both ones are lost; in pairs or backwards, they make a two.
    assert sum_in_order(np.array([FULL, 1, 1]), 0) == FULL
    assert sum_in_order(np.array([1, 1, FULL]), 0) == FULL + 2
    found = sum_in_order(np.array([[FULL, 1], [1, 1], [1, FULL]]), 0)
    assert found.tolist() == [FULL, FULL + 2]
    assert sum_in_order(np.array([[2.0**24, 1, 1]], np.float32), 1).tolist() == [2.0**24]


def test_sums_of_a_warp_by_hand():
    def at(**numbers):
        values = np.zeros(32)
        for lane, number in numbers.items():
            values[int(lane[1:])] = number
        return warp_sum(values)

    assert at(_0=1, _31=2, _7=4) == 7
    assert at(_0=FULL, _16=1, _8=1) == FULL  # 16 is added first, and is lost
    assert at(_0=FULL, _8=1, _24=1) == FULL + 2  # 8 and 24 are added up before
    assert at(_0=FULL, _1=1, _2=1) == FULL
    assert at(_0=FULL, _1=1, _3=1) == FULL + 2


def test_sums_of_a_block_by_hand():
    def at(**numbers):
        values = np.zeros(600)
        for place, number in numbers.items():
            values[int(place[1:])] = number
        return block_sum(values)

    assert at(_0=1, _599=2, _255=4) == 7
    assert at(_0=FULL, _256=1, _512=1) == FULL  # of one thread
    assert at(_0=FULL, _300=1, _556=1) == FULL + 2  # of another thread
    assert at(_0=FULL, _32=1, _64=1) == FULL  # of other warps
    assert at(_0=FULL, _32=1, _33=1) == FULL + 2  # of one other warp


@pytest.mark.parametrize("count", [0, 1, 31, 32, 255, 256, 257, 512, 1000])
def test_sums_of_a_block(count, rng):
    values = of_many_scales((3, count), rng)
    assert block_sum(values).tolist() == [of_a_block(row) for row in values]


def test_sums_of_warps(rng):
    values = of_many_scales((4, 5, 32), rng)
    expected = [[of_a_warp(row) for row in rows] for rows in values]
    assert warp_sum(values).tolist() == expected
    other = rng.permutation(values, axis=2)
    assert (warp_sum(other) != expected).any(), "choose data whose sums depend on the order"


# Axes that NumPy adds in pairs, or in eight parts: the last one, and one before axes of one element.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((300,), 0),
        ((300, 1), 0),
        ((300, 2), 0),
        ((4, 300), 1),
        ((4, 300, 1), 1),
        ((1, 300, 1), 1),
        ((4, 300, 3), 1),
        ((300, 3, 1), 0),
        ((2, 3, 300, 1, 1), 2),
        ((2, 3, 300, 5, 1), 2),
        ((7, 1, 300), 2),
        ((9, 1, 4), 1),
    ],
)
def test_sums_in_order(shape, axis, dtype, rng):
    values = of_many_scales(shape, rng, dtype)
    expected = np.apply_along_axis(one_by_one, axis, values)
    found = sum_in_order(values, axis)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)


@property_test(
    60,
    1000,
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    length=st.integers(1, 300),
    place=st.integers(0, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**16),
)
def test_sums_of_any_shape(shape, length, place, dtype, seed):
    axis = min(place, len(shape) - 1)
    shape[axis] = length
    values = of_many_scales(shape, np.random.default_rng(seed), dtype)
    np.testing.assert_array_equal(sum_in_order(values, axis), np.apply_along_axis(one_by_one, axis, values))


@property_test(30, 500, count=st.integers(0, 1100), seed=st.integers(0, 2**16))
def test_sums_of_any_block(count, seed):
    values = of_many_scales(count, np.random.default_rng(seed))
    assert block_sum(values) == of_a_block(values)


def test_square_shift_by_hand():
    centers, following = np.array([[0.0, 1], [2, 3]], np.float32), np.array([[3.0, 1], [2, 7]], np.float32)
    assert square_shift(centers, following) == 25.0
    assert square_shift(centers, centers) == 0.0
    # A difference of float32 numbers is not rounded to float32, nor does its square overflow.
    assert square_shift(np.array([[1.0]], np.float32), np.array([[1 + 2.0**-20]], np.float32)) == 2.0**-40
    assert square_shift(np.array([[-(2.0**127)]], np.float32), np.array([[2.0**127]], np.float32)) == 2.0**256
    assert square_shift(np.array([[0.0]]), np.array([[1e200]])) == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 300), (300, 3), (257, 257)])
def test_square_shift_adds_up_centers_then_their_shifts(k, d, dtype, rng):
    centers, following = (of_many_scales((k, d), rng, dtype) for _ in range(2))
    squares = (following.astype(np.float64) - centers.astype(np.float64)) ** 2
    if k * d > 1000:  # of_a_block takes long
        some = rng.choice(k, 5)
        assert [square_shift(centers[[j]], following[[j]]) for j in some] == [of_a_block(squares[j]) for j in some]
        expected = of_a_block([square_shift(centers[[j]], following[[j]]) for j in range(k)])
    else:
        expected = of_a_block([of_a_block(row) for row in squares])
    assert square_shift(centers, following) == expected
