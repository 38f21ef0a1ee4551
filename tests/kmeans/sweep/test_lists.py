"""What label_fits lists, on a HostMachine: rows that are ambiguous or have a new label, with the candidates of each."""

import numpy as np
import pytest
from kmeans.sweep.test_fit import opened, overlapping

from tsapps.apps.kmeans.assign.plan import tensor_error
from tsapps.apps.kmeans.prepare import scaled_into_range
from tsapps.apps.kmeans.sweep.iterations import Iterations
from tsapps.apps.kmeans.sweep.plan import groups_of

_ENTRY = np.dtype([("row", "u4"), ("label", "i4"), ("low", "u4"), ("high", "u4")])


def iterated(X, numbers, max_iter):
    """Return iterations that have ended, and for each fit its labels and the centers that follow, by which they are."""
    engine = opened(X)
    with engine:
        scaled, moments, _ = scaled_into_range(engine)
        assert scaled is engine
        engine.selections(moments.mean, numbers)
        engine.center(moments.mean, numbers[0])
        data = engine.data
        (plan,) = groups_of(*X.shape, numbers, data.gpu, 1 << 40)
        found = Iterations(data, plan)
        rng = np.random.default_rng(5)
        starts = [data.rows(np.sort(rng.choice(len(X), k, replace=False))) for k in numbers]
        found.bind(0.0)
        runs = found.run(starts, max_iter)
    return engine, found, [(run.labels[: len(X)], run.centers) for run, _ in runs]


def listed(iterations, n):
    """Return the entries of each fit that a launch of label_fits lists."""
    of, plan = iterations._buffers, iterations._plan
    of.stopped[...] = 0
    of.counts[...] = 0
    iterations._label_rows()
    assert (of.counts[:, :-1].sum(axis=1) == of.counts[:, -1]).all()
    entries = of.entries.view(_ENTRY).reshape(of.fits, plan.lists, plan.capacity)
    return [
        np.concatenate([entries[fit, i, :count] for i, count in enumerate(of.counts[fit, :-1])])
        for fit in range(of.fits)
    ]


def candidates_of(entry):
    """Return the candidate centers of an entry, as ambiguous_row.cuh has their bits."""
    bits = [place for place in range(64) if (int(entry["low"]) | int(entry["high"]) << 32) >> place & 1]
    return sorted(8 * (place % 16 // 2) + 2 * (place // 16) + place % 2 for place in bits)


@pytest.mark.parametrize(
    ("n", "d", "numbers"), [(700, 16, (24, 21, 20, 13, 9, 8, 5, 3, 2)), (321, 40, (33, 25, 24, 2)), (500, 6, (7, 4, 2))]
)
def test_only_rows_that_are_ambiguous(n, d, numbers, rng):
    X = overlapping(n, d, 7, rng).astype(np.float32)
    engine, iterations, found = iterated(X, numbers, 3)
    rows = X.astype(np.float64) - engine.data.host_mean()
    half_copy = iterations._half_copy
    gamma, scale = tensor_error(d), half_copy.placement.scale
    norms, some = np.linalg.norm(rows, axis=1) * scale, 0
    for (labels, centers), entries in zip(found, listed(iterations, n), strict=True):
        wide = centers.astype(np.float64)
        scores = (rows @ wide.T - (wide**2).sum(axis=1) / 2) * scale**2
        most = np.linalg.norm(wide, axis=1).max() * scale
        # E of small_k.cuh, with ‖c − ĉ‖ at most 2⁻¹¹ of max(‖c‖, 1), and twice what float32 may add to it.
        lost = 1.05 / 2048 * max(most, 1)
        bound = norms * (half_copy.rounding * most + lost + gamma * (most + lost)) + (gamma + 2.0**-22) * most**2 / 2
        gaps = scores.max(axis=1)[:, None] - scores
        for entry in entries:
            row = int(entry["row"])
            assert entry["label"] == labels[row]
            candidates = candidates_of(entry)
            assert labels[row] in candidates
            assert len(candidates) > 1  # no label is new
            assert (gaps[row, candidates] <= 2.02 * bound[row] + 1e-6).all()
        assert len(set(entries["row"].tolist())) == len(entries) < n
        some += len(entries)
    assert some > 0
