"""Fault injection into products: into C after its computation (`check_product`) or into its sums (`matmul`, CPU).

One product carries many trials at once, each in separate rows. The rounding bounds and the guaranteed detections are
derived here independently of the code under test, as in the tests.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np

from tsapps.apps.abft import Calibration, Checked, calibrate, check_product, matmul
from tsapps.apps.abft.product import calibrate as calibration
from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products, thresholds
from tsapps.apps.abft.product.rounding_model import rounding_deviations
from tsapps.bench.abft.campaign import (
    CLEAN,
    DEPTH,
    DISTRIBUTIONS,
    TRIALS,
    Cell,
    Counts,
    P,
    draw,
    flipped,
    numpy_dtype,
)

__all__ = ["Limits", "allowed_of", "calibrated_at", "over_rounding", "try_judged", "try_product"]

# Rows per trial; rows of a clean product; rows from which threshold_ratio is computed.
_TOGETHER, _CLEAN_ROWS, _LOOKED_AT = 4, 60_000, 500


@dataclass(frozen=True)
class Limits:
    """Expected values and error limits of a product.

    Attributes
    ----------
    exact : numpy.ndarray of shape (m, w), float64
    within : numpy.ndarray of shape (m, w)
        Largest error by rounding: Higham's bound and one rounding to 16 bits.
    certain : numpy.ndarray of shape (m,)
        Smallest error of an element whose detection is guaranteed: twice the row's threshold.
    """

    exact: np.ndarray
    within: np.ndarray
    certain: np.ndarray

    @classmethod
    def of(cls, A: np.ndarray, B: np.ndarray, *, rounded: bool) -> "Limits":
        """Return the limits of A · B; `rounded`: the row is checked after rounding to A's dtype."""
        a, b = A.astype(np.float64), B.astype(np.float64)
        (k, w), is_half = B.shape, A.itemsize == 2
        magnitude = abs(a) @ abs(b)
        of_row = 2.1 * magnitude.sum(axis=1)
        # Underflow: loss per element and per row.
        tiny = 2.0**-1022 if A.dtype == np.float64 else 2.0**-126
        lost, lost_in_row = k * tiny, 4.2 * (k + w) * tiny
        if A.dtype == np.float64:
            exact = (A.astype(np.longdouble) @ B.astype(np.longdouble)).astype(np.float64)
            of_certain = 2 * _gamma(k + 4, 2.0**-53) + _gamma(2 * w + 14, 2.0**-53)
            return cls(exact, _gamma(k + 8, 2.0**-53) * magnitude + lost, of_certain * of_row + lost_in_row)
        exact, unit = a @ b, 2.0**-24
        of_sum = _gamma(2 * k + 8, unit) + 2.0**-18 if is_half else _gamma(k + 4, unit) + 2.0**-21
        of_certain = 2 * of_sum + _gamma(w + 10, unit) + 2.0**-21
        within = (_gamma(2 * k + 8, unit) + 2.0**-18) * magnitude + lost
        if is_half:
            import ml_dtypes

            kind = ml_dtypes.finfo(A.dtype)
            within = within * 1.01 + float(kind.eps) / 2 * abs(exact) + float(kind.smallest_subnormal) / 2
            if rounded:
                of_certain += float(kind.eps)
                lost_in_row += w * float(kind.smallest_subnormal)
        return cls(exact, within, of_certain * of_row + lost_in_row)


def _gamma(q: float, u: float) -> float:
    return q * u / (1 - q * u)


def try_product(cell: Cell, seed: int, device: str) -> Counts:
    """Run a cell with target "product" or "mid-product".

    Raises
    ------
    ImportError
        If bfloat16 is requested on a GPU and torch is not installed.
    """
    threshold = _calibrated(cell.dtype, device) if cell.code == "statistical" else "proven"
    if cell.fault == "none":
        return _try_clean(cell, seed, device, threshold)
    A, B = _operands(cell, cell.m, cell.generator(seed, data=True))
    limits, weights = Limits.of(A, B, rounded=cell.target == "product"), _weights(cell.n, device)
    a, b = _there(A, device), _there(B, device)
    clean, rng = _here(matmul(a, b).C, A.dtype), cell.generator(seed)
    if cell.target == "product":
        damaged = clean.copy()
        owner, bits = _damage(cell, damaged, rng)
        with np.errstate(all="ignore"):
            off = damaged.astype(np.float64) - clean.astype(np.float64)
        found = check_product(a, b, _there(damaged.copy(), device), correct=True, threshold=threshold)
        return _judged(limits, weights, owner, bits, (clean, off, damaged), found)
    struck: dict[str, Any] = {}

    def strike(sums: np.ndarray) -> None:
        before = sums.astype(np.float64)
        struck["owner"], struck["bits"] = _damage(cell, sums, rng)
        with np.errstate(all="ignore"):
            struck["off"], struck["C"] = sums.astype(np.float64) - before, sums.astype(A.dtype)

    with _struck(strike, cell.n):
        found = matmul(a, b, threshold=threshold)
    products = clean, struck["off"], struck["C"]
    return _judged(limits, weights, struck["owner"], struck["bits"], products, found)


@contextmanager
def _struck(strike: Callable[[np.ndarray], None], w: int) -> Iterator[None]:
    """Corrupt the next product on the CPU: `strike` changes its sums, which are the first `w` columns of the result."""
    multiply = product_cpu.multiply

    def wrong(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        carried = multiply(A, B)
        strike(carried[:, :w])
        return carried

    with patch.object(product_cpu, "multiply", wrong):
        yield


def _damage(cell: Cell, C: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, set[int]]:
    """Corrupt elements of a product in place; return the trial of each row, or −1, and the flipped bits."""
    m, w = C.shape
    width, owner, bits = 8 * C.itemsize, np.full(m, -1), set[int]()
    if cell.fault in ("tile", "rectangle"):
        trials = np.arange(3 * TRIALS)
        first = _TOGETHER * rng.permutation(m // _TOGETHER)[: len(trials)]
        if cell.fault == "tile":
            column = rng.integers(0, w - _TOGETHER + 1, len(trials))
            for i, j in zip(first.tolist(), column.tolist(), strict=True):
                C[i : i + _TOGETHER, j : j + _TOGETHER] = 0
        else:
            _rectangles(C, first, rng)
        owner[(first[:, np.newaxis] + np.arange(_TOGETHER))] = trials[:, np.newaxis]
        return owner, bits
    trials = np.arange(TRIALS * width if cell.fault == "bit" else 4 * TRIALS)
    rows, columns = rng.permutation(m)[: len(trials)], rng.integers(0, w, len(trials))
    flips, bits = flipped(cell.fault, width, len(trials), rng)
    words = C.view(f"u{C.itemsize}")
    words[rows, columns] ^= flips.astype(words.dtype)
    owner[rows] = trials
    return owner, bits


def _rectangles(C: np.ndarray, first: np.ndarray, rng: np.random.Generator) -> None:
    """Add δ to two opposite corners of a rectangle and subtract it from the others; δ is 10⁻⁶ to 10 times C's size."""
    with np.errstate(all="ignore"):
        size = np.sqrt((C.astype(np.float64) ** 2).mean())
        for i in first.tolist():
            rows = i + np.sort(rng.choice(_TOGETHER, 2, replace=False))
            columns = np.sort(rng.choice(C.shape[1], 2, replace=False))
            delta = size * 10 ** rng.uniform(-6, 1) * np.array([[1, -1], [-1, 1]])
            corners = np.ix_(rows, columns)
            C[corners] = (C[corners].astype(np.float64) + delta).astype(C.dtype)


def _weights(w: int, device: str) -> np.ndarray:
    """Return the weights of row sums, (w, checks): two checks on the CPU, one on a GPU."""
    j = np.arange(w)
    if device == "cpu":
        return np.stack([np.ones(w), (j + 1) / w], axis=1)
    # Within eight columns, pairs differ by a quarter of a step: see product/row_checksums.cuh.
    step = 0.5 / max(16, 2 ** int(np.ceil(np.log2(2 * -(-w // 8)))))
    return ((1 - (j // 8 * 2 + j % 2) * step) * (1 - j % 8 // 2 * step / 4))[:, np.newaxis]


def _judged(
    limits: Limits,
    weights: np.ndarray,
    owner: np.ndarray,
    bits: set[int],
    products: tuple[np.ndarray, np.ndarray, np.ndarray],
    found: Checked,
) -> Counts:
    """Count the outcomes of the faults in one product.

    Parameters
    ----------
    limits : Limits
    weights : numpy.ndarray of shape (w, checks)
        Weights of the row sums that check the product.
    owner : numpy.ndarray of shape (m,)
        The trial of each row; −1 for clean rows.
    bits : set of int
    products : three numpy.ndarray of shape (m, w)
        C without a fault; the change made to the checked values; C without repair.
    found : Checked
    """
    clean, off, damaged = products
    after, words = _here(found.C, clean.dtype), f"u{clean.itemsize}"
    changed = off != 0  # also true for NaN
    named = np.zeros(clean.shape, bool)
    if found.faults:
        named[tuple(np.array([(one.row, one.column) for one in found.faults]).T)] = True
    with np.errstate(all="ignore"):
        beyond = changed & ~(abs(damaged.astype(np.float64) - limits.exact) <= limits.within)
        off_after = ~(abs(after.astype(np.float64) - limits.exact) <= limits.within)
        strong = ~(abs(off @ weights).max(axis=1) <= limits.certain)
    replaced: np.ndarray = after.view(words) != damaged.view(words)

    def of_trials(rows: np.ndarray) -> np.ndarray:
        """Return the trials that own one of these rows."""
        flags = np.zeros(owner.max(initial=0) + 1, bool)
        flags[owner[rows & (owner >= 0)]] = True
        return flags

    happened = of_trials(changed.any(axis=1))
    harmful = of_trials(beyond.any(axis=1))
    detected = of_trials(named.any(axis=1)) & happened
    located = detected & ~of_trials((beyond & ~named | named & ~changed).any(axis=1))
    wrong = of_trials((replaced & off_after).any(axis=1))
    repaired = detected & ~wrong & ~of_trials((changed & off_after).any(axis=1))
    certain = harmful & ~of_trials(beyond.any(axis=1) & ~strong)
    judged: np.ndarray = ~changed & named.any(axis=1)[:, np.newaxis]
    return Counts(
        trials=int(happened.sum()),
        detected=int(detected.sum()),
        located=int(located.sum()),
        repaired=int(repaired.sum()),
        miscorrected=int((happened & wrong).sum()),
        harmless=int((happened & ~harmful).sum()),
        certain=int(certain.sum()),
        certain_detected=int((certain & detected).sum()),
        certain_repaired=int((certain & repaired).sum()),
        clean=int(judged.sum()),
        false_alarms=int((judged & named).sum()),
        bits=bits,
    )


# --- Clean products ---------------------------------------------------------------------------------------------------


def _try_clean(cell: Cell, seed: int, device: str, threshold: str | Calibration) -> Counts:
    rng, found, rows = cell.generator(seed), Counts(), 0
    while rows < CLEAN / len(DISTRIBUTIONS):
        A, B = _operands(cell, _CLEAN_ROWS, rng)
        a, b = _there(A, device), _there(B, device)
        one = matmul(a, b, threshold=threshold)
        if found.threshold_ratio is None:
            (k, w), own = B.shape, cell.target != "product"
            known = isinstance(threshold, Calibration)
            bounds = threshold.bounds(k, w, own=own) if known else thresholds.proven(k, w, cell.dtype)
            found.threshold_ratio = _ratio(A, B, cell.dtype, bounds, device)
        if cell.target == "product":
            one = check_product(a, b, one.C, threshold=threshold)
        found.false_alarms += one.n_faults
        rows += len(A)
        found.clean = rows * cell.n
    return found


def try_judged(cell: Cell, seed: int, _device: str) -> Counts:
    """Test every element of clean products against the statistical threshold; gives its false-positive rate.

    Faults cause the same test for elements of flagged rows; in clean products hardly any row is flagged.
    """
    rng, found = cell.generator(seed), Counts()
    calibrated = _calibrated(cell.dtype, "cpu")
    bounds = calibrated.bounds(DEPTH, cell.n)
    while found.clean < CLEAN / len(DISTRIBUTIONS) * cell.n:
        A, B = _operands(cell, _CLEAN_ROWS, rng)
        C = matmul(A, B).C
        found.false_alarms += sum(len(rows) for rows, *_ in product_cpu.wrong_elements(A, B, C, range(len(A)), bounds))
        found.clean += C.size
    return found


def _ratio(A: np.ndarray, B: np.ndarray, dtype: str, bounds: thresholds.ErrorBounds, device: str) -> float | None:
    """Return the ratio of allowed to actual errors of unrounded elements; None if no element is off."""
    some, index = A[:_LOOKED_AT], 0 if device == "cuda" else None
    off = calibration.sums_of(some, B, dtype, index) - exact_products.exact_rows(some, B)[0]
    return over_rounding(allowed_of(some, B, dtype, bounds, index), off)


def allowed_of(
    A: np.ndarray, B: np.ndarray, dtype: str, bounds: thresholds.ErrorBounds, device: int | None
) -> np.ndarray:
    """Return the allowed error of each sum: where a device's sums are emulated bit for bit, their actual error."""
    exact, magnitude = exact_products.exact_rows(A, B)
    if bounds.bit_exact and device is not None:
        return abs(calibration.emulated_sums_of(A, B, dtype, device) - exact)
    walked = rounding_deviations(A, B, bounds.model)
    return bounds.magnitude * magnitude + bounds.spread * walked


def over_rounding(allowed: np.ndarray, off: np.ndarray) -> float | None:
    """Return the root mean square of allowed errors over that of actual errors; None if no element is off."""
    size = np.sqrt((off**2).mean())
    return float(np.sqrt((allowed**2).mean()) / size) if size else None


# --- Arrays -----------------------------------------------------------------------------------------------------------


def _operands(cell: Cell, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    A = draw(cell.distribution, (rows, DEPTH), cell.dtype, rng)
    return A, draw(cell.distribution, (DEPTH, cell.n), cell.dtype, rng)


@cache
def _calibrated(dtype: str, device: str) -> Calibration:
    """Return the calibration of `tsapps abft-calibrate` for the tested depth only."""
    return calibrated_at(DEPTH, dtype, 0 if device == "cuda" else None, p=P)


def calibrated_at(k: int, dtype: str, device: int | None, **how: Any) -> Calibration:
    """Return the result of `calibrate` for one depth only."""
    with patch.object(calibration, "DEPTHS", (k,)):
        return calibrate(dtype, device, **how)


def _there(array: np.ndarray, device: str) -> Any:
    """Return an array on the tested device; bfloat16 on a GPU as a torch tensor."""
    if device == "cpu":
        return array
    if array.dtype.name == "bfloat16":
        import torch

        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).cuda()
    import cupy

    return cupy.asarray(array)


def _here(array: Any, dtype: np.dtype) -> np.ndarray:
    """Copy an array to host memory."""
    if isinstance(array, np.ndarray):
        return array
    if dtype.name == "bfloat16":
        import torch

        return array.cpu().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return array.get()
