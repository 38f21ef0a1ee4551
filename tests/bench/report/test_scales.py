"""Scales of charts: coordinates and ticks by hand."""

import pytest

from tsapps.bench.report.scales import Scale, linear, logarithmic


def test_a_linear_scale_includes_zero():
    scale = linear([50, 100], 10, 210)
    assert (scale.low, scale.high) == (0, 100)
    assert [scale(value) for value in (0, 25, 100)] == [10, 60, 210]
    assert scale.ticks() == [0, 20, 40, 60, 80, 100]


def test_a_linear_scale_with_negative_values():
    scale = linear([-1, 3], 0, 100)
    assert scale(0) == 25
    assert scale.ticks() == [-1, 0, 1, 2, 3]


def test_a_logarithmic_scale_ends_at_1_2_or_5_times_a_power_of_ten():
    scale = logarithmic([3, 90], 0, 170)
    assert (scale.low, scale.high) == (2, 100)
    assert scale.ticks() == [2, 5, 10, 20, 50, 100]
    assert scale(2) == 0
    assert scale(100) == pytest.approx(170)
    assert scale(20) == pytest.approx(170 * 1 / 1.69897)


def test_a_power_of_ten_is_its_own_end():
    assert (logarithmic([0.001, 1000], 0, 1).low, logarithmic([0.001, 1000], 0, 1).high) == (0.001, 1000)
    assert logarithmic([0.001, 1000], 0, 1).ticks() == [0.001, 0.01, 0.1, 1, 10, 100, 1000]


def test_many_decades_have_few_ticks():
    ticks = logarithmic([1e-20, 1e60], 0, 1).ticks()
    assert 3 <= len(ticks) <= 8


@pytest.mark.parametrize("scale", [linear([0, 0], 0, 10), logarithmic([1, 1], 0, 10), Scale(4, 4, 0, 10)])
def test_a_single_value(scale):
    assert 0 <= scale(scale.low) <= 10
    assert scale.ticks()


def test_values_outside_are_at_the_ends():
    assert linear([10], 0, 100)(20) == 100
    assert linear([10], 0, 100)(-20) == 0
