"""The cells of the fault-injection campaign: what is damaged, how, and what became of it, in numbers.

A cell is one target, code, dtype, distribution and fault. at_rest.py, product.py and kmeans.py try it; here is
what they share: the distributions, the counts and their confidence intervals. All of it is pure.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from zlib import crc32

import numpy as np

__all__ = [
    "CLEAN",
    "DISTRIBUTIONS",
    "DTYPES",
    "FIELDS",
    "KEY",
    "LEVEL",
    "TRIALS",
    "Cell",
    "Counts",
    "P",
    "bits_of",
    "cells",
    "draw",
    "flipped",
    "interval",
    "numpy_dtype",
    "record_of",
]

DTYPES = ("float64", "float32", "float16", "bfloat16")
DISTRIBUTIONS = ("normal", "uniform", "lognormal", "sparse", "cancelling", "wide")
#: Trials of a cell, or of each bit where one is flipped; units that are clean, over the distributions of a dtype.
TRIALS, CLEAN = 200, 1_000_000
#: The confidence of every interval; the false-alarm rate of an element that statistical thresholds are calibrated for.
LEVEL, P = 0.95, 1e-6

#: Shapes at rest: blocks in the matrix's own columns; rows folded; words dealt out, with a million columns
#: (interleave.py).
PLAIN, FOLDED, FLAT = (1024, 8192), (524_288, 16), (8, 1_048_576)
#: Of the float code: 256 tiles of 256 × 256.
TILED = (4096, 4096)
#: Of a small matrix is the sidecar; of C are rows, columns and the depth.
SMALL, ROWS_OF_C, COLUMNS_OF_C, DEPTH = (700, 40), 16_384, 16, 64

_COUNT = (int,)
#: The fields of a record besides `record.COMMON`, and those that name it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("target", "code", "dtype", "distribution", "fault"), (str,)),
    **dict.fromkeys(("m", "n", "seed"), _COUNT),
    **dict.fromkeys(("trials", "detected", "located", "repaired", "miscorrected"), _COUNT),
    **dict.fromkeys(("harmless", "certain", "certain_detected", "certain_repaired"), _COUNT),
    **dict.fromkeys(("clean", "false_alarms"), _COUNT),
    "bits": (list,),
    "k": (int, type(None)),
    "threshold_ratio": (float, type(None)),
    "intervals": (dict,),
}
KEY = ("what", "engine", "target", "code", "dtype", "distribution", "fault", "m", "n")


@dataclass(frozen=True)
class Cell:
    """What is tried.

    Attributes
    ----------
    target : {"at-rest", "sidecar", "product", "mid-product", "judged", "kmeans"}
        A matrix after it was encoded; the file of its checksums; C = A · B after it was computed, by `check_product`;
        its sums before they are rounded, by `matmul`; elements without a fault, of which all are judged, as are those
        of rows that are suspected; a protected fit.
    code : str
        "exact" or "float"; of a sidecar "sha256"; of products the threshold, "proven" or "statistical"; of K-means the
        engine, "numpy" or "cublas".
    dtype, distribution : str
    fault : {"none", "bit", "two-bits", "word", "two-words", "tile", "rectangle"}
        One bit or two of an element; 32 bits by any others, of products an element by any other; two such words in one
        block or tile; a square of zeros; +δ −δ −δ +δ. "none" looks for false alarms. Of K-means those of
        `kmeans_faults`, and when they come.
    m, n : int
        Of the matrix at rest, or of C.
    """

    target: str
    code: str
    dtype: str
    distribution: str
    fault: str
    m: int
    n: int

    @property
    def engines(self) -> tuple[str, ...]:
        """Where it can be tried: the float code verifies on the CPU, and sums are within reach only there."""
        if self.target == "kmeans":
            return ("cpu",) if self.code == "numpy" else ("cuda",)
        anywhere = self.code == "exact" or self.target == "product" or (self.target, self.fault) == NO_FAULT_ON_ITS_WAY
        return ("cpu", "cuda") if anywhere else ("cpu",)

    def generator(self, seed: int, *, data: bool = False) -> np.random.Generator:
        """Return the random numbers of this cell, of its faults or of what cells with the same data share."""
        name = (self.target, self.code, self.dtype, self.distribution, self.m, self.n)
        return np.random.default_rng([seed, crc32(repr(name if data else (*name, self.fault)).encode())])


NO_FAULT_ON_ITS_WAY = ("mid-product", "none")


@dataclass
class Counts:
    """What became of the trials of a cell.

    Attributes
    ----------
    trials : int
        Faults by which some bit changed.
    detected, located, repaired, miscorrected : int
        Trials that were seen; of which just the wrong elements were named; whose bytes are as they were (of products:
        off by no more than rounding); of which something was replaced by what it was not.
    harmless : int
        Trials that left all that counts as it should be: a product within the proven bound, a sidecar that says the
        same.
    certain, certain_detected, certain_repaired : int
        Trials that must be detected by what is proved, and those of them that were, and were repaired. At rest, by the
        exact code: one word or two of a block.
    clean, false_alarms : int
        What was not damaged, and what of it was reported. At rest: blocks; of matrices without a fault, by the float
        code, weighted sums. Of products: elements; beside faults only those of rows in which something was named, as
        each of these was judged by itself.
    bits : set of int
        That were flipped.
    threshold_ratio : float or None
        What elements of a clean product may be off by, over what they are off by: root mean squares of both.
    """

    trials: int = 0
    detected: int = 0
    located: int = 0
    repaired: int = 0
    miscorrected: int = 0
    harmless: int = 0
    certain: int = 0
    certain_detected: int = 0
    certain_repaired: int = 0
    clean: int = 0
    false_alarms: int = 0
    bits: set[int] = field(default_factory=set)
    threshold_ratio: float | None = None

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The confidence interval of every rate."""
        of_trials = {
            name: interval(getattr(self, name), self.trials)
            for name in ("detected", "located", "repaired", "miscorrected")
        }
        of_certain = {
            name: interval(getattr(self, name), self.certain) for name in ("certain_detected", "certain_repaired")
        }
        return {**of_trials, **of_certain, "false_alarms": interval(self.false_alarms, self.clean)}


def record_of(cell: Cell, counts: Counts, seed: int) -> dict[str, Any]:
    """Return the fields of a cell's record, `record.COMMON` apart."""
    k = DEPTH if cell.target in ("product", "mid-product", "judged") else None
    intervals = {name: list(ends) for name, ends in counts.intervals.items()}
    of_counts = asdict(counts) | {"bits": sorted(counts.bits), "intervals": intervals}
    return {"what": "abft-campaign", **asdict(cell), "k": k, **of_counts, "seed": seed}


def interval(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the interval that holds a rate with a confidence of at least `level`.

    Source: C. Clopper and E. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika (1934).

    Raises
    ------
    ValueError
        If there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; expected 0 to {trials}")
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def cells() -> Iterator[Cell]:
    """Yield every cell, those with the same data after each other."""
    for dtype in DTYPES:
        for distribution in DISTRIBUTIONS:
            for target, code, faults, (m, n) in _KINDS:
                for fault in faults:
                    yield Cell(target, code, dtype, distribution, fault, m, n)


_ANYWHERE = ("bit", "two-bits", "word", "two-words")
_OF_C = ("none", "bit", "two-bits", "word", "tile", "rectangle")
_KINDS: tuple[tuple[str, str, tuple[str, ...], tuple[int, int]], ...] = (
    ("at-rest", "exact", ("none", *_ANYWHERE, "tile", "rectangle"), PLAIN),
    ("at-rest", "exact", _ANYWHERE, FOLDED),
    ("at-rest", "exact", _ANYWHERE, FLAT),
    ("at-rest", "float", ("none", *_ANYWHERE, "tile", "rectangle"), TILED),
    ("sidecar", "sha256", ("bit", "two-bits", "word", "tile", "rectangle"), SMALL),
    *(
        (target, code, _OF_C, (ROWS_OF_C, COLUMNS_OF_C))
        for target in ("product", "mid-product")
        for code in ("proven", "statistical")
    ),
    ("judged", "statistical", ("none",), (ROWS_OF_C, COLUMNS_OF_C)),
)


def numpy_dtype(name: str) -> np.dtype:
    """Return a dtype by its name, bfloat16 too."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def bits_of(name: str) -> int:
    """Return how many bits an element of a dtype has."""
    return 8 * numpy_dtype(name).itemsize


def draw(distribution: str, shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Return a matrix.

    Parameters
    ----------
    distribution : str
        "normal" and "uniform" (0 to 1); "lognormal", positive with a long tail; "sparse", normal but nine of ten zero;
        "cancelling", about 1 and −1 in turn along a row, so that sums are small beside what they are of: within 10⁻³,
        in 16 bits, which have few numbers nearer, 0.3; "wide", normal times 2⁻⁸ … 2³.
    shape : (int, int)
    dtype : str
    rng : numpy.random.Generator
    """
    kind: type[np.float64 | np.float32] = np.float64 if dtype == "float64" else np.float32
    x = rng.random(shape, kind) if distribution == "uniform" else rng.standard_normal(shape, kind)
    if distribution == "lognormal":
        np.exp(x, out=x)
    elif distribution == "sparse":
        x *= rng.integers(0, 10, shape, np.uint8) == 0
    elif distribution == "cancelling":
        x *= kind(0.3 if bits_of(dtype) == 16 else 1e-3)
        x += 1
        x[:, 1::2] *= -1
    elif distribution == "wide":
        np.ldexp(x, rng.integers(-8, 4, shape, np.int8), out=x)
    return x.astype(numpy_dtype(dtype), copy=False)


def flipped(fault: str, width: int, trials: int, rng: np.random.Generator) -> tuple[np.ndarray, set[int]]:
    """Return what is flipped in words of `width` bits, (trials,) uint64, and the bits of "bit" and "two-bits".

    All bits come in turn. A "word" is any other.
    """
    if fault == "word":
        return rng.integers(1, 2**width - 1, trials, np.uint64, endpoint=True), set()
    bits = np.arange(trials) % width
    masks = np.uint64(1) << bits.astype(np.uint64)
    if fault == "two-bits":
        others = (bits + rng.integers(1, width, trials)) % width
        masks |= np.uint64(1) << others.astype(np.uint64)
    return masks, set(bits.tolist())
