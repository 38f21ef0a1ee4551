"""Checks of iterations by the kernel's own source on the CPU, as `StepCheck` launches them."""

from functools import cache, partial

import numpy as np

from host_cuda import harness
from host_cuda.fused_kmeans import KINDS, Iterations, types_of
from tsapps.apps.kmeans.protect.plan import CHECKED, COLUMNS, HASH_FACTOR, HASHES, ROWS, THREADS, hash_of

#: What a check may find wrong (kWrongSums, …), as bits.
SUMS, CENTERS, LABELS, CHANGED = 1, 2, 4, 8
LABEL = {np.dtype(np.int32): "int", np.dtype(np.int8): "signed char"}


def source(kind):
    T, W, _, _, name = types_of(*kind)
    return '#include "apps/kmeans/protect/check_iteration.cuh"\n' + "\n".join(
        f"""
extern "C" void check_{label.replace(" ", "_")}_{int(aligned)}_{name}(
    const void* rows, const void* centers, const void* next, const void* checked, const unsigned long long* sums,
    const double* units, unsigned long long* totals, long long known, long long first, long long number,
    long long* over, int* stopped, unsigned* seen, const void* hashes, long long blocks) {{
  using Checked = kmeans::Checked<{label}>;
  static_assert(sizeof(Checked) == {CHECKED.itemsize} && kmeans::kCheckThreads == {THREADS});
  static_assert(sizeof(kmeans::Hashes) == {HASHES.itemsize} && kmeans::kHashFactor == {HASH_FACTOR}ULL);
  static_assert(kmeans::kCheckRows == {ROWS} && kmeans::kCheckColumns == {COLUMNS});
  const auto rows_of = *static_cast<const kmeans::CenteredRows<{T}, {W}>*>(rows);
  const auto of = *static_cast<const Checked*>(checked);
  cuda_host::launch(dim3(blocks), kmeans::kCheckThreads, 0, [=] {{
    kmeans::check<{str(aligned).lower()}, {T}, {W}, {label}>(
        rows_of, static_cast<const {W}*>(centers), static_cast<const {W}*>(next), of, sums, units, totals, (int)known,
        first, number, over, stopped, seen, *static_cast<const kmeans::Hashes*>(hashes));
  }});
}}"""
        for label in LABEL.values()
        for aligned in (False, True)
    )


@cache
def libraries():
    return harness.Libraries({kind: partial(source, kind) for kind in KINDS})


class CheckedIterations(Iterations):
    """Iterations that are checked; `totals`, `known`, `over` and `hashes` are what is kept between checks.

    A check expects the centers that it is given, unless `expected` is set to others.
    """

    def __init__(self, X, k, kind, *arguments, **options):
        super().__init__(X, k, kind, *arguments, **options)
        self.checked = libraries()[kind]
        one = np.ones(self.n) if self.weights is None else self.weights.astype(np.float64)
        self.totals, self.known = np.full(self.d + 1, 77, np.uint64), False
        self.totals[-1] = int(np.rint(one * self.scales[-1]).astype(np.int64).sum())
        self.over, self.number = np.zeros(1, np.int64), 0
        self.hashes, self.expected = np.full((2, self.d), 99, np.uint64), None

    @property
    def vector(self):
        """Elements that a thread reads at a time."""
        widest = 2 if self.work == np.float64 else 4
        return widest if self.d % widest == 0 else 1

    def check(self, centers, following, first=0, stride=1, *, log2_threads=2, each=4):
        """Return what a check finds wrong, as bits; `log2_threads` may be as few as a row needs."""
        while log2_threads < 5 and self.vector << log2_threads < self.d:
            log2_threads += 1
        stopped = np.zeros(1, np.int32)
        seen = self.launch(centers, following, stopped, (self.n, first, stride), log2_threads, each)
        self.known = True
        assert (self.over[0] == self.number) == stopped[0] == bool(seen.any())
        assert set(seen) <= {0, 1}
        return int(seen @ [1, 2, 4, 8])

    def launch(self, centers, following, stopped, some, log2_threads, each):
        """Launch a check of some labels; return what it says of each kind."""
        centers, following = (np.ascontiguousarray(one.astype(self.work)) for one in (centers, following))
        n, first, stride = some
        checked = np.array((self.labels.ctypes.data, n, stride, self.k, log2_threads, each, 0), CHECKED)
        samples = -(-n // stride)
        blocks = -(-samples // (ROWS * THREADS >> log2_threads)) * -(-self.k // each) + self.d // COLUMNS + 1
        seen = np.zeros(4, np.uint32)
        self.hashes[0] = hash_of(centers if self.expected is None else self.expected.astype(self.work))
        hashes = np.array(tuple(of.ctypes.data for of in self.hashes), HASHES)
        self.number += 1
        name = f"check_{LABEL[self.labels.dtype].replace(' ', '_')}_{int(self.vector > 1)}_{self.name}"
        sums = self.sums, 1 / self.scales, self.totals, int(self.known)
        results = first, self.number, self.over, stopped, seen, hashes, blocks
        self.checked.call(name, self.rows(), centers, following, checked, *sums, *results)
        return seen

    def begin(self):
        """Begin to iterate again, after a fault."""
        self.over[0] = 0
