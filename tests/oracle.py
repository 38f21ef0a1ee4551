"""Shared references and tolerances of tests: float64 NumPy, independent of the code under test."""

import ml_dtypes
import numpy as np


def gamma(operations: int, dtype) -> float:
    """Return Higham's γ_q = q·u / (1 − q·u), the relative error bound of q successive roundings."""
    q_u = operations * np.finfo(dtype).eps / 2
    return q_u / (1 - q_u)


def product_tolerance(A, B):
    """Return the error bound of each element of A · B, (m, w): Higham's, plus one rounding for 16-bit types."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    magnitude, k = abs(a) @ abs(b), A.shape[1]
    if A.dtype == np.float64:
        return gamma(k + 8, np.float64) * magnitude
    found = (gamma(2 * k + 8, np.float32) + 2.0**-18) * magnitude
    if A.itemsize == 2:
        kind = ml_dtypes.finfo(A.dtype)
        found = found * 1.01 + float(kind.eps) / 2 * abs(a @ b) + float(kind.smallest_subnormal) / 2
    return found


def square_distances(X, centers):
    """Return ‖x − c‖² (n, k) computed from differences in float64."""
    X, centers = np.asarray(X, np.float64), np.asarray(centers, np.float64)
    return (
        ((X[:, np.newaxis, :] - centers) ** 2).sum(axis=2)
        if X.size * len(centers) < 1e8
        else np.stack([((X - c) ** 2).sum(axis=1) for c in centers], axis=1)
    )


def whole_numbers(*arrays):
    """Return arrays of finite floats times 2^exponent, as Python's integers, whose sums are exact; and the exponent."""
    parts = [np.frexp(np.asarray(array, np.float64)) for array in arrays]
    exponent = 53 - min(int(powers[mantissas != 0].min(initial=0)) for mantissas, powers in parts)
    shift = np.frompyfunc(lambda number, power: int(number) << int(power), 2, 1)
    shifts = (np.where(mantissas == 0, 0, exponent - 53 + powers) for mantissas, powers in parts)
    return *(
        shift(np.ldexp(mantissas, 53), power) for (mantissas, _), power in zip(parts, shifts, strict=True)
    ), exponent


def lloyd_step(X, centers, weights=None):
    """Return (labels, new centers) of one Lloyd iteration in float64; an empty cluster keeps its center."""
    labels = square_distances(X, centers).argmin(axis=1)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
    new = np.array(centers, np.float64)
    for j in range(len(centers)):
        mine = labels == j
        if weights[mine].sum() > 0:
            new[j] = np.average(np.asarray(X, np.float64)[mine], axis=0, weights=weights[mine])
    return labels, new


def assert_nearest(X, centers, labels, dtype, slack=0.0):
    """Assert that every label is a nearest center, up to the rounding of the score in `dtype`.

    With X centered, the score ‖c‖² − 2·x·c has d + 2 roundings of terms of at most ‖c‖² + 2‖x‖‖c‖; centering rounds x
    and c once more. `slack` is the maximum distance of the centers used for the labels from `centers`.
    """
    X = np.asarray(X, np.float64)
    mean = X.mean(axis=0)
    distances = square_distances(X, centers)
    rows = np.arange(len(X))
    excess = distances[rows, labels] - distances.min(axis=1)
    norm_x = np.linalg.norm(X - mean, axis=1)
    norm_c = np.linalg.norm(np.asarray(centers, np.float64) - mean, axis=1).max()
    magnitude = np.linalg.norm(X, axis=1).max() + np.linalg.norm(mean)
    rounding = 2 * gamma(X.shape[1] + 4, dtype) * (norm_c**2 + 2 * norm_x * norm_c + magnitude * (norm_x + norm_c))
    moved = 2 * slack * (2 * np.sqrt(distances[rows, labels]) + slack)
    late = excess - rounding - moved
    worst = late.argmax()
    assert late[worst] <= 0, f"row {worst} has label {labels[worst]}, which is {excess[worst]} farther than the nearest"


def assert_same_fit(actual, expected, X):
    """Assert that two fitted estimators (arrays of any library) found the same clustering, up to rounding in the dtype.

    In float64, and in float32 on small data, iterations and all labels must be equal. Over many samples scikit-learn's
    float32 result depends on its number of threads: each thread has its own float32 partial sum of up to n numbers. On
    china.jpg (273,280 samples, k = 16), one thread and two differ by an iteration for two of twelve seeds, and by up to
    2e-4 in inertia. TSKMeans sums in float64 and must be as close as that.
    """
    dtype = np.asarray(expected.cluster_centers_).dtype
    labels, centers = np.asarray(host(actual.labels_)), np.asarray(host(actual.cluster_centers_))
    assert labels.dtype == np.int32
    assert centers.dtype == dtype
    if dtype == np.float32 and len(X) > 100_000:
        assert abs(actual.n_iter_ - expected.n_iter_) <= 1
        np.testing.assert_allclose(actual.inertia_, expected.inertia_, rtol=2e-4)
        slack = np.linalg.norm(centers - expected.cluster_centers_, axis=1).max()
        assert slack < 0.01 * np.std(X)
        assert_nearest(X, expected.cluster_centers_, labels, dtype, slack)
        assert np.mean(labels != expected.labels_) < 0.01
        return
    assert actual.n_iter_ == expected.n_iter_
    np.testing.assert_array_equal(labels, expected.labels_)
    scale = np.abs(np.asarray(X, np.float64)).max()
    # Rounding errors have random signs: the error of a sum of n terms grows as √n.
    tolerance = 4 * np.sqrt(len(X)) * np.finfo(dtype).eps
    np.testing.assert_allclose(centers, expected.cluster_centers_, rtol=0, atol=tolerance * scale)
    np.testing.assert_allclose(actual.inertia_, expected.inertia_, rtol=tolerance)


def host(array):
    """Copy a NumPy, CuPy or torch array to host memory."""
    return array.get() if hasattr(array, "get") else array.cpu() if hasattr(array, "cpu") else array
