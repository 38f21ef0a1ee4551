"""Checks of a linear layer's products on the CPU, by torch in float64."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tsapps.apps.abft.modules.bounds import Arithmetic, LinearBounds, bounds_of
from tsapps.apps.abft.modules.faults import LinearFault, OnFault
from tsapps.apps.abft.modules.launch import weights_of
from tsapps.apps.abft.modules.states import Checksums, Known, State
from tsapps.apps.abft.product.cpu import wrong_elements
from tsapps.kernels.arrays import as_array

__all__ = [
    "arithmetic",
    "bias_sum",
    "check",
    "column_checksums",
    "listed",
    "of_grad_weight",
    "pointers",
    "ready",
    "row_checksums",
    "usable",
    "wait",
    "was_stale",
]


@lru_cache
def _weights(n: int) -> torch.Tensor:
    return torch.from_numpy(weights_of(n))


def arithmetic(dtype: torch.dtype) -> Arithmetic:
    """Return how torch computes products of a dtype on the CPU at present."""
    name = str(dtype).removeprefix("torch.")
    precision = torch.get_float32_matmul_precision()
    factors = {"highest": "float32", "high": "tf32", "medium": "bfloat16"}[precision]
    return Arithmetic(name, factors if dtype == torch.float32 else "float32")


def row_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the rows: the matrix is B, and its columns are those of C."""
    weighted = matrix.double() * _weights(matrix.shape[1])
    return Checksums(weighted.sum(1), weighted.square().sum(1).sqrt())


def column_checksums(matrix: torch.Tensor) -> Checksums:
    """Return checksums of the columns: the matrix is the transposed B, and its rows are the columns of C."""
    return row_checksums(matrix.t())


def bias_sum(bias: torch.Tensor) -> torch.Tensor:
    """Return the checksum of a bias."""
    return _weights(len(bias)) @ bias.double()


def of_grad_weight(
    grad: torch.Tensor,
    x: torch.Tensor,
    state: State,  # noqa: ARG001
    *,
    of_bias: bool,
) -> tuple[Known, torch.Tensor | None]:
    """Return what the check of gradᵀ · x takes, and the gradient of the bias if it is wanted."""
    return Known(None, row_checksums(x), ()), grad.sum(0) if of_bias else None


def check(
    product: str,
    factors: tuple[torch.Tensor, torch.Tensor],
    C: torch.Tensor,
    bias: torch.Tensor | None,
    known: Known,
    state: State,
) -> list[tuple[LinearFault, OnFault | None]]:
    """Check a product, and repair it; return its faults. Parameters: see `on_gpu.check`."""
    A, B = factors
    if product == "forward":
        B = B.t()
    elif product == "grad_weight":
        A = A.t()
    operands, checksums = (A, B, C), known.checksums
    k, w = B.shape
    if 0 in (len(A), k, w):
        return []
    bounds = bounds_of(k, w, arithmetic(C.dtype))
    d, limit = _residuals(A, C, checksums, bounds)
    is_flagged = ~((d.abs() <= limit) & limit.isfinite())
    if not is_flagged.any():
        return []
    rows = (is_flagged & A.isfinite().all(1)).nonzero()[:, 0]
    found = _settle(rows, operands, bias, bounds, repairs=state.options.repair)
    if len(found) < len(rows):  # rounding does not explain all of these rows
        state.invalidate()
    places = torch.tensor(sorted(found), dtype=torch.int64)
    d_after, limit_after = _residuals(A[places], C[places], checksums, bounds)
    faults = []
    for place, row in enumerate(places.tolist()):
        column, n_wrong, wrong, value = found[row]
        repaired = bool(d_after[place].abs() <= limit_after[place])
        values = d[row].item(), limit[row].item(), repaired
        faults.append(LinearFault(state.options.name, product, row, column, n_wrong, wrong, value, *values))
    return [(fault, state.options.on_fault) for fault in faults]


def _residuals(
    A: torch.Tensor, C: torch.Tensor, checksums: Checksums, bounds: LinearBounds
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the residuals of rows, and their limits."""
    a, weighted = A.double(), C.double() * _weights(C.shape[1])
    d = weighted.sum(1) - a @ checksums.x
    if checksums.bias_sum is not None:
        d -= checksums.bias_sum
    s, q = weighted.square().sum(1), a.square() @ checksums.y.square()  # both squared
    return d, bounds.output * s.sqrt() + bounds.sum * (2 * s + q).sqrt() + bounds.absolute


def _settle(
    rows: torch.Tensor,
    operands: Sequence[torch.Tensor],
    bias: torch.Tensor | None,
    bounds: LinearBounds,
    *,
    repairs: bool,
) -> dict[int, tuple[int, int, float, float]]:
    """Test the elements of flagged rows, and repair them.

    Returns the first wrong column, the number of wrong elements, the first one and its exact value, by rows.
    """
    A, B, C = operands
    A = A[rows]
    if bias is not None:
        A, B = torch.cat([A, A.new_ones(len(A), 1)], 1), torch.cat([B, bias[None]])
    a, b, c = (as_array(matrix) for matrix in (A, B, C))
    numbers, wrong = rows.numpy(), dict[int, tuple[int, int, float, float]]()
    for places, columns, found, values in wrong_elements(a, b, c[numbers], range(len(a)), bounds.element):
        of_rows, first, counts = np.unique(places, return_index=True, return_counts=True)
        for row, at, count in zip(numbers[of_rows].tolist(), first.tolist(), counts.tolist(), strict=True):
            wrong[row] = int(columns[at]), count, float(found[at]), float(values[at])
        if repairs:
            c[numbers[places], columns] = values
    return wrong


# --- What only a GPU needs --------------------------------------------------------------------------------------------


def listed(index: int) -> tuple[()]:  # noqa: ARG001
    """Return nothing: every check on the CPU returns its faults."""
    return ()


def pointers(*_: Any) -> tuple[()]:
    """Return nothing: checks on the CPU take tensors."""
    return ()


def usable(state: State, index: int) -> bool:  # noqa: ARG001
    """Return True: checksums are complete when the functions that compute them return."""
    return True


def was_stale(state: State, index: int) -> bool:  # noqa: ARG001
    """Return False: a check on the CPU itself invalidates outdated checksums."""
    return False


def ready(state: State, device: torch.device) -> None:
    """Do nothing."""


wait = ready
