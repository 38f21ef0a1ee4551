"""Experiments of the TSM2 paper, and what it reports of them.

J. Chen et al.: TSM2: Optimizing Tall-and-Skinny Matrix-Matrix Multiplication on GPUs. ICS 2019.
"""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["EXPERIMENTS", "PAPER", "Case", "Reported", "cases", "range_text"]

#: The experiments, and what each compares.
EXPERIMENTS = {
    "versions": "TSM2 V1 to V3 with the version before: squares of 10240 to 30720 rows, times 2 to 16 columns",
    "bandwidth": "V3 and tsapps.matmul with cuBLAS: the same products",
    "kmeans": "K-means with its own engine on cuBLAS: 1024 to 262144 rows, 4096 features, 16 clusters",
    "checksums": "checksums of a matrix with cuBLAS: squares of 1024 to 30720 rows, two weights",
}

# Least, mean and largest; the paper does not say every mean.
Range = tuple[float, float | None, float]


@dataclass(frozen=True)
class Reported:
    """What the paper reports of one comparison.

    Attributes
    ----------
    device : str
    speedup : tuple of float
        Least, mean (or None) and largest speed-up over the baseline.
    points : tuple of float, optional
        The same of the memory bandwidth, in percentage points of the GPU's peak above the baseline's.
    """

    device: str
    speedup: Range
    points: Range | None = None


def range_text(values: Range) -> str:
    """Return a range of the paper as text, such as 1.1 to 3, mean 2.15."""
    least, mean, most = values
    return f"{least:g} to {most:g}" + ("" if mean is None else f", mean {mean:g}")


#: What the paper reports, by experiment, kernel and baseline.
PAPER = {
    ("versions", "tsm2_v1", "tsm2_v0"): Reported("Tesla K40c", (2.2, None, 4.7)),
    ("versions", "tsm2_v2", "tsm2_v1"): Reported("Tesla K40c", (1.1, None, 2.1)),
    ("versions", "tsm2_v3", "tsm2_v2"): Reported("Tesla K40c", (1.3, None, 3.5)),
    ("bandwidth", "tsm2_v3", "cublas"): Reported("Tesla P100", (1.1, 2.15, 3.0), (17.0, 34.7, 47.6)),
    ("bandwidth", "tsapps", "cublas"): Reported("Tesla P100", (1.1, 2.15, 3.0), (17.0, 34.7, 47.6)),
    ("kmeans", "tsapps", "cublas"): Reported("Tesla K40c", (1.06, 1.53, 1.89)),
    ("checksums", "tsapps", "cublas"): Reported("Tesla K40c", (1.10, 1.67, 1.90)),
}


@dataclass(frozen=True)
class Case:
    """One size of an experiment.

    Attributes
    ----------
    experiment : str
        One of `EXPERIMENTS`.
    m, k, n : int
        Products (m × k) · (k × n); of K-means, m samples with k features and n clusters; of checksums, a matrix m × k
        and n weights.
    dtype : str
    """

    experiment: str
    m: int
    k: int
    n: int
    dtype: str

    @property
    def name(self) -> str:
        """Return what is printed of the case."""
        return f"{self.experiment} {self.size}"

    @property
    def size(self) -> str:
        """Return the sizes and the dtype as text."""
        return f"{self.m} × {self.k} · {self.n} {self.dtype}"

    @property
    def needed_bytes(self) -> int:
        """Return the bytes of memory that the case needs, at most: the matrix twice, as it is drawn or copied."""
        return 2 * self.m * self.k * (8 if self.dtype == "float64" else 4) + (1 << 30)


_SIDES, _WIDTHS = (10_240, 15_360, 20_480, 25_600, 30_720), (2, 4, 8, 16)
_SAMPLES, _FEATURES, _CLUSTERS = tuple(1 << i for i in range(10, 19)), 4096, 16
_MATRICES = (1024, 2048, 4096, 7168, *_SIDES)


def cases(experiment: str) -> Iterator[Case]:
    """Yield the sizes of an experiment."""
    if experiment == "kmeans":
        for m in _SAMPLES:
            yield Case(experiment, m, _FEATURES, _CLUSTERS, "float64")
    elif experiment == "checksums":
        for m in _MATRICES:
            yield Case(experiment, m, m, 2, "float64")
    else:
        for dtype in ("float32", "float64"):
            for m in _SIDES:
                for n in _WIDTHS:
                    yield Case(experiment, m, m, n, dtype)
