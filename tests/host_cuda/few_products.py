"""Runs iterations for few features by small_d/iteration_mma.cuh's own source on the CPU, as `SmallDMmaStep` does."""

from dataclasses import replace
from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, H200, Iterations
from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.small_d.plan import (
    PARTS_ROUNDING,
    PRODUCTS,
    SMALL_D_ROUNDING,
    Multiplier,
    products_plan,
    small_d_scale,
)
from tsapps.kernels.plan.mma import ELEMENT

#: dtype, digits, whether samples have weights: those that `SmallDMmaStep` serves.
KINDS = [("float32", 2, False), ("float16", 2, False), ("bfloat16", 2, False)]
#: Features and clusters: rows of every alignment, part of a product and several, one to eight blocks of centers.
SHAPES = [(1, 1), (3, 9), (5, 20), (8, 33), (14, 2), (16, 2), (16, 16), (20, 40), (32, 64), (33, 16), (64, 64)]
#: Those of 16-bit data, and by warpgroups.
HALF_SHAPES = [(5, 20), (16, 16), (32, 64), (64, 64)]
WARPGROUP_SHAPES = [(1, 1), (5, 20), (14, 2), (16, 16), (24, 40), (48, 33), (32, 64), (40, 33), (64, 64)]
#: Threads of a block, so few that a warp has several tiles: of warps, and of warpgroups; and the rows that a sum has
#: digits for.
THREADS, WARPGROUP_THREADS, MOST_ADDED = 64, 128, 32768


def chosen(d, k, dtype, warpgroups=False, **changed):
    plan = products_plan(d, k, dtype, H200.shared_memory_per_block, warpgroups=warpgroups)
    return replace(plan, threads=WARPGROUP_THREADS if warpgroups else THREADS, **changed)


def least_added(plan):
    """Return the fewest rows that a sum must have digits for: warps then ask to flush after every tile."""
    return plan.threads // 32 * 2 * (32 + 62)


def every_plan():
    """The plans that tests run, each with the rows that its digits add up for."""
    plans = [chosen(d, k, "float32") for d, k in SHAPES]
    plans += [chosen(d, k, dtype) for d, k in HALF_SHAPES for dtype in ("float16", "bfloat16")]
    # What is in registers elsewhere, and the other way round.
    for d, k in ((16, 16), (32, 64)):
        plan = chosen(d, k, "float32")
        plans += [replace(plan, multiplier=Multiplier.WARPS)]
        plans += [replace(plan, stages=stages) for stages in (2, 3, 4)]
    flushed = [(chosen(d, k, "float32"), None) for d, k in ((3, 9), (16, 16), (64, 64))]
    by_warpgroups = [(d, k, dtype, True) for d, k in WARPGROUP_SHAPES for dtype in ("float16", "bfloat16")]
    plans += [chosen(*one) for one in by_warpgroups]
    flushed += [(chosen(*one), None) for one in by_warpgroups[-4:]]
    return [(plan, most or least_added(plan)) for plan, most in [*((plan, MOST_ADDED) for plan in plans), *flushed]]


def name_of(plan, most_added):
    numbers = plan.features, plan.columns, plan.stages, plan.multiplier.value, most_added
    return "_".join(["products", plan.dtype, *map(str, numbers)])


def source(plan, most_added):
    T = ELEMENT[plan.dtype]
    kernel = f"{plan.kernel.removesuffix('>')}, {most_added}>"
    return f"""
extern "C" void {name_of(plan, most_added)}(const void* X, const float* centers, long long k, long long n,
                                            const kmeans::Products* of, signed char* labels, unsigned long long* sums,
                                            unsigned* n_reassigned, const int* stopped, long long blocks) {{
  const kmeans::Products products = *of;
  cuda_host::launch(dim3(blocks), {plan.threads}, {plan.shared_bytes}, [=] {{
    kmeans::{kernel}(static_cast<const {T}*>(X), centers, (int)k, n, products, labels, sums, n_reassigned, stopped);
  }});
}}"""


@cache
def libraries():
    header = '#include "apps/kmeans/small_d/iteration_mma.cuh"\n'
    plans = dict.fromkeys(every_plan())
    return harness.Libraries(harness.in_shares(plans, lambda some: header + "".join(source(*one) for one in some)))


class ProductsIterations(Iterations):
    """X and what iterations keep of it, as `SmallDMmaStep` has them."""

    columns = 8

    def __init__(self, X, k, kind, mean=None, flushes=False, blocks=BLOCKS, warpgroups=False, **changed):
        super().__init__(X, k, kind, None, mean)
        assert self.digits == 2
        plan = self.plan = chosen(self.d, k, self.dtype, warpgroups, **changed)
        self.blocks, self.most_added = blocks, least_added(plan) if flushes else MOST_ADDED
        norm = float(np.linalg.norm(self.largest.astype(np.float64)))
        if warpgroups:
            norm += float(np.linalg.norm(self.mean.astype(np.float64)))
        self.scale, self.padded = small_d_scale(norm, self.dtype, warpgroups=warpgroups), plan.padded
        self.norm_limit = 1.000001 * self.scale * norm
        exact = self.X.itemsize == 2 and not self.mean.any()
        self.lost = tensor_error(self.padded), 0.0 if exact else SMALL_D_ROUNDING
        if warpgroups:
            self.lost = tensor_error(2 * self.padded), PARTS_ROUNDING[self.dtype]
        self.counts = np.zeros(0, np.uint32)
        self.labels = self.labels.astype(np.int8)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centers that were placed."""
        library, n_reassigned = libraries()[self.plan, self.most_added], np.zeros(1, np.uint32)
        scales, self.stopped = self.scales.astype(np.float32), np.array([stopped], np.int32)
        # Past the last center, where the GPU's memory is zero.
        self.centers_half[self.k :] = 0
        given = self.centers_half, self.offsets, self.center_stats, self.mean, scales
        bounds = self.scale, self.norm_limit, *self.lost
        of = np.array((*(one.ctypes.data for one in given), *bounds), PRODUCTS)
        state = self.labels, self.sums, n_reassigned, self.stopped
        name = name_of(self.plan, self.most_added)
        library.call(name, self.X, centers, self.k, self.n, of, *state, self.blocks)
        return int(n_reassigned[0])
