"""Assignments to clusters of limited sizes, for tests: problems, and references apart from the code under test."""

from itertools import product

import numpy as np
import oracle
from scipy.optimize import linprog

from tsapps.apps.kmeans.balanced.costs import Costs
from tsapps.apps.kmeans.open_engine import open_engine


def costs_of(X, centers):
    """Return the costs of samples, which are not centered."""
    data = open_engine(np.asarray(X, float), device="cpu").data
    return Costs(data, np.asarray(centers, float), data.square_norm())


def rounding(X, centers):
    """Return a bound of the rounding errors of Σ ‖x − c‖² over n samples, as ‖x‖² − 2·x·c + ‖c‖² in float64."""
    X, centers = np.asarray(X, float), np.asarray(centers, float)
    largest = (np.linalg.norm(X, axis=1) + np.linalg.norm(centers, axis=1).max()) ** 2
    return oracle.gamma(X.shape[1] + 4, np.float64) * largest.sum() + oracle.gamma(len(X), np.float64) * largest.sum()


def lowest_by_enumeration(X, centers, limits):
    """Return the lowest cost of all assignments within the limits, by trying every one."""
    squares, (n, k) = oracle.square_distances(X, centers), (len(X), len(centers))
    every = np.array(list(product(range(k), repeat=n)))
    sizes = (every[:, :, np.newaxis] == np.arange(k)).sum(axis=1)
    allowed = every[((sizes >= limits.lower) & (sizes <= limits.upper)).all(axis=1)]
    return squares[np.arange(n), allowed].sum(axis=1).min()


def lowest_by_linear_program(X, centers, limits):
    """Return the lowest cost of all assignments within the limits, by a linear program of all pairs."""
    squares, (n, k) = oracle.square_distances(X, centers), (len(X), len(centers))
    of_sample, of_cluster = np.kron(np.eye(n), np.ones(k)), np.kron(np.ones(n), np.eye(k))
    at_most = np.concatenate([np.full(k, limits.upper), np.full(k, -limits.lower)])
    scale = squares.max() or 1.0
    found = linprog(
        squares.ravel() / scale,
        A_ub=np.concatenate([of_cluster, -of_cluster]),
        b_ub=at_most,
        A_eq=of_sample,
        b_eq=np.ones(n),
    )
    assert found.status == 0
    return found.fun * scale


def assert_within(limits, labels, k):
    """Assert that the sizes of k clusters are within the limits."""
    assert labels.min() >= 0
    assert labels.max() < k
    sizes = np.bincount(labels, minlength=k)
    assert limits.lower <= sizes.min()
    assert sizes.max() <= limits.upper
