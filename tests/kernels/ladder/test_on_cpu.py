"""The rungs of the ladder on a CPU, built by this machine's compiler, against float64."""

import ctypes

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from ladder_products import SHAPES, assert_product, matrix, needs_a_compiler

from tsapps.kernels.ladder import on_cpu
from tsapps.kernels.ladder.on_cpu import CPU_RUNGS, CompilerError, CpuRung, compiler, multiply_on_cpu

pytestmark = needs_a_compiler

BY_NAME = pytest.mark.parametrize("rung", CPU_RUNGS, ids=lambda rung: rung.name)


@BY_NAME
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_by_two_by_hand(rung, dtype):
    A, B, C = (np.array(values, dtype) for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 0], [0, 1]]))
    np.testing.assert_array_equal(multiply_on_cpu(rung, A, B), [[19, 22], [43, 50]])
    assert multiply_on_cpu(rung, A, B, C, alpha=2, beta=-1) is C
    np.testing.assert_array_equal(C, [[37, 44], [86, 99]])


@BY_NAME
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [None, 1, 5])
def test_ragged_shapes(rung, dtype, shape, threads, rng):
    m, n, k = shape
    A, B, C = (matrix(size, dtype, rng, pad=3) for size in ((m, k), (k, n), (m, n)))
    before, whole = C.copy(), C.base
    assert_product(multiply_on_cpu(rung, A, B, C, alpha=1.5, beta=0.5, threads=threads), A, B, 1.5, before, 0.5)
    assert np.isnan(whole).sum() == 3 * m  # nothing is written beside C
    C[...] = np.nan  # which is not read without beta
    assert_product(multiply_on_cpu(rung, A, B, C, alpha=-2, threads=threads), A, B, -2)


@property_test(
    30,
    300,
    rung=st.sampled_from(CPU_RUNGS),
    dtype=st.sampled_from(["float32", "float64"]),
    shape=st.tuples(*[st.integers(1, 150)] * 3),
    threads=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_any_shape(rung, dtype, shape, threads, seed):
    rng, (m, n, k) = np.random.default_rng(seed), shape
    A, B = matrix((m, k), dtype, rng, pad=seed % 5), matrix((k, n), dtype, rng, pad=seed % 3)
    assert_product(multiply_on_cpu(rung, A, B, threads=threads), A, B)


BOTH, READ_ONLY = np.zeros((2, 8)), np.zeros((2, 5))
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": np.zeros((2, 3))}, r"A has shape \(2, 3\) and B \(4, 5\)"),
        ({"A": np.zeros((2, 4), np.float32)}, "the same for both"),
        ({"C": np.zeros((2, 4))}, r"C has shape \(2, 4\) and dtype float64; expected \(2, 5\)"),
        ({"beta": 1.0}, "there is no C"),
        ({"A": np.zeros((2, 4), order="F")}, "A has strides .*; expected row-major"),
        ({"A": np.zeros((2, 4), ">f8")}, "A has dtype >f8"),
        ({"A": np.broadcast_to(np.zeros(4), (2, 4))}, "A has strides .*; expected row-major"),
        ({"C": np.broadcast_to(np.zeros(5), (2, 5))}, "C has strides .*; expected row-major"),
        ({"A": BOTH[:, :4], "C": BOTH[:, 3:]}, "C overlaps A in memory; give it memory of its own"),
        ({"C": READ_ONLY}, "C is read-only"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        multiply_on_cpu(CPU_RUNGS[0], **{"A": np.zeros((2, 4)), "B": np.zeros((4, 5)), **arguments})


def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(CompilerError, match="no C compiler: no-such-compiler is not installed; install gcc, or set CC"):
        compiler()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompilerError, match="cc or gcc or clang is not installed"):
        compiler()


def test_a_compiler_with_options(monkeypatch):
    monkeypatch.setenv("CC", "cc -DNOTHING='a b'")
    assert compiler() == ["cc", "-DNOTHING=a b"]


def test_a_compiler_that_fails():
    with pytest.raises(CompilerError, match=r"cannot build absent\.c: .*error"):
        multiply_on_cpu(CpuRung("absent", "a rung without a file", "absent.c"), np.zeros((2, 2)), np.zeros((2, 2)))


def test_product_is_laid_out_as_in_c():
    assert ctypes.sizeof(on_cpu._product_of(ctypes.c_float)) == 88
    assert ctypes.sizeof(on_cpu._product_of(ctypes.c_double)) == 96
