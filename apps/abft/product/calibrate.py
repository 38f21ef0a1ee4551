"""Calibration of the statistical threshold: the measured scale of rounding errors on a device.

Sums of k products, before rounding to 16 bits, are compared with exact sums, for random matrices and several depths k.
Let x be the error of an element divided by the deviation that the rounding-error model predicts (rounding_model.py). x
is modelled as sub-Gaussian with scale e: ``|x|`` exceeds e · c(p) with probability at most p, with c(p) = √(2 ln(2/p)).
e is the maximum of the following numbers over all distributions of the data:

- The upper end of the χ² confidence interval of the root mean square of x.
- The scale of the tail. The *tail* is the fraction 1/256 of the elements with the largest ``|x|``; y is the value that
  their ``|x|`` exceed. If the tail is Gaussian, the mean of x² − y² is 2e²; e uses the upper end of the mean's
  confidence interval.
- y / c(q), where q is the upper end of the confidence interval of the tail's share of all elements. Assume that the
  tail continues as it begins: P(x² > y² + z) ≤ q exp(−z / 2e²). Then e · c(p) is exceeded with probability at most p
  for any p below q, because (e · c(p))² = 2e² ln(2/q) + 2e² ln(q/p) ≥ y² + 2e² ln(q/p).
- The largest ``|x|`` of the n elements, divided by c(1/n).
- u/√3, the scale for sequential additions whose errors are uniform up to half a unit in the last place; u is the unit
  roundoff. Data with smaller errors, such as numbers of few bits, give no information about other data.

On a GPU, this e applies to our own kernels. The sums of cuBLAS are not accessible before rounding to 16 bits. cuBLAS
was seen to add sequentially, and long sequential sums have a larger e: tensor cores truncate sums of 16-bit products,
so the error of positive data drifts in proportion to the depth. So the calibration also measures sequential sums.

A BLAS may distribute products over several accumulators in turn, and the number of accumulators may differ between
rows. For data that cancel in pairs, a model with the wrong number makes e tens of times larger than other data need. So
the calibration of a CPU tries several models and selects the model with the smallest threshold. Products by other
libraries have an unknown order: their model and e cover the BLAS's sums and sequential sums.

On a GPU, sums are also compared with their bit-exact emulation (emulated_gemm.cuh). If all sums equal their emulation,
`matmul` compares elements bit for bit, and e only bounds the residuals of rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products
from tsapps.apps.abft.product.rounding_model import PRODUCT_VARIANCE, RoundingModel, rounding_deviations
from tsapps.apps.abft.product.thresholds import (
    DTYPES,
    ErrorBounds,
    confidence,
    product_variance,
    statistical,
    summed_unit,
)
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["DEPTHS", "Calibration", "Depth", "Scale", "calibrate", "device_name", "emulated_sums_of", "sums_of"]

#: The measured depths.
DEPTHS = (16, 64, 256, 1024, 4096)
# Number of columns of a measured product; minimum number of elements with a nonzero deviation, below which a
# distribution is ignored; the tail's share of the elements.
_COLUMNS, _LEAST_ELEMENTS, _TAIL = 16, 64, 1 / 256
# For each candidate model of a BLAS: its possible numbers of accumulators. Number of rows of the products by which a
# model is selected, and confidence level of the tail's scale in this selection.
_ACCUMULATORS, _SELECT_ROWS, _SELECT_LEVEL = ((1,), (2,), (4,), (1, 2), (1, 2, 4)), 64, 0.5
# Depths k of the products by which a model is selected; the selected model is used for all depths.
_SELECT_DEPTHS = (256, 1024)
_CPU = "cpu"
# Distributions of the data: mean zero, positive, long-tailed, wide range, mostly zero, and two that cancel in pairs. Of
# the last two, the first has nearly equal magnitudes, so that 16-bit types lose no bits; the second loses some bits.
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
    """The scale of the rounding errors of sums in one order; the head of this module defines the symbols.

    Attributes
    ----------
    walk : RoundingModel
        The rounding-error model, which predicts the deviation.
    error : float
        e: the maximum of `high`, `tail` and u/√3.
    low, high : float
        The ends of the confidence interval of the root mean square of x; each is the maximum over the distributions.
    tail : float
        The largest of the numbers that the tail gives for e; the maximum over the distributions.
    """

    walk: RoundingModel
    error: float
    low: float
    high: float
    tail: float


@dataclass(frozen=True)
class Depth:
    """The measurements of sums of k products.

    Attributes
    ----------
    k, n : int
        Number of products per sum (the depth), and number of elements per distribution.
    own : Scale
        The scale for products that `matmul` computes by our own kernels or by the CPU's BLAS.
    others : Scale
        The scale for products by cuBLAS or other libraries, measured on the sums of `own` and on sequential sums.
    predicted : bool
        Whether all measured sums by our own kernels on a GPU equal their bit-exact emulation.
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
        The false positive rate: the probability that a correct element is reported as wrong.
    confidence : float
        The confidence level of each interval.
    depths : tuple of Depth
        In ascending order of k.
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
        """Whether the emulation of our own kernels on this GPU is bit-exact."""
        return all(depth.predicted for depth in self.depths)

    def error(self, k: int, *, own: bool = True) -> float:
        """Return e for sums of k products: the maximum e of the measured depths next to k.

        Beyond the last measured depth, e grows as √k. The error divided by the deviation grows no faster than √k, even
        if all additions round in the same direction. `own` selects the scale `Depth.own` instead of `Depth.others`.
        """
        scales, last = self._at(k, own=own), self.depths[-1].k
        return max(scale.error for scale in scales) * sqrt(max(1.0, k / last))

    def bounds(self, k: int, w: int, *, own: bool = True) -> ErrorBounds:
        """Return the statistical bounds of a product (m × k) · (k × w); `own` as for `error`."""
        model, error, bit_exact = self._at(k, own=own)[-1].walk, self.error(k, own=own), own and self.predicted
        flushes = self.device != _CPU
        return statistical(k, w, self.dtype, error, self.p, model=model, bit_exact=bit_exact, flushes=flushes)

    def _at(self, k: int, *, own: bool) -> list[Scale]:
        """Return the scales of the largest measured depth below k and of the smallest from k on, if they exist."""
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
        The index of a GPU; by default the CPU.
    p : float
        The false positive rate: the probability, at least 10⁻¹², that a correct element is reported as wrong.
    level : float
        The confidence level of each interval, between 0 and 1.
    rows : int
        Number of rows of each measured product, at least 16. At each depth, one product with 16 columns is measured for
        each of seven distributions.
    seed : int

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        If an argument is out of range.
    ArithmeticError
        If the device makes errors in sums that are exact in any order. Such a device has no statistical threshold.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; expected a confidence between 0 and 1, such as 0.99")
    if rows < 16:
        raise ValueError(f"rows is {rows}; expected at least 16")
    confidence(p)
    rng = np.random.default_rng(seed)
    models = _models_of(dtype, device, rows, rng)
    depths = tuple(_measured(dtype, device, k, models, level, rows, rng) for k in DEPTHS)
    return Calibration(device_name(device), dtype, p, level, depths)


@dataclass(frozen=True)
class _Product:
    """A product of matrices of one distribution: the exact elements, the device's sums, and sequential sums."""

    A: np.ndarray
    B: np.ndarray
    exact: np.ndarray
    own: np.ndarray
    sequential: list[np.ndarray]

    def sums(self, *, own: bool) -> list[np.ndarray]:
        """Return the device's own sums; if `own` is false, also the sequential sums, to represent other libraries."""
        return [self.own] if own else [self.own, *self.sequential]


def _products(
    dtype: str, device: int | None, k: int, rows: int, rng: np.random.Generator, most: int | None = None
) -> Iterator[_Product]:
    """Yield one product per distribution; all arrays keep only the first `most` rows."""
    numpy_type = _numpy_type(dtype)
    for draw in _DISTRIBUTIONS:
        A, B = draw(rng, (rows, k)).astype(numpy_type), draw(rng, (k, _COLUMNS)).astype(numpy_type)
        own, A = sums_of(A, B, dtype, device)[:most], A[:most]
        yield _Product(A, B, exact_products.exact_rows(A, B)[0], own, list(_sequential(A, B, dtype, device)))


def _measured(
    dtype: str,
    device: int | None,
    k: int,
    models: tuple[RoundingModel, RoundingModel],
    level: float,
    rows: int,
    rng: np.random.Generator,
) -> Depth:
    """Measure the errors of sums of k products; `models` are the model of own products and that of other products."""
    predicted = device is not None
    relative: tuple[list[np.ndarray], ...] = ([], [])
    for product in _products(dtype, device, k, rows, rng):
        deviations = {model: rounding_deviations(product.A, product.B, model) for model in set(models)}
        for model, own, errors in zip(models, (True, False), relative, strict=True):
            what = f"{dtype} on {device_name(device)}"
            errors += [_relative_errors(s - product.exact, deviations[model], what) for s in product.sums(own=own)]
        if device is not None:
            predicted &= bool((product.own == emulated_sums_of(product.A, product.B, dtype, device)).all())
    of_own, of_others = (_scale(model, errors, dtype, level) for model, errors in zip(models, relative, strict=True))
    return Depth(k, rows * _COLUMNS, of_own, of_others, predicted)


def _models_of(
    dtype: str, device: int | None, rows: int, rng: np.random.Generator
) -> tuple[RoundingModel, RoundingModel]:
    """Return the model of our own products and that of other products; on a CPU, those with the smallest threshold."""
    if device is not None:
        return (RoundingModel(product_variance(dtype)),) * 2
    samples = [list(_products(dtype, device, k, rows, rng, _SELECT_ROWS)) for k in _SELECT_DEPTHS]
    # ρ (rounding_model.py) is 0 if products are not rounded. Products of 16-bit types are exact, but 0 is not tried for
    # them: sums that lose no bits in one order may lose bits in another order.
    every_rho = (PRODUCT_VARIANCE, 0.0) if dtype in ("float64", "float32") else (PRODUCT_VARIANCE,)
    known = [RoundingModel(products, q, product_cpu.RUN) for products in every_rho for q in _ACCUMULATORS]
    unknown = [RoundingModel(accumulators=q) for q in _ACCUMULATORS]
    return _select(known, samples, dtype, own=True), _select(unknown, samples, dtype, own=False)


def _select(models: list[RoundingModel], samples: list[list[_Product]], dtype: str, *, own: bool) -> RoundingModel:
    """Return the model whose largest ratio of threshold to rounding errors, over the samples, is the smallest."""

    def ratio(model: RoundingModel, products: list[_Product]) -> float:
        error, largest = summed_unit(dtype) / sqrt(3), 0.0
        for product in products:
            errors, deviations = product.own - product.exact, rounding_deviations(product.A, product.B, model)
            for sums in product.sums(own=own):
                relative = _relative_errors(sums - product.exact, deviations, f"{dtype} on {device_name(None)}")
                error = max(error, _scales(relative, _SELECT_LEVEL)[2] if relative.size >= _LEAST_ELEMENTS else 0.0)
            if errors.any():
                largest = max(largest, _root_mean_square(deviations) / _root_mean_square(errors))
        return error * largest

    return min(models, key=lambda model: max(ratio(model, of_depth) for of_depth in samples))


def _root_mean_square(x: np.ndarray) -> float:
    return sqrt(float((x**2).mean()))


def _scale(model: RoundingModel, errors: list[np.ndarray], dtype: str, level: float) -> Scale:
    """Return the scale of relative errors x, given one array of x per distribution and sum."""
    scales = [_scales(one, level) for one in errors if one.size >= _LEAST_ELEMENTS]
    low, high, tail = (max(column) for column in zip((0.0, 0.0, 0.0), *scales, strict=True))
    return Scale(model, max(high, tail, summed_unit(dtype) / sqrt(3)), low, high, tail)


def _scales(errors: np.ndarray, level: float) -> tuple[float, float, float]:
    """Return (low, high, tail) of relative errors x, the numbers of a `Scale`."""
    from scipy.stats import beta, chi2

    low, high = (_root_mean_square(errors) * by for by in _chi_square(errors.size, level))
    squares = np.sort(errors**2)[::-1]
    n, t = errors.size, max(16, int(errors.size * _TAIL))
    beyond = float(squares[t])
    # Upper end of the interval of the mean of x² − y² over the t elements of the tail: twice the sum of t exponential
    # variables of mean 1 has a χ² distribution with 2t degrees of freedom.
    excess = float((squares[:t] - beyond).sum()) * 2 / float(chi2.ppf(1 - level, 2 * t))
    share = float(beta.ppf(level, t + 1, n - t))
    largest = sqrt(float(squares[0])) / confidence(1 / n)
    return low, high, max(sqrt(excess / 2), sqrt(beyond) / confidence(share), largest)


def _chi_square(n: int, level: float) -> tuple[float, float]:
    """Return two factors: a root mean square of n values times each factor gives an end of its confidence interval."""
    from scipy.stats import chi2

    return sqrt(n / float(chi2.ppf((1 + level) / 2, n))), sqrt(n / float(chi2.ppf((1 - level) / 2, n)))


def sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> np.ndarray:
    """Return A · B as a device accumulates it, before rounding to 16 bits; for a GPU, B has a multiple of 8 columns."""
    if device is None:
        work = product_cpu.working_type(A.dtype)
        return product_cpu.multiply(A.astype(work), B.astype(work)).astype(np.float64)
    from tsapps.apps.abft.product import gpu_sums

    return gpu_sums.sums(cuda_machine(device), A, B, dtype).astype(np.float64)


def emulated_sums_of(A: np.ndarray, B: np.ndarray, dtype: str, device: int) -> np.ndarray:
    """Return the bit-exact emulation of a GPU's sums; NaN for elements that the emulation does not support."""
    from tsapps.apps.abft.product import gpu_sums

    return gpu_sums.emulated(cuda_machine(device), A, B, dtype)


def _sequential(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> Iterator[np.ndarray]:
    """Yield A · B as sequential sums in the accumulation type; for 16-bit types also with tensor-core truncation."""
    if A.itemsize == 2 and device is not None:
        from tsapps.apps.abft.product import gpu_sums

        found = gpu_sums.sequential_sums(cuda_machine(device), A, B, dtype)
        if not np.isnan(found).any():
            yield found
    work = product_cpu.working_type(A.dtype)
    a, b = A.astype(work), B.astype(work)
    total = np.zeros((len(a), b.shape[1]), work)
    for step in range(a.shape[1]):
        total += a[:, step, np.newaxis] * b[step]
    yield total.astype(np.float64)


def _relative_errors(errors: np.ndarray, deviations: np.ndarray, what: str) -> np.ndarray:
    """Return ``|error|`` / deviation of every element with a nonzero deviation.

    Raises `ArithmeticError` if an element with deviation 0, a sum that is exact in any order, has an error.
    """
    exact = errors[deviations == 0]
    if exact.any():
        raise ArithmeticError(
            f"sums of {what} that are exact in any order have errors of up to {abs(exact).max()}: use "
            "threshold='proven' there"
        )
    return abs(errors[deviations > 0]) / deviations[deviations > 0]


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def device_name(device: int | None) -> str:
    """Return the name of the GPU with index `device`; "cpu" if `device` is None."""
    if device is None:
        return _CPU
    return live(device).name
