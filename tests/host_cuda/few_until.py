"""Iterations with bounds for few features by their kernels' own source on the CPU, as `SmallDStep` launches them."""

from dataclasses import replace
from functools import cache

import numpy as np

from host_cuda import harness
from host_cuda.bounded_kmeans import BoundedIterations
from host_cuda.few_products import MOST_ADDED, THREADS, ProductsIterations, least_added
from host_cuda.fused_kmeans import BLOCKS, H200
from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.bounds.plan import ROW_BOUNDS, most_listed_small_d
from tsapps.apps.kmeans.small_d.plan import PRODUCTS, SMALL_D_ROUNDING, bounded_plan
from tsapps.kernels.plan.mma import ELEMENT

#: Features, clusters, dtype, whether warpgroups score all rows: of those that few_products.py has, rows of two units of
#: 16 bytes to eight, whole products and part of one, centers in registers and in shared memory.
SHAPES = [
    (16, 16, "float32", False),
    (16, 2, "float32", False),
    (20, 40, "float32", False),
    (32, 64, "float32", False),
    (16, 16, "bfloat16", False),
    (40, 33, "float16", True),
    (64, 64, "bfloat16", True),
]


def chosen(d, k, dtype, _=False):
    return replace(bounded_plan(d, k, dtype, H200.shared_memory_per_block), threads=THREADS)


def name_of(plan, most_added):
    return f"until_{plan.dtype}_{plan.features}_{plan.columns}_{most_added}"


def source(plan, most_added):
    T = ELEMENT[plan.dtype]
    return f"""
extern "C" void {name_of(plan, most_added)}(const void* X, const float* centers, long long k, long long n,
                                            const kmeans::Products* of, const kmeans::RowBounds* bounds,
                                            signed char* labels, unsigned long long* sums, unsigned* n_reassigned,
                                            const int* stopped) {{
  const kmeans::Products products = *of;
  const kmeans::RowBounds expiring = *bounds;
  cuda_host::launch(dim3({BLOCKS}), {plan.threads}, {plan.shared_bytes}, [=] {{
    kmeans::{plan.kernel.removesuffix(">")}, {most_added}>(static_cast<const {T}*>(X), centers, (int)k, n, products,
                                                           expiring, labels, sums, n_reassigned, stopped);
  }});
}}"""


SCREEN = f"""
extern "C" void screen(const float* row_bounds, const signed char* labels, long long n, const float* limits,
                       unsigned* active, long long capacity, kmeans::BoundsState* state, unsigned* arrived,
                       const int* stopped) {{
  cuda_host::launch(dim3({BLOCKS}), kmeans::kSelectThreads, 0, [=] {{
    kmeans::select_active_rows<kmeans::Label>(row_bounds, labels, n, limits, active, (unsigned)capacity, state,
    arrived, stopped);
  }});
}}"""


@cache
def libraries():
    plans = [chosen(*shape) for shape in SHAPES]
    every = [(plan, MOST_ADDED) for plan in plans] + [(plan, least_added(plan)) for plan in (plans[0], plans[-1])]
    header = '#include "apps/kmeans/small_d/iteration_bounded.cuh"\n' + SCREEN
    return harness.Libraries(harness.in_shares(every, lambda some: header + "".join(source(*one) for one in some), 2))


class UntilIterations(BoundedIterations, ProductsIterations):
    """X and what iterations keep of it and of its bounds, as `SmallDStep` has them."""

    def __init__(self, X, k, kind, mean=None, warpgroups=False, flushes=False):
        super().__init__(X, k, kind, mean, flushes, warpgroups=warpgroups)
        self.bounds = chosen(self.d, k, self.dtype)
        self.most_until = least_added(self.bounds) if flushes else MOST_ADDED
        # In whole words, as kernels read them.
        self.words = np.full(-(-self.n // 4) * 4, -1, np.int8)
        self.labels = self.words[: self.n]

    def screen(self, listed):
        """List the rows that are not safe; return their numbers."""
        active, arrived = np.full(listed + 1, 2**32 - 1, np.uint32), np.zeros(1, np.uint32)
        state = active, listed, self.state, arrived, self.stopped
        library = libraries()[self.bounds, self.most_until]
        library.call("screen", self.row_bounds, self.words, self.n, self.limits, *state)
        assert not arrived.any()
        assert active[listed] == 2**32 - 1
        return active

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centers that were placed: all that may, of which one does."""
        self.stopped = np.array([stopped], np.int32)
        active, n_reassigned = self.screen(most_listed_small_d(self.n)), np.zeros(1, np.uint32)
        self.passes.append(int(self.state["pass"][0]))
        self.centers_half[self.k :] = 0
        scales = self.scales.astype(np.float32)
        given = self.centers_half, self.offsets, self.center_stats, self.mean, scales
        exact = self.X.itemsize == 2 and not self.mean.any()
        bounds = self.scale, self.norm_limit, tensor_error(self.padded), 0.0 if exact else SMALL_D_ROUNDING
        of = np.array((*(one.ctypes.data for one in given), *bounds), PRODUCTS)
        kept = self.row_bounds, self.limits, active, self.state
        bounds = np.array(tuple(one.ctypes.data for one in kept), ROW_BOUNDS)
        name = name_of(self.bounds, self.most_until)
        state = self.words, self.sums, n_reassigned, self.stopped
        library = libraries()[self.bounds, self.most_until]
        library.call(name, self.X, centers, self.k, self.n, of, bounds, *state)
        # What scores all rows without bounds does something if no other does.
        found = ProductsIterations.move_rows(self, centers, stopped=int(self.state["skip_full_assign"][0]))
        self.stopped = np.array([stopped], np.int32)
        assert not (found and n_reassigned[0])
        return int(n_reassigned[0]) + found
