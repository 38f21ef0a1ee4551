"""Iterations with bounds by their kernels' own source on the CPU, as `Bounds` launches them."""

from functools import cache, partial

import numpy as np
import oracle

from host_cuda import harness
from host_cuda.fused_kmeans import BLOCKS, Iterations, product_source
from tsapps.apps.kmeans.assign.plan import ARGMIN
from tsapps.apps.kmeans.bounds.plan import (
    BOUNDED,
    DRIFT,
    FRESH_BYTES,
    SKIP_FULL_ASSIGN,
    fresh_bounds_state,
    most_listed,
)

PLAIN, UNTIL_PASS, SCREEN, ACTIVE = range(4)
#: Features and clusters: short rows, rows of one and a half steps of `assign_active_rows`, and long ones in pieces.
SHAPES = [(3, 2), (16, 9), (40, 33), (130, 64), (300, 5)]


def bounds_source(d, k):
    return f"""
extern "C" void select_active_rows_{d}_{k}(const float* row_bounds, const int* labels, long long n, const float* limits,
                               unsigned* active, long long capacity, kmeans::BoundsState* state, unsigned* arrived,
                               const int* stopped) {{
  cuda_host::launch(dim3({BLOCKS}), kmeans::kSelectThreads, 0, [=] {{
    kmeans::select_active_rows<int>(row_bounds, labels, n, limits, active, (unsigned)capacity, state, arrived, stopped);
  }});
}}
extern "C" void assign_active_rows_{d}_{k}(const void* half_copy, const void* centers_half, long long padded,
                                           const unsigned* active,
                                const kmeans::ArgminEpilogueBounded* nearest, long long lists) {{
  const kmeans::ArgminEpilogueBounded bounds = *nearest;
  cuda_host::launch(dim3(lists, 2), kmeans::kActiveThreads, 0, [=] {{
    kmeans::assign_active_rows<{-(-k // 8)}>(static_cast<const ptx::Half*>(half_copy),
    static_cast<const ptx::Half*>(centers_half),
                                  (int)padded, active, bounds);
  }});
}}"""


WATCH_SOURCE = """
extern "C" void choose(kmeans::BoundsState* state, long long found, long long capacity) {
  state->choose((unsigned)found, (unsigned)capacity);
}
extern "C" void plan_next(kmeans::BoundsState* state, double movement, long long may_begin, long long is_next) {
  state->plan_next(movement, may_begin != 0, is_next != 0);
}
extern "C" void limit_of(double n_reassigned, double most, float* limits) {
  limits[0] = kmeans::limit_of(n_reassigned, most);
  limits[1] = kmeans::below_limit(limits[0]);
}
"""


@cache
def bounded():
    return harness.Libraries({shape: partial(source, *shape) for shape in SHAPES})


def source(d, k):
    products = [product_source(d, k, name, "bounds/assign.cuh") for name in ("ArgminEpilogueBounded", "ArgminEpilogue")]
    return "\n".join([*products, bounds_source(d, k), WATCH_SOURCE])


class BoundedIterations(Iterations):
    """Iterations with bounds; `state` is what is known, `row_bounds` those of all rows."""

    bounds = True

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.state, self.row_bounds = fresh_bounds_state().reshape(1), np.full(self.n, np.nan, np.float32)
        self.moved_by, self.limits = np.zeros(self.k), np.zeros(self.k, np.float32)
        self.begins_with(self.n)
        self.passes = []

    def begins_with(self, n_reassigned):
        """Let bounds begin where no more rows have moved."""
        addresses = (one.ctypes.data for one in (self.moved_by, self.limits, self.state))
        self.motion = np.array((*addresses, n_reassigned + 1, 0), DRIFT)

    def begin(self):
        """Begin anew, as with centers that no iteration made."""
        self.state.view(np.uint8)[:FRESH_BYTES] = fresh_bounds_state().reshape(1).view(np.uint8)[:FRESH_BYTES]
        self.moved_by[:], self.limits[:] = 0, 0

    def next_is(self, one):
        """Let the next iteration do what one of the passes is."""
        self.state["pass"], self.state["skip_full_assign"] = one, one != PLAIN

    def select_active_rows(self, listed):
        """List the rows that are not safe; return their numbers."""
        active, arrived = np.full(listed + 1, 2**32 - 1, np.uint32), np.zeros(1, np.uint32)
        listed_in = active, listed, self.state, arrived, self.stopped
        bounded()[self.d, self.k].call(
            f"select_active_rows_{self.d}_{self.k}", self.row_bounds, self.labels, self.n, self.limits, *listed_in
        )
        assert not arrived.any()
        assert active[listed] == 2**32 - 1
        return active

    def score(self, nearest, workspace, lists, room):
        """Launch all of what may list rows; one of them does."""
        library, shape = bounded()[self.d, self.k], f"{self.d}_{self.k}"
        state = self.state.ctypes.data
        bounds = np.array((*nearest, self.row_bounds.ctypes.data, self.limits.ctypes.data, state), BOUNDED)
        active = self.select_active_rows(most_listed(self.n, lists, room))
        self.passes.append(int(self.state["pass"][0]))
        library.call(
            f"assign_active_rows_{shape}", self.half_copy, self.centers_half, self.padded, active, bounds, lists
        )
        # What scores all rows without bounds does something if no other does.
        every = np.array(nearest, ARGMIN)
        every["stopped"] = self.state.ctypes.data + SKIP_FULL_ASSIGN
        for name, epilogue in (("ArgminEpilogueBounded", bounds), ("ArgminEpilogue", every)):
            product = self.half_copy, self.centers_half, self.n, epilogue, *workspace, lists
            library.call(f"assign_{name}_{shape}", *product)


def gaps(of, centers):
    """Return how much nearer each row is to its own center than to any other, in float64 and scaled units."""
    distances = np.sqrt(oracle.square_distances(of.centered, centers.astype(of.work)))
    rows = np.arange(of.n)
    own = distances[rows, of.labels]
    distances[rows, of.labels] = np.inf
    return (distances.min(axis=1) - own) * of.scale


def _moved(found):
    """Return how many rows moved, of what iterations give: that, or it beside the rows in doubt."""
    return found[1] if isinstance(found, tuple) else found


def _assert_idle(of, centers):
    """What follows of an iteration does nothing once it stops."""
    before = of.labels.copy(), of.sums.copy()
    # Neither are rows in doubt, where that is told as well.
    assert of.move_rows(np.ascontiguousarray(centers), stopped=1) in (0, (0, 0))
    np.testing.assert_array_equal(of.labels, before[0])
    np.testing.assert_array_equal(of.sums, before[1])


def run(of, centers, iterations):
    """Return the labels, the sums and the outcome of every iteration, as the engine makes them."""
    found, n_reassigned = [], _moved(of.iterate(centers))
    for _ in range(iterations):
        labels, sums = of.labels.copy(), of.sums.copy()
        outcome, following = of.update_centers(centers, n_reassigned)
        found.append((labels, sums, outcome.copy(), following))
        if outcome["stop"]:
            _assert_idle(of, following)
            break
        centers = following
        n_reassigned = _moved(of.move_rows(centers))
    return found


def assert_same_bits(bounds, plain, centers):
    """Iterations with bounds find what those without do: more than it takes, so that labels settle, and begun anew."""
    assert_same(run(bounds, centers, 12), run(plain, centers, 12))
    bounds.begin()
    assert_same(run(bounds, centers, 3), run(plain, centers, 3))


def assert_nothing_is_done(of, centers):
    """None of the passes that bounds have a part in does anything once iterations stop."""
    for now in (UNTIL_PASS, SCREEN, ACTIVE):
        of.next_is(now)
        row_bounds = of.row_bounds.copy()
        _assert_idle(of, centers)
        assert of.state["pass"] == now
        np.testing.assert_array_equal(of.row_bounds, row_bounds)


def assert_same(ours, theirs):
    """Two that `run` gave are the same to the bit."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)
        if not one[2]["empty"]:
            np.testing.assert_array_equal(one[3], other[3])
