"""Bit-exact emulation of tensor cores: gpu_sums.py on a `HostMachine`, against references and an H200."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from protected_products import DTYPES, emulated

from tsapps.kernels.plan.accumulation_order import ORDER


def operands(dtype, m, k, w, rng):
    return rng.standard_normal((m, k)).astype(DTYPES[dtype]), rng.standard_normal((k, w)).astype(DTYPES[dtype])


def exponent(x, least=-126):
    """⌊log₂|x|⌋, at least the dtype's smallest; -9999 for zero."""
    return np.where(x != 0, np.maximum(np.frexp(x)[1] - 1, least), -9999)


def added_at_once(sums, a, b, least=-126):
    """sums (rows, w) + Σ_i a (rows, n) · b (n, w) by one tensor-core instruction, as measured."""
    products = a[:, :, np.newaxis] * b
    exponents = exponent(a, least)[:, :, np.newaxis] + exponent(b, least)
    largest = np.maximum(np.where(products != 0, exponents, -9999).max(axis=1), exponent(sums))
    place = np.ldexp(1.0, np.where(largest > -9999, largest - 25, 0))
    total = (np.trunc(products / place[:, np.newaxis]).sum(axis=1) + np.trunc(sums / place)) * place
    last = np.ldexp(1.0, exponent(total) - 23, where=total != 0, out=np.ones_like(total))
    return np.trunc(total / last) * last


def parts_of(x):
    """The two tf32 parts of float32, of eleven bits each."""
    x = x.astype(np.float32)
    first = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    second = ((x - first).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return first.astype(np.float64), second.astype(np.float64)


@pytest.mark.parametrize("by_steps", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_of_one_block_against_a_reference(dtype, by_steps):
    k, rng = 70, np.random.default_rng(3)
    A, B = (np.ldexp(x, rng.integers(-6, 3, x.shape)).astype(x.dtype) for x in operands(dtype, 40, k, 5, rng))
    A[:, ::7], B[3] = 0, 0
    if dtype == "float16":  # denormals
        A[::2, 20:40], B[20:40:3] = A[::2, 20:40] * 2.0**-14, B[20:40:3] * 2.0**-16
    order = np.array((1, 1, 64, 96, k, 1, 1, 1, 4 * (dtype == "float32"), 3, by_steps), ORDER)
    a, b = np.zeros((40, 96)), np.zeros((96, 5))
    a[:, :k], b[:k] = A, B
    sums = np.zeros((40, 5))
    if dtype == "float32":
        (a1, a2), (b1, b2) = parts_of(a), parts_of(b)
        steps = (a1, b2), (a2, b1), (a1, b1)
        for first in range(0, 96, 16):
            alone = np.zeros_like(sums)
            eights = [slice(first, first + 8), slice(first + 8, first + 16)]
            pairs = (
                [(one, at) for one in steps for at in eights] if by_steps else [(s, at) for at in eights for s in steps]
            )
            for (x, y), at in pairs:
                alone = added_at_once(alone, x[:, at], y[at])
            sums = (sums.astype(np.float32) + alone.astype(np.float32)).astype(np.float64)
    else:
        for first in range(0, 96, 16):
            at, least = slice(first, first + 16), -14 if dtype == "float16" else -126
            sums = added_at_once(sums, a[:, at], b[at], least)
    assert (emulated(A, B, order) == sums).all()
    assert (sums != a @ b).any()


def test_sums_by_hand():
    """1 + 3 · 2⁻²⁵ keeps only two bits of each product below the last place of the largest."""
    order = np.array((1, 1, 16, 16, 4, 1, 1, 1, 0, 3, 0), ORDER)
    for small, expected in ((2.0**-25, 1.0), (2.0**-24, 1 + 2.0**-23), (2.0**-26, 1.0)):
        A, B = np.array([[1, small, small, small]], np.float32), np.ones((4, 1), np.float32)
        A, B = (X.astype(ml_dtypes.bfloat16) for X in (A, B))
        assert emulated(A, B, order) == [[expected]]
    # float64 sums are rounded after each addition: 1 + 2⁻⁵³ rounds to 1, but 2⁻⁵³ + 2⁻⁵³ is exact.
    order["depth"], order["k"] = 8, 3
    ones = np.ones((3, 1))
    assert emulated(np.array([[1, 2.0**-53, 2.0**-53]]), ones, order) == [[1]]
    assert emulated(np.array([[2.0**-53, 2.0**-53, 1]]), ones, order) == [[1 + 2.0**-52]]


@pytest.mark.parametrize("name", [*DTYPES, "small"])
def test_recorded_sums_of_an_h200(name):
    """Recorded bits of an H200's tensor cores: data of wide range, and float16 denormals."""
    held = np.load(Path(__file__).with_name("h200_sums.npz"))
    dtype = "float16" if name == "small" else name
    A, B = (held[f"{name}-{side}"].view(DTYPES[dtype]) for side in "AB")
    order, sums = np.array(tuple(held[f"{name}-order"].tolist()), ORDER), held[f"{name}-sums"]
    assert (emulated(A, B, order) == sums).all()
    assert (sums != A.astype(np.float64) @ B.astype(np.float64)).any()
