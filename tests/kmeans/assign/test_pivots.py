"""Rescoring by the triangle inequality: steps on a HostMachine whose rows float16 cannot tell from many centers."""

from pathlib import Path

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from kmeans.host_steps import DTYPES, KINDS, assert_right, place
from kmeans.large_k_steps import SPLITS, STAYS, STREAMS, candidates, step_of

from tsapps.apps.kmeans.assign import pivots
from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.pivots import Pivots
from tsapps.kernels.jit.compiler import build

FOLDER = Path(pivots.__file__).parent
MOST_NEAR, ROWS_PER_CENTER = 128, 2


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(pivots, "_LEAST", 0)


def groups(sizes, d, rng, near=1e-6, apart=8.0):
    """Return centers in groups of these sizes, whose members are so near each other that float16 holds them equal."""
    places = apart * rng.standard_normal((len(sizes), d))
    centers = np.repeat(places, sizes, axis=0)
    return centers + near * rng.standard_normal(centers.shape), np.repeat(np.arange(len(sizes)), sizes)


def assign_by_pivots(step, centers):
    """Assign, launch by launch.

    Returns
    -------
    listed : int
        The number of rows without candidates.
    found : list of int
        The nearest centers that pivots gave some of these rows.
    """
    product, distances, by_pivot, rescore, *update = step._bind_rows(place(step, centers))
    product()
    listed = int((candidates(step) == 0).sum())
    for launch in (distances, by_pivot):
        launch()
    of_rows = {}
    words = step._ambiguous.view(np.uint32).reshape(len(step._lengths[0]), step._capacity, -1)
    for some, (_, _, every) in zip(words, step._lengths[0], strict=True):
        for row, _, packed, *_ in some[::-1][:every].tolist():
            if packed % 2**16 == 1:
                of_rows[row] = packed >> 16
    for launch in (rescore, *update):
        launch()
    assert all(step.labels[row] == center for row, center in of_rows.items())
    return listed, of_rows


KINDS_HERE = [KINDS[0], KINDS[1], KINDS[4]]


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", KINDS_HERE, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), [STAYS, STREAMS, SPLITS[2]], ids=["stays", "streams", "splits"])
def test_labels_and_sums(d, plan, kind, rng):
    """Groups of 30 centers, of which each row is left with its own."""
    centers, group = groups([30] * 5, d, rng, near=1e-4 if kind[0] == "float16" else 1e-6)
    n = 500
    X = (centers[rng.integers(0, len(centers), n)] + 1e-3 * rng.standard_normal((n, d))).astype(DTYPES[kind[0]])
    X = X.astype(np.float64)
    weights = rng.random(n) * 3 if kind[2] else None
    step = step_of(X, len(centers), kind, plan, weights)
    for turn in range(2):  # in the first, rows have no labels
        now = centers + 1e-7 * rng.standard_normal(centers.shape)
        listed, found = assign_by_pivots(step, now)
        assert_right(step, now)
        assert listed > ROWS_PER_CENTER * len(centers), turn
        assert len(found) == listed
        rows = np.array(list(found))
        assert (group[step.labels[rows]] == oracle.square_distances(X[rows], centers[::30]).argmin(axis=1)).all()


@pytest.mark.parametrize(("size", "left"), [(MOST_NEAR, True), (MOST_NEAR + 1, False)])
def test_as_many_centers_as_a_warp_compares(size, left, rng):
    d, plan = STAYS
    centers, _ = groups([size, 9, 9], d, rng)
    X = centers[rng.integers(0, size, 300)] + 1e-3 * rng.standard_normal((300, d))
    step = step_of(X, len(centers), KINDS[0], plan)
    listed, found = assign_by_pivots(step, centers)
    assert listed == 300
    assert len(found) == (300 if left else 0)
    assert_right(step, centers)


def test_few_rows_take_no_pivots(rng):
    d, plan = STAYS
    centers, _ = groups([30] * 5, d, rng)
    n = ROWS_PER_CENTER * len(centers)
    X = centers[rng.integers(0, 30, n + 1)] + 1e-3 * rng.standard_normal((n + 1, d))
    for rows, expected in ((X[:-1], 0), (X, n + 1)):
        step = step_of(rows, len(centers), KINDS[0], plan)
        listed, found = assign_by_pivots(step, centers)
        assert (listed, len(found)) == (len(rows), expected)
        assert_right(step, centers)


def test_pivots_far_from_their_rows(rng):
    """Labels of the last iteration that are centers of another group: nothing is excluded, and labels are right."""
    d, plan = STAYS
    centers, _ = groups([70, 70], d, rng)
    X = centers[rng.integers(0, 70, 300)] + 1e-3 * rng.standard_normal((300, d))
    step = step_of(X, len(centers), KINDS[0], plan)
    assign_by_pivots(step, centers)
    listed, found = assign_by_pivots(step, centers[::-1].copy())
    assert listed == 300
    assert not found
    assert_right(step, centers[::-1])


def test_rows_beyond_the_norm_limit(rng):
    """They have no candidates at all; those that the first center leaves many centers, a block compares with all."""
    d, plan = STAYS
    centers, _ = groups([30] * 5, d, rng)
    X = centers[rng.integers(0, len(centers), 400)] + 1e-3 * rng.standard_normal((400, d))
    X[::10] *= 1e6
    step = step_of(X, len(centers), KINDS[0], plan, middle=8.0)
    for _ in range(2):
        listed, found = assign_by_pivots(step, centers)
        assert listed == 400
        assert len(found) == 360
        assert_right(step, centers)


@pytest.mark.parametrize("k", [130, 256, 300])
def test_distances_of_centers(k, rng):
    d, plan = 37, StreamPlan(1, 3, 2, 3, 2)
    centers = 10.0 ** rng.uniform(-3, 3, (k, 1)) * rng.standard_normal((k, d))
    centers[5] = centers[77]
    X = np.repeat(1e-3 * rng.standard_normal((1, d)), 900, axis=0)
    step = step_of(X, k, KINDS[0], plan)
    step._lengths[...] = 0
    step._lengths[0, :, 2] = -(-(ROWS_PER_CENTER * k + 1) // len(step._lengths[0]))
    _, distances, *_ = step._bind_rows(place(step, centers))
    distances()
    between, known = step._pivots._between
    wide = centers.astype(np.float32).astype(np.float64)
    expected = oracle.square_distances(wide, wide)
    assert known[0] == 1
    np.testing.assert_allclose(between, expected, rtol=oracle.gamma(d + 4, np.float32), atol=0)


def test_a_limit_is_twice_the_distance():
    """By hand, on a line: x = 1.5 has the pivot 0, at 1.5; centers up to 3 from it are left, if only by rounding."""
    k, d = 70, 3
    centers = np.zeros((k, d))
    centers[:, 0] = np.concatenate([[0, 3 + 1e-6, 2.9999998, 1, -2.5, 3.1], 100 + np.arange(k - 6)])
    X = np.zeros((200, d))
    X[:, 0] = 1.5
    step = step_of(X, k, KINDS[0], StreamPlan(1, 1, 2, 3, 2))
    *_, by_pivot, _, _ = step._bind_rows(place(step, centers))
    step._lengths[...] = 0
    step._lengths[0, 0, 2] = 1
    between, known = step._pivots._between
    between[...], known[0] = oracle.square_distances(centers, centers), 1
    entry = step._ambiguous.view(np.uint32).reshape(len(step._lengths[0]), step._capacity, -1)[0, -1]
    entry[:3] = 7, 0, 0
    by_pivot()
    assert (entry[0], entry[2] % 2**16, entry[2] >> 16) == (7, 1, 3)


@property_test(
    2,
    200,
    d=st.integers(1, 90),
    sizes=st.lists(st.integers(1, 60), min_size=3, max_size=8),
    near=st.floats(1e-8, 1e-1),
    spread=st.floats(1e-8, 1.0),
    away=st.sampled_from([0.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_any_groups(d, sizes, near, spread, away, seed):
    rng = np.random.default_rng(seed)
    centers, _ = groups([*sizes, 70], d, rng, near=near)
    centers = centers + away
    X = centers[rng.integers(0, len(centers), 600)] + spread * rng.standard_normal((600, d))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pivots, "_LEAST", 0)
        step = step_of(X, len(centers), KINDS[0], StreamPlan(-(-d // 16), 1, 4, 5, 2))
        for _ in range(2):
            assign_by_pivots(step, centers)
            assert_right(step, centers)


def test_serves(rng, monkeypatch):
    step = step_of(rng.standard_normal((200, 20)), 140, KINDS[0], StreamPlan(2, 1, 2, 3, 2))
    assert Pivots.serves(step.data, 4096)
    assert not Pivots.serves(step.data, 4097)
    monkeypatch.setattr(pivots, "_LEAST", 200 * 20 * 140 + 1)
    assert not Pivots.serves(step.data, 140)
    assert Pivots.serves(step.data, 141)
    wide = step_of(rng.standard_normal((200, 20)), 140, KINDS[3], StreamPlan(2, 1, 2, 3, 2))
    assert not Pivots.serves(wide.data, 4096)


@pytest.mark.compile
@pytest.mark.parametrize("element", ["float", "ptx::Half", "ptx::Bfloat16"])
def test_compiles_without_spills(element):
    kernels = {
        "center_distances.cuh": ["kmeans::center_distances"],
        "rescore_by_pivot.cuh": [f"kmeans::rescore_by_pivot<{element}, {most}>" for most in (11, 27)],
    }
    for file, names in kernels.items():
        for kernel, used in build((FOLDER / file).read_text(encoding="utf-8"), names, "sm_90a").resources.items():
            assert used.stack == used.spill_stores == used.spill_loads == 0, kernel


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_on_a_gpu(dtype, rng):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps.apps.kmeans.open_engine import open_engine

    n, d = 150_000, 512
    centers, _ = groups([40] * 25, d, rng, near=1e-3 if dtype == "float16" else 1e-5)
    X = (centers[rng.integers(0, len(centers), n)] + 1e-2 * rng.standard_normal((n, d))).astype(dtype)
    with open_engine(cupy.asarray(X)) as engine:
        engine.center(np.zeros(d), len(centers))
        step = engine.step_for(len(centers))
        for _ in range(2):
            now = (centers + 1e-6 * rng.standard_normal(centers.shape)).astype(np.float32)
            step.assign(now)
            assert int(step._pivots._between[1][0]) == 1
            some = rng.integers(0, n, 2000)
            distances = oracle.square_distances(X[some].astype(np.float32) - oracle.host(engine.data.shift), now)
            own = distances[np.arange(2000), oracle.host(step.labels)[some]]
            assert (own <= distances.min(axis=1) * (1 + 1e-12)).all()
