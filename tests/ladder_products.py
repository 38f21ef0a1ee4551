"""Operands and the float64 reference of the ladder's rungs, on GPUs and on CPUs."""

import shutil

import numpy as np
import oracle
import pytest

#: m, n, k: one element, and ragged edges in each direction.
SHAPES = [(1, 1, 1), (127, 65, 33), (1000, 3, 7), (5, 4099, 2), (3, 2, 300), (33, 130, 17)]
needs_a_compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


def matrix(shape, dtype, rng, *, order="C", pad=0):
    """Return a random matrix with `pad` elements of NaN after each row, or column."""
    rows, columns = shape if order == "C" else shape[::-1]
    memory = np.full((rows, columns + pad), np.nan, dtype)
    memory[:, :columns] = rng.standard_normal((rows, columns))
    return memory[:, :columns] if order == "C" else memory[:, :columns].T


def assert_product(found, A, B, alpha=1.0, before=None, beta=0.0):
    """|Ĉ − C| ≤ γ·(|α|·|A|·|B| + |β|·|C|): k products in any order, then two products and a sum."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    exact, magnitude = alpha * (a @ b), abs(alpha) * (abs(a) @ abs(b))
    if beta:
        exact, magnitude = exact + beta * before.astype(np.float64), magnitude + abs(beta * before.astype(np.float64))
    k = A.shape[1]
    late = abs(found - exact) - (oracle.gamma(k + 4, found.dtype) + oracle.gamma(k + 4, np.float64)) * magnitude
    # NaN, which poisoned memory gives, is not at most zero.
    assert np.all(late <= 0), f"{np.count_nonzero(~(late <= 0))} of {late.size} elements are off"
