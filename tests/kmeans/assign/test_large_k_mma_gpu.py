"""Fits for large k without wgmma, on a GPU: the bits of a CPU."""

from math import inf

import numpy as np
import pytest
from kmeans.distributed.cut_fits import samples

from tsapps import TSKMeans
from tsapps.apps.kmeans.assign import large_k_mma_plan
from tsapps.apps.kmeans.assign.large_k_mma_plan import MmaStreamPlan
from tsapps.apps.kmeans.engines import select_step
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.kernels.arrays import to_host
from tsapps.kernels.gpu_specs import live

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]
pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize(
    ("n", "d", "k", "dtype"),
    [
        (300_000, 16, 100, np.float32),
        (300_000, 100, 200, np.float32),
        (300_000, 128, 500, np.float32),
        (200_000, 128, 1000, np.float32),
        (200_000, 128, 1024, np.float16),
        (60_000, 768, 1000, np.float32),
        (30_000, 300, 70, np.float64),
    ],
)
def test_the_bits_are_those_of_a_cpu(n, d, k, dtype, bulk, rng, monkeypatch):
    if bulk and float(live().compute_capability) < 9:
        pytest.skip("bulk copies need compute capability 9.0")
    X = samples(rng, n, d, k, dtype)
    options = {"init": X[:k].astype(np.float64), "n_init": 1, "max_iter": 5, "tol": 0}
    expected = TSKMeans(k, device="cpu", engine="fused", **options).fit(X)
    plans, make = [], LargeKStep.__init__

    def made(step, data, plan, *given, **more):
        plans.append(plan)
        make(step, data, plan, *given, **more)

    monkeypatch.setattr(LargeKStep, "__init__", made)
    for name in ("stream_plan", "large_k_plan"):
        monkeypatch.setattr(select_step, name, lambda *_, **__: None)  # as without wgmma
    monkeypatch.setattr(large_k_mma_plan, "_BULK_CAPABILITY", 9.0 if bulk else inf)
    found = TSKMeans(k, device="cuda", engine="fused", **options).fit(X)
    assert {(type(plan), plan.bulk) for plan in plans} == {(MmaStreamPlan, bulk)}
    np.testing.assert_array_equal(to_host(found.labels_), expected.labels_)
    np.testing.assert_array_equal(to_host(found.cluster_centers_), expected.cluster_centers_)
    assert (found.inertia_, found.n_iter_) == (expected.inertia_, expected.n_iter_)
