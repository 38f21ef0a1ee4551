"""Runs iterations for few features by the kernels' own source on the CPU, as `SmallDFmaStep` does."""

from dataclasses import replace
from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, H200, Iterations
from tsapps.apps.kmeans.small_d.plan import multiply_adds_plan, small_d_scale
from tsapps.kernels.plan.mma import ELEMENT

#: dtype, digits, whether samples have weights: those that `SmallDFmaStep` serves.
KINDS = [("float32", 2, False), ("float16", 2, False), ("bfloat16", 2, False)]
SHAPES = [
    (d, k)
    for d in (1, 2, 3, 4, 5, 8, 16)
    for k in (1, 2, 9, 16, 33)
    if multiply_adds_plan(d, k, "float32", 0.0, 1.0, H200.shared_memory_per_block)
]
#: Threads of a block, so few that a warp has several tiles; and the rows that a sum has digits for.
THREADS, MOST_ADDED = 64, 32768


def source(plan, most_added):
    T = ELEMENT[plan.dtype]
    kernel = f"{plan.kernel.removesuffix('>')}, {most_added}>"
    return f"""
extern "C" void {name_of(plan, most_added)}(const void* X, const float* centers, long long k, long long n,
                                            signed char* labels, unsigned long long* sums, unsigned* n_reassigned,
                                            const int* stopped, long long blocks) {{
  cuda_host::launch(dim3(blocks), {plan.threads}, {plan.shared_bytes}, [=] {{
    kmeans::{kernel}(static_cast<const {T}*>(X), centers, (int)k, n, labels, sums, n_reassigned, stopped);
  }});
}}"""


COMMON = """
#include "apps/kmeans/small_d/iteration_fma.cuh"
#include "apps/kmeans/small_d/iteration_fma_d4.cuh"
extern "C" void place(const float* centers, long long k, long long d, long long clusters, const float* offsets,
                      const float* mean, const float* scales, double scale, double norm, double of_mean,
                      long long folds) {
  cuda_host::launch(dim3(1), 128, 0, [=] {
    kmeans::place_constants<float>(centers, (int)k, (int)d, (int)clusters, offsets, mean, scales, (float)scale,
                                   (float)norm, (float)of_mean, folds != 0, &constant_centers);
  });
}"""


def name_of(plan, most_added):
    numbers = plan.features, plan.clusters, plan.rows, plan.replicas, plan.stages, int(plan.shifts), most_added
    return "_".join(["assign", plan.dtype, *map(str, numbers)])


def chosen(d, k, dtype, mean, norm):
    return replace(
        multiply_adds_plan(d, k, dtype, mean, norm, H200.shared_memory_per_block), threads=THREADS, stages=2 + d % 2
    )


def least_added(plan):
    """Return the fewest rows that a sum must have digits for: sums are then flushed after every tile."""
    return plan.threads // plan.replicas * (plan.rows + 1)


def every_plan():
    """The plans that tests run, each with the rows that its digits add up for."""
    plans = [chosen(d, k, "float32", shifts, 0.5) for d, k in SHAPES for shifts in (0.0, 1.0)]
    centers_half = [chosen(d, k, dtype, 1.0, 0.5) for d, k in SHAPES[-8:] for dtype in ("float16", "bfloat16")]
    one = replace(chosen(1, 1, "float32", 0.0, 1.0), replicas=1)
    few = [replace(plan, replicas=count) for plan in plans if plan.features in (4, 16) for count in (32, 16)]
    flushed = [(plan, least_added(plan)) for plan in few]
    return dict.fromkeys([*flushed, *((plan, MOST_ADDED) for plan in (*plans, *centers_half, one))])


@cache
def libraries():
    return harness.Libraries(
        harness.in_shares(every_plan(), lambda some: COMMON + "".join(source(*one) for one in some))
    )


class FewIterations(Iterations):
    """X and what iterations keep of it, as `SmallDFmaStep` has them."""

    columns = 4

    def __init__(self, X, k, kind, mean=None, shifts=None, replicas=None, flushes=False, blocks=BLOCKS):
        super().__init__(X, k, kind, None, mean)
        assert self.digits == 2
        self.labels = self.labels.astype(np.int8)
        norm, of_mean = (float(np.linalg.norm(v.astype(np.float64))) for v in (self.largest, self.mean))
        plan = chosen(self.d, k, self.dtype, of_mean, norm)
        plan = replace(plan, shifts=plan.shifts if shifts is None else shifts, replicas=replicas or plan.replicas)
        self.plan, self.blocks, self.most_added = plan, blocks, least_added(plan) if flushes else MOST_ADDED
        self.scale = small_d_scale(norm)
        self.norm_limit, self.of_mean = (1.000001 * self.scale * value for value in (norm, of_mean))
        self.counts = np.zeros(0, np.uint32)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centers that were placed."""
        n, d, k, plan = self.n, self.d, self.k, self.plan
        self.stopped = np.array([stopped], np.int32)
        library, n_reassigned = libraries()[plan, self.most_added], np.zeros(1, np.uint32)
        scales = self.scales.astype(np.float32)
        norms = self.scale, self.norm_limit, self.of_mean
        library.call(
            "place",
            *(centers, k, d, plan.clusters, self.offsets, self.mean, scales, *norms),
            int(not plan.shifts),
        )
        state = self.labels, self.sums, n_reassigned, self.stopped
        library.call(name_of(plan, self.most_added), self.X, centers, k, n, *state, self.blocks)
        return int(n_reassigned[0])
