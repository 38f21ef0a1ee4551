"""Runs greedy k-means++ by init/plusplus.cuh's own source on the CPU, as `init/plusplus_launch.py` launches it."""

from dataclasses import replace
from functools import cache, partial

import numpy as np

from host_cuda import harness
from tsapps.apps.kmeans.data.plan import ROUNDING, half_copy_scale, padded
from tsapps.apps.kmeans.init.plan import COPY, copy_error, plusplus_plan, pruned_plan
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.mma import ELEMENT

H200 = KNOWN["H200"]
#: Features, clusters, dtype and whether samples have weights: rows of a lane, of several, of a warp; of elements and of
#: vectors; one sum a lane and two.
SHAPES = [
    (1, 2, "float64", True),
    (3, 9, "float32", False),
    (4, 16, "float32", True),
    (16, 60, "float32", False),
    (40, 12, "float64", False),
    (130, 8, "float32", True),
    (128, 60, "float32", False),
    (130, 400, "float64", False),
    (300, 5, "float32", False),
    (1100, 60, "float32", False),
    (2500, 4, "float64", True),
]


#: Those by which X's copy may be read.
SCREENED = [*SHAPES[4:9], (600, 60, "float32", False)]


def trials_of(k):
    return 2 + int(np.log(k))


def plan_of(n, d, k, dtype, device=H200):
    size = np.dtype(dtype).itemsize
    return plusplus_plan(n, d, trials_of(k), size, aligned=d * size % 16 == 0, device=device)


def width_of(d, panels):
    """Return the elements of a row of the copy."""
    return -(-d // 16) * 16 if panels else padded(d)


def screen_of(plan, d, dtype, weighted, panels, stages=None):
    size = np.dtype(dtype).itemsize
    screen = pruned_plan(plan, d, width_of(d, panels), size, panels=bool(panels), weighted=weighted, device=H200)
    return screen if stages is None else replace(screen, stages=stages)


def name_of(plan, dtype, weighted):
    return f"{dtype}_{plan.trials}_{plan.lanes}_{int(plan.aligned)}_{int(weighted)}"


def source(plan, _, dtype, weighted):
    T, name = ELEMENT[dtype], name_of(plan, dtype, weighted)
    return f"""
#include "apps/kmeans/init/plusplus.cuh"
extern "C" void try_{name}(const void* X, long long n, long long d, const void* weights, const long long* last,
                           const long long* candidates, long long chunk, long long chunks, long long window,
                           void* closest, double* sums, long long shared_bytes, long long blocks) {{
  cuda_host::launch(dim3(blocks), kmeans::kTryThreads, shared_bytes, [=] {{
    kmeans::{plan.kernel("evaluate_candidates", T, weighted=weighted)}(
        static_cast<const {T}*>(X), n, (int)d, static_cast<const {T}*>(weights), last, candidates, (int)chunk,
        (int)chunks, (int)window, static_cast<{T}*>(closest), sums);
  }});
}}
extern "C" void draw_{name}(const void* X, long long n, long long d, const void* weights, const void* closest,
                            long long chunk, long long chunks, const double* sums, const long long* candidates,
                            const double* draws, long long* chosen, long long* next) {{
  cuda_host::launch(dim3(draws ? {plan.trials} : 1), kmeans::kDrawThreads, 0, [=] {{
    kmeans::{plan.kernel("sample_candidates", T, weighted=weighted)}(
        static_cast<const {T}*>(X), n, (int)d, static_cast<const {T}*>(weights), static_cast<const {T}*>(closest),
        (int)chunk, (int)chunks, sums, candidates, draws, chosen, next);
  }});
}}"""


def screen_source(plan, d, dtype, weighted):
    T, name = ELEMENT[dtype], name_of(plan, dtype, weighted)
    tiles = replace(plan, chunk=64)
    kernels = "".join(
        f"""
    if (stages == {stages} && panels == {panels})
      kmeans::{screen_of(tiles, d, dtype, weighted, panels, stages).kernel(T, weighted=weighted)}(
          static_cast<const {T}*>(X), n, (int)d, static_cast<const {T}*>(weights), last, candidates, (int)chunk,
          (int)chunks, (int)window, static_cast<{T}*>(closest), sums, *copy);"""
        for stages in (2, 3)
        for panels in (0, 1)
    )
    return f"""
#include "apps/kmeans/init/plusplus_pruned.cuh"
extern "C" void evaluate_candidates_pruned_{name}(const void* X, long long n, long long d, const void* weights,
                                                  const long long* last,
                              const long long* candidates, long long chunk, long long chunks, long long window,
                              void* closest, double* sums, const kmeans::Copy* copy, long long panels,
                              long long stages, long long shared_bytes, long long blocks) {{
  cuda_host::launch(dim3(blocks), kmeans::kTryThreads, shared_bytes, [=] {{{kernels}
  }});
}}"""


@cache
def libraries():
    found = {}
    for shapes, of_kind in ((SHAPES + SCREENED, source), (SCREENED, screen_source)):
        kinds = {
            name_of(plan_of(1000, d, k, dtype), dtype, weighted): (d, k, dtype, weighted)
            for d, k, dtype, weighted in shapes
        }
        for name, (d, k, dtype, weighted) in kinds.items():
            found[name, of_kind is screen_source] = partial(of_kind, plan_of(1000, d, k, dtype), d, dtype, weighted)
    return harness.Libraries(found)


class Seeding:
    """The draws of some samples, and what the kernels keep of them."""

    def __init__(self, X, k, dtype, weights=None, plan=None, blocks=3):
        self.X, self.k = np.ascontiguousarray(X.astype(dtype)), k
        self.weights = None if weights is None else weights.astype(dtype)
        self.n, self.d = X.shape
        self.plan = plan_of(self.n, self.d, k, dtype) if plan is None else plan
        self.blocks = blocks
        self.name = name_of(self.plan, dtype, weights is not None)
        self.library = libraries()[self.name, False]

    def begin(self, first):
        self.closest = np.full(self.n, np.inf, self.X.dtype)
        self.candidates = np.full((self.k, self.plan.trials), -1, np.int64)
        self.candidates[0] = self.chosen_first = first
        self.chosen = np.full(self.k, -1, np.int64)
        self.chosen[0] = first
        self.sums = np.full((self.plan.trials, self.plan.chunks), np.nan)

    def step(self, step, draws):
        """Try the candidates of a step, and make the next step's draws (none after the last)."""
        self.attempt(step)
        self.follow(step, draws)

    def samples(self):
        return self.X, self.n, self.d, np.intp(0) if self.weights is None else self.weights

    def attempt(self, step):
        plan, last = self.plan, self.chosen[max(step - 1, 0) :]
        arguments = last, self.candidates[step], plan.chunk, plan.chunks, plan.window, self.closest, self.sums
        self.library.call(f"try_{self.name}", *self.samples(), *arguments, plan.shared_bytes, self.blocks)

    def make_copy(self, panels=0, stages=None, raised=()):
        """Make the copy that `screen` reads; `raised` are rows whose norms are to be four times as large."""
        wide = self.X.astype(np.float64)
        rounded = (wide - wide.mean(axis=0).astype(self.X.dtype)).astype(self.X.dtype).astype(np.float64)
        self.scale = half_copy_scale(float(np.sqrt(np.mean(rounded**2))))
        width = width_of(self.d, panels)
        rows = np.zeros((-(-self.n // 64) * 64, width), np.float16)
        with np.errstate(over="ignore"):
            scaled = (rounded * self.scale).astype(np.float32)
            rows[: self.n, : self.d] = scaled
        # As data/half_copy.cuh adds them up: in float32, where squares may be zero of what is not.
        found, lost = rows[: self.n, : self.d].astype(np.float32), scaled
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            lost = ((lost - found) ** 2).sum(axis=1) / np.float32(ROUNDING**2)
            self.norms = np.float32(1.0002) * np.sqrt(np.maximum(lost, (found**2).sum(axis=1)))
        self.norms[~np.isfinite(self.norms)] = np.inf
        self.norms[list(raised)] *= 4
        if panels:
            # Tiles of 64 rows, of which 16 columns at a time, eight rows of them, and of these eight columns.
            rows = rows.reshape(-1, 8, 8, width // 16, 2, 8).transpose(0, 3, 1, 4, 2, 5)
        # Past the last row nothing is to be read.
        self.rows = np.ascontiguousarray(rows) if panels else rows[: self.n].copy()
        self.screened = screen_of(self.plan, self.d, self.X.dtype.name, self.weights is not None, panels, stages)
        error, of_distance = copy_error(self.d, width, ROUNDING)
        addresses = self.rows.ctypes.data, self.norms.ctypes.data
        self.copy = np.array([(*addresses, width, self.scale, error, of_distance)], COPY)

    def screen(self, step):
        """Try the candidates of a step by the copy."""
        plan, last = self.plan, self.chosen[max(step - 1, 0) :]
        arguments = last, self.candidates[step], plan.chunk, plan.chunks, plan.window, self.closest, self.sums
        found = self.copy, int(self.screened.panels), self.screened.stages, self.screened.shared_bytes, self.blocks
        libraries()[self.name, True].call(
            f"evaluate_candidates_pruned_{self.name}", *self.samples(), *arguments, *found
        )

    def follow(self, step, draws):
        following = (np.intp(0), self.chosen[step:], np.intp(0))
        if draws is not None:
            following = draws, self.chosen[step:], self.candidates[step + 1]
        arguments = self.closest, self.plan.chunk, self.plan.chunks, self.sums, self.candidates[step]
        self.library.call(f"draw_{self.name}", *self.samples(), *arguments, *following)

    def draw(self, first, draws):
        """Return the samples that are drawn."""
        self.begin(first)
        for step in range(self.k):
            self.step(step, draws[step] if step < self.k - 1 else None)
        return self.chosen
