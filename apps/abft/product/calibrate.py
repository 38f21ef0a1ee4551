"""How large rounding errors are on a device, measured: what the statistical threshold stands on.

Of random matrices, products of several depths k are computed as the device computes them, before they are rounded to 16
bits, and held against exact ones. Each element's error x, relative to how far roundings may walk (rounding_model.py),
is taken for one of a sub-Gaussian scale e, which is the largest of these, over the distributions:

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

A BLAS may have several accumulators, which take products in turn, and in some rows others than in others; by what data
that cancel in pairs then lose, e would be tens of times what others need. So the CPU's walk is the one, of several, by
which the threshold is the least.
Products that others computed are of no order that is known: their walk and e are those of the BLAS's sums and of sums
one after another together.

Beside all that, a GPU's sums are held against what they should be, to the bit (emulated_gemm.cuh). Where each is just
that, e says only which rows are suspected, and their elements are judged by bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products
from tsapps.apps.abft.product.rounding_model import OF_PRODUCTS, Walk, walks
from tsapps.apps.abft.product.thresholds import DTYPES, Bounds, confidence, of_products, statistical, summed_unit

__all__ = [
    "DEPTHS",
    "Calibration",
    "Depth",
    "Scale",
    "calibrate",
    "device_name",
    "predicted_sums_of",
    "sums_of",
]

#: The depths that are measured.
DEPTHS = (16, 64, 256, 1024, 4096)
# Columns of a product that is measured; how many elements say something of a distribution; and the tail's share.
_COLUMNS, _FEWEST, _TAIL = 16, 64, 1 / 256
# Accumulators that a BLAS is tried for, by the orders that it may have; rows of the products by which it is, and the
# confidence of their tails.
_ACCUMULATORS, _TRIED, _LEVEL_TRIED = ((1,), (2,), (4,), (1, 2), (1, 2, 4)), 64, 0.5
# The depths of products by which walks are chosen, for all depths.
_CHOSEN_AT = (256, 1024)
# What the CPU is called.
_CPU = "cpu"
#: What is drawn: of mean zero, all positive, with a long tail, of wide range, mostly zero, and cancelling in pairs, of
#: which those that are all but alike have no bits left in 16 to lose.
_DISTRIBUTIONS: tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], ...] = (
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.uniform(0, 1, shape),
    lambda rng, shape: rng.lognormal(0, 1, shape) * rng.choice([-1.0, 1.0], shape),
    lambda rng, shape: np.ldexp(rng.standard_normal(shape), rng.integers(-8, 4, shape)),
    lambda rng, shape: rng.standard_normal(shape) * (rng.random(shape) < 0.1),
    lambda rng, shape: rng.normal(1, 1e-3, shape) * np.where(np.arange(shape[1]) % 2, -1, 1),
    lambda rng, shape: rng.normal(1, 0.3, shape) * np.where(np.arange(shape[1]) % 2, -1, 1),
)


@dataclass(frozen=True)
class Scale:
    """How large the rounding errors of sums are that are added up in one way.

    Attributes
    ----------
    walk : Walk
        What errors are relative to.
    error : float
        e: the larger of `high` and `tail`, and no less than that of additions one after another.
    low, high : float
        The confidence interval of the root mean square of relative errors, where it is largest.
    tail : float
        The scale of the tail, at its interval's upper end, where it is largest.
    """

    walk: Walk
    error: float
    low: float
    high: float
    tail: float


@dataclass(frozen=True)
class Depth:
    """What was measured of sums of k products.

    Attributes
    ----------
    k : int
    n : int
        Elements of a distribution.
    own : Scale
        Of products that `matmul` computes, by a kernel of our own or the CPU's BLAS.
    others : Scale
        Of products that the library computes, or anybody: of those and of sums that are added up one product after
        another.
    predicted : bool
        Whether each sum that a kernel of our own added up on a GPU was what it should be, to the bit.
    """

    k: int
    n: int
    own: Scale
    others: Scale
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

    def __repr__(self) -> str:
        ks = ", ".join(str(depth.k) for depth in self.depths)
        return f"<Calibration: {self.dtype} on {self.device}, p {self.p:g}, confidence {self.confidence:g}, k {ks}>"

    @property
    def predicted(self) -> bool:
        """Whether sums of our own kernels on this GPU are known, to the bit."""
        return all(depth.predicted for depth in self.depths)

    def error(self, k: int, *, own: bool = True) -> float:
        """Return e for sums of k products: of the depths below and above, or as √k beyond the last.

        Even of additions that all lose on the same side, the error grows no faster beside what it is relative to.

        Parameters
        ----------
        k : int
        own : bool
            Whether `matmul` adds them up, by a kernel of our own or the CPU's BLAS.
        """
        scales, last = self._at(k, own=own), self.depths[-1].k
        return max(scale.error for scale in scales) * sqrt(max(1.0, k / last))

    def bounds(self, k: int, w: int, *, own: bool = True) -> Bounds:
        """Return the statistical bounds of a product (m × k) · (k × w); `own` as for `error`."""
        walk, error, predicted = self._at(k, own=own)[-1].walk, self.error(k, own=own), own and self.predicted
        flushes = self.device != _CPU
        return statistical(k, w, self.dtype, error, self.p, walk=walk, predicted=predicted, flushes=flushes)

    def _at(self, k: int, *, own: bool) -> list[Scale]:
        """Return the scales of the depths next to k, the last of the larger, if there is one."""
        above = next((i for i, depth in enumerate(self.depths) if k <= depth.k), len(self.depths) - 1)
        return [depth.own if own else depth.others for depth in self.depths[max(0, above - 1) : above + 1]]


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
        Of each product that is measured, at least 16; there are 16 columns, and seven distributions.
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
    kinds = _walks_of(dtype, device, rows, rng)
    depths = tuple(_measured(dtype, device, k, kinds, level, rows, rng) for k in DEPTHS)
    return Calibration(device_name(device), dtype, p, level, depths)


@dataclass(frozen=True)
class _Product:
    """Rows of a product of one distribution: what they are, as the device adds them up, and as others may."""

    A: np.ndarray
    B: np.ndarray
    exact: np.ndarray
    own: np.ndarray
    in_order: list[np.ndarray]

    def sums(self, *, own: bool) -> list[np.ndarray]:
        """Return all sums that are the device's own, or that others' may be."""
        return [self.own] if own else [self.own, *self.in_order]


def _products(
    dtype: str, device: int | None, k: int, rows: int, rng: np.random.Generator, most: int | None = None
) -> Iterator[_Product]:
    """Yield a product of each distribution; `most` of its rows."""
    kind = _numpy_type(dtype)
    for draw in _DISTRIBUTIONS:
        A, B = draw(rng, (rows, k)).astype(kind), draw(rng, (k, _COLUMNS)).astype(kind)
        own, A = sums_of(A, B, dtype, device)[:most], A[:most]
        yield _Product(A, B, exact_products.exact_rows(A, B)[0], own, list(_in_order(A, B, dtype, device)))


def _measured(
    dtype: str,
    device: int | None,
    k: int,
    kinds: tuple[Walk, Walk],
    level: float,
    rows: int,
    rng: np.random.Generator,
) -> Depth:
    """Measure sums of k products, relative to the walks of a device's own and of others'."""
    predicted = device is not None
    relative: tuple[list[np.ndarray], ...] = ([], [])
    for product in _products(dtype, device, k, rows, rng):
        of_walk = {walk: walks(product.A, product.B, walk) for walk in set(kinds)}
        for walk, own, errors in zip(kinds, (True, False), relative, strict=True):
            what = f"{dtype} on {device_name(device)}"
            errors += [_relative_errors(s - product.exact, of_walk[walk], what) for s in product.sums(own=own)]
        if device is not None:
            predicted &= bool((product.own == predicted_sums_of(product.A, product.B, dtype, device)).all())
    of_own, of_others = (_scale(walk, errors, dtype, level) for walk, errors in zip(kinds, relative, strict=True))
    return Depth(k, rows * _COLUMNS, of_own, of_others, predicted)


def _walks_of(dtype: str, device: int | None, rows: int, rng: np.random.Generator) -> tuple[Walk, Walk]:
    """Return the walks of a device's own products and of others': of a CPU, those by which thresholds are the least."""
    if device is not None:
        return (Walk(of_products(dtype)),) * 2
    tried = [list(_products(dtype, device, k, rows, rng, _TRIED)) for k in _CHOSEN_AT]
    # Products of 16 bits are not rounded, and what loses nothing in one order may in another.
    every_rho = (OF_PRODUCTS, 0.0) if dtype in ("float64", "float32") else (OF_PRODUCTS,)
    known = [Walk(products, q, product_cpu.RUN) for products in every_rho for q in _ACCUMULATORS]
    unknown = [Walk(accumulators=q) for q in _ACCUMULATORS]
    return _least(known, tried, dtype, own=True), _least(unknown, tried, dtype, own=False)


def _least(kinds: list[Walk], tried: list[list[_Product]], dtype: str, *, own: bool) -> Walk:
    """Return the walk by which the threshold is the least over the BLAS's errors, where that is largest."""

    def over_errors(walk: Walk, products: list[_Product]) -> float:
        error, largest = summed_unit(dtype) / sqrt(3), 0.0
        for product in products:
            off, walked = product.own - product.exact, walks(product.A, product.B, walk)
            for sums in product.sums(own=own):
                relative = _relative_errors(sums - product.exact, walked, f"{dtype} on {device_name(None)}")
                error = max(error, _scales(relative, _LEVEL_TRIED)[2] if relative.size >= _FEWEST else 0.0)
            if off.any():
                largest = max(largest, _root_mean_square(walked) / _root_mean_square(off))
        return error * largest

    return min(kinds, key=lambda walk: max(over_errors(walk, of_depth) for of_depth in tried))


def _root_mean_square(x: np.ndarray) -> float:
    return sqrt(float((x**2).mean()))


def _scale(walk: Walk, errors: list[np.ndarray], dtype: str, level: float) -> Scale:
    """Return the scale of relative errors, each distribution's by itself: the widest is what counts."""
    scales = [_scales(one, level) for one in errors if one.size >= _FEWEST]
    low, high, tail = (max(column) for column in zip((0.0, 0.0, 0.0), *scales, strict=True))
    return Scale(walk, max(high, tail, summed_unit(dtype) / sqrt(3)), low, high, tail)


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


def sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> np.ndarray:
    """Return A · B as a device sums it, before it is rounded to 16 bits; on a GPU, of whole eights of columns."""
    if device is None:
        work = product_cpu.working_type(A.dtype)
        return product_cpu.multiply(A.astype(work), B.astype(work)).astype(np.float64)
    from tsapps.apps.abft.product import gpu as product_gpu

    return product_gpu.sums(A, B, dtype, device).astype(np.float64)


def predicted_sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int) -> np.ndarray:
    """Return what a GPU's sums should be, to the bit; NaN where that is not known."""
    from tsapps.apps.abft.product import gpu as product_gpu

    return product_gpu.predicted(A, B, dtype, device)


def _in_order(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> Iterator[np.ndarray]:
    """Yield A · B, one product after another, in what it is summed in; of halves also as tensor cores cut off."""
    if A.itemsize == 2 and device is not None:
        from tsapps.apps.abft.product import gpu as product_gpu

        found = product_gpu.one_after_another(A, B, dtype, device)
        if not np.isnan(found).any():
            yield found
    work = product_cpu.working_type(A.dtype)
    a, b = A.astype(work), B.astype(work)
    total = np.zeros((len(a), b.shape[1]), work)
    for step in range(a.shape[1]):
        total += a[:, step, np.newaxis] * b[step]
    yield total.astype(np.float64)


def _relative_errors(errors: np.ndarray, walked: np.ndarray, what: str) -> np.ndarray:
    """Return the absolute error / walk of every element that need not be exact."""
    exact = errors[walked == 0]
    if exact.any():
        raise ArithmeticError(
            f"sums of {what} are off by up to {abs(exact).max()} where they have no more bits than are summed in: use "
            "threshold='proven' there"
        )
    return abs(errors[walked > 0]) / walked[walked > 0]


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def device_name(device: int | None) -> str:
    """Return the name of a GPU, or of the CPU."""
    if device is None:
        return _CPU
    from tsapps.kernels.gpu_specs import live

    return live(device).name
