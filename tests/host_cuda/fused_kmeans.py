"""Runs iterations of `SmallKStep` by its kernels' own source on the CPU, as it launches them."""

from functools import cache, partial

import numpy as np
import oracle
import pytest

from host_cuda import harness
from host_cuda.tall_skinny import DTYPES
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    ARGMIN,
    assign_plan,
    capacity,
    epilogue_of,
    error_coefficients_of,
    half_copy_problem,
    parts_of,
    product_error,
)
from tsapps.apps.kmeans.bounds.plan import DRIFT
from tsapps.apps.kmeans.data.plan import (
    EXACT,
    ROUNDING,
    ROWS,
    UNCERTIFIED,
    half_copy_scale,
    log2_lanes,
    norm_limit_of,
    padded,
    vector_of,
)
from tsapps.apps.kmeans.update.fixed_point import columns_of_block, integers
from tsapps.apps.kmeans.update.plan import LISTS, OUTCOME, PLACE_BYTES, SEGMENTS, UPDATE_CENTERS, segments_plan
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.mma import ELEMENT

H200 = KNOWN["H200"]
#: Features and clusters: one of each, rows of less than 16 bytes, tiles of 64 rows, centers of several parts, and
#: long rows, of which the last have centers in two parts.
SHAPES = [(1, 1), (3, 2), (4, 16), (16, 9), (40, 33), (130, 64), (300, 5), (264, 9), (2050, 9)]
WORK = {"float32": np.float32, "float64": np.float64, "float16": np.float32, "bfloat16": np.float32}
SCALAR = {np.float32: "float", np.float64: "double"}
#: All features that tests have, of many clusters too, for each of which `segmented_sum` is compiled as it is planned.
FEATURES = [*(d for d, _ in SHAPES), 50, 64, 70, 100]
BLOCKS = 3


def product_source(d, k, epilogue=None, header="assign/small_k.cuh"):
    """Return the source of a shape's product, by the plan that is for bounds if an epilogue is given."""
    plan = assign_plan(10**7, d, k, H200, bounds=epilogue is not None)
    epilogue = epilogue or epilogue_of(plan, k)
    name, columns = f"{epilogue.partition('<')[0]}_{d}_{k}", half_copy_problem(1, d, k, parts_of(plan, k)).w
    return f"""
#include "kernels/tsm2/gemm_mma.cuh"
#include "apps/kmeans/{header}"
namespace of_{name} {{
{plan.struct()}
using P = tsm2::GemmMma<Plan, kmeans::{epilogue}>;
extern "C" void assign_{name}(const void* half_copy, const void* centers_half, long long n,
                              const kmeans::{epilogue}* nearest,
                              void* partial, unsigned* arrived, long long blocks) {{
  constexpr long long kPadded = {padded(d)};
  const Plan::A::Source a{{static_cast<const ptx::Half*>(half_copy), kPadded, n, kPadded, n * kPadded}};
  const Plan::B::Source b{{static_cast<const ptx::Half*>(centers_half), kPadded, {columns}, kPadded,
  {columns} * kPadded}};
  const tsm2::Work work{{n, {columns}, kPadded}};
  const kmeans::{epilogue} epilogue = *nearest;
  auto* sums = static_cast<P::Sum*>(partial);
  cuda_host::launch(dim3(blocks), P::kThreads, P::kSharedBytes, [=] {{
    tsm2::gemm_mma<Plan, kmeans::{epilogue}>(a, b, work, sums, arrived, epilogue);
  }});
}}
}}"""


def types_of(dtype, digits, weighted):
    """Return the C++ types of X, of what is worked in and of scales, kernels' flags, and the entry points' suffix."""
    flags, name = f"{digits}, {str(weighted).lower()}", f"{dtype}_{digits}_{int(weighted)}"
    return ELEMENT[dtype], SCALAR[WORK[dtype]], "float" if digits == 2 else "double", flags, name


def rows_source(*kind):
    T, W, scale, flags, name = types_of(*kind)
    return f"""
#include "apps/kmeans/update/centers.cuh"
#include "apps/kmeans/assign/rescore_large_k.cuh"
#include "apps/kmeans/update/scatter_add.cuh"
#include "apps/kmeans/update/segmented_sum.cuh"
extern "C" void half_copy_{name}(const void* X, long long n, long long d, long long padded, long long panels,
                              const void* mean, double scale, double rounding, long long log2_lanes, void* half_copy,
                              float* norms, long long aligned) {{
  cuda_host::launch(dim3({BLOCKS}), 256, 0, [=] {{
    auto* kernel = aligned ? kmeans::make_half_copy<{T}, {W}, true> : kmeans::make_half_copy<{T}, {W}, false>;
    kernel(static_cast<const {T}*>(X), d, n, (int)d, (int)padded, (int)panels, static_cast<const {W}*>(mean),
           (float)scale, (float)rounding, (int)log2_lanes, static_cast<ptx::Half*>(half_copy), norms);
  }});
}}
extern "C" void place_{name}(const void* centers, const void* update_centers, long long columns) {{
  const auto of = *static_cast<const kmeans::UpdateCenters<{W}>*>(update_centers);
  cuda_host::launch(dim3(columns), kmeans::kCenterThreads, 0,
                    [=] {{ kmeans::prepare_centers<{W}>(static_cast<const {W}*>(centers), of); }});
}}
extern "C" void update_centers_{name}(const void* update_centers) {{
  const auto of = *static_cast<const kmeans::UpdateCenters<{W}>*>(update_centers);
  cuda_host::launch(dim3(of.k), kmeans::kCenterThreads, 0, [=] {{ kmeans::update_centers<{W}>(of); }});
}}
extern "C" void rescore_{name}(const void* rows, const void* centers, long long k, kmeans::AmbiguousRow* entries,
                              const unsigned* counts, long long capacity, long long lists, const int* stopped) {{
  const auto of = *static_cast<const kmeans::CenteredRows<{T}, {W}>*>(rows);
  cuda_host::launch(dim3(lists, 2), 256, 0, [=] {{
    kmeans::rescore<{T}, {W}>(of, static_cast<const {W}*>(centers), (int)k, entries, counts, capacity, stopped);
  }});
}}
extern "C" void scatter_add_{name}(const void* rows, const {scale}* scales, long long k, long long columns,
                                   long long chunks,
                            long long log2_lanes, const kmeans::AmbiguousRow* entries, const unsigned* counts,
                            long long capacity, long long lists, int* labels, unsigned long long* sums,
                            unsigned* n_reassigned,
                            const int* stopped, long long shared_bytes) {{
  const auto of = *static_cast<const kmeans::CenteredRows<{T}, {W}>*>(rows);
  cuda_host::launch(dim3(lists, 2, chunks), 512, shared_bytes, [=] {{
    kmeans::scatter_add<{T}, {W}, {flags}>(of, scales, (int)k, (int)columns, (int)log2_lanes, entries, counts, capacity,
                                    labels, sums, n_reassigned, stopped);
  }});
}}"""


def many_source(*kind):
    T, W, _, _, name = types_of(*kind)
    return f"""
extern "C" void rescore_large_k_{name}(const void* rows, const void* centers, long long k,
                                       kmeans::Reassignment* changes,
                                      const kmeans::AmbiguousLargeK* ambiguous, kmeans::Lengths* lengths,
                                      long long capacity,
                                      long long lists, const int* stopped) {{
  const auto of = *static_cast<const kmeans::CenteredRows<{T}, {W}>*>(rows);
  cuda_host::launch(dim3(lists, 2), 256, 0, [=] {{
    kmeans::rescore_large_k<{T}, {W}>(of, static_cast<const {W}*>(centers), (int)k, changes, ambiguous, lengths,
                                     capacity, stopped);
  }});
}}
template <typename Launch>
void with_lists(const void* lists, bool pairs, Launch launch) {{
  if (pairs) launch(*static_cast<const kmeans::Lists<kmeans::AmbiguousRow>*>(lists));
  else launch(*static_cast<const kmeans::Lists<kmeans::Reassignment>*>(lists));
}}
extern "C" void count_{name}(const void* lists, long long n_lists, const kmeans::Segments* segments, int* labels,
                             unsigned* counts, unsigned* begins, unsigned* arrived, unsigned* all,
                             unsigned* n_reassigned,
                             const int* stopped) {{
  const auto of = *segments;
  with_lists(lists, of.bits >= 0, [=](auto items) {{
    cuda_host::launch(dim3(n_lists, 2), kmeans::kCountThreads, 0, [=] {{
      kmeans::count_reassigned(items, of, labels, counts, begins, arrived, all, n_reassigned, stopped);
    }});
  }});
}}
extern "C" void sort_{name}(const void* lists, long long n_lists, const kmeans::Segments* segments, unsigned* begins,
                            unsigned* places, const int* stopped) {{
  const auto of = *segments;
  with_lists(lists, of.bits >= 0, [=](auto items) {{
    cuda_host::launch(dim3(n_lists, 2), kmeans::kCountThreads, 0,
                      [=] {{ kmeans::sort_reassigned(items, of, begins, places, stopped); }});
  }});
}}""" + "".join(add_source(kind, arguments) for arguments in sorted({plan_of(kind, d).arguments for d in FEATURES}))


def plan_of(kind, d):
    """Return how rows of d features are added up."""
    dtype, digits, weighted = kind
    return segments_plan(np.dtype(DTYPES[dtype]).itemsize, d, 0, digits, weighted=weighted)


def add_source(kind, arguments):
    T, W, scale, flags, name = types_of(*kind)
    return f"""
extern "C" void add_{arguments.replace(", ", "_")}_{name}(const void* rows, const {scale}* scales,
                                                          const kmeans::Segments* segments, const unsigned* places,
                                                          const unsigned* ends, const unsigned* all,
                                                          unsigned long long* sums, const int* stopped) {{
  const auto of = *static_cast<const kmeans::CenteredRows<{T}, {W}>*>(rows);
  const auto which = *segments;
  cuda_host::launch(dim3({BLOCKS}), 256, 0, [=] {{
    kmeans::segmented_sum<{T}, {W}, {flags}, {arguments}>(of, scales, which, places, ends, all, sums, stopped);
  }});
}}"""


#: dtype, digits, whether samples have weights.
KINDS = [
    ("float32", 2, False),
    ("float32", 3, True),
    ("float32", 3, False),
    ("float64", 3, False),
    ("float16", 2, False),
    ("bfloat16", 2, False),
]


def rows_and_many_source(*kind):
    return rows_source(*kind) + many_source(*kind)


@cache
def libraries():
    of_shapes = {shape: partial(product_source, *shape) for shape in SHAPES}
    return harness.Libraries(of_shapes | {kind: partial(rows_and_many_source, *kind) for kind in KINDS})


class Iterations:
    """X and what iterations keep of it, as a step has them."""

    panels, columns, tile = 0, 8, 1
    #: Whether iterations may have bounds.
    bounds = False
    #: Whether rows are sorted to be moved; and whether by pairs of clusters.
    sorts, pairs = False, True

    def __init__(self, X, k, kind, weights=None, mean=None):
        self.dtype, self.digits, self.weighted = kind
        self.work = WORK[self.dtype]
        self.X, self.k = np.ascontiguousarray(X.astype(DTYPES[self.dtype])), k
        self.n, self.d = X.shape
        self.name = types_of(*kind)[-1]
        self.library = libraries()[kind]
        self.mean = (np.zeros(self.d) if mean is None else mean).astype(self.work)
        # Rounded to the type that K-means works in, as the kernels have it.
        self.centered = self.X.astype(self.work) - self.mean
        self.weights = None if weights is None else weights.astype(self.work)
        wide = self.centered.astype(np.float64)
        self.largest, middle = abs(wide).max(axis=0), float(np.sqrt((wide * wide).mean()))
        self.scale, self.norm_limit = half_copy_scale(middle), norm_limit_of(self.d)
        # Weighted sums have three digits, whatever the data.
        three = 1.0 if self.digits == 3 else None
        most = three if weights is None else float(abs(self.weights).max())
        found = integers(self.n, np.dtype(self.work), self.largest, middle, most)
        self.scales = np.array(found.scales)
        if self.digits != found.digits:
            bits = 30 if self.digits == 2 else 46
            self.scales = np.exp2(np.append(bits - np.ceil(np.log2(np.maximum(self.largest, 1e-30))), 0.0))
        self.padded = 16 * self.panels or padded(self.d)
        self.rounding = EXACT if self.X.itemsize == 2 and not self.mean.any() else ROUNDING
        self.half_copy = np.full((-(-self.n // self.tile) * self.tile, self.padded), np.nan, np.float16)
        self.norms = np.full(self.n, np.nan, np.float32)
        self.make_half_copy(self.scale)
        self.work_scales = self.scales.astype(np.float32 if self.digits == 2 else np.float64)
        self.labels = np.full(self.n, -1, np.int32)
        self.sums = np.zeros((k, self.d + 1), np.int64)
        self.motion = np.zeros((), DRIFT)  # none is followed

    def make_half_copy(self, scale):
        """Make the copy that iterations read."""
        self.scale, vector = scale, vector_of(self.X.itemsize)
        lanes, aligned = log2_lanes(self.padded // vector), int(self.d % vector == 0)
        sizes = self.n, self.d, self.padded, self.panels
        self.call(
            "half_copy",
            self.X,
            *sizes,
            self.mean,
            self.scale,
            self.rounding,
            lanes,
            self.half_copy,
            self.norms,
            aligned,
        )

    def prove_nothing(self):
        """Leave labels to the products in float16, as precision="tf32" does."""
        self.norms[self.norms <= self.norm_limit] *= np.float32(UNCERTIFIED)

    def float16_scores(self, centers):
        """Return x̂·ĉ − ‖c‖²/2 of every sample and center, from what float16 holds of both; (n, k), in float64."""
        x, c = ((self.scale * one.astype(np.float64)) for one in (self.centered, centers.astype(self.work)))
        centers_half = [one.astype(np.float16).astype(np.float64) for one in (x, c)]
        return centers_half[0] @ centers_half[1].T - (c * c).sum(axis=1) / 2

    @property
    def plan_of_product(self):
        return assign_plan(10**7, self.d, self.k, H200, bounds=self.bounds)

    @property
    def parts(self):
        """Of a center, that the product has a column each of."""
        return parts_of(self.plan_of_product, self.k)

    def call(self, name, *arguments):
        self.library.call(f"{name}_{self.name}", *arguments)

    def iterate(self, centers):
        """Run one iteration; return how many rows the float16 product left undecided, and how many moved."""
        k = self.k
        centers = np.ascontiguousarray(centers.astype(self.work))
        columns = -(-k // self.columns) * self.columns
        width = self.padded + (16 if self.panels else 0)
        self.centers_half = np.full((self.parts * columns, width), np.nan if columns == k else 0, np.float16)
        self.offsets, self.error_coefficients = np.full((2, columns), np.nan, np.float32)
        self.center_stats, self.found = np.full(4, np.nan, np.float32), np.full((k, 4), np.nan)
        self.arrived, self.n_reassigned, self.stopped = (
            np.zeros(1, np.uint32),
            np.ones(1, np.uint32),
            np.ones(1, np.int32),
        )
        self.counts, kept = np.ones(3, np.uint32), np.full_like(centers, np.nan)
        self.call("place", centers, self.advancing(centers, kept, np.zeros(1, OUTCOME)), columns)
        np.testing.assert_array_equal(kept, centers)
        assert not any(state.any() for state in (self.arrived, self.n_reassigned, self.stopped, self.counts))
        return self.move_rows(centers)

    def advancing(self, centers, following, outcome, tolerance=0.0):
        """Return what the kernels of update/centers.cuh are told of an iteration."""
        self.units = 1 / self.scales
        error_coefficients = 0, 0.0, 0.0
        if not self.panels and epilogue_of(self.plan_of_product, self.k) != "ArgminEpilogue":
            error_coefficients = (
                self.error_coefficients.ctypes.data,
                *error_coefficients_of(self.plan_of_product, self.d, self.k, self.rounding),
            )
        pointed = self.sums, self.units, centers, following, self.found, self.offsets
        state = self.center_stats, self.arrived, self.n_reassigned, self.counts, self.stopped, outcome
        before, after = ([one.ctypes.data for one in some] for some in (pointed, state))
        second = len(self.offsets) if self.parts > 1 else 0
        centers_half = self.centers_half.ctypes.data, self.padded, self.panels, self.columns, second
        sizes = self.k, self.d, self.counts.size, self.scale, self.norm_limit
        of = (
            *before,
            error_coefficients[0],
            *after,
            centers_half,
            self.motion,
            tolerance,
            *sizes,
            *error_coefficients[1:],
            0,
        )
        return np.array(of, UPDATE_CENTERS)

    def move_rows(self, centers, stopped=0):
        """Run what follows of an iteration, at the centers that were placed."""
        n, d, k = self.n, self.d, self.k
        self.stopped = np.array([stopped], np.int32)
        plan, problem = self.plan_of_product, half_copy_problem(n, d, k, self.parts)
        lists = min(BLOCKS, -(-plan.units(n, problem.k, problem.w) // plan.teams))
        room = capacity(plan, n, lists)
        entries, counts = np.zeros((lists, room, AMBIGUOUS_BYTES // 4), np.uint32), np.zeros(lists, np.uint32)
        ahead = plan.teams * lists * plan.tile_m if plan.keep_b else n
        pointed = self.offsets, self.center_stats, self.norms, self.labels, entries, counts, self.stopped
        pointers = (one.ctypes.data for one in pointed)
        nearest = (*pointers, room, n, ahead, product_error(plan, d, k), self.rounding)
        workspace = np.zeros(2 * lists * plan.tile_sums + 1, np.float32), np.zeros(3 * lists, np.uint32)
        self.score(nearest, workspace, lists, room)
        assert (counts <= room).all()
        masks = [mask for b in range(lists) for mask in entries[b, : counts[b], 2:].tolist()]
        ambiguous = sum(low.bit_count() + high.bit_count() != 1 for low, high in masks)
        rows = self.rows()
        self.call("rescore", rows, centers, k, entries, counts, room, lists, self.stopped)
        self.counts = counts
        if self.sorts:
            every = np.array((entries.ctypes.data, counts.ctypes.data, room, 1, 0), LISTS)
            places = np.full(lists * room, 2**32 - 1, f"u{PLACE_BYTES}")
            return ambiguous, self.move_segments(rows, every, lists, places)
        columns, chunks = columns_of_block(d, k, self.digits)
        sizes, lists_of = (k, columns, chunks, log2_lanes(min(d, columns))), (entries, counts, room, lists)
        n_reassigned = np.zeros(1, np.uint32)
        state = self.labels, self.sums, n_reassigned, self.stopped
        self.call("scatter_add", rows, self.work_scales, *sizes, *lists_of, *state, 66 << 10)
        return ambiguous, int(n_reassigned[0])

    def rows(self):
        """Return what kernels are told of X."""
        weights = 0 if self.weights is None else self.weights.ctypes.data
        return np.array((self.X.ctypes.data, self.d, self.d, 0, self.mean.ctypes.data, weights), ROWS)

    def score(self, nearest, workspace, lists, room):
        """List the rows whose labels change or are not sure; `nearest` are the fields of a `ARGMIN`."""
        product = self.half_copy, self.centers_half, self.n, np.array(nearest, ARGMIN), *workspace, lists
        name = epilogue_of(self.plan_of_product, self.k).partition("<")[0]
        libraries()[self.d, self.k].call(f"assign_{name}_{self.d}_{self.k}", *product)

    def move_segments(self, rows, lists, n_lists, places):
        """Move the rows of some lists, sorted by segment; return how many there are."""
        bits = (self.k - 1).bit_length() if self.pairs else -1
        number = (self.k + 1) << bits if self.pairs else 2 * self.k
        segments, in_segment = np.array((self.k, bits), SEGMENTS), np.zeros(number, np.uint32)
        begins, arrived, n_reassigned, every = (np.zeros(size, np.uint32) for size in (number, 1, 1, 1))
        counts, of = (in_segment, begins, arrived, every, n_reassigned), (lists, n_lists, segments)
        self.call("count", *of, self.labels, *counts, self.stopped)
        assert not in_segment.any()
        firsts = begins.tolist()
        self.call("sort", *of, begins, places, self.stopped)
        if not self.stopped[0]:
            assert [0, *begins[:-1].tolist()] == firsts  # each ends where the next begins
            assert begins[-1] == every[0]
        add = "add_" + plan_of((self.dtype, self.digits, self.weights is not None), self.d).arguments.replace(", ", "_")
        self.call(add, rows, self.work_scales, segments, places, begins, every, self.sums, self.stopped)
        self.ends = begins
        return int(n_reassigned[0])

    def update_centers(self, centers, n_reassigned, tolerance=0.0):
        """Return the outcome of an iteration, and the next centers, which are placed."""
        centers = np.ascontiguousarray(centers.astype(self.work))
        following, outcome = np.full_like(centers, np.nan), np.zeros(1, OUTCOME)
        self.n_reassigned[0] = n_reassigned
        self.call("update_centers", self.advancing(centers, following, outcome, tolerance))
        assert not self.counts.any()
        assert not self.n_reassigned.any()
        return outcome[0], following

    def assert_advanced(self, centers, n_reassigned, outcome, following):
        """An iteration that left no cluster empty is one of Lloyd in float64, and told of as it is."""
        one = np.ones(self.n) if self.weights is None else self.weights
        labels, expected = oracle.lloyd_step(self.centered, centers, one)
        tolerance = 4 * np.finfo(self.work).eps * abs(self.centered).max() + abs(self.centered).max() * 2.0**-29
        np.testing.assert_allclose(following, expected, rtol=0, atol=tolerance)
        change = following.astype(np.float64) - centers
        assert not outcome["empty"]
        assert outcome["n_reassigned"] == n_reassigned
        assert outcome["stop"] == (n_reassigned == 0)
        assert outcome["shift"] == pytest.approx((change * change).sum(), rel=1e-9)
        distances = oracle.square_distances(self.centered, centers)[np.arange(self.n), labels]
        norms = (self.centered.astype(np.float64) ** 2).sum(axis=1)
        assert outcome["potential"] + one @ norms == pytest.approx(one @ distances, rel=1e-6)

    def assert_right(self, centers):
        """Labels are nearest centers to float64's last bits; sums are those of the labels, to the last bit."""
        distances = oracle.square_distances(self.centered, centers.astype(self.work))
        mine = distances[np.arange(self.n), self.labels]
        assert (mine <= distances.min(axis=1) * (1 + 1e-12)).all()
        one = np.ones(self.n, self.work) if self.weights is None else self.weights
        values = np.column_stack([self.centered * one[:, np.newaxis], one])
        integers = np.rint(values.astype(self.work_scales.dtype) * self.work_scales).astype(np.int64)
        expected = np.zeros_like(self.sums)
        np.add.at(expected, self.labels, integers)
        np.testing.assert_array_equal(self.sums, expected)


def blobs(n, d, k, rng, apart=3.0):
    """Clusters that overlap, and centers among them."""
    middles = apart * rng.standard_normal((k, d))
    return middles[rng.integers(0, k, n)] + rng.standard_normal((n, d)), middles + 0.3 * rng.standard_normal((k, d))
