"""Fits of bench/kmeans/small.py, and results that it does not record."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from tsapps.bench.kmeans import small as kmeans_small
from tsapps.bench.kmeans.problems import Shape


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_wrong_fits_are_rejected(dtype):
    X = kmeans_small.draw(Shape(1000, 5, 4, dtype), seed=3)
    assert (X.shape, X.dtype) == ((1000, 5), dtype)
    fitted = KMeans(4, random_state=0).fit(X)
    kmeans_small.check(X, fitted)
    fitted.labels_[7] = (fitted.labels_[7] + 1) % 4
    with pytest.raises(ValueError, match="1 samples are nearer to another center"):
        kmeans_small.check(X, fitted)
    fitted = KMeans(4, random_state=0).fit(X)
    fitted.inertia_ *= 1.001
    with pytest.raises(ValueError, match="the inertia is"):
        kmeans_small.check(X, fitted)


def test_first_fit_is_not_timed():
    made, times = [], iter([1.0, 3.0, 2.0])

    class Clock:
        def wall_ms(self, call):
            return next(times), call()

    ms, last = kmeans_small.timed(lambda: made.append(0) or len(made), 3, Clock())
    assert ms == pytest.approx(2.0)
    assert (last, next(times, None)) == (4, None)


def test_each_shape_has_both_dtypes():
    assert len(set(kmeans_small.SHAPES)) == len(kmeans_small.SHAPES) == 12
    assert np.unique([one.dtype for one in kmeans_small.SHAPES], return_counts=True)[1].tolist() == [6, 6]
