"""checked.cuh, check_columns.cuh and judge.cuh, their own source run on the CPU, against float64 and product_cpu.py."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from host_cuda import harness
from host_cuda.checked import Check, build_products, name_of
from host_cuda.tall_skinny import DTYPES, result

from tsapps.apps.abft import product_cpu, thresholds
from tsapps.apps.abft.product_plan import checked_problem
from tsapps.kernels.plan import Plan, WarpgroupPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout

M, K = 203, 150
LIES = {"C": "packed", "padded": "rows", "F": "columns", "strided": "any"}


def plan_of(dtype, w, *, along=True, kind=Plan, k=K, m=M):
    depth = 64 // ITEMSIZE[dtype] * 2
    lead = k if along else m
    base = int(np.gcd(16, lead * ITEMSIZE[dtype]))
    problem = checked_problem(m, k, w, dtype, Layout(along, lead, base, 16))
    if kind is WarpgroupPlan:
        one = WarpgroupPlan(dtype, 128, problem.w, depth, warps_m=8, stages=3)
    elif k <= depth:
        one = Plan(dtype, 32, problem.w, k, teams=2, stages=3, keep_b=True)
    else:
        one = Plan(dtype, 64, problem.w, depth, warps_m=2, stages=3)
    return replace(instantiate(one, problem), store="StorePairs")


#: A product's plan, its columns, how C lies, and k.
CASES = [
    *((plan_of(dtype, w), w, C, K) for dtype in DTYPES for w, C in ((16, "C"), (5, "F"), (9, "strided"))),
    *((plan_of(dtype, 64), 64, "C", K) for dtype in ("float32", "bfloat16")),
    *((plan_of(dtype, 3, along=False), 3, "C", K) for dtype in ("float64", "float16")),
    *((plan_of(dtype, 16, k=12), 16, "padded", 12) for dtype in DTYPES),
    *((plan_of(dtype, 24, kind=WarpgroupPlan), 24, "C", K) for dtype in ("float32", "float16")),
]


def identify(case):
    plan, w, C, k = case
    return f"{plan.kernel_name}-{plan.dtype}-{k}x{w}-{C}-{'rows' if plan.a_along else 'columns'}"


@pytest.fixture(scope="module", name="libraries")
def _libraries():
    return build_products([(plan, w, LIES[C]) for plan, w, C, _ in CASES])


def operands(dtype, m, k, w, seed=0, *, along=True):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((m, k)).astype(DTYPES[dtype]), rng.standard_normal((k, w)).astype(DTYPES[dtype])
    return A if along else np.asfortranarray(A), B


def aligned(X):
    """Return a copy from a multiple of 16 bytes on."""
    memory = np.empty(X.size + 16, X.dtype)
    first = -memory.ctypes.data % 16 // X.itemsize
    copy = memory[first : first + X.size].reshape(X.shape, order="F" if X.flags.f_contiguous else "C")
    copy[...] = X
    return copy


def checked(libraries, case, faults=(), seed=0, bounds=None, capacity=None):
    plan, w, how, k = case
    A, B = operands(plan.dtype, M, k, w, seed, along=plan.a_along)
    A = aligned(A)
    bounds = bounds or thresholds.proven(k, w, plan.dtype)
    check = Check(A, B, plan.dtype, bounds, plan.tile_n, capacity)
    C, memory = result(M, w, A.dtype, how)
    check.multiply(libraries, plan, LIES[how], C, faults)
    return check, C, memory


def assert_right(check, C):
    a, b = check.A.astype(np.float64), check.B.astype(np.float64)
    k, size = a.shape[1], abs(a) @ abs(b)
    if check.dtype == "float64":
        allowed = oracle.gamma(k + 8, np.float64) * size
    else:
        allowed = (oracle.gamma(2 * k + 8, np.float32) + 2.0**-18) * size
        unit = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[check.dtype]
        allowed = allowed * (1 + unit) + unit * abs(a @ b)
    assert (abs(C.astype(np.float64) - a @ b) <= allowed).all()


# --- The columns that B gets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_spread", [False, True])
@pytest.mark.parametrize("w", [1, 3, 8, 40])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 300.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_are_those_of_the_cpu(dtype, w, scale, by_spread):
    rng = np.random.default_rng(w)
    B = (scale * rng.standard_normal((50, w))).astype(DTYPES[dtype])
    B[7] = 0
    bounds = replace(thresholds.proven(50, w, dtype), by_spread=by_spread)
    columns = -(-w // 8) * 8 + 8
    check = Check(B, B, dtype, bounds, columns)
    assert (check.extended[:, :w] == B).all()
    assert (check.extended[:, w : columns - 8] == 0).all()
    found = check.extended[:, columns - 8 :].astype(np.float64) / float(check.scale[0])
    expected = product_cpu.check_columns(B.astype(np.float64), bounds)
    parts = {"float64": 1, "float32": 1, "float16": 2, "bfloat16": 3}[dtype]
    size = abs(B.astype(np.float64)).sum(axis=1, keepdims=True)
    # What thresholds.py counts for how a column is kept, and for its sums in double; of float16 the last places are
    # lost where a row is far smaller than the largest: its scaled subnormals end at 2⁻²⁴, the largest row being 2¹³ or
    # more.
    kept = thresholds._COLUMN[dtype] + oracle.gamma(w + 4, np.float64)
    floor = 2.0**-25 / float(check.scale[0]) if dtype == "float16" else 0.0
    sums = found[:, : 2 * parts].reshape(50, parts, 2).sum(axis=1)
    assert (abs(sums - expected[:, :2]) <= kept * size + floor).all()
    probes = expected[:, 2 : 2 + 8 - 2 * parts]
    # A probe is rounded once, and here a second time in between.
    unit = 2.01 * thresholds.UNIT[dtype]
    assert (abs(found[:, 2 * parts :] - probes) <= unit * abs(probes) + floor + 1e-15 * size).all()
    if dtype == "float16":
        assert 2.0**13 <= size.max() * float(check.scale[0]) <= 2.0**14 * (1 + 1e-6)
    else:
        assert check.scale[0] == 1


# --- Products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_clean_products(libraries, case):
    check, C, memory = checked(libraries, case)
    assert check.suspected == []
    assert_right(check, C)
    C[...] = -12345
    assert (memory == memory.dtype.type(-12345)).all(), "memory around C was written"
    assert check.judge(C, correct=False) == ([], 0)


@pytest.mark.parametrize("case", CASES, ids=identify)
def test_what_is_struck_is_found_and_repaired(libraries, case):
    plan, w, _, k = case
    clean = checked(libraries, case)[1].copy()
    rows = [0, 7, 8, 31, 64, 130, 202]
    columns = [0, w - 1, w // 2, 0, w - 1, w // 2, w - 1]
    # What is found for certain, and more: twice the bound of a row; of 16 bits, also more than is rounded away.
    A, B = operands(plan.dtype, M, k, w, along=plan.a_along)
    size = abs(A.astype(np.float64)) @ abs(B.astype(np.float64)).sum(axis=1)
    off = 2.1 * thresholds.proven(k, w, plan.dtype).row * size + 2 * thresholds.UNIT[plan.dtype] * size * (
        A.itemsize == 2
    )
    faults = [(i, j, s * off[i]) for i, j, s in zip(rows, columns, [1, -1, 10, 1, -100, 1, np.nan], strict=True)]
    check, C, _ = checked(libraries, case, faults)
    assert check.suspected == rows
    found, n_wrong = check.judge(C)
    assert n_wrong == len(rows)
    assert [one[:2] for one in found] == list(zip(rows, columns, strict=True))
    assert_right(check, C)
    others = np.ones(C.shape, bool)
    others[rows, columns] = False
    assert (C[others] == clean[others]).all()
    assert [float(C[i, j]) for i, j in zip(rows, columns, strict=True)] == [one[3] for one in found]
    assert np.isnan(found[-1][2])


@pytest.mark.parametrize("case", CASES[:3], ids=identify)
def test_checks_that_are_struck_alarm_nobody(libraries, case):
    plan = case[0]
    first = plan.tile_n - 8
    faults = [(3, first, 1e3), (4, first + 1, np.nan), (5, first + 2, np.inf), (6, first + 7, -np.inf)]
    check, C, _ = checked(libraries, case, faults)
    assert check.suspected == [3, 4, 5, 6]
    assert check.judge(C) == ([], 0)
    assert_right(check, C)


@pytest.mark.parametrize("case", CASES[:1], ids=identify)
def test_errors_that_cancel_are_seen_by_the_second_check(libraries, case):
    check, C, _ = checked(libraries, case, [(9, 2, 1.0), (9, 11, -1.0)])
    assert check.suspected == [9]
    assert [one[:2] for one in check.judge(C)[0]] == [(9, 2), (9, 11)]


@pytest.mark.parametrize("case", CASES[:1], ids=identify)
def test_lists_that_are_too_short(libraries, case):
    check, C, _ = checked(libraries, case, [(row, row % 16, 1.0) for row in range(0, 200, 2)], capacity=20)
    assert int(check.counts[0]) == 100
    found, n_wrong = check.judge(C)
    assert n_wrong == 100
    assert len(found) == 64  # of which there is room for
    assert_right(check, C)


@pytest.mark.parametrize("case", [CASES[0], CASES[-2]], ids=identify)
def test_the_same_in_any_order(libraries, case):
    faults = [(5, 3, 2.0), (150, 1, -4.0)]
    expected = None
    for seed, copies in ((0, "late"), (1, "early"), (2, "late"), (3, "early")):
        with harness.schedule(seed=seed, copies=copies, threads=1 + seed % 2):
            check, C, _ = checked(libraries, case, faults)
            found = check.suspected, check.judge(C), C.tobytes()
        assert expected is None or found == expected
        expected = found
    assert expected[0] == [5, 150]


def test_names_are_of_one_product_each():
    assert len({name_of(plan, w, LIES[C]) for plan, w, C, _ in CASES}) == len(CASES)


# --- Products that are there already ------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("w", [1, 7, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compare_and_judge(dtype, w, order):
    A, B = operands(dtype, 101, 60, w)
    C = np.asarray(A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype, order=order)
    check = Check(A, B, dtype, thresholds.proven(60, w, dtype), 8)
    check.compare(C)
    assert check.suspected == []
    clean = C.copy()
    C[0, 0] += DTYPES[dtype](20)
    C[77, w - 1] = np.nan
    C[100, w // 2] = -np.inf
    check = Check(A, B, dtype, thresholds.proven(60, w, dtype), 8)
    check.compare(C)
    assert check.suspected == [0, 77, 100]
    found, n_wrong = check.judge(C, correct=False)
    assert n_wrong == 3
    assert [one[:2] for one in found] == [(0, 0), (77, w - 1), (100, w // 2)]
    assert np.isnan(C[77, w - 1])
    check.counts[1] = 0
    check.judge(C)
    # What is repaired is exact, and rounded once; float64 was summed in another order.
    assert set(zip(*np.nonzero(C != clean), strict=True)) <= {one[:2] for one in found if dtype == "float64"}
    assert_right(check, C)


def test_judged_as_on_the_cpu():
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((40, 77)), rng.standard_normal((77, 6))
    A[3] *= 1e200  # its squares overflow
    A[4, 5], A[5, 6] = np.nan, np.inf
    A[6] *= 1e299
    A[8, 40:] = -A[8, :37]
    B[40:] = B[:37]
    with np.errstate(invalid="ignore"):
        C = A @ B
    # Of every size: bounds are met by some, and not by others.
    C *= 1 + np.sign(rng.standard_normal(C.shape)) * 2.0 ** rng.uniform(-56, -40, C.shape)
    C[7, 2] = np.inf
    for bounds in (
        thresholds.proven(77, 6, "float64"),
        thresholds.statistical(77, 6, "float64", 1e-15, 1e-6),
        thresholds.absolute(77, 6, "float64", 1e-12),
    ):
        check = Check(A, B, "float64", bounds, 8)
        check.rows[:], check.counts[0] = np.arange(40), 40
        n_wrong = check.judge(C, correct=False)[1]
        expected = list(product_cpu.wrong(A, B, C, range(40), bounds))
        assert 20 < n_wrong == len(expected) < 200


@pytest.mark.parametrize("k", [1, 50, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_walks_are_those_of_the_cpu(dtype, k):
    rng = np.random.default_rng(k)
    A, B = (np.ldexp(x, rng.integers(-6, 3, x.shape)).astype(x.dtype) for x in operands(dtype, 30, k, 3))
    A[:, ::3] *= 0
    B[-1] += 1
    A[5], A[6, -1] = 0, A[6, 0] + 1
    walks, exact = product_cpu.walks(A, B), A.astype(np.float64) @ B.astype(np.float64)
    assert (walks > 0).any() or (k == 1 and A.itemsize == 2)
    # Of little but what rounding may walk, and one rounding to 16 bits: what is off by less is right, by more wrong.
    alone = {"magnitude": 0.0, "spread": 1.0, "absolute": 1e-12}
    bounds = replace(thresholds.statistical(k, 3, dtype, 1e-7, 1e-6), **alone)
    for by, n_wrong in ((0.97, 0), (1.03, (walks > 0).sum())):
        C = (exact + by * np.where(exact < 0, -1, 1) * walks).astype(A.dtype)
        check = Check(A, B, dtype, bounds, 8)
        check.rows[:], check.counts[0] = np.arange(30), 30
        assert check.judge(C, correct=False)[1] == n_wrong
