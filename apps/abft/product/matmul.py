"""Protected matrix products (ABFT), and the check of a finished product."""

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
from tsapps.apps.abft.product.thresholds import ErrorBounds
from tsapps.kernels.arrays import as_array, gpu_index, kind_of, like

__all__ = ["Checked", "ProductFault", "check_product", "matmul"]

# Number of recomputed rows, number of wrong elements, and a list of the first `MOST_LISTED` wrong elements.
Findings = tuple[int, int, list[product_cpu.WrongElement]]


@dataclass(frozen=True, order=True)
class ProductFault:
    """A wrong element of a product.

    Attributes
    ----------
    row, column : int
    found : float
        The value found; may be infinite or NaN.
    value : float
        The correct value: the exact element, rounded to C's dtype. If elements are compared bit for bit, it is the
        value that the same kernel computes without faults.
    """

    row: int
    column: int
    found: float
    value: float


class Checked:
    """A product and the result of its check.

    On a GPU, the product, its check and the repair of C are launched asynchronously, in stream order. The first access
    to the result of the check, such as `faults` or `clean`, waits for the GPU.

    Parameters
    ----------
    C : array of shape (m, w)
    threshold : str or float
    report : callable
        Returns the number of recomputed rows, the number of wrong elements, and a list of the first 65,536 wrong
        elements.

    Attributes
    ----------
    C : array of shape (m, w)
        The product. Wrong elements are repaired if the caller requested it.
    threshold : str or float
        The given threshold; "statistical" for a calibration.
    """

    def __init__(self, C: Any, threshold: str | float, report: Callable[[], Findings]) -> None:
        self.C, self.threshold, self._report = C, threshold, report

    @cached_property
    def _findings(self) -> Findings:
        return self._report()

    @cached_property
    def faults(self) -> list[ProductFault]:
        """The wrong elements, sorted by row and column; only the 65,536 found first if there are more."""
        return sorted(ProductFault(*one) for one in self._findings[2])

    @property
    def n_faults(self) -> int:
        """Number of wrong elements."""
        return self._findings[1]

    @property
    def suspected(self) -> int:
        """Number of rows that were recomputed, because they disagreed with their checksums."""
        return self._findings[0]

    @property
    def clean(self) -> bool:
        """True if no wrong element was found."""
        return self.n_faults == 0

    def __repr__(self) -> str:
        return f"Checked({self.n_faults} faults, {self.suspected} rows suspected, threshold={self.threshold!r})"


def matmul(A: Any, B: Any, *, correct: bool = True, threshold: str | float | Calibration = "proven") -> Checked:
    """Compute A · B with checksums (ABFT): detect and repair errors of the computation.

    Every row of the product is compared with a checksum before the row is rounded and stored. Rows that disagree with
    their checksums are recomputed from A and B in twice the precision, and each of their elements is tested separately.
    So checksums only select rows. An element is reported as wrong only if it differs from its recomputed value.

    Parameters
    ----------
    A : array of shape (m, k)
        NumPy, CuPy, torch, or any array with DLPack or ``__cuda_array_interface__``; float64, float32, float16 or
        bfloat16; row- or column-major.
    B : array of shape (k, w)
        Same dtype and device as A. A is read once if w is at most 64, otherwise twice.
    correct : bool
        If True, wrong elements are repaired in C; otherwise they are only reported.
    threshold : {"proven", "statistical"}, float or Calibration
        The error bound of an element.

        "proven"
            The largest error that rounding can explain (Higham's bound, ``|C − AB| ≤ γ·|A||B|``): no false positives.
        "statistical" or a calibration
            A bound some hundred times smaller. The random rounding error of an element exceeds it with a probability of
            at most the calibration's false positive rate. ``tsapps abft-calibrate`` or `calibrate` makes a calibration.
            If the calibration found that the emulation of a GPU's sums is bit-exact, elements of tall and narrow
            products are compared bit for bit: an element is wrong if its bits differ from the emulated bits.
        a number
            An absolute error.

        If the dtype has 16 bits, the bound also includes the error of rounding an element to that dtype.

    Returns
    -------
    Checked
        The product, as a row-major array `C` of A's library, and the result of its check.

    Raises
    ------
    TypeError
        If an operand is not an array or has an unsupported dtype.
    ValueError
        If shapes, dtypes or devices disagree, or the threshold is invalid or has no calibration; or if torch would
        record gradients of an operand, which `Linear` and `protect` support and this function does not.

    Notes
    -----
    A wrong element is certainly found if its error is more than a small multiple of its row's bound
    (`thresholds.proven`); in practice much smaller errors are found. A non-finite element is certainly found if its
    exact value fits in C's dtype and no partial sum can overflow. Elements with non-finite factors are not tested.
    These statements hold from the largest numbers down to denormals. There, each product may lose up to half the
    smallest positive number. On a GPU, float32 and bfloat16 denormals may count as zero. Errors in one row that cancel
    in its checksums are not detected. An element of A that was read wrongly has the same error in the checksums, so the
    error is not detected; `check_product` reads A again.

    Source: K.-H. Huang and J. Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Transactions on
    Computers (1984). Testing flagged rows with exact elements is our addition (docs/notes/abft.md).
    """
    _refuse_gradients(A=A, B=B)
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
    findings = _locate(a, b, c, rows, bounds, correct=correct)
    return Checked(like(c, A), _name_of(threshold), lambda: findings)


def check_product(
    A: Any, B: Any, C: Any, *, correct: bool = False, threshold: str | float | Calibration = "proven"
) -> Checked:
    """Check a finished product C = A · B by reading A and C once.

    Parameters
    ----------
    A, B, C : arrays of shapes (m, k), (k, w), (m, w)
        As for `matmul`; C has their dtype and device.
    correct : bool
        If True, wrong elements are repaired in the given C; otherwise they are only reported.
    threshold : {"proven", "statistical"}, float or Calibration
        As for `matmul`. The statistical bound is larger here, because the accumulation order of C is unknown. A product
        that was computed in lower precision than its dtype, such as tf32, needs a number.

    Returns
    -------
    Checked
        The given C, and the result of its check.

    Raises
    ------
    TypeError, ValueError
        As for `matmul`; ValueError also if C is read-only and `correct` is true.

    Notes
    -----
    For 16-bit types, the rounding of C widens the bound of a row, so `check_product` misses some errors that `matmul`
    detects before rounding. The check of a float32 or bfloat16 product in host memory assumes gradual underflow, as
    CPUs have it. If the processor that computed the product flushes denormals to zero, `threshold` must be a number.
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
        raise ValueError("C is read-only; expected a writable array, or correct=False")
    rows = [
        first + product_cpu.flagged(c[first : first + len(checks)], checks, bounds, rounded=True)
        for first, _, checks in product_cpu.checked_blocks(a, b, bounds, None)
    ]
    findings = _locate(a, b, c, rows, bounds, correct=correct)
    return Checked(given, _name_of(threshold), lambda: findings)


def _locate(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, blocks: list[np.ndarray], bounds: ErrorBounds, *, correct: bool
) -> Findings:
    """Locate the wrong elements of the flagged rows, repair them in `c` if `correct`, and return the findings.

    `blocks` is a list of arrays with the indices of flagged rows.
    """
    flagged = np.concatenate([np.empty(0, np.int64), *blocks])
    listed: list[product_cpu.WrongElement] = []
    n_wrong = 0
    for rows, columns, found, values in product_cpu.wrong_elements(a, b, c, flagged, bounds):
        n_wrong += len(rows)
        room = slice(product_cpu.MOST_LISTED - len(listed))
        fields = rows, columns, found, values.astype(np.float64)
        listed += zip(*(field[room].tolist() for field in fields), strict=True)
        if correct:
            c[rows, columns] = values
    return len(flagged), n_wrong, listed


# --- Arguments ------------------------------------------------------------------------------------------------------


def _operands(given: dict[str, Any]) -> tuple[list[Any], int | None]:
    """Validate operands. Return them as arrays of NumPy, CuPy or torch, and the index of their GPU (None: the host)."""
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
            supported = f"{', '.join(thresholds.DTYPES)}, in the machine's byte order"
            raise TypeError(f"{name} has dtype {dtype}; expected {supported}: convert it")
        if X.ndim != 2:
            raise ValueError(f"{name} has shape {tuple(X.shape)}; expected a matrix, (rows, columns)")
    A, B = operands["A"], operands["B"]
    index = gpu_index(A)
    for name, X in operands.items():
        if dtypes[name] != dtypes["A"]:
            raise ValueError(f"A has dtype {dtypes['A']} and {name} {dtypes[name]}; expected one dtype: convert one")
        if gpu_index(X) != index:
            raise ValueError(f"A is {_where(A)} and {name} {_where(X)}; expected one device: move one of them")
    if A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {tuple(A.shape)} and B {tuple(B.shape)}; expected (m, k) and (k, w)")
    expected = (A.shape[0], B.shape[1])
    if "C" in operands and tuple(operands["C"].shape) != expected:
        raise ValueError(f"C has shape {tuple(operands['C'].shape)}; expected {expected}, the shape of A · B")
    return list(operands.values()), index


def _refuse_gradients(**operands: Any) -> None:
    """Raise ValueError if torch would record gradients of an operand."""
    for name, X in operands.items():
        if kind_of(X) == "torch" and X.requires_grad:
            import torch

            if torch.is_grad_enabled():
                raise ValueError(
                    f"{name} requires gradients, which abft.matmul does not record: pass {name}.detach(), or use "
                    "abft.Linear, or abft.protect for the linear layers of a module"
                )


def _dtype(X: Any) -> str:
    return _written(X.dtype)


@cache
def _written(dtype: Any) -> str:
    """Return a dtype of NumPy or torch as text. Unlike ``dtype.name``, the text shows a non-native byte order."""
    return str(dtype).removeprefix("torch.")


def _where(X: Any) -> str:
    index = gpu_index(X)
    return "in host memory" if index is None else f"on GPU {index}"


def _host(X: Any) -> np.ndarray:
    return np.asarray(as_array(X))


def _resolved(threshold: str | float | Calibration, dtype: str, index: int | None) -> str | float | Calibration:
    """Validate a threshold and return it; for "statistical", return the user's calibration for dtype and device."""
    if isinstance(threshold, str) and threshold == "statistical":
        threshold = load_calibration(dtype, index)
    if isinstance(threshold, Calibration):
        if threshold.dtype != dtype:
            raise ValueError(
                f"the calibration is for {threshold.dtype}, and A has dtype {dtype}: calibrate for {dtype}"
            )
        return threshold
    if isinstance(threshold, str) and threshold == "proven":
        return threshold
    if isinstance(threshold, bool) or not isinstance(threshold, Real):
        raise ValueError(f"threshold is {threshold!r}; expected 'proven', 'statistical', a number or a calibration")
    try:
        return float(threshold)
    except OverflowError as error:
        raise ValueError("threshold is beyond the largest float64; expected a number of float64") from error


def _bounds_of(
    k: int, w: int, dtype: str, threshold: str | float | Calibration, *, own: bool, flushes: bool = False
) -> ErrorBounds:
    """Return the error bounds of a product for a validated threshold.

    `own` is True for the bounds of our own kernels (`Calibration.error`). `flushes` is True for a GPU, which may flush
    denormals to zero (`thresholds.proven`).
    """
    if isinstance(threshold, Calibration):
        return threshold.bounds(k, w, own=own)
    if isinstance(threshold, str):
        return thresholds.proven(k, w, dtype, flushes=flushes)
    return thresholds.absolute(k, w, dtype, threshold, flushes=flushes)


def _name_of(threshold: str | float | Calibration) -> str | float:
    return "statistical" if isinstance(threshold, Calibration) else threshold
