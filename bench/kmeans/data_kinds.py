"""Kinds of data for K-means benchmarks: heavy tails, uneven clusters, no clusters, and files that scikit-learn ships.

Functions take `xp`, which is NumPy or CuPy.
"""

from typing import Any

import numpy as np

__all__ = ["KINDS", "OUTLIERS", "draw"]

#: Kinds of data by name. Middles of clusters are 0.6 times standard normal points.
KINDS: dict[str, str] = {
    "mixture": "clusters of equal size and spread",
    "zipf": "populations of clusters by Zipf's law, spreads from 0.2 to 1.7",
    "outliers": "0.1 % of the rows of a mixture multiplied by 1,000",
    "student": "Student's t with two degrees of freedom about the middles",
    "uniform": "uniform in a cube: no clusters",
    "embeddings": "rows of norm 1 whose features fall off as a power law, as embeddings do",
    "counts": "small non-negative integers, most of them zero",
    "scales": "a mixture whose features are scaled by 10⁻³ to 10³",
    "offset": "a mixture that is 3,000 from the origin in every feature",
    "many-outliers": "1 % of the rows of a mixture multiplied by 10",
    "rare-outliers": "0.001 % of the rows of a mixture multiplied by 10⁸",
    "lognormal": "exponentials of a mixture: log-normal features",
    "descriptors": "integers from 0 to 255 with a limit of the norm, as SIFT descriptors have",
    "sorted": "a mixture in the order of its clusters",
    "duplicates": "4 k distinct rows, each of them many times",
    "wide-scales": "a mixture whose features are scaled by 10⁻⁶ to 10⁶",
    "constant-features": "a mixture in which every second feature is constant",
    "digits": "scikit-learn's images of digits, 1797 × 64, repeated",
    "breast-cancer": "scikit-learn's table of that name, 569 × 30, repeated",
    "china": "windows of d values of scikit-learn's china.jpg, 273,280 pixels of 3 values, repeated",
}
#: Kinds with outliers: the share of the rows, and their factor.
OUTLIERS: dict[str, tuple[float, int]] = {
    "outliers": (1e-3, 1000),
    "many-outliers": (1e-2, 10),
    "rare-outliers": (1e-5, 10**8),
}
_SCALES = {"scales": 3, "wide-scales": 6}
_TABLES = ("digits", "breast-cancer")
# Kinds whose rows are in an order: initial centers are random rows, not the first.
_IN_ORDER = ("sorted", *_TABLES, "china")
# Rows drawn at a time; rows read from files at a time.
_BLOCK, _FILE_BLOCK = 1 << 20, 1 << 18
# Descriptors: factor of the elements, largest element, limit of the norm at one feature (at 128, it is 509).
_FACTOR, _LARGEST, _NORM = 55, 255, 45


def draw(kind: str, n: int, d: int, k: int, seed: int, xp: Any) -> tuple[Any, Any]:
    """Draw float32 data of a kind, (n, d), and initial centers, (k, d): rows of the data.

    The initial centers are the first k rows, or k random rows if the rows are in an order. Rows from files are in the
    order of the file. If n is larger than the file, the file repeats. If a table has more than d columns, the d columns
    of largest variance are used; if it has fewer, a row consists of several rows of the table.
    """
    if kind in _TABLES:
        X = _table_rows(kind, n, d, xp)
    elif kind == "china":
        X = _photo_rows(n, d, xp)
    else:
        X = _drawn_rows(kind, n, d, k, seed, xp)
    if kind in _IN_ORDER:
        return X, X[xp.asarray(np.random.default_rng(seed).choice(n, k, replace=False))]
    return X, X[:k].copy()


def _drawn_rows(kind: str, n: int, d: int, k: int, seed: int, xp: Any) -> Any:
    """Return random rows of a kind, (n, d)."""
    rng = xp.random.default_rng(seed)
    if kind == "duplicates":
        distinct = _drawn_rows("mixture", min(n, 4 * k), d, k, seed + 1, xp)
        return distinct[rng.integers(0, len(distinct), n)]
    middles = np.float32(0.6) * rng.standard_normal((k, d), dtype=np.float32)
    X = xp.empty((n, d), np.float32)
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        if kind == "sorted":
            clusters = (start + xp.arange(size)) * k // n
        else:
            clusters = _zipf_clusters(rng, size, k, xp) if kind == "zipf" else rng.integers(0, k, size)
        noise = rng.standard_normal((size, d), dtype=np.float32)
        X[start : start + size] = _rows(kind, rng, middles[clusters], noise, clusters / k, xp)
    return X


def _zipf_clusters(rng: Any, size: int, k: int, xp: Any) -> Any:
    shares = xp.arange(1, k + 1, dtype=np.float64) ** -1.1
    return xp.searchsorted(xp.cumsum(shares / shares.sum()), rng.random(size)).clip(0, k - 1)


def _rows(kind: str, rng: Any, middles: Any, noise: Any, place: Any, xp: Any) -> Any:
    """Return rows of a kind about `middles`; `place` is each row's cluster as a number from 0 to 1."""
    size, d = noise.shape
    if kind == "zipf":
        return noise * (0.2 + 1.5 * place)[:, np.newaxis] + middles
    if kind in OUTLIERS:
        share, factor = OUTLIERS[kind]
        far = (rng.random(size) < share)[:, np.newaxis]
        return xp.where(far, factor, 1) * (noise + middles)
    if kind == "student":
        # In float32, an exponential variate may be zero.
        variates = xp.maximum(rng.standard_exponential((size, d), dtype=np.float32), np.float32(2.0**-24))
        return noise / xp.sqrt(variates) + middles
    if kind == "uniform":
        return rng.random((size, d), dtype=np.float32)
    if kind == "embeddings":
        rows = (0.8 * noise + middles / 0.6) * xp.arange(1, d + 1, dtype=np.float32) ** -0.7
        return rows / xp.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "counts":
        return xp.floor(3 * (1 + xp.abs(middles)) * rng.random((size, d), dtype=np.float32) ** 12 + 0.2)
    if kind in _SCALES:
        return (noise + middles) * xp.logspace(-_SCALES[kind], _SCALES[kind], d, dtype=np.float32)
    if kind == "offset":
        return 0.5 * noise + middles + 3000
    rows = noise + middles
    if kind == "lognormal":
        return xp.exp(rows)
    if kind == "descriptors":
        return _descriptors(rows, xp)
    if kind == "constant-features":
        rows[:, 1::2] = xp.arange(1, d, 2, dtype=np.float32)
    return rows


def _descriptors(rows: Any, xp: Any) -> Any:
    """Return non-negative integers of limited norm: the positive elements of the rows, scaled and rounded down."""
    rows = _FACTOR * xp.maximum(rows, 0)
    norms = xp.linalg.norm(rows, axis=1, keepdims=True)
    limit = _NORM * float(np.sqrt(rows.shape[1]))
    return xp.minimum(xp.floor(rows * xp.minimum(1, limit / xp.maximum(norms, 1))), _LARGEST)


def _table_rows(kind: str, n: int, d: int, xp: Any) -> Any:
    """Return rows of a table that scikit-learn ships, (n, d)."""
    from sklearn import datasets

    table = (datasets.load_digits() if kind == "digits" else datasets.load_breast_cancer()).data
    length, width = table.shape
    if d < width:
        table = table[:, np.sort(np.argsort(-table.var(axis=0), kind="stable")[:d])]
        width = d
    values, X = xp.asarray(table.astype(np.float32)), xp.empty((n, d), np.float32)
    for start in range(0, n, _FILE_BLOCK):
        row = xp.arange(start, min(n, start + _FILE_BLOCK))
        for part, begin in enumerate(range(0, d, width)):
            # In each repetition of the table, another row of it stands next to a row.
            other = (row + part * (row // length + 1)) % length
            X[start : start + len(row), begin : begin + width] = values[other][:, : d - begin]
    return X


def _photo_rows(n: int, d: int, xp: Any) -> Any:
    """Return d adjacent values of a photograph for each row, (n, d); each row begins at the next pixel."""
    from sklearn.datasets import load_sample_image

    photo = load_sample_image("china.jpg").reshape(-1)
    pixels = len(photo) // 3
    values, X = xp.asarray(np.resize(photo, len(photo) + d).astype(np.float32)), xp.empty((n, d), np.float32)
    for start in range(0, n, _FILE_BLOCK):
        row = xp.arange(start, min(n, start + _FILE_BLOCK))
        X[start : start + len(row)] = values[3 * (row % pixels)[:, np.newaxis] + xp.arange(d)]
    return X
