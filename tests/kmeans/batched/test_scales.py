"""Means, tolerances and scales of batched problems, their own kernel run on the CPU."""

import numpy as np
from kmeans.batches import batch_of

from tsapps.apps.kmeans.data.plan import half_copy_scale


def test_scales_by_hand():
    X = np.array([[[1.0, -4], [3, 4]], [[0, 5], [0, 5]], [[1000, 1], [0, 0]]])
    batch = batch_of(X, 1, tol=0.5)
    assert batch.arrays["means"].tolist() == [[2, 0], [0, 5], [500, 0.5]]
    assert batch.arrays["tolerances"].tolist() == [0.5 * 8.5, 0, 0.5 * (500**2 + 0.5**2) / 2]
    assert batch.arrays["narrow"].tolist() == [1, 1, 1]
    # Bounds of |x − mean| are |x − x₀| + |x₀ − mean|: 3 and 12, 0 and 0, 1500 and 1.5.
    assert batch.arrays["sum_scales"].tolist() == [[2.0**28, 2.0**26], [2.0**30, 2.0**30], [2.0**19, 2.0**29]]
    # Root mean squares: 2.9, 0 and 353.6.
    assert batch.arrays["half_copy_scales"].tolist() == [4, 1, 2.0**-4]


def test_scales_of_each_problem(rng):
    magnitudes = 10.0 ** rng.uniform(-12, 12, (12, 1, 1))
    spreads = 10.0 ** rng.uniform(-3, 3, (12, 1, 20))
    X = magnitudes * (rng.standard_normal((12, 4000, 20)) * spreads + rng.standard_normal((12, 1, 20)))
    X[:6, 100, 3] = 1e6 * abs(X[:6]).max(axis=(1, 2))
    # Scales of all features, or of one, that float32 does not represent with their inverses.
    X[6] *= 1e34 / magnitudes[6]
    X[7] *= 1e-33 / magnitudes[7]
    X[8, :, 2] *= 1e-36 / magnitudes[8, 0]
    X = X.astype(np.float32)
    batch = batch_of(X, 1, tol=0.25)
    exact = X.astype(np.float64)
    np.testing.assert_allclose(batch.arrays["means"], exact.mean(axis=1), rtol=1e-6, atol=0)
    np.testing.assert_allclose(batch.arrays["tolerances"], exact.var(axis=1).mean(axis=1) / 4, rtol=1e-10)
    away = abs(exact - batch.arrays["means"][:, np.newaxis])
    rms, largest = np.sqrt((away**2).mean(axis=(1, 2))), away.max(axis=1)
    exponents = np.log2(largest)
    narrow = (largest.max(axis=1) <= 256 * rms) & (abs(exponents) < 96).all(axis=1)
    assert narrow.tolist() == 9 * [False] + 3 * [True]
    assert batch.arrays["narrow"].astype(bool).tolist() == narrow.tolist()
    assert batch.arrays["half_copy_scales"].tolist() == [half_copy_scale(one) for one in rms]
    elements = largest * batch.arrays["sum_scales"]
    limits = np.where(narrow, 2.0**30, 2.0**46)[:, np.newaxis]
    assert (elements <= limits).all()
    assert (elements >= limits / 8).all()  # the bounds of |x − mean| are at most four times as large
    assert (batch.arrays["sum_scales"] * batch.arrays["sum_units"] == 1).all()
