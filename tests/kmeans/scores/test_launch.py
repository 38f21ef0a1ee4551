"""Scores by kernels, whose launcher runs on the CPU, beside those by blocks of rows in float64."""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
from exhaustive import every
from host_cuda import harness
from host_cuda.machine import HostMachine, build_together, placed

from tsapps.apps.kmeans import number_of_clusters
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.scores import plan as scores_plan
from tsapps.apps.kmeans.scores.by_blocks import scores_of
from tsapps.apps.kmeans.scores.indices import Labeled
from tsapps.apps.kmeans.scores.launch import is_supported, kernels_of, request_kernels, scores_on_gpu
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of, build
from tsapps.kernels.plan.mma import ELEMENT

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {name: np.dtype(name) for name in ("float32", "float16")} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
H200 = KNOWN["H200"]
NAMES = "simplified_silhouette", "calinski_harabasz", "davies_bouldin"
# A library for the kernels of each file that small and usual cases have.
for each, features in itertools.product(DTYPES, (4, 16, 64)):
    for source, names in kernels_of(ELEMENT[each], features, H200):
        build_together([(source, [name for name in names if not re.search(r", (16|28), |<(16|28)>|, 132>", name)])])


def found_by(X, found, sample, machine=None, offset=0):
    """Return scores by kernels."""
    return scores_on_gpu(machine or HostMachine(), placed(X, offset), np.asarray(sample), found)


def expected_of(X, found, sample):
    wide = X.astype(np.float64)
    return scores_of(lambda: iter([(0, wide)]), np.asarray(sample), found)


def clustering(X, k, rng, *, spare=0):
    """Return k clusters about rows, and as many empty ones as `spare`, far away."""
    wide = X.astype(np.float32).astype(np.float64)
    centers = wide[rng.choice(len(X), k, replace=False)] + 0.25
    labels = ((wide[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1) if wide.size * k < 1e7 else None
    empty = np.full((spare, X.shape[1]), 1e3)
    return Labeled(np.concatenate([centers, empty]).astype(np.float32).astype(np.float64), labels.astype(np.int32))


def drawn(n, d, dtype, rng):
    centers = 4 * rng.standard_normal((5, d))
    return (centers[rng.integers(0, 5, n)] + rng.standard_normal((n, d))).astype(DTYPES[dtype])


def distance_error(d):
    """Bound the relative error of a sum of distances: of each, of its two parts, and of sums of kFlushTiles tiles.

    Distances from products are off by the largest error that they may have, and by that of rows about an origin.
    """
    each = oracle.gamma(d + 4, np.float32) + 2.0**-23 + 2.0**-17
    if 8 < d <= 64:
        each += scores_plan.DISTANCE_ERROR * (1 + 1 / 16)
    return float(each) + 64 * 2 * 2 * 2.0**-23


def compare(found, expected, d):
    for one, other in zip(found, expected, strict=True):
        # |Δ(b − a) / max(a, b)| is at most twice the relative errors of a and b.
        error = 2.1 * distance_error(d)
        np.testing.assert_allclose(one.of_sample, other.of_sample, rtol=0, atol=error)
        assert one.silhouette == pytest.approx(other.silhouette, abs=error, nan_ok=True)
        for name in NAMES:
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=error, nan_ok=True), name


def test_by_hand():
    """Rows 0, 1 | 4, 6: a = 1, 1, 2, 2 and b = 5, 4, 3.5, 5.5; centers 0.5 and 5."""
    X, labels = np.array([[0], [1], [4], [6]], np.float32), np.array([0, 0, 1, 1], np.int32)
    (one,) = found_by(X, [Labeled(np.array([[0.5], [5]]), labels)], range(4))
    assert one.of_sample.tolist() == pytest.approx([4 / 5, 3 / 4, 1.5 / 3.5, 3.5 / 5.5], rel=1e-6)
    assert one.simplified_silhouette == pytest.approx(np.mean([4.5 / 5, 3.5 / 4, 2.5 / 3.5, 4.5 / 5.5]), rel=1e-6)
    assert one.davies_bouldin == pytest.approx((0.5 + 1) / 4.5, rel=1e-6)
    between = 2 * (0.5 - 2.75) ** 2 + 2 * (5 - 2.75) ** 2
    assert one.calinski_harabasz == pytest.approx(between / (2.5 / 2), rel=1e-6)


def test_edges():
    rows = np.array([[0], [1], [9]], np.float32)
    (alone,) = found_by(rows, [Labeled(np.array([[0.5], [9]]), np.array([0, 0, 1], np.int32))], range(3))
    assert alone.of_sample[2] == 0
    undefined = [Labeled(rows.astype(float), np.arange(3)), Labeled(rows[:1].astype(float), np.zeros(3, np.int32))]
    assert all(np.isnan(one.silhouette) for one in found_by(rows, undefined, range(3)))
    for value in (3, 0.1):  # in float32, a mean of equal rows may differ from them
        same = Labeled(np.full((2, 1), value), (np.arange(700) % 3 == 0).astype(np.int32))
        (one,) = found_by(np.full((700, 1), value, np.float32), [same], [1, 5, 600])
        assert (one.silhouette, one.davies_bouldin) == (0, 0)
        assert one.simplified_silhouette == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize(
    ("n", "d", "ks", "sampled"),
    [
        (300, 1, (2, 5), 40),
        (333, 3, (2, 3, 4, 7), 333),
        (260, 16, (3, 20), 129),
        (700, 13, (2, 40, 60), 50),
        (700, 13, (2, 40, 60, 110), 50),
        (350, 32, (2, 5), 100),
        (301, 40, (2, 3, 9), 33),
        (290, 64, (2, 3), 30),
        (270, 65, (4, 2), 140),
        (257, 200, (3, 40), 20),
    ],
)
def test_scores(n, d, ks, sampled, dtype, offset, rng):
    X = drawn(n, d, dtype, rng)
    found = [clustering(X, k, rng, spare=k % 2) for k in ks]
    sample = np.sort(rng.choice(n, sampled, replace=False))
    compare(found_by(X, found, sample, offset=offset), expected_of(X, found, sample), d)


def test_clusters_of_one_row_and_rows_that_are_equal(rng):
    X = drawn(40, 5, "float32", rng)
    found = [clustering(X, 4, rng), Labeled(X[:35].astype(float), np.arange(40, dtype=np.int32) % 35)]
    compare(found_by(X, found, range(40)), expected_of(X, found, range(40)), 5)
    repeated = np.repeat(X, 3, axis=0)
    found = [clustering(repeated, 4, rng), Labeled(X.astype(float), np.arange(120, dtype=np.int32) // 3)]
    compare(found_by(repeated, found, range(120)), expected_of(repeated, found, range(120)), 5)


def test_two_equal_centers(rng):
    """Of a row at both, the simplified silhouette is 0, without a difference of large squares."""
    X = np.repeat(100 + drawn(20, 3, "float32", rng), 2, axis=0)
    (one,) = found_by(X, [Labeled(X[:30].astype(float), np.arange(40, dtype=np.int32) % 30)], range(40))
    distances = np.sqrt(((X[:, None].astype(float) - X[None, :30]) ** 2).sum(axis=2))
    rows = np.arange(40)
    a = distances[rows, rows % 30]
    distances[rows, rows % 30] = np.inf
    b = distances.min(axis=1)
    larger = np.maximum(a, b)
    assert one.simplified_silhouette == pytest.approx(((b - a) / np.where(larger > 0, larger, 1)).mean(), abs=1e-6)


def test_features_in_chunks_and_sums_in_global_memory(rng, monkeypatch):
    small = replace(H200, shared_memory=96 << 10, shared_memory_per_block=96 << 10)
    X = drawn(270, 130, "float32", rng)
    found = [clustering(X, k, rng) for k in (2, 30)]
    plan = scores_plan.sums_plan(270, 130, 128, 32, 2, distances=True, device=small)
    assert (plan.chunk, plan.pitch) == (108, 108)
    monkeypatch.setitem(scores_plan._PARTS, 0, 35)  # so that little shared memory is left to each
    assert scores_plan.spreads_plan(270, 130, 32, 2, device=small).scratch > 0
    monkeypatch.setattr(scores_plan, "_PARTIAL_BYTES", 0)  # so that a large sample is taken in parts
    sample = np.arange(270)
    compare(found_by(X, found, sample, HostMachine(gpu=small)), expected_of(X, found, sample), 130)


@pytest.mark.parametrize("far", [0, 1e5])
def test_many_rows_of_a_range(far, rng):
    """Several additions to the partial sums of a range, and rows far from zero."""
    X = (far + drawn(5000, 2, "float32", rng)).astype(np.float32)
    found = [clustering(X, k, rng) for k in (2, 6)]
    plan = scores_plan.sums_plan(5000, 2, 9, 8, 2, distances=True, device=replace(H200, multiprocessors=2))
    assert plan.range_tiles > 64
    compare(found_by(X, found, range(0, 5000, 600)), expected_of(X, found, range(0, 5000, 600)), 2)


@pytest.mark.parametrize("d", [7, 20])
@pytest.mark.parametrize("seed", every(1, [1, 2, 3]))
def test_scores_have_the_same_bits_on_every_run(seed, d, rng):
    X = drawn(500, d, "float32", rng)
    found, sample = [clustering(X, k, rng) for k in (2, 9)], np.arange(0, 500, 7)
    expected = found_by(X, found, sample)
    with harness.schedule(seed=seed, threads=1 + seed % 2):
        again = found_by(X, found, sample)
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one.of_sample, other.of_sample)
        assert [getattr(one, name) for name in NAMES] == [getattr(other, name) for name in NAMES]


def test_what_is_too_large_for_float32_is_not_finite(rng):
    X = 1e30 * drawn(64, 2, "float32", rng)
    found = [Labeled(X[:2].astype(float), np.arange(64, dtype=np.int32) % 2)]
    with np.errstate(all="ignore"):
        (one,) = found_by(X, found, range(10))
    assert not np.isfinite(one.silhouette)


def test_arrays_that_are_supported():
    machine = HostMachine()
    assert all(is_supported(machine, np.zeros((3, 2), dtype)) for dtype in DTYPES.values())
    for other in (np.zeros((3, 2)), np.zeros((3, 2), np.int32), np.zeros((2, 3), np.float32).T):
        assert not is_supported(machine, other)
    assert not is_supported(HostMachine(gpu=KNOWN["V100"]), np.zeros((3, 2), np.float32))


def test_choices_among_rows_on_a_gpu_take_kernels(rng, monkeypatch):
    X, machine = drawn(300, 3, "float32", rng), HostMachine()
    monkeypatch.setattr(number_of_clusters, "cuda_machine", lambda index: machine)
    monkeypatch.setattr(number_of_clusters, "blocks_of", None)
    rows = ArrayRows(placed(X))
    rows.device = 0
    labeled = {k: clustering(X, k, rng) for k in (2, 4)}
    fits = {
        k: SimpleNamespace(centers=one.centers, labels=one.labels, inertia=1.0, n_iter=2, converged=True)
        for k, one in labeled.items()
    }
    choice = number_of_clusters.scored(rows, fits, metric="euclidean", sample=100, seed=1)
    sample = number_of_clusters.drawn_rows(300, 100, 1)
    expected = expected_of(X, list(labeled.values()), sample)
    assert [one.silhouette for one in choice.scores] == pytest.approx([one.silhouette for one in expected], abs=1e-4)


def test_plans():
    plan = scores_plan.sums_plan(10**6, 64, 1000, 209, 19, distances=True, device=H200)
    assert (plan.tiles, plan.chunk, plan.pitch, plan.grid) == (28, 64, 68, (8, 1, 33))
    assert (plan.kernel, plan.arguments) == ("distances_by_cluster", "28, 4")
    for gpu in KNOWN.values():
        if float(gpu.compute_capability) < 8:
            continue
        for d in (1, 3, 9, 32, 64, 70, 72, 76, 300, 10_000):
            for columns in (2, 65, 130, 225, 4000):
                for distances in (True, False):
                    points = 1000 if distances else d + 1
                    plan = scores_plan.sums_plan(10**5, d, points, columns, 90, distances=distances, device=gpu)
                    assert plan.shared_bytes <= gpu.shared_memory_per_block
                    assert (plan.steps > 0) == (distances and 8 < d <= 64)
                    assert plan.steps == 0 or 16 * plan.steps >= d
                    assert plan.pitch % 8 == 4
                    assert plan.pitch >= plan.chunk > 0
                    assert plan.chunk % 4 == 0
                    assert plan.grid[1] * 8 * plan.tiles >= columns
                    assert plan.grid[2] * plan.range_tiles * 32 >= 10**5
            row_plan = scores_plan.row_scores_plan(10**5, d, 90, device=gpu)
            assert row_plan.shared_bytes <= gpu.shared_memory_per_block
    with pytest.raises(ValueError, match="got 9999 clusterings"):
        scores_plan.row_scores_plan(10**5, 3, 9999, device=H200)


@pytest.mark.compile
@pytest.mark.each_choice
@pytest.mark.parametrize("gpu", ["A100", "L4", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_spill_nothing(gpu, dtype):
    spec = KNOWN[gpu]
    for features in (4, 16, 64):
        for source, names in kernels_of(ELEMENT[dtype], features, spec):
            text = source.read_text(encoding="utf-8")
            for name, used in build(text, names, architecture_of(spec.compute_capability)).resources.items():
                assert max(used.stack, used.spill_stores, used.spill_loads) == 0, (name, used)


def test_kernels_are_requested_before_they_are_needed(rng, monkeypatch):
    """All that scores launch: `choose_k` requests them before the fits, so that they compile meanwhile."""
    X, machine, requested = drawn(300, 3, "float32", rng), HostMachine(), []
    kernels = machine.kernels
    monkeypatch.setattr(machine, "kernels", lambda *given: requested.append(given) or kernels(*given))
    request_kernels(machine, placed(X), (1, 2, 4, 300), 100)
    before = set(requested)
    assert len(before) == 7
    found_by(X, [clustering(X, k, rng) for k in (2, 4)], range(100), machine)
    assert set(requested) == before
