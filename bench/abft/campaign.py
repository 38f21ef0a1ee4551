"""Cells of the fault-injection campaign: distributions, outcome counts and confidence intervals. All of it is pure.

A cell is one target, code, dtype, distribution and fault. at_rest.py, product.py and kmeans.py run the cells.
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
#: Trials of a cell, or per bit for bit flips; clean units per dtype, summed over the distributions.
TRIALS, CLEAN = 200, 1_000_000
#: Confidence level of all intervals; false-positive rate per element for which statistical thresholds are calibrated.
LEVEL, P = 0.95, 1e-6

#: Shapes at rest: blocks of the matrix's own columns; folded rows; words interleaved over a million columns
#: (interleave.py).
PLAIN, FOLDED, FLAT = (1024, 8192), (524_288, 16), (8, 1_048_576)
#: Shape for the float code: 256 tiles of 256 × 256.
TILED = (4096, 4096)
#: Shape of the matrix for sidecars; rows, columns and depth of C.
SMALL, ROWS_OF_C, COLUMNS_OF_C, DEPTH = (700, 40), 16_384, 16, 64

_COUNT = (int,)
#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
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
    """One experiment of the campaign.

    Attributes
    ----------
    target : {"at-rest", "sidecar", "product", "mid-product", "judged", "kmeans"}
        "at-rest": a matrix after encoding. "sidecar": the file of its checksums. "product": C = A · B after it is
        computed, checked by `check_product`. "mid-product": the sums of C before rounding, checked by `matmul`.
        "judged": all elements of a product without a fault, tested like those of flagged rows. "kmeans": a protected
        fit.
    code : str
        "exact" or "float"; "sha256" for a sidecar; the threshold for products, "proven" or "statistical"; the engine
        for K-means, "numpy" or "cublas".
    dtype, distribution : str
    fault : {"none", "bit", "two-bits", "word", "two-words", "tile", "rectangle"}
        "bit", "two-bits": flips in one element. "word": 32 random bits, or a random element of a product.
        "two-words": two of these in one block or tile. "tile": a square of zeros. "rectangle": +δ −δ −δ +δ at its
        corners. "none": a clean run, which counts false positives. K-means: a fault of kmeans/faults.py, its time.
    m, n : int
        Shape of the matrix at rest, or of C.
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
        """Devices that can run it: the float code verifies on the CPU, where alone faults can reach running sums."""
        if self.target == "kmeans":
            return ("cpu",) if self.code == "numpy" else ("cuda",)
        anywhere = self.code == "exact" or self.target == "product" or (self.target, self.fault) == NO_FAULT_ON_ITS_WAY
        return ("cpu", "cuda") if anywhere else ("cpu",)

    def generator(self, seed: int, *, data: bool = False) -> np.random.Generator:
        """Return a random generator for the faults of this cell, or for the data shared by cells on the same matrix."""
        name = (self.target, self.code, self.dtype, self.distribution, self.m, self.n)
        return np.random.default_rng([seed, crc32(repr(name if data else (*name, self.fault)).encode())])


NO_FAULT_ON_ITS_WAY = ("mid-product", "none")


@dataclass
class Counts:
    """Outcome counts of a cell.

    Attributes
    ----------
    trials : int
        Faults that changed at least one bit.
    detected, located, repaired, miscorrected : int
        Trials that were detected; that named exactly the corrupted elements; that restored the bytes (products: to
        within rounding); that replaced an element by a wrong value.
    harmless : int
        Trials without consequences: a product within the proven bound, or a sidecar with the same content.
    certain, certain_detected, certain_repaired : int
        Trials whose detection is guaranteed, and how many of them were detected and repaired. At rest with the exact
        code: one or two corrupted words in a block.
    clean, false_alarms : int
        Clean units, and those reported as corrupted. At rest: blocks; for the float code, weighted sums of matrices
        without a fault. Products: elements; next to faults, only elements of rows in which an element was named, since
        the check tests each element of such a row.
    bits : set of int
        Flipped bits.
    threshold_ratio : float or None
        Ratio of root mean squares in a clean product: allowed error over actual error of elements.
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
        """Return the confidence interval of every rate."""
        of_trials = {
            name: interval(getattr(self, name), self.trials)
            for name in ("detected", "located", "repaired", "miscorrected")
        }
        of_certain = {
            name: interval(getattr(self, name), self.certain) for name in ("certain_detected", "certain_repaired")
        }
        return {**of_trials, **of_certain, "false_alarms": interval(self.false_alarms, self.clean)}


def record_of(cell: Cell, counts: Counts, seed: int) -> dict[str, Any]:
    """Return the fields of a cell's record, without `record.COMMON`."""
    k = DEPTH if cell.target in ("product", "mid-product", "judged") else None
    intervals = {name: list(ends) for name, ends in counts.intervals.items()}
    of_counts = asdict(counts) | {"bits": sorted(counts.bits), "intervals": intervals}
    return {"what": "abft-campaign", **asdict(cell), "k": k, **of_counts, "seed": seed}


def interval(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a binomial rate with a confidence of at least `level`.

    Source: C. Clopper and E. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika (1934).

    Raises
    ------
    ValueError
        If `successes` is negative or greater than `trials`.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials; expected 0 to {trials}")
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def cells() -> Iterator[Cell]:
    """Yield every cell; cells on the same data are consecutive."""
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
    """Return a dtype by name, including bfloat16."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def bits_of(name: str) -> int:
    """Return the number of bits of an element."""
    return 8 * numpy_dtype(name).itemsize


def draw(distribution: str, shape: tuple[int, int], dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Draw a random matrix.

    Parameters
    ----------
    distribution : str
        "normal" and "uniform" (0 to 1). "lognormal": positive with a long tail. "sparse": normal with nine of ten
        elements zero. "cancelling": alternating values near 1 and −1 along a row, so that sums are small relative to
        their terms; they deviate by 10⁻³, or by 0.3 in 16-bit types, which are coarse there. "wide": normal times
        2⁻⁸ … 2³.
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
    """Return random flip masks for words of `width` bits, (trials,) uint64, and the bits of "bit" and "two-bits".

    All bits occur in turn. A "word" mask is any nonzero number.
    """
    if fault == "word":
        return rng.integers(1, 2**width - 1, trials, np.uint64, endpoint=True), set()
    bits = np.arange(trials) % width
    masks = np.uint64(1) << bits.astype(np.uint64)
    if fault == "two-bits":
        others = (bits + rng.integers(1, width, trials)) % width
        masks |= np.uint64(1) << others.astype(np.uint64)
    return masks, set(bits.tolist())
