"""Runs the source of inertia.cuh and passes.cuh on the CPU, as `DeviceData` launches them."""

from functools import cache, partial

import numpy as np

from host_cuda import harness
from host_cuda.tall_skinny import DTYPES
from tsapps.apps.kmeans.data.plan import vector_of
from tsapps.apps.kmeans.inertia.plan import RUNNING_SUMS, difference_of, inertia_plan
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.mma import ELEMENT

WORK = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}
H200 = KNOWN["H200"]
#: Digits that sums have, by the dtype of X: of weighted samples, three.
DIGITS = {"float32": (2, 3), "float64": (3,), "float16": (2, 3), "bfloat16": (2, 3)}


def plan_of(n, d, k, dtype, *, aligned=True, device=H200, digits=None):
    sizes = np.dtype(DTYPES[dtype]).itemsize, np.dtype(WORK[dtype]).itemsize
    return inertia_plan(n, d, k, *sizes, aligned=aligned, device=device, digits=digits)


def compared_source(dtype, digits):
    """Where sums of so many digits are compared with the rows."""
    T, W = ELEMENT[dtype], ELEMENT[WORK[dtype]]
    threads = plan_of(1, 1, 1, dtype, digits=digits).threads
    flags = [f"{a}, {b}, {c}" for a in ("true", "false") for b in ("true", "false") for c in ("true", "false")]
    kernels = ", ".join(f"kmeans::add_inertia<{T}, {W}, {one}, {threads}, Kept>" for one in flags)
    return f"""
extern "C" void compared_{digits}(long long which, const void* X, const void* mean, const void* centers,
                                  const int* labels, const void* weights, long long n, long long k, long long d,
                                  long long log2_lanes, long long slices, double* sums, unsigned* arrived,
                                  double* total, long long shared_bytes, long long blocks, const void* kept) {{
  using Kept = kmeans::RunningSums<{digits}>;
  static_assert(sizeof(Kept) == {RUNNING_SUMS.itemsize});
  using Kernel = decltype(&kmeans::add_inertia<{T}, {W}, true, true, true, {threads}, Kept>);
  static const Kernel kernels[] = {{{kernels}}};
  const auto of = *static_cast<const Kept*>(kept);
  cuda_host::launch(dim3(blocks), {threads}, shared_bytes, [=] {{
    kernels[which](static_cast<const {T}*>(X), static_cast<const {W}*>(mean), static_cast<const {W}*>(centers), labels,
                   static_cast<const {W}*>(weights), n, (int)k, (int)d, (int)log2_lanes, (int)slices, sums, arrived,
                   total, of);
  }});
}}"""


def source(dtype):
    T, W = ELEMENT[dtype], ELEMENT[WORK[dtype]]
    flags = [f"{a}, {b}, {c}" for a in ("true", "false") for b in ("true", "false") for c in ("true", "false")]
    kernels = ", ".join(f"kmeans::add_inertia<{T}, {W}, {one}>" for one in flags)
    return f"""
#include "apps/kmeans/inertia/inertia.cuh"
#include "apps/kmeans/data/passes.cuh"
using Kernel = decltype(&kmeans::add_inertia<{T}, {W}, true, true, true>);
extern "C" void inertia(long long which, const void* X, const void* mean, const void* centers, const int* labels,
                        const void* weights, long long n, long long k, long long d, long long log2_lanes,
                        long long slices, double* sums, unsigned* arrived, double* total, long long shared_bytes,
                        long long blocks) {{
  static const Kernel kernels[] = {{{kernels}}};
  cuda_host::launch(dim3(blocks), kmeans::kInertiaThreads, shared_bytes, [=] {{
    kernels[which](static_cast<const {T}*>(X), static_cast<const {W}*>(mean), static_cast<const {W}*>(centers), labels,
                   static_cast<const {W}*>(weights), n, (int)k, (int)d, (int)log2_lanes, (int)slices, sums, arrived,
                   total);
  }});
}}
extern "C" void moments(long long vectors, const void* X, const void* origin, long long n, long long d, double* parts,
                        long long columns, long long slices, long long width) {{
  cuda_host::launch(dim3(columns, slices), dim3(width, 256 / width), 0, [=] {{
    auto* kernel = vectors ? column_moments<{T}, {W}, true> : column_moments<{T}, {W}, false>;
    kernel(static_cast<const {T}*>(X), static_cast<const {W}*>(origin), n, (int)d, parts, parts + slices * d,
           parts + 2 * slices * d);
  }});
}}
extern "C" void fold(const double* parts, long long slices, long long d, double* totals, double* largest) {{
  cuda_host::launch(dim3((d + 31) / 32), dim3(32, 8), 0, [=] {{
    fold_moments(parts, (int)slices, (int)d, totals, largest);
  }});
}}
extern "C" void in_order(long long squares, const void* X, const void* about, long long n, long long d, void* sums) {{
  cuda_host::launch(dim3((d + 31) / 32), 32, 0, [=] {{
    auto* kernel = squares ? add_in_order<{W}, true> : add_in_order<{W}, false>;
    kernel(static_cast<const {W}*>(X), static_cast<const {W}*>(about), n, (int)d, static_cast<{W}*>(sums));
  }});
}}
extern "C" void distances(long long vectors, const void* X, const void* mean, const void* centers, const int* labels,
                          long long n, long long d, long long log2_lanes, void* distances, long long blocks) {{
  cuda_host::launch(dim3(blocks), 256, 0, [=] {{
    auto* kernel = vectors ? own_distances<{T}, {W}, true> : own_distances<{T}, {W}, false>;
    kernel(static_cast<const {T}*>(X), static_cast<const {W}*>(mean), static_cast<const {W}*>(centers), labels, n,
           (int)d, (int)log2_lanes, static_cast<{W}*>(distances));
  }});
}}""" + "".join(compared_source(dtype, digits) for digits in DIGITS[dtype])


def aligned_copy(array):
    """Return it where memory of a GPU might begin."""
    room = np.zeros(array.nbytes + 256, np.uint8)
    begin = -room.ctypes.data % 256
    there = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    there[...] = array
    return there


@cache
def libraries():
    return harness.Libraries({dtype: partial(source, dtype) for dtype in WORK})


class Passes:
    """X in `dtype`, `offset` elements from where vectors may begin, and what is known of its rows."""

    def __init__(self, X, dtype, mean, centers, labels, weights=None, offset=0):
        self.n, self.d = X.shape
        self.dtype, self.work = dtype, np.dtype(WORK[dtype])
        room = np.zeros(X.size + 64, DTYPES[dtype])
        begin = -room.ctypes.data % 64 // room.itemsize + offset
        self.X = room[begin : begin + X.size].reshape(X.shape)
        self.X[:] = X
        self.aligned = self.X.ctypes.data % 16 == 0
        self.mean, self.centers = mean.astype(self.work), np.ascontiguousarray(centers.astype(self.work))
        self.labels = labels.astype(np.int32)
        self.weights = None if weights is None else weights.astype(self.work)
        self.library = libraries()[dtype]

    @property
    def centered(self):
        """The rows less the mean, as kernels round them."""
        return self.X.astype(self.work) - self.mean

    def inertia(self, blocks=2, device=H200):
        """Return the sum over all rows."""
        return self.launch("inertia", plan_of(*self.sizes, aligned=self.aligned, device=device), blocks)

    def compared(self, sums, digits, scales, of_clusters, of_columns, blocks=2, device=H200):
        """Return the sum over all rows, whether a label is none, and by how much rows differ from sums (k, d + 1)."""
        plan = plan_of(*self.sizes, aligned=self.aligned, device=device, digits=digits)
        found = np.zeros(1 + 4 * (digits - 1), np.uint64)
        given = sums, scales.astype(np.float32 if digits == 2 else np.float64), of_clusters, of_columns
        arrays = *(aligned_copy(one) for one in given), found
        kept = np.array(tuple(one.ctypes.data for one in arrays), RUNNING_SUMS)
        total = self.launch(f"compared_{digits}", plan, blocks, kept)
        stray, *words = map(int, found)
        return total, stray, difference_of(words)

    @property
    def sizes(self):
        return self.n, self.d, len(self.centers), self.dtype

    def launch(self, name, plan, blocks, *kept):
        weighted = self.weights is not None
        which = 4 * (not plan.vectors) + 2 * (plan.shared_bytes == 0) + (not weighted)
        sums, arrived, total = np.full(plan.slices, np.nan), np.zeros(1, np.uint32), np.full(1, np.nan)
        data = self.X, self.mean, self.centers, self.labels, self.weights if weighted else np.intp(0)
        sizes = self.n, len(self.centers), self.d, plan.log2_lanes, plan.slices
        results = sums, arrived, total, plan.shared_bytes, min(blocks, plan.blocks(100))
        self.library.call(name, which, *data, *sizes, *results, *kept)
        assert arrived[0] == 0
        return float(total[0])

    def vectors(self):
        wide = vector_of(self.X.itemsize)
        return self.d % wide == 0 and self.X.ctypes.data % (wide * self.X.itemsize) == 0

    def moments(self, origin, slices=3, before=0.0):
        """Return Σ(x − o), Σ(x − o)² and max |x − o| of each column, or what that was `before` if it is larger."""
        vectors = self.vectors()
        wide = vector_of(self.X.itemsize) if vectors else 1
        width = min(32, 1 << (-(-self.d // wide) - 1).bit_length())
        parts = np.full((3, slices, self.d), np.nan)
        origin, columns = origin.astype(self.work), -(-self.d // (width * wide))
        self.library.call("moments", int(vectors), self.X, origin, self.n, self.d, parts, columns, slices, width)
        totals, largest = np.full((2, self.d), np.nan), np.full(self.d, before)
        self.library.call("fold", parts, slices, self.d, totals, largest)
        return *totals, largest

    def distances(self):
        """Return ‖x − c‖² of every row."""
        vectors = self.vectors()
        columns = self.d // vector_of(self.X.itemsize) if vectors else self.d
        lanes = min(5, (columns - 1).bit_length())
        found = np.full(self.n, np.nan, self.work)
        data = self.X, self.mean, self.centers, self.labels
        blocks = -(-(-(-self.n // 4) << lanes) // 256)
        self.library.call("distances", int(vectors), *data, self.n, self.d, lanes, found, blocks)
        return found
