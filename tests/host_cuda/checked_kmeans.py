"""Checks of iterations by the kernel's own source on the CPU, as `StepCheck` launches them."""

from functools import cache

import numpy as np

from host_cuda.fused_kmeans import BLOCKS, KINDS, Iterations, types_of
from host_cuda.tall_skinny import build_each

#: What a check may find wrong (kWrongSums, …), as bits.
SUMS, CENTRES, LABELS = 1, 2, 4
LABEL = {np.dtype(np.int32): "int", np.dtype(np.int8): "signed char"}


def source(kind):
    T, W, _, _, name = types_of(*kind)
    return "\n".join(
        f"""
extern "C" void check_{label.replace(" ", "_")}_{name}(
    const void* rows, const void* centers, const void* next, long long k, const void* labels, long long n,
    long long first, long long stride, long long parts, const unsigned long long* sums, const double* units,
    long long weight, unsigned long long* columns, kmeans::Checks* checks, int* stopped, unsigned* seen) {{
  const auto of = *static_cast<const kmeans::Rows<{T}, {W}>*>(rows);
  cuda_host::launch(dim3({BLOCKS}), 256, 0, [=] {{
    kmeans::check<{T}, {W}, {label}>(of, static_cast<const {W}*>(centers), static_cast<const {W}*>(next), (int)k,
                                     static_cast<const {label}*>(labels), n, first, stride, (int)parts, sums, units,
                                     (unsigned long long)weight, columns, checks, stopped, seen);
  }});
}}"""
        for label in LABEL.values()
    )


@cache
def libraries():
    sources = ['#include "apps/kmeans/protect.cuh"' + source(kind) for kind in KINDS]
    return dict(zip(KINDS, build_each(sources), strict=True))


class CheckedIterations(Iterations):
    """Iterations that are checked; `checks` and `columns` are what is kept between checks."""

    def __init__(self, X, k, kind, *arguments, **options):
        super().__init__(X, k, kind, *arguments, **options)
        self.checked = libraries()[kind]
        self.columns_of_sums, self.checks = np.zeros((2, self.d + 1), np.uint64), np.zeros(4, np.uint32)
        one = np.ones(self.n) if self.weights is None else self.weights.astype(np.float64)
        self.weight = int(np.rint(one * self.scales[-1]).astype(np.int64).sum())

    def check(self, centers, following, first=0, stride=1, parts=1):
        """Return what a check finds wrong, as bits, and whether iterations are stopped."""
        stopped, seen = np.zeros(1, np.int32), np.full(1, 2**32 - 1, np.uint32)
        centers, following = (np.ascontiguousarray(one.astype(self.work)) for one in (centers, following))
        some = self.labels, self.n, first, stride, parts
        name = f"check_{LABEL[self.labels.dtype].replace(' ', '_')}_{self.name}"
        state = self.columns_of_sums, self.checks, stopped, seen
        self.checked.call(
            name, self.rows(), centers, following, self.k, *some, self.sums, 1 / self.scales, self.weight, *state
        )
        assert not self.columns_of_sums[0].any()
        assert self.checks[:2].tolist() == [0, 0]
        assert self.checks[2] == stopped[0] == (seen[0] != 0)
        return int(seen[0])

    def begin(self):
        """Begin to iterate again, after a fault."""
        self.checks[2] = 0
