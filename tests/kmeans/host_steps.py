"""Steps of Lloyd's algorithm on a HostMachine, and float64 and integer references of their labels and sums."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.data.plan import padded
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.update.buffers import IterationBuffers, Layout
from tsapps.apps.kmeans.update.fixed_point import integers_of

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Type of X, digits of sums, whether samples have weights.
KINDS = [
    ("float32", 2, False),
    ("float32", 3, True),
    ("float32", 3, False),
    ("float64", 3, False),
    ("float16", 2, False),
    ("bfloat16", 2, False),
]
#: Features and clusters: one of each, rows of less than 16 bytes, tiles of 64 rows, centers of several parts, and
#: long rows, of which the last have centers in two parts.
SHAPES = [(1, 1), (3, 2), (4, 16), (16, 9), (40, 33), (130, 64), (300, 5), (264, 9), (2050, 9)]
#: Kinds of 16-bit X whose mean is so far from zero that it is subtracted.
FAR_KINDS = [(dtype, 2, False, "far") for dtype in ("float16", "bfloat16")]


class RowsOnMachine(ArrayRows):
    """An array in the memory of a HostMachine, which 16-bit types are read from in place."""

    def __init__(self, array):
        super().__init__(array)
        self.device = HostMachine.index

    def rows(self, indices):
        return self.array[indices]


class RangedData(DeviceData):
    """Data that reports another range than its own.

    Attributes
    ----------
    middle : float, optional
        The root mean square.
    wide : bool
        Whether the largest elements are so large that sums have three digits.
    """

    middle = None
    wide = False

    @property
    def _typical_rows(self):
        return super()._typical_rows if self.middle is None else None

    def spread(self, subtracted=None):
        largest, middle = super().spread(subtracted)
        middle = middle if self.middle is None else self.middle
        return np.maximum(largest, 300 * middle) if self.wide else largest, middle


def work_of(dtype):
    """Return the working type for X of a type."""
    return np.dtype(np.float64 if dtype == "float64" else np.float32)


def data_on_host(X, kind, weights=None, mean=None, *, middle=None, multiprocessors=3):
    """Return X in the type of a kind as `DeviceData`, from which kernels subtract `mean`, or zero."""
    dtype, digits, *_ = kind
    array = np.ascontiguousarray(X.astype(DTYPES[dtype]))
    work = work_of(dtype)
    data = RangedData(RowsOnMachine(array), work, weights, HostMachine(multiprocessors), takes_16_bit=True)
    data.middle, data.wide = middle, digits == 3 and work == np.float32
    data.center(np.zeros(X.shape[1]) if mean is None else mean, on_read=True)
    return data


def buffers_of(data, k):
    """Return the buffers of iterations for k clusters, and the format of their sums, without a product."""
    sums, placement = integers_of(data), Placement(padded(data.n_features), 0, np.float32(1), np.float32(1))
    return IterationBuffers.allocated(data, k, Layout(placement, 8), sums), sums


def away_of(kind):
    """Return what is to be added to X of a kind."""
    return 20.0 if "far" in kind else 0.0


def blobs(n, d, k, rng, apart=3.0):
    """Return samples of clusters that overlap, and centers among them."""
    middles = apart * rng.standard_normal((k, d))
    return middles[rng.integers(0, k, n)] + rng.standard_normal((n, d)), middles + 0.3 * rng.standard_normal((k, d))


def centered(data):
    """Return X less what kernels subtract, rounded to the type that K-means works in, as they round it."""
    return data.rows_on_gpu.astype(data.dtype) - data.shift


def weights_of(data):
    return np.ones(data.n_samples, data.dtype) if data.sample_weight is None else data.sample_weight


def fixed_point_sums(data, scales, labels, k):
    """Return the sums (k, d + 1) of all samples with a label, in NumPy's integers; `scales` as kernels have them."""
    one = weights_of(data)
    values = np.column_stack([centered(data) * one[:, np.newaxis], one]).astype(scales.dtype)
    sums, some = np.zeros((k, data.n_features + 1), np.int64), labels >= 0
    np.add.at(sums, labels[some], np.rint(values * scales).astype(np.int64)[some])
    return sums


def place(step, centers):
    """Place centers for the next assignment, which finds every count at zero; return them as they are placed."""
    of, placed = step.buffers, centers.astype(step.data.dtype)
    for count in (of.n_reassigned, of.stopped, of.counts):
        count[...] = 1  # of the last iterations, which were stopped
    step.begin(placed)
    np.testing.assert_array_equal(of.centers[0], placed)
    assert not any(count.any() for count in (of.arrived, of.n_reassigned, of.stopped, of.counts))
    return of.centers[0]


def assign_placed(step, centers, ambiguous_rows):
    """Assign as `step.assign` does, launch by launch, at centers that were placed.

    Returns
    -------
    ambiguous : int
        What `ambiguous_rows` returns of the step after its product.
    n_reassigned : int
    """
    product, rescore, *update = step._bind_rows(centers)
    product()
    ambiguous = ambiguous_rows(step)
    rescore()
    if len(update) == 1:
        update[0]()
    else:
        add_sorted(step._segments, *update, stopped=step.buffers.stopped)
    return ambiguous, int(step.buffers.n_reassigned[0])


def add_sorted(segments, count, sort, add, *, stopped):
    """Launch the three kernels of a `SegmentedSum`; return where each segment ends."""
    count()
    assert not segments._counts.any()
    begins = segments._begins.copy()
    sort()
    ends = segments._begins.copy()
    if not stopped[0]:
        assert begins[0] == 0
        np.testing.assert_array_equal(begins[1:], ends[:-1])  # each ends where the next begins
        assert ends[-1] == segments._all[0]
    add()
    return ends


def assert_right(step, centers):
    """Labels are nearest centers to float64's last bits; sums are those of the labels, to the last bit."""
    data, labels = step.data, step.labels
    distances = oracle.square_distances(centered(data), centers.astype(data.dtype))
    mine = distances[np.arange(data.n_samples), labels]
    assert (mine <= distances.min(axis=1) * (1 + 1e-12)).all()
    expected = fixed_point_sums(data, step.buffers.scales, labels, step.k)
    np.testing.assert_array_equal(step.buffers.sums, expected)


def assert_iterated(step, centers, outcome, following, n_reassigned):
    """An iteration that left no cluster empty is one of Lloyd in float64, and its outcome says so."""
    X, one = centered(step.data), weights_of(step.data).astype(np.float64)
    labels, expected = oracle.lloyd_step(X, centers, one)
    tolerance = 4 * np.finfo(X.dtype).eps * abs(X).max() + abs(X).max() * 2.0**-29
    np.testing.assert_allclose(following, expected, rtol=0, atol=tolerance)
    change = following.astype(np.float64) - centers
    assert not outcome["empty"]
    assert outcome["n_reassigned"] == n_reassigned
    assert outcome["stop"] == (n_reassigned == 0)
    assert outcome["shift"] == pytest.approx((change * change).sum(), rel=1e-9)
    distances = oracle.square_distances(X, centers)[np.arange(len(X)), labels]
    norms = (X.astype(np.float64) ** 2).sum(axis=1)
    assert outcome["potential"] + one @ norms == pytest.approx(one @ distances, rel=1e-6)


def iterate_once(step, count, tolerance=0.0):
    """Launch iteration `count` since centers were placed; return its centers, its outcome and the next centers."""
    step._launch(count, tolerance)
    now, following = (step.buffers.centers[(count + odd) % 2].copy() for odd in (0, 1))
    return now, step._outcomes[count % 2].copy(), following


def float16_scores(step, centers):
    """Return x̂·ĉ − ‖c‖²/2 of every sample and center, from what float16 holds of both; (n, k), in float64."""
    some = centered(step.data), centers.astype(step.data.dtype)
    x, c = (float(step.layout.placement.scale) * one.astype(np.float64) for one in some)
    x_half, c_half = (one.astype(np.float16).astype(np.float64) for one in (x, c))
    return x_half @ c_half.T - (c * c).sum(axis=1) / 2


# TODO
