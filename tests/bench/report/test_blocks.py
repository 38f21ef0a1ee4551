"""Numbers as text."""

import pytest

from tsapps.bench.report.blocks import number, percent, product, times


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.12345, "0.123"),
        (12.345, "12.3"),
        (999.4, "999"),
        (999.6, "1,000"),
        (12345.6, "12,346"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        *((0.5, 1, "50 %"), (None, 1, "–"), (0, 0, "–"), (1, 3, "33.3 %"), (3, 3, "100 %"), (1.5, 1, "150 %")),
        # One failure of many is not rounded to none.
        *((99_999, 100_000, "99.999 %"), (10**9 - 1, 10**9, "> 99.9999 %")),
    ],
)
def test_percent(part, whole, text):
    assert percent(part, whole) == text


def test_times_and_product():
    assert times(1.2345) == "1.23×"
    assert times(None) == "–"
    assert product(20480, 1024, 16) == "20,480 × 1,024 · 16"
