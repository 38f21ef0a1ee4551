"""Protected products on a GPU, against float64 and the CPU's results."""

from dataclasses import replace
from unittest.mock import patch

import ml_dtypes
import numpy as np
import oracle
import pytest
from oracle import product_tolerance

from tsapps.apps.abft.product import calibrate as calibration
from tsapps.apps.abft.product import exact_products, gpu_sums, thresholds
from tsapps.apps.abft.product import gpu as product_gpu
from tsapps.apps.abft.product.calibrate import calibrate
from tsapps.apps.abft.product.matmul import check_product, matmul
from tsapps.apps.abft.product.plan import COUNTS, FLAGGED_ROW
from tsapps.apps.abft.product.rounding_model import rounding_deviations
from tsapps.bench.abft.campaign import DISTRIBUTIONS, draw
from tsapps.kernels.arrays import device_matrix, gapless
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.matmul import problem_of
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.runtime.machine import cuda_machine

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

DTYPES = ["float64", "float32", "float16"]
#: Tall and narrow products, checked by their own kernel; and others, checked afterwards.
FUSED = [(20_001, 1, 1), (30_000, 7, 5), (10_000, 64, 64), (5_003, 300, 16), (3_000, 1001, 40), (2_000, 4096, 64)]
OTHERS = [(5_000, 200, 100), (3, 2000, 5), (64, 5000, 64), (40, 300, 500), (50, 0, 3), (0, 5, 3)]


def operands(m, k, w, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, w)).astype(dtype)


def assert_right(found, A, B):
    C = found.C.get().astype(np.float64)
    assert (abs(C - A.astype("f8") @ B.astype("f8")) <= product_tolerance(A, B)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*FUSED, *OTHERS], ids=str)
def test_clean(shape, dtype):
    A, B = operands(*shape, dtype)
    a, b = cupy.asarray(A), cupy.asarray(B)
    found = matmul(a, b)
    assert found.clean
    assert found.suspected <= shape[0] // 1000
    assert_right(found, A, B)
    again = check_product(a, b, found.C)
    assert again.clean
    assert again.suspected <= shape[0] // 1000


@pytest.mark.parametrize("order", ["CF", "FC", "FF"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_orders(order, dtype):
    A, B = operands(5000, 130, 24, dtype)
    a, b = cupy.asarray(A, order=order[0]), cupy.asarray(B, order=order[1])
    found = matmul(a, b)
    assert found.clean
    assert_right(found, A, B)
    for how in "CF":
        assert check_product(a, b, cupy.asarray(found.C, order=how)).clean


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [FUSED[1], FUSED[4], OTHERS[0], OTHERS[1]], ids=str)
def test_corrupted_elements_are_found(shape, dtype, correct):
    A, B = operands(*shape, dtype, seed=1)
    m, k, w = shape
    a, b = cupy.asarray(A), cupy.asarray(B)
    C = matmul(a, b).C
    clean = C.get()
    size = abs(A.astype("f8")) @ abs(B.astype("f8")).sum(axis=1)
    bounds = thresholds.proven(k, w, dtype)
    rng = np.random.default_rng(2)
    rows = np.sort(rng.choice(m, min(m, 100), replace=False))
    columns = rng.integers(0, w, len(rows))
    off = 4.3 * bounds.row * size[rows] + 8 * bounds.rounding * size[rows]
    corrupted = clean.copy()
    corrupted[rows, columns] += (off * 10 ** rng.uniform(0, 2, len(rows))).astype(dtype)
    corrupted[rows[0], columns[0]] = np.nan
    C = cupy.asarray(corrupted)
    found = check_product(a, b, C, correct=correct)
    assert [(one.row, one.column) for one in found.faults] == list(zip(rows.tolist(), columns.tolist(), strict=True))
    host = check_product(A, B, corrupted)
    assert [one.value for one in found.faults] == [one.value for one in host.faults]
    if correct:
        assert_right(found, A, B)
    else:
        np.testing.assert_array_equal(C.get(), corrupted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_are_listed(dtype):
    A, B = operands(200_000, 20, 8, dtype)
    a, b = cupy.asarray(A), cupy.asarray(B)
    C = matmul(a, b).C
    C[::2, 3] += cupy.asarray(100, dtype)
    found = check_product(a, b, C, correct=True)
    assert found.suspected == found.n_faults == 100_000
    assert len(found.faults) == 1 << 16
    assert_right(found, A, B)


def test_bfloat16_and_streams_of_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no GPU")
    A, B = operands(5000, 300, 16, ml_dtypes.bfloat16)
    with torch.cuda.stream(torch.cuda.Stream()):
        a, b = (torch.from_numpy(X.view(np.int16)).cuda().view(torch.bfloat16) for X in (A, B))
        found = matmul(a, b)
        assert found.clean
        found.C[77, 3] += 100
        again = check_product(a, b, found.C, correct=True)
        assert [(one.row, one.column) for one in again.faults] == [(77, 3)]
        wide = found.C.float().cpu().numpy()
    size = abs(A.astype("f8")) @ abs(B.astype("f8"))
    allowed = 2.0**-8 * abs(A.astype("f8") @ B.astype("f8")) + 1.01 * (oracle.gamma(608, np.float32) + 2.0**-18) * size
    assert (abs(wide - A.astype("f8") @ B.astype("f8")) <= allowed).all()


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_calibration(dtype):
    found = calibrate(dtype, 0, rows=512, p=1e-6)
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    assert all(one.own.low < one.own.high <= one.own.error < 16 * one.k * unit for one in found.depths)
    assert found.predicted
    if dtype in DTYPES:
        A, B = operands(50_000, 256, 16, dtype, seed=3)
        a, b = cupy.asarray(A), cupy.asarray(B)
        clean = matmul(a, b, threshold=found)
        # 800,000 elements: fewer than one is expected to exceed it; eight do with probability 10⁻⁵.
        assert clean.n_faults < 8
        assert clean.suspected < 500


@pytest.fixture(scope="module", name="of_64")
def _of_64():
    with patch.object(calibration, "DEPTHS", (64,)):
        return {dtype: calibrate(dtype, 0, p=1e-6) for dtype in thresholds.DTYPES}


# --- Bit-exact emulation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", thresholds.DTYPES)
def test_sums_match_their_emulation(dtype, distribution):
    """Including products where two blocks share most tiles, and where many share one."""
    rng = np.random.default_rng(8)
    for m, k, w in ((5000, 64, 16), (40_000, 1000, 16), (300, 20_000, 8), (3000, 700, 64)):
        A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
        sums, expected = (by(cuda_machine(0), A, B, dtype) for by in (gpu_sums.sums, gpu_sums.emulated))
        assert (sums == expected).all(), (m, k, w)


def kind(plan):
    """The fields of a plan that determine its accumulation order."""
    ways = plan.keep_b, plan.prepare_b, plan.warps_n > 1, plan.warps_k, plan.stride, plan.products, plan.interval
    return (plan.kernel_name, *ways, getattr(plan, "job_pairs", None))


@pytest.mark.parametrize("order", ["CC", "FF"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k", "w"), [(5000, 33, 16), (5000, 64, 64), (1500, 900, 64), (300, 20_000, 8)])
def test_every_kind_of_plan_matches_its_emulation(m, k, w, dtype, order):
    A, B = operands(m, k, w, dtype)
    a, b = (
        device_matrix(name, cupy.asarray(X, order=how)) for name, X, how in (("A", A, order[0]), ("B", B, order[1]))
    )
    problem = problem_of(a, b, gapless((m, w), dtype, a.itemsize, by_rows=True))
    plans = {kind(one): one for one in candidates(problem, live(0)) if isinstance(one, MmaPlan) and one.fold == 1}
    assert plans
    for plan in plans.values():
        one = replace(plan, store="StorePairs", row_sums=False)
        given = cuda_machine(0), one, problem, a, b
        sums, expected = gpu_sums.sums_by(*given), gpu_sums.emulated_by(*given)
        assert (sums == expected).all(), plan


@pytest.mark.parametrize("dtype", DTYPES)
def test_single_bit_errors_are_found_and_repaired(dtype):
    m, k, w = 30_000, 500, 16
    A, B = operands(m, k, w, dtype)
    a, b = (device_matrix(name, cupy.asarray(X)) for name, X in (("A", A), ("B", B)))
    C = cupy.empty((m, w), dtype)
    c = device_matrix("C", C)
    bounds = thresholds.statistical(k, w, dtype, 1e-6, 1e-9, bit_exact=True)
    protected = product_gpu._protected(cuda_machine(0), a.stand_in, b.stand_in, c.stand_in, bounds)
    memory = protected.check.begin(b)
    protected.multiply(memory, a, b, c)
    clean = C.get()
    # Flag all rows with a residual of NaN.
    n = protected.check.capacity
    rows, counts = np.zeros(n, FLAGGED_ROW), np.zeros(1, COUNTS)
    rows["row"], rows["residual"], counts["flagged"] = np.arange(n), np.nan, n
    for name, array in (("rows", rows), ("counts", counts)):
        at = protected.check.address(memory, name) - memory.data.ptr
        memory[at : at + array.nbytes] = cupy.asarray(array.view(np.uint8))
    rng = np.random.default_rng(1)
    faults = rng.choice(n, 500, replace=False), rng.integers(0, w, 500)
    corrupted = clean.copy()
    corrupted[faults] = np.nextafter(clean[faults], np.dtype(dtype).type(6e4))
    C[...] = cupy.asarray(corrupted)
    _, n_wrong, found = protected.check.locate(memory, a, b, c, correct=True)()
    assert n_wrong == 500
    assert sorted(one[:2] for one in found) == sorted(zip(*(x.tolist() for x in faults), strict=True))
    np.testing.assert_array_equal(C.get(), clean)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", thresholds.DTYPES)
def test_every_distribution_of_the_campaign(of_64, dtype, distribution):
    m, k, w = 20_000, 64, 16
    rng = np.random.default_rng(8)
    A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
    # The bounds of other libraries' products; ours are compared with their emulation.
    bounds = of_64[dtype].bounds(k, w, own=False)
    off = abs(calibration.sums_of(A, B, dtype, 0) - exact_products.exact_rows(A, B)[0])
    allowed = bounds.spread * rounding_deviations(A, B, bounds.model)
    # Of 320,000 elements, 0.3 are expected to exceed it; five do with probability 2·10⁻⁵.
    assert (off > allowed).sum() < 5
    # Within twenty times the actual errors (root mean squares). Exception: of cancelling 16-bit data, tensor cores lose
    # next to nothing, and another order may lose more.
    loses_little = A.itemsize == 2 and distribution == "cancelling"
    assert np.sqrt((allowed**2).mean()) < (200 if loses_little else 20) * np.sqrt((off**2).mean())
