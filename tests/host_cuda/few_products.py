"""Runs iterations for few features by few_products.cuh's own source on the CPU, as `FewProducts` does."""

from dataclasses import replace
from functools import cache

import numpy as np

from host_cuda.fused_kmeans import BLOCKS, H200, Iterations
from host_cuda.tall_skinny import build_each
from tsapps.apps.kmeans.few_plan import (
    FEW_ROUNDING,
    ITERATIONS,
    PARTS_ROUNDING,
    PRODUCTS,
    Multiplier,
    few_scale,
    products_plan,
)
from tsapps.apps.kmeans.fused_plan import OUTCOME, tensor_error
from tsapps.kernels.plan import ELEMENT

#: dtype, digits, whether samples have weights: those that `FewProducts` serves.
KINDS = [("float32", 2, False), ("float16", 2, False), ("bfloat16", 2, False)]
#: Features and clusters: rows of every alignment, part of a product and several, one to eight blocks of centres.
SHAPES = [(1, 1), (3, 9), (5, 20), (8, 33), (14, 2), (16, 16), (20, 40), (32, 64), (33, 16), (64, 64)]
#: Those of 16-bit data, and by warpgroups.
HALF_SHAPES = [(5, 20), (16, 16), (32, 64), (64, 64)]
WARPGROUP_SHAPES = [(1, 1), (5, 20), (14, 2), (16, 16), (24, 40), (32, 64), (40, 33), (64, 64)]
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
                                            const kmeans::Products* of, const kmeans::Iterations* which,
                                            signed char* labels, unsigned long long* sums, unsigned* moved,
                                            const int* stopped, long long blocks) {{
  const kmeans::Products products = *of;
  const kmeans::Iterations iterations = *which;
  const auto block = [=] {{
    kmeans::{kernel}(static_cast<const {T}*>(X), centers, (int)k, n, products, iterations, labels, sums, moved,
                     stopped);
  }};
  cuda_host::launch(dim3(blocks), {plan.threads}, {plan.shared_bytes}, block, iterations.count > 0);
}}"""


@cache
def libraries():
    plans, parts = list(dict.fromkeys(every_plan())), 4
    shares = [plans[i::parts] for i in range(parts)]
    header = '#include "apps/kmeans/few_products.cuh"\n'
    built = build_each([header + "".join(source(*one) for one in share) for share in shares])
    return {one: library for share, library in zip(shares, built, strict=True) for one in share}


class ProductsIterations(Iterations):
    """X and what iterations keep of it, as `FewProducts` has them."""

    columns = 8

    def __init__(self, X, k, kind, mean=None, flushes=False, blocks=BLOCKS, warpgroups=False, **changed):
        super().__init__(X, k, kind, None, mean)
        assert self.digits == 2
        plan = self.plan = chosen(self.d, k, self.dtype, warpgroups, **changed)
        self.blocks, self.most_added = blocks, least_added(plan) if flushes else MOST_ADDED
        norm = float(np.linalg.norm(self.largest.astype(np.float64)))
        if warpgroups:
            norm += float(np.linalg.norm(self.mean.astype(np.float64)))
        self.scale, self.padded = few_scale(norm, self.dtype, warpgroups=warpgroups), plan.padded
        self.reach = 1.000001 * self.scale * norm
        exact = self.X.itemsize == 2 and not self.mean.any()
        self.lost = tensor_error(self.padded), 0.0 if exact else FEW_ROUNDING
        if warpgroups:
            self.lost = tensor_error(2 * self.padded), PARTS_ROUNDING[self.dtype]
        self.counts = np.zeros(0, np.uint32)
        self.labels = self.labels.astype(np.int8)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centres that were placed."""
        library, moved = libraries()[self.plan, self.most_added], np.zeros(1, np.uint32)
        scales, self.stopped = self.scales.astype(np.float32), np.array([stopped], np.int32)
        # Past the last centre, where the GPU's memory is zero.
        self.halves[self.k :] = 0
        given = self.halves, self.offsets, self.extremes, self.mean, scales
        bounds = self.scale, self.reach, *self.lost
        of = np.array((*(one.ctypes.data for one in given), *bounds), PRODUCTS)
        state = self.labels, self.sums, moved, self.stopped
        name = name_of(self.plan, self.most_added)
        library.call(name, self.X, centers, self.k, self.n, of, np.zeros(1, ITERATIONS), *state, self.blocks)
        return int(moved[0])

    def iterate_together(self, centers, count, tolerance=0.0):
        """Run up to `count` iterations in a launch; return the outcomes, and the next centres."""
        library, plan, outcomes = libraries()[self.plan, self.most_added], self.plan, np.zeros(count, OUTCOME)
        kept = np.full((self.k, self.d), np.nan, self.work)
        self.place(centers, kept)
        # What each block has of its own; the first, what was placed.
        own = np.full((self.blocks, sum(plan.own_bytes)), 0xFF, np.uint8)
        parts = np.split(own[0], np.cumsum(plan.own_bytes)[:-1])
        parts[0].view(np.float32)[: kept.size], parts[1].view(np.float32)[:] = kept.ravel(), self.offsets
        parts[2].view(np.float32)[:] = self.extremes
        parts[3].view(np.float16)[:] = np.where(np.isnan(self.halves), 0, self.halves).ravel()
        scales, self.state = self.scales.astype(np.float32), np.zeros(2, np.uint32)
        at_first, at_offsets, at_extremes, at_halves = (part.ctypes.data for part in parts)
        given = at_halves, at_offsets, at_extremes, self.mean.ctypes.data, scales.ctypes.data
        of = np.array((*given, self.scale, self.reach, *self.lost), PRODUCTS)
        addresses = self.state.ctypes.data, at_first, at_offsets, at_extremes, at_halves, self.units.ctypes.data
        sizes = tolerance, own.shape[1], count, self.reach, 0
        iterations = np.array((*addresses, outcomes.ctypes.data, self.stopped.ctypes.data, *sizes), ITERATIONS)
        moved = np.zeros(1, np.uint32)
        state = self.labels, self.sums, moved, self.stopped
        name = name_of(self.plan, self.most_added)
        library.call(name, self.X, parts[0], self.k, self.n, of, iterations, *state, self.blocks)
        assert not moved[0]
        assert not self.state.any()
        return outcomes, parts[0].view(np.float32)[: kept.size].reshape(kept.shape).copy()
