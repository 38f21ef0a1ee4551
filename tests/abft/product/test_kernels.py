"""The launches of a protected product, stage by stage on a `HostMachine`, against float64 and cpu.py."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from exhaustive import every
from host_cuda import harness
from protected_products import (
    DTYPES,
    LISTED,
    MULTIPROCESSORS,
    Check,
    build_products,
    emulated,
    faulty_epilogue,
    machine_and_matrices,
)

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import thresholds
from tsapps.apps.abft.product.gpu import check_matrices
from tsapps.apps.abft.product.plan import ROWS_PER_LANE, half_step, padded_depth, summed
from tsapps.apps.abft.product.rounding_model import RoundingModel, rounding_deviations
from tsapps.bench.abft import product as product_faults
from tsapps.bench.abft.campaign import draw
from tsapps.bench.abft.product import Limits
from tsapps.kernels.gemm import blocks_of
from tsapps.kernels.plan.accumulation_order import order_of
from tsapps.kernels.plan.mma import OWN_EPILOGUE, MmaPlan, WgmmaPlan, instantiate
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

M, K = 203, 150
LIES = {"C": "packed", "padded": "rows", "F": "columns", "strided": "any"}


def problem_of(dtype, w, *, along=True, b_along=False, k=K, m=M):
    def layout(along, lead):
        return Layout(along, lead, int(np.gcd(16, lead * ITEMSIZE[dtype])), 16)

    return Problem(m, k, w, dtype, layout(along, k if along else m), layout(b_along, k if b_along else w))


def plan_of(dtype, w, *, kind=MmaPlan, k=K, splits=1, products=3, **lies):
    depth, problem = 64 // ITEMSIZE[dtype] * 2, problem_of(dtype, w, k=k, **lies)
    if kind is WgmmaPlan:
        kept = k <= depth
        one = WgmmaPlan(
            dtype, 128, w, depth, warps_m=8 // splits, warps_k=splits, stages=3, keep_b=kept, loaders=2 - kept
        )
    elif k <= depth:
        one = MmaPlan(dtype, 32, w, k, teams=2, stages=3, keep_b=True, products=products, interval=4)
    else:
        one = MmaPlan(dtype, 64, w, depth, warps_m=2, warps_k=splits, stages=3)
    return replace(instantiate(one, problem), store=OWN_EPILOGUE, row_sums=True)


#: Plan, columns, layout of C, and k.
CASES = [
    *((plan_of(dtype, w), w, C, K) for dtype in DTYPES for w, C in ((16, "C"), (5, "F"), (9, "strided"))),
    *((plan_of(dtype, 64), 64, "C", K) for dtype in ("float32", "bfloat16")),
    *((plan_of(dtype, 3, along=False), 3, "C", K) for dtype in ("float64", "float16")),
    *((plan_of(dtype, 16, k=12), 16, "padded", 12) for dtype in DTYPES),
    (plan_of("float16", 7, k=5), 7, "C", 5),
    (plan_of("float32", 7, k=29, products=6), 7, "C", 29),
    *((plan_of(dtype, 12, b_along=True, splits=2), 12, "C", K) for dtype in ("float64", "float32", "bfloat16")),
    *((plan_of(dtype, 24, kind=WgmmaPlan), 24, "C", K) for dtype in ("float64", "float32", "float16")),
    (plan_of("float32", 9, kind=WgmmaPlan, splits=2), 9, "F", K),
    *((plan_of(dtype, 24, kind=WgmmaPlan, k=13), 24, "C", 13) for dtype in ("float64", "float32", "float16")),
]


def identify(case):
    plan, w, C, k = case
    orders = "".join("FC"[along] for along in (plan.a_along, not plan.b_along))
    return f"{plan.kernel_name}-{plan.dtype}-{k}x{w}-{orders}{C}"


build_products([(plan, w, LIES[C]) for plan, w, C, _ in [*CASES[::4], *CASES]])


def operands(dtype, m, k, w, seed=0, *, along=True, b_along=False):
    rng = np.random.default_rng(seed)
    A, B = rng.standard_normal((m, k)).astype(DTYPES[dtype]), rng.standard_normal((k, w)).astype(DTYPES[dtype])
    return A if along else np.asfortranarray(A), np.asfortranarray(B) if b_along else B


def result(w, dtype, how):
    """Return C, and the memory that it is a part of."""
    memory = np.full({"F": (w, M), "padded": (M, w + 8), "strided": (2 * M, 3 * w)}.get(how, (M, w)), -12345, dtype)
    return {"F": memory.T, "padded": memory[:, :w], "strided": memory[::2, ::3]}.get(how, memory), memory


def checked(case, faults=(), seed=0, bounds=None, capacity=None):
    plan, w, how, k = case
    A, B = operands(plan.dtype, M, k, w, seed, along=plan.a_along, b_along=plan.b_along)
    bounds = bounds or thresholds.proven(k, w, plan.dtype)
    C, memory = result(w, A.dtype, how)
    return Check(A, B, C, bounds, plan, faults, capacity=capacity), C, memory


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


def test_plans_know_the_kernels_sizes():
    classes = {"tall_skinny": "GemmMma", "tall_skinny_warpgroups": "GemmWgmma"}
    headers = dict.fromkeys([*(plan.header for plan, *_ in CASES), "apps/abft/product/locate.cuh"])
    parts = [f'#include "{header}"' for header in [*headers, "tests/abft/product/faulty.cuh"]]
    parts.append(f"static_assert(abft::kRowsPerLane == {ROWS_PER_LANE} && abft::kRowThreads == 256);")
    parts.append("static_assert(abft::kLocateThreads == 256);")
    for number, (plan, w, C, _) in enumerate(CASES):
        of = f"tsm2::{classes[plan.kernel_name]}<Plan, {faulty_epilogue(plan.dtype, w, LIES[C]).name}>"
        sizes = f"Of::kSharedBytes == {plan.shared_bytes} && Of::kThreads == {plan.threads}"
        parts.append(f"namespace part_{number} {{\n{plan.struct()}\nusing Of = {of};\nstatic_assert({sizes});\n}}")
    harness.build("\n".join(parts))


# --- Checksum vectors of B ----------------------------------------------------------------------------------------


def weights(w):
    """The weights of product/row_checksums.cuh for columns 8b + 2t + i."""
    n_most = 16
    while n_most < 2 * -(-w // 8):
        n_most *= 2
    return np.array([(1 - (j // 8 * 2 + j % 2) / (2 * n_most)) * (1 - j % 8 // 2 / (8 * n_most)) for j in range(w)])


def test_weights_by_hand():
    assert half_step(1) == half_step(64) == 1 / 32
    assert half_step(65) == 1 / 64
    assert weights(18).tolist()[:4] + weights(18).tolist()[16:] == [
        1,
        31 / 32,
        127 / 128,
        31 * 127 / 4096,
        7 / 8,
        27 / 32,
    ]
    for w in (64, 300, 4097):
        v = weights(w)
        assert v.max() == 1
        assert v.min() > 0.48
        assert len(set(v)) == w
    assert (weights(64).astype(np.float32) == weights(64)).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("by_spread", [False, True])
@pytest.mark.parametrize("w", [1, 3, 8, 40, 200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_checksum_vectors(dtype, w, by_spread, order):
    rng = np.random.default_rng(w)
    B = np.asarray(rng.standard_normal((50, w)), order=order).astype(DTYPES[dtype])
    B[7] = 0
    bounds = replace(thresholds.proven(50, w, dtype), by_spread=by_spread)
    A, C = np.zeros((1, 50), B.dtype), np.zeros((1, w), B.dtype)
    check = Check(A, B, C, bounds, padded=padded_depth(50, plan_of(dtype, w, k=50)))
    assert len(check.x) >= 50 + 16
    assert not check.x[50:].any()
    wide = B.astype(np.float64)
    x, size = wide @ weights(w), abs(wide).sum(axis=1)
    y = np.sqrt((wide**2).sum(axis=1) + x**2) if by_spread else size
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    kept = oracle.gamma(w + 4, np.float64)  # they are accumulated in float64
    assert (abs(check.x[:50] - x) <= unit * abs(x) + kept * size).all()
    assert (abs(check.y - y) <= unit * y + 2 * kept * size).all()


# --- Products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every(4, CASES), ids=identify)
def test_clean_products(case):
    check, C, memory = checked(case)
    assert check.flagged == []
    assert_right(check, C)
    C[...] = -12345
    assert (memory == memory.dtype.type(-12345)).all(), "memory around C was written"
    assert check.locate(correct=False) == ([], 0)


@pytest.mark.parametrize("case", every(4, CASES), ids=identify)
def test_faults_are_found_and_repaired(case):
    plan, w, _, k = case
    clean = checked(case)[1].copy()
    rows = [0, 7, 8, 31, 64, 130, 202]
    columns = [0, w - 1, w // 2, 0, w - 1, w // 2, w - 1]
    # Guaranteed to be found, as weights are at least 0.48: twice the bound of a row; for 16-bit types, also more than
    # rounding removes.
    A, B = operands(plan.dtype, M, k, w)
    size = abs(A.astype(np.float64)) @ abs(B.astype(np.float64)).sum(axis=1)
    off = 4.3 * thresholds.proven(k, w, plan.dtype).row * size + 2 * thresholds.UNIT[plan.dtype] * size * (
        A.itemsize == 2
    )
    faults = [(i, j, s * off[i]) for i, j, s in zip(rows, columns, [1, -1, 10, 1, -100, 1, np.nan], strict=True)]
    check, C, _ = checked(case, faults)
    assert check.flagged == rows
    found, n_wrong = check.locate()
    assert n_wrong == len(rows)
    assert [one[:2] for one in found] == list(zip(rows, columns, strict=True))
    assert_right(check, C)
    others = np.ones(C.shape, bool)
    others[rows, columns] = False
    assert (C[others] == clean[others]).all()
    assert [float(C[i, j]) for i, j in zip(rows, columns, strict=True)] == [one[3] for one in found]
    assert np.isnan(found[-1][2])


@pytest.mark.parametrize("case", CASES[:3], ids=identify)
def test_faults_in_checksums_are_no_false_positives(case):
    plan = case[0]
    first = -(-plan.tile_n // 8) * 8  # p, whose parts are in four lanes
    faults = [(3, first, 1e3), (4, first + 2, np.nan), (5, first + 4, np.inf), (6, first + 6, -np.inf)]
    check, C, _ = checked(case, faults)
    assert check.flagged == [3, 4, 5, 6]
    assert check.locate() == ([], 0)
    assert_right(check, C)


@pytest.mark.parametrize("case", CASES[:1], ids=identify)
def test_errors_of_both_signs_do_not_cancel(case):
    check, *_ = checked(case, [(9, 2, 1.0), (9, 11, -1.0)])
    assert check.flagged == [9]
    assert [one[:2] for one in check.locate()[0]] == [(9, 2), (9, 11)]


@pytest.mark.parametrize("case", [case for case in CASES if case[1:] == (16, "C", K)], ids=identify)
def test_lists_that_are_too_short(case):
    check, C, _ = checked(case, [(row, row % 16, 100.0) for row in range(0, 200, 2)], capacity=20)
    assert check.n_flagged == 100
    found, n_wrong = check.locate()
    assert check.confirmed == 100
    assert n_wrong == 100
    assert len(found) == LISTED
    assert_right(check, C)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("capacity", [None, 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_recheck_dismisses_rows_that_cancel(dtype, capacity, order):
    """Their elements are only rounding errors, which Σ|c| does not bound; also with more rows than the list holds."""
    rng = np.random.default_rng(5)
    A, B = rng.standard_normal((300, 80)).astype(DTYPES[dtype]), rng.standard_normal((80, 6)).astype(DTYPES[dtype])
    A[:, 40:], B[40:] = -A[:, :40], B[:40]
    unit = float(np.finfo(summed(dtype)).eps)
    C = np.asarray(4 * unit * abs(rng.standard_normal((300, 6))), A.dtype, order=order)
    C[7, 3] = C[250, 0] = 1
    check = Check(A, B, C, thresholds.proven(80, 6, dtype), capacity=capacity)
    check.check_rows()
    assert check.n_flagged > 250
    assert [one[:2] for one in check.locate()[0]] == [(7, 3), (250, 0)]
    assert check.confirmed == 2


@pytest.mark.parametrize("case", [case for case in CASES if case[3] == K][::4], ids=identify)
def test_products_that_cancel(case):
    plan, w, how, k = case
    A, B = operands(plan.dtype, M, k, w, along=plan.a_along, b_along=plan.b_along)
    A[:, k // 2 :], B[k // 2 :] = -A[:, : k // 2], B[: k // 2]
    C, _ = result(w, A.dtype, how)
    check = Check(A, B, C, thresholds.proven(k, w, plan.dtype), plan, [(70, w - 1, 1.0)])
    assert check.locate()[1] == 1
    assert check.confirmed == 1
    assert_right(check, C)


@pytest.mark.parametrize("w", [16, 2500])
def test_the_statistical_bound_flags_rows_beyond_it(w):
    """The first test must not be coarser than the re-check, for any number of columns."""
    case = next(case for case in CASES if (case[0].dtype, *case[1:]) == ("float32", 16, "C", K))
    bounds = thresholds.statistical(K, w, "float32", 1e-7, 1e-9)
    A, B = operands("float32", M, K, w)
    v = weights(w)
    y = np.sqrt((B.astype(np.float64) ** 2).sum(axis=1) + (B.astype(np.float64) @ v) ** 2)
    q = np.sqrt((A.astype(np.float64) ** 2) @ y**2)
    # Twice the bound of the row, whatever its own rounding error is.
    faults = [(row, 3, 2.2 * bounds.row * q[row] / v[3]) for row in range(0, M, 5)]
    if w == 16:
        check, _, _ = checked(case, faults, bounds=bounds)
    else:
        C = (A.astype(np.float64) @ B.astype(np.float64)).astype(np.float32)
        for row, column, by in faults:
            C[row, column] += np.float32(by)
        check = Check(A, B, C, bounds)
        check.check_rows()
    # In a few rows |p| is so large that the bound exceeds the injected error.
    found = set(check.flagged) & {row for row, _, _ in faults}
    assert len(found) >= 0.9 * len(faults)
    assert len(check.flagged) - len(found) <= M // 4


@pytest.mark.parametrize("case", [CASES[0], CASES[-2]], ids=identify)
def test_the_same_in_any_order(case):
    faults = [(5, 3, 2.0), (150, 1, -4.0)]
    expected = None
    for seed, copies in ((0, "late"), (1, "early"), (2, "late"), (3, "early")):
        with harness.schedule(seed=seed, copies=copies, threads=1 + seed % 2):
            check, C, _ = checked(case, faults)
            found = check.flagged, check.locate(), C.tobytes()
        assert expected is None or found == expected
        expected = found
    assert expected[0] == [5, 150]


# --- Finished products ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("w", [1, 7, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_check_and_locate(dtype, w, order):
    A, B = operands(dtype, 101, 60, w)
    C = np.asarray(A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype, order=order)
    check = Check(A, B, C, thresholds.proven(60, w, dtype))
    check.check_rows()
    assert check.flagged == []
    clean = C.copy()
    C[0, 0] += DTYPES[dtype](20)
    C[77, w - 1] = np.nan
    C[100, w // 2] = -np.inf
    check = Check(A, B, C, thresholds.proven(60, w, dtype))
    check.check_rows()
    assert check.flagged == [0, 77, 100]
    found, n_wrong = check.locate(correct=False)
    assert n_wrong == 3
    assert [one[:2] for one in found] == [(0, 0), (77, w - 1), (100, w // 2)]
    assert np.isnan(C[77, w - 1])
    check.counts["confirmed"] = check.counts["wrong"] = 0
    check.locate()
    # Repairs are exact and rounded once; NumPy accumulated float64 in another order.
    assert set(zip(*np.nonzero(C != clean), strict=True)) <= {one[:2] for one in found if dtype == "float64"}
    assert_right(check, C)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_whole_check_of_a_finished_product(dtype):
    """With the checksums of A's rows by the plan that `check_product` selects; without any products, too."""
    A, B = operands(dtype, M, 64, 7)
    C = np.asarray(A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype)
    given, bounds = machine_and_matrices(A, B, C), thresholds.proven(64, 7, dtype)
    assert check_matrices(*given, bounds, correct=False)() == (0, 0, [])
    clean = C.copy()
    C[[3, 200], [6, 0]] = 30, np.nan
    confirmed, n_wrong, found = check_matrices(*given, bounds, correct=True)()
    assert (confirmed, n_wrong, sorted(one[:2] for one in found)) == (2, 2, [(3, 6), (200, 0)])
    assert (C == clean).all()
    C[...] = 0
    C[5, 1] = 1
    nothing = machine_and_matrices(A[:, :0], B[:0], C)
    assert check_matrices(*nothing, thresholds.proven(0, 7, dtype), correct=True)()[2] == [(5, 1, 1.0, 0.0)]
    assert not C.any()


@pytest.mark.parametrize(("dtype", "place"), [("float16", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_repairs_are_rounded_once(dtype, place):
    # Just above and below the midpoint of 1 and its neighbor: float32 cannot distinguish them from it.
    A = np.array([[1, place / 2, 2.0**-24], [1, place / 2, -(2.0**-24)], [-1, -place / 2, -(2.0**-24)]], DTYPES[dtype])
    B = np.array([[1], [1], [2.0**-14]], DTYPES[dtype])
    C = np.full((3, 1), 9, DTYPES[dtype])
    check = Check(A, B, C, thresholds.proven(3, 1, dtype))
    check.flag_all()
    assert [one[3] for one in check.locate()[0]] == [1 + place, 1, -1 - place]
    assert C.tolist() == [[1 + place], [1], [-1 - place]]


def test_the_gpu_finds_the_wrong_elements_of_the_cpu():
    rng = np.random.default_rng(3)
    A, B = rng.standard_normal((40, 77)), rng.standard_normal((77, 6))
    A[3] *= 1e200  # its squares overflow
    A[4, 5], A[5, 6] = np.nan, np.inf
    A[6] *= 1e299
    A[8, 40:] = -A[8, :37]
    B[40:] = B[:37]
    with np.errstate(invalid="ignore"):
        C = A @ B
    # Errors of many magnitudes, some within the bounds.
    C *= 1 + np.sign(rng.standard_normal(C.shape)) * 2.0 ** rng.uniform(-56, -40, C.shape)
    C[7, 2] = np.inf
    for bounds in (
        thresholds.proven(77, 6, "float64"),
        thresholds.statistical(77, 6, "float64", 1e-15, 1e-6),
        thresholds.absolute(77, 6, "float64", 1e-12),
    ):
        check = Check(A, B, C, bounds)
        check.flag_all()
        n_wrong = check.locate(correct=False)[1]
        assert check.confirmed == 40
        expected = sum(len(rows) for rows, *_ in product_cpu.wrong_elements(A, B, C, range(40), bounds))
        assert 20 < n_wrong == expected < 200


@pytest.mark.each_choice
@pytest.mark.parametrize("products", [2.0, 25.0])
@pytest.mark.parametrize("k", [1, 50, 700])
@pytest.mark.parametrize("dtype", DTYPES)
def test_deviations_match_the_cpu(dtype, k, products):
    rng = np.random.default_rng(k)
    A, B = (np.ldexp(x, rng.integers(-6, 3, x.shape)).astype(x.dtype) for x in operands(dtype, 30, k, 3))
    A[:, ::3] *= 0
    B[-1] += 1
    A[5], A[6, -1] = 0, A[6, 0] + 1
    deviations = rounding_deviations(A, B, RoundingModel(products))
    exact = A.astype(np.float64) @ B.astype(np.float64)
    assert (deviations > 0).any() or (k == 1 and A.itemsize == 2)
    # Bounds of one deviation and one rounding to 16 bits: smaller errors are correct, larger ones wrong.
    alone = {"magnitude": 0.0, "spread": 1.0, "absolute": 1e-12}
    bounds = replace(thresholds.statistical(k, 3, dtype, 1e-7, 1e-6, model=RoundingModel(products)), **alone)
    for by, n_wrong in ((0.97, 0), (1.03, (deviations > 0).sum())):
        C = (exact + by * np.where(exact < 0, -1, 1) * deviations).astype(A.dtype)
        check = Check(A, B, C, bounds)
        check.flag_all()
        assert check.locate(correct=False)[1] == n_wrong


# --- Bit-exact emulation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", every(4, CASES), ids=identify)
def test_the_emulation_matches_a_product(case):
    check, C, _ = checked(case)
    sums = emulated(check.A, check.B, order_of_case(case))
    assert (C == sums.astype(summed(check.dtype)).astype(C.dtype)).all()


def order_of_case(case):
    plan, w, _, k = case
    problem = problem_of(plan.dtype, w, k=k)
    return order_of(plan, problem, blocks_of(plan, problem, MULTIPROCESSORS))


@pytest.mark.parametrize("case", every(4, CASES), ids=identify)
def test_single_bit_errors_are_found_and_repaired(case):
    plan, w, _, k = case
    bounds = thresholds.statistical(k, w, plan.dtype, 1e-7, 1e-9, bit_exact=True)
    check, C, _ = checked(case, bounds=bounds)
    clean = C.copy()
    check.flag_all()
    assert check.locate() == ([], 0)
    faults = [(3, 0), (64, w - 1), (202, w // 2)]
    for i, j in faults:
        C[i, j] = np.nextafter(C[i, j], C.dtype.type(2e4))
    found, n_wrong = check.locate()
    assert n_wrong == 3
    assert [one[:2] for one in found] == faults
    assert (C == clean).all()


@pytest.mark.parametrize(("dtype", "large"), [("float64", 1e200), ("float32", 1e20), ("bfloat16", 1e20)])
def test_the_proven_bound_applies_where_the_emulation_does_not(dtype, large):
    A, B = operands(dtype, 40, 30, 4)
    A[7, 5] = large
    C = (A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype)
    order = order_of_case((plan_of(dtype, 4, k=30), 4, "C", 30))
    assert np.isnan(emulated(A, B, order)[7]).all()
    check = Check(A, B, C, thresholds.statistical(30, 4, dtype, 1e-7, 1e-9, bit_exact=True), order=order)
    check.flag_all()
    check.locate()
    right = C.copy()
    if C.itemsize > 2:  # within rounding
        C[7] = np.nextafter(C[7], C.dtype.type(0))
    check.flag_all()
    assert check.locate() == ([], 0)
    C[7] = right[7]
    check.flag_all()
    C[7, 2] *= 2
    C[8, 1] = np.nextafter(C[8, 1], C.dtype.type(0))
    assert [one[:2] for one in check.locate()[0]] == [(7, 2), (8, 1)]
    assert (C == right).all()


@pytest.mark.parametrize("fault", ["rectangle", "tile"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_faults_that_the_campaign_guarantees_are_found(dtype, fault):
    """Errors that cancel in part in the single checksum of a row; the CPU's two checksums detect more."""
    m, k, w = 1200, 64, 16
    rng = np.random.default_rng(7)
    A, B = (draw("lognormal", shape, dtype, rng) for shape in ((m, k), (k, w)))
    C = (A.astype(np.float64) @ B.astype(np.float64)).astype(A.dtype)
    damaged = C.copy()
    first = np.arange(0, m, 4)
    if fault == "tile":
        for i in first:
            damaged[i : i + 4, 3:7] = 0
    else:
        product_faults._rectangles(damaged, first, rng)
    off = damaged.astype(np.float64) - C.astype(np.float64)
    certain = Limits.of(A, B, rounded=True).certain
    on_gpu, on_cpu = (
        np.flatnonzero(abs(off @ product_faults._weights(w, device)).max(axis=1) > certain)
        for device in ("cuda", "cpu")
    )
    check = Check(A, B, damaged, thresholds.proven(k, w, dtype))
    check.check_rows()
    assert len(on_gpu) > 20
    assert set(on_gpu.tolist()) <= set(check.flagged)
    assert fault == "tile" or dtype == "float64" or len(on_cpu) > len(on_gpu)
