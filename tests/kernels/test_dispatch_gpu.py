"""Every kind of plan that a GPU can run, whatever the planner would take, against float64.

What is run under compute-sanitizer.
"""

import numpy as np
import pytest
from products import assert_product

from tsapps.kernels.arrays import device_matrix
from tsapps.kernels.dispatch import prepare
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.matmul import problem_of
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.plan.select import library_algorithms
from tsapps.kernels.problem import ITEMSIZE
from tsapps.kernels.runtime.machine import cuda_machine

pytestmark = pytest.mark.gpu

#: m, k and w: TSM2R, TSM2L and TSMTTSM, with edges that are ragged.
SIZES = [
    (700, 600, 3),
    (300, 500, 16),
    (900, 700, 33),
    (1030, 300, 64),
    (5001, 2, 3),
    (5001, 4, 40),
    (3000, 33, 33),
    (3000, 64, 32),
    (2, 9003, 2),
    (5, 4001, 3),
    (16, 9000, 16),
    (33, 5001, 33),
    (64, 3002, 64),
]
#: The orders of A and B; C is row-major with the first, column-major with the second.
ORDERS = {"float64": ["CC", "FF"], "float32": ["CC", "FF", "CF", "FC"], "float16": ["CC", "FF"], "bfloat16": ["CC"]}


def kind(plan):
    """What makes a plan take another way through its kernel."""
    if not isinstance(plan, MmaPlan):
        return (plan.kernel_name,)
    shared = plan.teams > 1, plan.warps_m > 1, plan.warps_n > 1, plan.warps_k > 1, plan.prepare_b, plan.fold > 1
    # Of a column stored from a whole tile, lines of up to 128 bytes.
    line = min(plan.tile_m // plan.warps_m, 128 // ITEMSIZE[plan.dtype]) if plan.keep_b else 0
    return (plan.kernel_name, *shared, line, getattr(plan, "loaders", None))


def placed(values, order, pad):
    """Return a CuPy matrix whose lines have a gap of `pad` elements, and that matrix as the core sees it."""
    import cupy

    lines = values if order == "C" else values.T
    # Bits: CuPy has no bfloat16.
    bits = lines.view(np.float16) if lines.itemsize == 2 else lines
    memory = cupy.full((lines.shape[0], lines.shape[1] + pad), np.nan, bits.dtype)
    memory[:, : lines.shape[1]] = cupy.asarray(np.ascontiguousarray(bits))
    view = memory[:, : lines.shape[1]]
    return view if order == "C" else view.T


def numpy_of(matrix, dtype):
    return np.ascontiguousarray(matrix.get()).view(dtype)


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize(("dtype", "orders"), [(dtype, orders) for dtype in ORDERS for orders in ORDERS[dtype]])
@pytest.mark.parametrize(("m", "k", "w"), SIZES)
def test_every_kind_of_plan(m, k, w, dtype, orders, pad):
    if pad and dtype == "bfloat16":
        pytest.skip("float16 lies alike")
    rng = np.random.default_rng(m + k + w)
    A, B, before = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, w), (m, w)))
    a, b = placed(A, orders[0], pad), placed(B, orders[1], pad)
    matrices = [device_matrix(name, x)._replace(dtype=dtype) for name, x in (("A", a), ("B", b))]
    plans = {}
    for order in "CF":
        c = device_matrix("C", placed(before, order, pad))._replace(dtype=dtype)
        problem = problem_of(*matrices, c)
        for plan in candidates(problem, live(0)):
            plans.setdefault((order, *kind(plan)), (plan, problem))
    assert plans
    for (order, *_), (plan, problem) in plans.items():
        for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
            out = placed(before, order, pad)
            c = device_matrix("C", out)._replace(dtype=dtype)
            prepare(plan, problem, c, cuda_machine(c.device))(
                matrices[0].pointer, matrices[1].pointer, c.pointer, alpha, beta
            )
            products = plan.products if isinstance(plan, MmaPlan) else 3
            found = numpy_of(out, dtype)
            assert_product(found, A, B, alpha, beta, before.astype("f8"), products=products)


@pytest.mark.parametrize("dtype", ORDERS)
@pytest.mark.parametrize("w", [2, 16, 33, 64])
def test_every_kind_of_gram(w, dtype):
    D = np.random.default_rng(w).standard_normal((3001, w)).astype(dtype)
    d = placed(D, "C", 0)
    a, b = (device_matrix("D", x)._replace(dtype=dtype) for x in (d.T, d))
    plans = {}
    for order in "CF":
        c = device_matrix("C", placed(np.zeros((w, w), D.dtype), order, 0))._replace(dtype=dtype)
        problem = problem_of(a, b, c, gram=True)
        for plan in candidates(problem, live(0)):
            plans.setdefault((order, *kind(plan)), (plan, problem))
    assert plans
    for (order, *_), (plan, problem) in plans.items():
        out = placed(np.zeros((w, w), D.dtype), order, 0)
        c = device_matrix("C", out)._replace(dtype=dtype)
        prepare(plan, problem, c, cuda_machine(c.device))(a.pointer, b.pointer, c.pointer, 1.0, 0.0)
        products = plan.products if isinstance(plan, MmaPlan) else 3
        assert_product(numpy_of(out, dtype), D.T, D, products=products)


@pytest.mark.parametrize(("dtype", "orders"), [(dtype, orders) for dtype in ORDERS for orders in ORDERS[dtype]])
@pytest.mark.parametrize(("m", "k", "w"), SIZES[::4])
def test_every_algorithm_of_the_library(m, k, w, dtype, orders):
    rng = np.random.default_rng(m + k + w)
    A, B, before = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, w), (m, w)))
    a, b = placed(A, orders[0], 1), placed(B, orders[1], 3)
    matrices = [device_matrix(name, x)._replace(dtype=dtype) for name, x in (("A", a), ("B", b))]
    for order in "CF":
        problem = problem_of(*matrices, device_matrix("C", placed(before, order, 0))._replace(dtype=dtype))
        plans = library_algorithms(problem)
        assert plans
        for plan in plans:
            for alpha, beta in ((1.0, 0.0), (-0.5, 2.0)):
                out = placed(before, order, 0)
                c = device_matrix("C", out)._replace(dtype=dtype)
                prepare(plan, problem, c, cuda_machine(c.device))(
                    matrices[0].pointer, matrices[1].pointer, c.pointer, alpha, beta
                )
                # In float32 as it is, without tf32.
                assert_product(numpy_of(out, dtype), A, B, alpha, beta, before.astype("f8"), products=6)
