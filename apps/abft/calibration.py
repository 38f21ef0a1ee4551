"""How large rounding errors are on a device, measured: what the statistical threshold stands on.

Of random matrices, products of several depths k are computed as the device computes them, before they are rounded to 16
bits, and held against exact ones. Each element's error, relative to √(r² + Σ(ab)²) (thresholds.py), is taken for one of
a sub-Gaussian scale e: the root of their mean square, or what the largest of n of them says, which is √(2 ln 2n) scales
at most by expectation; whichever is larger. Of the first there is a χ² confidence interval, and its upper end is what
counts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft import product_cpu
from tsapps.apps.abft.thresholds import DTYPES, confidence, statistical
from tsapps.kernels.build import cache_directory, write_whole

__all__ = ["DEPTHS", "Calibration", "Depth", "calibrate", "calibration_path", "load_calibration", "save_calibration"]

#: The depths that are measured.
DEPTHS = (16, 64, 256, 1024, 4096)
# Columns of a product that is measured; and the distributions: of mean zero, all positive, and with a long tail.
_COLUMNS = 16
_DISTRIBUTIONS: tuple[Callable[[np.random.Generator, tuple[int, int]], np.ndarray], ...] = (
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.uniform(0, 1, shape),
    lambda rng, shape: rng.lognormal(0, 1, shape) * rng.choice([-1.0, 1.0], shape),
)


@dataclass(frozen=True)
class Depth:
    """What was measured of sums of k products.

    Attributes
    ----------
    k : int
    error : float
        e, the upper end of its confidence interval, or what the largest says.
    low, high : float
        The confidence interval of the root mean square.
    largest : float
        Of all relative errors.
    n : int
        Elements.
    """

    k: int
    error: float
    low: float
    high: float
    largest: float
    n: int


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

    def error(self, k: int) -> float:
        """Return e for sums of k products: of the next depth that was measured, or in proportion beyond the last."""
        for depth in self.depths:
            if k <= depth.k:
                return depth.error
        last = self.depths[-1]
        return last.error * k / last.k


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
        The false-alarm rate of an element that thresholds are to have.
    level : float
        The confidence of each interval, between 0 and 1.
    rows : int
        Of each product that is measured, at least 16; there are 16 columns, and three distributions.
    seed : int

    Returns
    -------
    Calibration

    Raises
    ------
    ValueError
        If an argument is none of these.
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
    return Calibration(_name(device), dtype, p, level, depths)


def _measured(dtype: str, device: int | None, k: int, level: float, rows: int, rng: np.random.Generator) -> Depth:
    found = [_relative_errors(*pair, dtype, device) for pair in _operands(dtype, k, rows, rng)]
    # Each distribution by itself: the widest is what counts.
    n = found[0].size
    square = max(float((one**2).mean()) for one in found)
    largest = max(float(one.max()) for one in found)
    low, high = _chi_square(n, level)
    tail = largest / sqrt(2 * log(2 * n))
    return Depth(k, max(sqrt(square) * high, tail, 2.0**-60), sqrt(square) * low, sqrt(square) * high, largest, n)


def _chi_square(n: int, level: float) -> tuple[float, float]:
    """Return what a root mean square of n is multiplied by for its interval at a level of confidence."""
    from scipy.stats import chi2

    return sqrt(n / float(chi2.ppf((1 + level) / 2, n))), sqrt(n / float(chi2.ppf((1 - level) / 2, n)))


def _operands(dtype: str, k: int, rows: int, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield A and B of each distribution."""
    kind = _numpy_type(dtype)
    for draw in _DISTRIBUTIONS:
        yield draw(rng, (rows, k)).astype(kind), draw(rng, (k, _COLUMNS)).astype(kind)


def _relative_errors(A: np.ndarray, B: np.ndarray, dtype: str, device: int | None) -> np.ndarray:
    """Return |sum − r| / √(r² + Σ(ab)²) of every element."""
    if device is None:
        work = product_cpu.working_type(A.dtype)
        sums = product_cpu.multiply(A.astype(work), B.astype(work))
    else:
        from tsapps.apps.abft import product_gpu

        sums = product_gpu.sums(A, B, dtype, device)
    exact, _, square = product_cpu.exact_rows(A, B)
    return abs(sums.astype(np.float64) - exact) / np.sqrt(exact**2 + square)


def _numpy_type(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return np.dtype(dtype)


def _name(device: int | None) -> str:
    """Return the name of a GPU, or of the CPU."""
    if device is None:
        return "cpu"
    from tsapps.kernels.device import live

    return live(device).name


# --- The user's own ---------------------------------------------------------------------------------------------------


def calibration_path(device_name: str, dtype: str) -> Path:
    """Return where the user's calibration for a device of this name is kept; it need not exist."""
    return cache_directory() / "abft" / f"{'-'.join(device_name.lower().split())}-{dtype}.json"


def save_calibration(calibration: Calibration) -> Path:
    """Write a calibration where `load_calibration` finds it, by one rename, and return where that is."""
    path = calibration_path(calibration.device, calibration.dtype)
    write_whole(path, (json.dumps(asdict(calibration), indent=1) + "\n").encode())
    return path


def load_calibration(dtype: str, device: int | None = None) -> Calibration:
    """Return the user's calibration for a dtype on a device: the number of a GPU, or None for the CPU.

    Raises
    ------
    ValueError
        If there is none, or its file holds something else.
    """
    name = _name(device)
    path = calibration_path(name, dtype)
    advice = (
        f"make one with tsapps abft-calibrate --dtype {dtype} --device {'cpu' if device is None else f'cuda:{device}'}"
    )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        depths = tuple(Depth(**depth) for depth in found.pop("depths"))
        calibration = Calibration(**found, depths=depths)
        wrong = (calibration.device, calibration.dtype) != (name, dtype) or not depths
        # What can be used, throughout.
        for depth in depths:
            statistical(depth.k, 1, dtype, depth.error, calibration.p)
    except FileNotFoundError as error:
        raise ValueError(f"there is no calibration for {dtype} on {name}: {advice}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: is no calibration ({error}): {advice}") from error
    if wrong:
        raise ValueError(f"{path}: is no calibration for {dtype} on {name}: {advice}")
    return calibration
