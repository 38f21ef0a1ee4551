"""Labels of the Lloyd step on the CPU, against distances in whole numbers."""

import numpy as np
import pytest

from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines import host_step

# A small X is labeled with the product of scikit-learn: `step_of` makes every X a large one.
MANY = 3000  # rows


@pytest.fixture
def step_of(monkeypatch):
    monkeypatch.setattr(HostData, "is_small", False)
    return lambda X: host_step.HostStep(HostData(ArrayRows(X, "X"), X.dtype, None))


def reference(X, centers):
    """Return the first nearest center of each row, and ‖x − c‖² − ‖x‖², in integers."""
    rows, points = X.astype(np.int64), centers.astype(np.int64)
    scores = ((rows[:, np.newaxis] - points) ** 2).sum(axis=2) - (rows**2).sum(axis=1, keepdims=True)
    return scores.argmin(axis=1), scores.min(axis=1)


# Sums of integers are exact, so ties are ties. 16 features, and 16 or 32 centers, are the most that count as few.
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [1, 2, 16, 17])
@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 32, 33])
def test_labels_scores_and_sums(step_of, rng, dtype, d, k):
    X = rng.integers(-3, 4, (MANY, d)).astype(dtype)
    centers = X[rng.integers(0, MANY, k)]  # some are equal
    step = step_of(X)
    found = step.assign(centers, potential=True)
    labels, scores = reference(X, centers)
    np.testing.assert_array_equal(step.labels, labels)
    assert found.potential == scores.sum()
    for cluster in range(k):
        np.testing.assert_array_equal(found.sums[cluster], X[labels == cluster].sum(axis=0))


@pytest.mark.parametrize("d", [2, 17])
def test_all_centers_are_equal(step_of, rng, d):
    X = rng.standard_normal((MANY, d)).astype(np.float32)
    step = step_of(X)
    step.assign(np.repeat(X[:1], 32, axis=0))
    assert not step.labels.any()
