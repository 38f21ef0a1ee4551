"""Steps for small d on a HostMachine, by plans of so few threads that a warp has several tiles."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from kmeans.bounded_steps import RecordedBounds
from kmeans.host_steps import assert_right, data_on_host

from tsapps.apps.kmeans.engines import small_d_step
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep, SmallDMmaStep, norms_of
from tsapps.apps.kmeans.small_d.plan import (
    BoundedPlan,
    FmaPlan,
    ProductsPlan,
    bounded_plan,
    multiply_adds_plan,
    products_plan,
)
from tsapps.apps.kmeans.update.fixed_point import NARROW, integers_of
from tsapps.kernels.gpu_specs import KNOWN

ROOM = KNOWN["H200"].shared_memory_per_block
#: Features and clusters of multiply-adds.
FMA_SHAPES = [
    (d, k)
    for d in (1, 2, 3, 4, 5, 8, 16)
    for k in (1, 2, 9, 16, 33)
    if multiply_adds_plan(d, k, "float32", 0.0, 1.0, ROOM)
]
#: Those of products: rows of every alignment, part of a product and several, one to eight blocks of centers.
MMA_SHAPES = [(1, 1), (3, 9), (5, 20), (8, 33), (14, 2), (16, 2), (16, 16), (20, 40), (32, 64), (33, 16), (64, 64)]
#: Those of products by warpgroups, of 16-bit data.
WARPGROUP_SHAPES = [(1, 1), (5, 20), (14, 2), (16, 16), (24, 40), (48, 33), (32, 64), (40, 33), (64, 64)]
HALF_TYPES = ("float16", "bfloat16")
# Threads of a block: of warps, and of warpgroups.
THREADS, _WARPGROUP_THREADS = 64, 128


class _Flushing:
    """A plan by which sums have limbs for the fewest rows that they can have: they are flushed after every tile."""

    @property
    def kernel(self):
        return f"{super().kernel.removesuffix('>')}, {self.most_added}>"


@dataclass(frozen=True)
class _FlushingFmaPlan(_Flushing, FmaPlan):
    @property
    def most_added(self):
        return self.threads // self.replicas * (self.rows + 1)


@dataclass(frozen=True)
class _FlushingProductsPlan(_Flushing, ProductsPlan):
    @property
    def most_added(self):
        return self.threads // 32 * 2 * (32 + 62)


@dataclass(frozen=True)
class _FlushingBoundedPlan(_Flushing, BoundedPlan):
    most_added = _FlushingProductsPlan.most_added


_FLUSHING = {FmaPlan: _FlushingFmaPlan, ProductsPlan: _FlushingProductsPlan, BoundedPlan: _FlushingBoundedPlan}


def flushing(plan):
    """Return a plan of the same kernel that flushes sums after every tile."""
    return _FLUSHING[type(plan)](**vars(plan))


def fma_step(X, k, dtype="float32", mean=None, *, flushes=False, multiprocessors=3, **changed):
    """Return a step by multiply-adds, with no sample in any cluster; `changed` are fields of its plan."""
    data = _data(X, dtype, mean, multiprocessors)
    d = data.n_features
    plan = multiply_adds_plan(d, k, dtype, *norms_of(data), ROOM)
    plan = replace(plan, **{"threads": THREADS, "stages": 2 + d % 2} | changed)
    return _made(SmallDFmaStep, data, flushing(plan) if flushes else plan, k)


def mma_step(
    X, k, dtype="float32", mean=None, *, warpgroups=False, flushes=False, bounds=False, multiprocessors=3, **changed
):
    """Return a step by products, with no sample in any cluster; `changed` are fields of its plan."""
    data = _data(X, dtype, mean, multiprocessors)
    plan = products_plan(data.n_features, k, dtype, ROOM, warpgroups=warpgroups)
    plan = replace(plan, **{"threads": _WARPGROUP_THREADS if warpgroups else THREADS} | changed)
    return _made(SmallDMmaStep, data, flushing(plan) if flushes else plan, k, bounds=bounds)


def bounded_step(X, k, dtype="float32", mean=None, *, warpgroups=False, flushes=False):
    """Return a step by products with bounds, with no sample in any cluster, and its `RecordedBounds`."""
    step = mma_step(X, k, dtype, mean, warpgroups=warpgroups, flushes=flushes, bounds=True)

    def few_threads(*sizes):
        plan = replace(bounded_plan(*sizes), threads=THREADS)
        return flushing(plan) if flushes else plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_d_step, "bounded_plan", few_threads)
        return step, RecordedBounds(step)


def _data(X, dtype, mean, multiprocessors):
    """Return X as data whose moments are known, from which `mean` is subtracted on read."""
    data = data_on_host(X, (dtype, 2, False), multiprocessors=multiprocessors)
    data.moments()
    if mean is not None:
        data.subtracted = lambda mean: mean  # from 16-bit types that are nearly centered too
        data.center(mean, on_read=True)
    return data


def _made(made, data, plan, k, *, bounds=False):
    assert integers_of(data).digits == NARROW
    step = made(data, plan, k, bounds=bounds)
    step.reset()
    return step


def assert_assigns(step, centers):
    """Labels, sums and the number of labels that change are right at these centers; return that number."""
    before, of = step.labels.copy(), step.buffers
    of.n_reassigned[...] = of.stopped[...] = 1  # of the last iterations, which were stopped
    found = step.assign(centers.astype(step.data.dtype), update=False)
    assert not of.stopped.any()
    assert not of.arrived.any()
    assert_right(step, centers)
    assert found.n_reassigned == np.count_nonzero(before != step.labels)
    return found.n_reassigned
