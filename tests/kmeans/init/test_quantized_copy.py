"""The quantized copy of X: its kernels, run on the CPU, against NumPy in float64."""

from pathlib import Path

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda.machine import HostMachine, build_together, placed
from hypothesis import strategies as st

from tsapps.apps.kmeans.init import quantized_copy
from tsapps.apps.kmeans.init.quantized_copy import QuantizedCopy

_KERNELS = [
    *(f"kmeans::column_scales<{scalar}>" for scalar in ("float", "double")),
    *(f"kmeans::quantize_rows<{scalar}, {flag}>" for scalar in ("float", "double") for flag in ("true", "false")),
]
build_together([(Path(quantized_copy.__file__).with_suffix(".cuh"), _KERNELS)])


def bfloat16s(words):
    """Return the upper and the lower halves of words as bfloat16 numbers."""
    return (words & 0xFFFF0000).view(np.float32).astype("f8"), (words << 16).view(np.float32).astype("f8")


def halves_of(plane, d):
    """Return the four-bit numbers of a plane, (n, d): in the lower halves of a word's bytes, then in the upper ones."""
    octets = plane.view(np.uint8).reshape(len(plane), -1, 4)
    return np.concatenate([octets & 15, octets >> 4], axis=2).reshape(len(plane), -1)[:, :d].astype("f8")


def copied(X, mean=None):
    """Return the copy, y in float64, and what the upper plane and both planes represent."""
    n, d = X.shape
    mean = np.zeros(d, X.dtype) if mean is None else mean.astype(X.dtype)
    with np.errstate(over="ignore"):
        rms = float(np.sqrt(np.mean((X.astype("f8") - mean) ** 2)))
    copy = QuantizedCopy(placed(X), mean, rms, HostMachine(multiprocessors=1 + n % 3))
    y = (X.astype("f8") - mean) * float(copy.unit)
    high, low = halves_of(copy.upper, d), halves_of(copy.lower, d)
    scale = bfloat16s(copy.rows[:, 0])[0][:, np.newaxis] * copy.scales[0]
    assert copy.largest.tolist() == [int(((2 * high - 15) ** 2).sum(axis=1).max())]
    return copy, y, scale * (2 * high - 15) / 2, scale * (32 * high + 2 * low - 255) / 32


def assert_bounds(X, mean=None, most=(0.3, 0.02)):
    """Errors are at least the true ones, and little more; and small relative to the rows."""
    copy, y, upper, both = copied(X, mean)
    norms = np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(copy.rows[:, 1].view(np.float32), norms**2, rtol=(8 + X.shape[1]) * 2.0**-23)
    for bounds, found, part in ((bfloat16s(copy.rows[:, 0])[1], upper, most[0]), (copy.errors, both, most[1])):
        errors = np.linalg.norm(y - found, axis=1)
        assert (bounds >= errors - 2.0**-21 * norms).all()  # which the pruning test adds
        assert (bounds <= 1.02 * errors + 1e-6 * norms + 2e-18).all()
        assert (errors <= part * norms).all()
    return copy


def test_by_hand():
    # Column scales are 1: in every row, each element has the same size as the others. The row scale is |y| · 32 / 255,
    # rounded up to a bfloat16.
    X = np.array([[1.0, -1.0], [-0.25, -0.25]], np.float32)
    copy, y, _, both = copied(X)
    assert copy.unit == 16.0  # the root mean square, 0.73, becomes 12
    assert copy.scales.tolist() == [[1, 1], [1, 1]]
    assert bfloat16s(copy.rows[:, 0])[0].tolist() == [2.015625, 0.50390625]  # of 16 · 32 / 255 and 4 · 32 / 255
    # Codes 255 and 0, then 0 and 0; past the last column 128.
    assert copy.upper.tolist() == [[0x8888808F, *[0x88888888] * 3], [0x88888080, *[0x88888888] * 3]]
    assert copy.lower.tolist() == [[0x0000000F, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(both, y, rtol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 7), (300, 16), (70, 33), (200, 128), (40, 130), (600, 300)])
def test_errors_are_bounded(n, d, dtype, rng):
    X = (100 + rng.standard_normal((n, d)) * np.exp2(rng.integers(-3, 4, d))).astype(dtype)
    assert_bounds(X, X.mean(axis=0))


@pytest.mark.parametrize("shape", ["outliers", "heavy tails", "columns of all scales", "zeros", "constant"])
def test_data_that_quantize_badly(shape, rng):
    X = rng.standard_normal((250, 70)).astype("f4")
    if shape == "outliers":
        X[::9] *= 1e8
    elif shape == "heavy tails":
        X = rng.standard_t(1, X.shape).astype("f4")
    elif shape == "columns of all scales":
        X *= np.logspace(-6, 6, 70, dtype="f4")
    elif shape == "zeros":
        X[:, rng.random(70) < 0.9] = 0
        X[::3] = 0
    else:
        X[:] = 7
    assert_bounds(X, most=(1, 0.1) if shape != "zeros" else (9, 9))


def test_columns_of_all_scales_are_as_exact_as_others(rng):
    X = rng.standard_normal((500, 64)).astype("f4")
    plain = copied(X)[0]
    scaled = copied(X * np.exp2(np.linspace(-2, 2, 64).round()).astype("f4"))[0]
    norms = [np.sqrt(one.rows[:, 1].view(np.float32)) for one in (plain, scaled)]
    parts = [np.median(bfloat16s(one.rows[:, 0])[1] / norm) for one, norm in zip((plain, scaled), norms, strict=True)]
    assert parts[1] < 1.2 * parts[0]


@pytest.mark.parametrize(("dtype", "power"), [("float64", 300), ("float64", -300), ("float32", 38), ("float32", -44)])
def test_what_float32_cannot_hold_has_no_bound_or_a_true_one(dtype, power, rng):
    X = rng.uniform(-3, 3, (64, 20)).astype(dtype) * np.array(10.0**power, dtype)
    X[::5] *= np.array(1e-30, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        copy, y, upper, both = copied(X)
        for bounds, found in ((bfloat16s(copy.rows[:, 0])[1], upper), (copy.errors, both)):
            errors = np.linalg.norm(y - found, axis=1)
            assert not (bounds < errors - 2.0**-21 * np.linalg.norm(y, axis=1)).any()


@property_test(
    20,
    400,
    n=st.integers(1, 90),
    d=st.integers(1, 150),
    exponent=st.integers(-60, 60),
    spread=st.integers(0, 20),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_any_data(n, d, exponent, spread, dtype, seed):
    rng = np.random.default_rng(seed)
    X = np.ldexp(rng.standard_normal((n, d)), exponent + rng.integers(-spread, spread + 1, (n, d))).astype(dtype)
    assert_bounds(X, most=(99, 99))
