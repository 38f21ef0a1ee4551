"""Limits of cluster sizes, and what prices that keep to them cost."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Limits", "limits_of"]


@dataclass(frozen=True)
class Limits:
    """Every cluster has at least `lower` and at most `upper` samples."""

    lower: int
    upper: int

    def hold(self, sizes: np.ndarray) -> bool:
        """Return True if cluster sizes, (k,), are within the limits."""
        return bool((sizes >= self.lower).all() and (sizes <= self.upper).all())

    def paid(self, prices: np.ndarray) -> float:
        """Return the largest Σ price · size over all sizes within the limits."""
        return float(self.upper * np.maximum(prices, 0).sum() + self.lower * np.minimum(prices, 0).sum())


def limits_of(n_samples: int, n_clusters: int, least: int, most: int | None) -> Limits:
    """Return the limits for `n_clusters` clusters of `n_samples` samples together.

    Parameters
    ----------
    n_samples, n_clusters : int
    least : int
    most : int or None
        None means ⌈n_samples / n_clusters⌉.

    Raises
    ------
    ValueError
        If no sizes are within the limits.
    """
    numbers = f"n_samples={n_samples}, n_clusters={n_clusters}"
    if n_samples < n_clusters:
        raise ValueError(f"{numbers}; expected at least as many samples as clusters")
    if n_samples < n_clusters * least:
        raise ValueError(
            f"min_cluster_size={least} needs {n_clusters * least} samples, but {numbers}; "
            f"expected at most {n_samples // n_clusters}"
        )
    smallest = -(-n_samples // n_clusters)
    most = smallest if most is None else most
    if most < smallest:
        raise ValueError(
            f"max_cluster_size={most} leaves room for {n_clusters * most} samples, but {numbers}; "
            f"expected at least {smallest}"
        )
    if most < least:
        raise ValueError(f"max_cluster_size={most} is below min_cluster_size={least}")
    return Limits(least, most)
