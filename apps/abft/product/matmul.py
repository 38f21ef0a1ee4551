"""Products that are checked as they are computed, and the check of a product that somebody else computed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from numbers import Real
from typing import Any

import numpy as np

from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import thresholds
from tsapps.apps.abft.product.calibrate import Calibration
from tsapps.apps.abft.product.calibration_file import load_calibration
from tsapps.apps.abft.product.thresholds import Bounds
from tsapps.kernels.arrays import as_array, gpu_index, kind_of, like

__all__ = ["Checked", "ProductFault", "check_product", "matmul"]

# Rows that were suspected, elements that are wrong, and those that are listed.
Verdict = tuple[int, int, list[product_cpu.Wrong]]


@dataclass(frozen=True, order=True)
class ProductFault:
    """An element of a product that is not what it should be.

    Attributes
    ----------
    row, column : int
    found : float
        What it was; may be infinite or no number.
    value : float
        What it should be: the exact element, rounded to C's dtype; where elements are judged to the bit, what a product
        without faults has.
    """

    row: int
    column: int
    found: float
    value: float


class Checked:
    """A product, and what its check found.

    On a GPU the product and its check are launched and not waited for, and C is repaired in the order of its stream;
    what was found is waited for where it is first asked for.

    Parameters
    ----------
    C : array of shape (m, w)
    threshold : str or float
    report : callable
        Returns how many rows were suspected, how many elements are wrong, and those that are listed.

    Attributes
    ----------
    C : array of shape (m, w)
        The product; repaired, if that was asked for.
    threshold : str or float
        As it was given; of a calibration, "statistical".
    """

    def __init__(self, C: Any, threshold: str | float, report: Callable[[], Verdict]) -> None:
        self.C, self.threshold, self._report = C, threshold, report

    @cached_property
    def _verdict(self) -> Verdict:
        return self._report()

    @cached_property
    def faults(self) -> list[ProductFault]:
        """The elements that are wrong, by row and column: of more, the first 65,536 that were found."""
        return sorted(ProductFault(*one) for one in self._verdict[2])

    @property
    def n_faults(self) -> int:
        """How many there are in all."""
        return self._verdict[1]

    @property
    def suspected(self) -> int:
        """Rows that did not agree with their checks and were computed again, exactly."""
        return self._verdict[0]

    @property
    def clean(self) -> bool:
        """Whether no element was found to be wrong."""
        return self.n_faults == 0

    def __repr__(self) -> str:
        return f"Checked({self.n_faults} faults, {self.suspected} rows suspected, threshold={self.threshold!r})"


def matmul(A: Any, B: Any, *, correct: bool = True, threshold: str | float | Calibration = "proven") -> Checked:
    """Compute A · B with checksums that the product carries: what goes wrong on the way is found, and repaired.

    Every row of the product is checked against a weighted sum of it that is computed beside it, before it is rounded or
    stored. Rows that do not agree are computed again, in twice the precision, from A and B, and each of their elements
    is judged by itself. So checksums only say where to look: what is called wrong is known to be.

    Parameters
    ----------
    A : array of shape (m, k)
        NumPy, CuPy, torch, or anything with DLPack or ``__cuda_array_interface__``; float64, float32, float16 or
        bfloat16; row- or column-major.
    B : array of shape (k, w)
        Of A's dtype, where A lies. Fast for w of at most 64, where A is read once; A is read twice for more.
    correct : bool
        Whether elements that are wrong are repaired in C, or only reported.
    threshold : {"proven", "statistical"}, float or Calibration
        What an element may be off by. By "proven", what rounding can explain (Higham's bound,
        ``|C − AB| ≤ γ·|A||B|``) is never called wrong: no false alarms. By "statistical", or a calibration, some
        hundred times less, which rounding exceeds with the calibration's false-alarm rate at most, an element, where
        rounding errors are random; made by ``tsapps abft-calibrate`` or `calibrate`. On a GPU whose sums the
        calibration found to be known, tall and narrow products are judged to the bit by it: what is called wrong is any
        other number. A number: that, absolutely. To each is added what rounding to 16 bits may lose.

    Returns
    -------
    Checked
        With C of A's library, row-major.

    Raises
    ------
    TypeError
        If an operand is no array, or of another dtype than these.
    ValueError
        If shapes, dtypes or devices do not agree, or there is no such threshold, or no calibration for it.

    Notes
    -----
    Found for certain is every element that is off by more than some times what its whole row may be
    (`thresholds.proven`), in practice by much less; also what is not a number, or infinite, where C's dtype holds the
    exact element and no sum on the way to it may overflow. Elements whose factors are not all finite are not judged.
    This holds from the largest numbers down to denormals, of which products lose half the smallest number each; but on
    a GPU float32 and bfloat16 that are below the normal numbers may count for zero. Errors in one row that cancel in
    its checksums are not seen; and an element of A that was wrong as it was read is as wrong in the checksums:
    `check_product` reads A again.

    Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Transactions on
    Computers (1984). That a suspicion is decided by an exact row is ours (docs/notes/abft.md).
    """
    (A, B), index = _operands({"A": A, "B": B})
    (k, w), dtype = B.shape, _dtype(A)
    threshold = _resolved(threshold, dtype, index)
    if index is not None:
        from tsapps.apps.abft.product import gpu as product_gpu

        ours, others = (_bounds_of(k, w, dtype, threshold, own=own, flushes=True) for own in (True, False))
        C, report = product_gpu.matmul(A, B, ours, others, index, correct=correct)
        return Checked(C, _name_of(threshold), report)
    a, b, bounds = _host(A), _host(B), _bounds_of(k, w, dtype, threshold, own=True)
    c = np.empty((len(a), b.shape[1]), a.dtype)
    rows: list[np.ndarray] = []
    for first, sums, checks in product_cpu.checked_blocks(a, b, bounds, c):
        rows.append(first + product_cpu.flagged(sums, checks, bounds, rounded=False))
    verdict = _judged(a, b, c, rows, bounds, correct=correct)
    return Checked(like(c, A), _name_of(threshold), lambda: verdict)


def check_product(
    A: Any, B: Any, C: Any, *, correct: bool = False, threshold: str | float | Calibration = "proven"
) -> Checked:
    """Check a product that somebody else computed, C = A · B, by reading A and C once.

    Parameters
    ----------
    A, B, C : arrays of shapes (m, k), (k, w), (m, w)
        As for `matmul`; C of their dtype, where they lie.
    correct : bool
        Whether elements that are wrong are repaired, in C itself.
    threshold : {"proven", "statistical"}, float or Calibration
        As for `matmul`; "statistical" is wider, as nobody knows in what order C was added up. A product of another
        precision than its dtype's (tf32) needs a number.

    Returns
    -------
    Checked
        With C as it was given.

    Raises
    ------
    TypeError, ValueError
        As for `matmul`; ValueError also if C is to be repaired and read-only.

    Notes
    -----
    Of 16-bit elements, a row may be off by what rounding them lost: errors below that are not seen, as they are by
    `matmul`, which checks sums before they are rounded. A float32 or bfloat16 product in host memory is taken for one
    of gradual underflow, as CPUs have it; one by a processor that flushes denormals to zero needs a number, too.
    """
    given = C
    (A, B, C), index = _operands({"A": A, "B": B, "C": C})
    (k, w), dtype = B.shape, _dtype(A)
    threshold = _resolved(threshold, dtype, index)
    bounds = _bounds_of(k, w, dtype, threshold, own=False, flushes=index is not None)
    if index is not None:
        from tsapps.apps.abft.product import gpu as product_gpu

        return Checked(given, _name_of(threshold), product_gpu.check(A, B, C, bounds, index, correct=correct))
    a, b, c = _host(A), _host(B), _host(C)
    if correct and not c.flags.writeable:
        raise ValueError("C is read-only; give an array that can be written, or correct=False")
    rows = [
        first + product_cpu.flagged(c[first : first + len(checks)], checks, bounds, rounded=True)
        for first, _, checks in product_cpu.checked_blocks(a, b, bounds, None)
    ]
    verdict = _judged(a, b, c, rows, bounds, correct=correct)
    return Checked(given, _name_of(threshold), lambda: verdict)


def _judged(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, blocks: list[np.ndarray], bounds: Bounds, *, correct: bool
) -> Verdict:
    """Return what is wrong in the rows that are suspected; it is repaired if that is wanted."""
    suspected = np.concatenate([np.empty(0, np.int64), *blocks])
    listed: list[product_cpu.Wrong] = []
    n_wrong = 0
    for rows, columns, found, values in product_cpu.wrong(a, b, c, suspected, bounds):
        n_wrong += len(rows)
        room = slice(product_cpu.MOST_LISTED - len(listed))
        of_each = rows, columns, found, values.astype(np.float64)
        listed += zip(*(one[room].tolist() for one in of_each), strict=True)
        if correct:
            c[rows, columns] = values
    return len(suspected), n_wrong, listed


# --- Checks ---------------------------------------------------------------------------------------------------------


def _operands(given: dict[str, Any]) -> tuple[list[Any], int | None]:
    """Return operands that agree, as arrays of NumPy, CuPy or torch, and the GPU that they lie on, or None."""
    operands, dtypes = dict(given), {}
    for name, X in given.items():
        if kind_of(X) in ("numpy", "cuda", "dlpack"):
            operands[name] = X = as_array(X)
        if kind_of(X) in (None, "frame"):
            raise TypeError(
                f"{name} is a {type(X).__module__}.{type(X).__qualname__}; expected an array of NumPy, CuPy or torch, "
                "or one with DLPack or __cuda_array_interface__"
            )
        dtypes[name] = dtype = _dtype(X)
        if dtype not in thresholds.DTYPES:
            wanted = f"{', '.join(thresholds.DTYPES)}, in the machine's byte order"
            raise TypeError(f"{name} has dtype {dtype}; expected {wanted}: convert it")
        if X.ndim != 2:
            raise ValueError(f"{name} has shape {tuple(X.shape)}; expected a matrix, (rows, columns)")
    A, B = operands["A"], operands["B"]
    index = gpu_index(A)
    for name, X in operands.items():
        if dtypes[name] != dtypes["A"]:
            raise ValueError(f"A has dtype {dtypes['A']} and {name} {dtypes[name]}; convert one of them")
        if gpu_index(X) != index:
            raise ValueError(f"A lies {_where(A)} and {name} {_where(X)}; move one of them")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {tuple(A.shape)} and B {tuple(B.shape)}; expected (m, k) and (k, w)")
    expected = (A.shape[0], B.shape[1])
    if "C" in operands and tuple(operands["C"].shape) != expected:
        raise ValueError(f"C has shape {tuple(operands['C'].shape)}; expected {expected}, as A · B has")
    return list(operands.values()), index


def _dtype(X: Any) -> str:
    return _written(X.dtype)


@cache
def _written(dtype: Any) -> str:
    """Return a dtype of NumPy or torch as it is written, other than its name where it is of another byte order."""
    return str(dtype).removeprefix("torch.")


def _where(X: Any) -> str:
    index = gpu_index(X)
    return "in host memory" if index is None else f"on GPU {index}"


def _host(X: Any) -> np.ndarray:
    return np.asarray(as_array(X))


def _resolved(threshold: str | float | Calibration, dtype: str, index: int | None) -> str | float | Calibration:
    """Return a threshold that is one, of "statistical" the user's calibration."""
    if isinstance(threshold, str) and threshold == "statistical":
        threshold = load_calibration(dtype, index)
    if isinstance(threshold, Calibration):
        if threshold.dtype != dtype:
            raise ValueError(f"the calibration is for {threshold.dtype}, and A has dtype {dtype}: calibrate for that")
        return threshold
    if isinstance(threshold, str) and threshold == "proven":
        return threshold
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise ValueError(f"threshold is {threshold!r}; expected 'proven', 'statistical', a number or a calibration")
    try:
        return float(threshold)
    except OverflowError as error:
        raise ValueError("threshold is beyond the largest float64; expected a number that it holds") from error


def _bounds_of(
    k: int, w: int, dtype: str, threshold: str | float | Calibration, *, own: bool, flushes: bool = False
) -> Bounds:
    """Return the bounds of a product by a threshold that is resolved.

    `own` as for `Calibration.error`, and `flushes` as for `thresholds.proven`: on a GPU, which a calibration is for.
    """
    if isinstance(threshold, Calibration):
        return threshold.bounds(k, w, own=own)
    if isinstance(threshold, str):
        return thresholds.proven(k, w, dtype, flushes=flushes)
    return thresholds.absolute(k, w, dtype, threshold, flushes=flushes)


def _name_of(threshold: str | float | Calibration) -> str | float:
    return "statistical" if isinstance(threshold, Calibration) else threshold
