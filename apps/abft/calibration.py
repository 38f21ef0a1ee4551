"""How large rounding errors are on a device, measured: what the statistical threshold stands on.

Of random matrices, products of several depths k are computed as the device computes them, before they are rounded to 16
bits, and held against exact ones. Each element's error x, relative to how far roundings may walk (thresholds.py), is
taken for one of a sub-Gaussian scale e, which is the largest of these, over the distributions:

- the root of their mean square, at the upper end of its χ² interval;
- what their tail says. Of the largest 256th, those beyond y, the mean of x² − y² is 2e², if the tail is Gaussian: e is
  that of the upper end of the mean's interval, and no less than y / c(q), with the upper end q of their share's. If the
  tail goes on as it begins, by P(x² > y² + z) ≤ q exp(−z / 2e²), then e · c(p) is exceeded with probability p at most,
  for any p below q: (e · c(p))² = 2e² ln(2/q) + 2e² ln(q/p) ≥ y² + 2e² ln(q/p). Also no less than the largest of n
  over c(1/n);
- u/√3, which additions one after another have that lose anything up to half a last place. Data that lose less, as those
  of few bits do, say nothing of others.

On a GPU that is e of our own kernels. The library's sums, which many products there are, cannot be had before they are
rounded to 16 bits; cuBLAS was seen to add up one product after another, and longer sums of that kind have a larger e:
tensor cores cut off sums of halves, which of positive data is a drift that grows as the depth. It is measured beside,
of sums that are added up so.

A BLAS may have several accumulators, which take products in turn; by what data that cancel in pairs then lose, e would
be tens of times what others need. And it begins anew here and there. So the CPU's walk is the one, of several, by which
the threshold is the least.

Beside all that, a GPU's sums are held against what they should be, to the bit (order.cuh). Where each is just that, e
says only which rows are suspected, and their elements are judged by bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tsapps.apps.abft import product_cpu
from tsapps.apps.abft.thresholds import (
    ANY_WALK,
    DTYPES,
    Bounds,
    Walk,
    confidence,
    of_products,
    statistical,
    summed_unit,
)

__all__ = [
    "DEPTHS",
    "Calibration",
    "Depth",
    "calibrate",
    "device_name",
    "predicted_sums_of",
    "sums_of",
]

#: The depths that are measured.
DEPTHS = (16, 64, 256, 1024, 4096)
# Columns of a product that is measured; how many elements say something of a distribution; and the tail's share.
_COLUMNS, _FEWEST, _TAIL = 16, 64, 1 / 256
# Walks that a BLAS is tried for; rows of the products by which it is, and the confidence of their tails.
_WALKS = tuple(Walk(accumulators=q, anew=anew) for q in (1, 2, 4) for anew in (ANY_WALK.anew, (512,)))
_TRIED, _LEVEL_TRIED = 64, 0.5
# What the CPU is called.
_CPU = "cpu"
#: What is drawn: of mean zero, all positive, with a long tail, of wide range, mostly zero, and cancelling in pairs.
_DISTRIBUTIONS: tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], ...] = (
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.uniform(0, 1, shape),
    lambda rng, shape: rng.lognormal(0, 1, shape) * rng.choice([-1.0, 1.0], shape),
    lambda rng, shape: np.ldexp(rng.standard_normal(shape), rng.integers(-8, 4, shape)),
    lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    lambda rng, shape: rng.normal(1, 1e-3, shape) * np.where(np.arange(shape[1]) % 2, -1, 1),
)


@dataclass(frozen=True)
class Depth:
    """What was measured of sums of k products.

    Attributes
    ----------
    k : int
    walk : Walk
        What errors are relative to (thresholds.py).
    error : float
        e: the larger of `high` and `tail`, and no less than that of additions one after another.
    low, high : float
        The confidence interval of the root mean square of relative errors, where it is largest.
    tail : float
        The scale of the tail, at its interval's upper end, where it is largest.
    n : int
        Elements of a distribution.
    of_others : float
        e of products that the library computes, or anybody: on a GPU the larger of `error` and what it is of sums that
        are added up one product after another; on the CPU `error`.
    predicted : bool
        Whether each sum that a kernel of our own added up on a GPU was what it should be, to the bit.
    """

    k: int
    walk: Walk
    error: float
    low: float
    high: float
    tail: float
    n: int
    of_others: float
    predicted: bool


@dataclass(frozen=True)
class Calibration:
    """The scale of rounding errors of one dtype on one device.

    Attributes
    ----------
    device : str
        The GPU's name, or "cpu".
    dtype : str
    p : float
        The false-alarm rate of an element.
    confidence : float
        Of each interval.
    depths : tuple of Depth
        By k, the smallest first.
    """

    device: str
    dtype: str
    p: float
    confidence: float
    depths: tuple[Depth, ...]

    @property
    def predicted(self) -> bool:
        """Whether sums of our own kernels on this GPU are known, to the bit."""
        return all(depth.predicted for depth in self.depths)

    def error(self, k: int, *, own: bool = True) -> float:
        """Return e for sums of k products: of the next depth that was measured, or as √k beyond the last.

        Even of additions that all lose on the same side, the error grows no faster beside what it is relative to.

        Parameters
        ----------
        k : int
        own : bool
            Whether a kernel of our own adds them up, or the CPU's BLAS.
        """
        depth = self._depth(k)
        return (depth.error if own else depth.of_others) * sqrt(max(1.0, k / depth.k))

    def bounds(self, k: int, w: int, *, own: bool = True) -> Bounds:
        """Return the statistical bounds of a product (m × k) · (k × w); `own` as for `error`."""
        error, predicted = self.error(k, own=own), own and self.predicted
        return statistical(k, w, self.dtype, error, self.p, walk=self._depth(k).walk, predicted=predicted)

    def _depth(self, k: int) -> Depth:
        return next((depth for depth in self.depths if k <= depth.k), self.depths[-1])


def calibrate(
    dtype: str, device: int | None = None, *, p: float = 1e-9, level: float = 0.99, rows: int = 4096, seed: int = 0
) -> Calibration:
    """Measure the rounding errors of products on a device.

    Parameters
    ----------
    dtype : {"float64", "float32", "float16", "bfloat16"}
    device : int, optional
        The number of a GPU; the CPU, if not given.
    p : float
        The false-alarm rate of an element that thresholds are to have, at least 10⁻¹².
    level : float
        The confidence of each interval, between 0 and 1.
    rows : int
        Of each product that is measured, at least 16; there are 16 columns, and six distributions.
    seed : int

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        If an argument is none of these.
    ArithmeticError
        If the device's sums are not exact where those of any order are: the statistical threshold is not for it.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a confidence between 0 and 1, such as 0.99")
    if rows < 16:
        raise ValueError(f"rows is {rows}; expected at least 16")
    confidence(p)
    rng = np.random.default_rng(seed)
    depths = tuple(_measured(dtype, device, k, level, rows, rng) for k in DEPTHS)
    return Calibration(device_name(device), dtype, p, level, depths)


def _least_walk(dtype: str, k: int, rows: int, rng: np.random.Generator) -> Walk:
    """Return the walk by which the CPU's threshold is the least over the errors, where that is largest."""
    tried = [
        (A, B, abs(sums_of(A, B, dtype, None) - product_cpu.exact_rows(A, B)[0]))
        for A, B in _operands(dtype, k, rows, rng)
    ]
    tried = [one for one in tried if one[2].any()]

    def over_errors(walk: Walk) -> float:
        error, largest = summed_unit(dtype) / sqrt(3), 0.0
        for A, B, off in tried:
            walks = product_cpu.walks(A, B, walk)
            relative = off[walks > 0] / walks[walks > 0]
            error = max(error, _scales(relative, _LEVEL_TRIED)[2] if relative.size >= _FEWEST else 0.0)
            largest = max(largest, _root_mean_square(walks) / _root_mean_square(off))
        return error * largest

    return min(_WALKS, key=over_errors)


def _root_mean_square(x: np.ndarray) -> float:
    return sqrt(float((x**2).mean()))


def _measured(dtype: str, device: int | None, k: int, level: float, rows: int, rng: np.random.Generator) -> Depth:
    own, in_order, predicted = [], [], device is not None
    walk = Walk(of_products(dtype, on_gpu=True)) if predicted else _least_walk(dtype, k, min(rows, _TRIED), rng)
    for A, B in _operands(dtype, k, rows, rng):
        exact, walks = product_cpu.exact_rows(A, B)[0], product_cpu.walks(A, B, walk)
        sums = sums_of(A, B, dtype, device)
        own.append(_relative_errors(sums, exact, walks, f"{dtype} on {device_name(device)}"))
        if device is not None:
            in_order += [
                _relative_errors(one, exact, walks, f"{dtype} in order") for one in _in_order(A, B, dtype, device)
            ]
            predicted &= bool((sums == predicted_sums_of(A, B, dtype, device)).all())
    (low, high, tail), (_, *others) = _largest(own, level), _largest(in_order, level)
    error = max(high, tail, summed_unit(dtype) / sqrt(3))
    return Depth(k, walk, error, low, high, tail, rows * _COLUMNS, max(error, *others), predicted)


def _largest(errors: list[np.ndarray], level: float) -> tuple[float, float, float]:
    """Return the scales of relative errors, each distribution's by itself: the widest is what counts."""
    scales = [_scales(one, level) for one in errors if one.size >= _FEWEST]
    low, high, tail = (max(column) for column in zip((0.0, 0.0, 0.0), *scales, strict=True))
    return low, high, tail


def _scales(errors: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return the interval of the root mean square, and the scale of the tail, of relative errors."""
    from scipy.stats import beta, chi2

    low, high = (_root_mean_square(errors) * by for by in _chi_square(errors.size, level))
    squares = np.sort(errors**2)[::-1]
    n, t = errors.size, max(16, int(errors.size * _TAIL))
    beyond = float(squares[t])
    # Of exponentials of mean 1, twice a sum of t is a χ² of 2t.
    excess = float((squares[:t] - beyond).sum()) * 2 / float(chi2.ppf(1 - level, 2 * t))
    share = float(beta.ppf(level, t + 1, n - t))
    largest = sqrt(float(squares[0])) / confidence(1 / n)
    return low, high, max(sqrt(excess / 2), sqrt(beyond) / confidence(share), largest)


def _chi_square(n: int, level: float) -> tuple[float, float]:
    """Return what a root mean square of n is multiplied by for its interval at a level of confidence."""
    from scipy.stats import chi2

    return sqrt(n / float(chi2.ppf((1 + level) / 2, n))), sqrt(n / float(chi2.ppf((1 - level) / 2, n)))


def _operands(dtype: str, k: int, rows: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield A and B of each distribution."""
    kind = _numpy_type(dtype)
    for draw in _DISTRIBUTIONS:
        yield draw(rng, (rows, k)).astype(kind), draw(rng, (k, _COLUMNS)).astype(kind)


def sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> np.ndarray:
    """Return A · B as a device sums it, before it is rounded to 16 bits; on a GPU, of whole eights of columns."""
    if device is None:
        work = product_cpu.working_type(A.dtype)
        return product_cpu.multiply(A.astype(work), B.astype(work)).astype(np.float64)
    from tsapps.apps.abft import product_gpu

    return product_gpu.sums(A, B, dtype, device).astype(np.float64)


def predicted_sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int) -> np.ndarray:
    """Return what a GPU's sums should be, to the bit; NaN where that is not known."""
    from tsapps.apps.abft import product_gpu

    return product_gpu.predicted(A, B, dtype, device)


def _in_order(A: np.ndarray, B: np.ndarray, dtype: str, device: int) -> Iterator[np.ndarray]:
    """Yield A · B, one product after another, in what it is summed in; of halves also as the tensor cores cut off."""
    if A.itemsize == 2:
        from tsapps.apps.abft import product_gpu

        found = product_gpu.one_after_another(A, B, dtype, device)
        if not np.isnan(found).any():
            yield found
    work = product_cpu.working_type(A.dtype)
    a, b = A.astype(work), B.astype(work)
    total = np.zeros((len(a), b.shape[1]), work)
    for step in range(a.shape[1]):
        total += a[:, step, np.newaxis] * b[step]
    yield total.astype(np.float64)


def _relative_errors(sums: np.ndarray, exact: np.ndarray, walks: np.ndarray, what: str) -> np.ndarray:
    """Return |sum − r| / walk of every element that need not be exact."""
    errors = abs(sums - exact)
    if errors[walks == 0].any():
        raise ArithmeticError(
            f"sums of {what} are off by up to {errors[walks == 0].max()} where they have no more bits than are summed "
            "in: use threshold='proven' there"
        )
    return errors[walks > 0] / walks[walks > 0]


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def device_name(device: int | None) -> str:
    """Return the name of a GPU, or of the CPU."""
    if device is None:
        return _CPU
    from tsapps.kernels.device import live

    return live(device).name
