"""The three products of a linear layer by torch, each checked and repaired.

    forward       Y = X Wᵀ + b      B = Wᵀ
    grad_input    dX = dY W         B = W
    grad_weight   dW = dYᵀ X        B = X

All matrices have two dimensions. B's checksums (bounds.py) are computed once for each version of the weight, or, for
X, once per call. Checks on a GPU are launched on torch's current stream and do not wait for the GPU.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tsapps.apps.abft.modules import on_cpu, on_gpu
from tsapps.apps.abft.modules.faults import LinearFault, LinearFaultError, LinearFaultWarning, OnFault, deliver
from tsapps.apps.abft.modules.states import Checksums, Known, State, state_of
from tsapps.apps.abft.product.thresholds import DTYPES

__all__ = ["backward", "check_faults", "deliver_all", "forward", "multiply"]

#: The products, by name; tests replace them to cause faults.
multiply: dict[str, Callable[..., Tensor]] = {
    "forward": F.linear,
    "grad_input": lambda grad, weight: grad @ weight,
    "grad_weight": lambda grad, x: grad.t() @ x,
}


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, source: Tensor) -> Tensor:
    """Return ``x Wᵀ + bias``, checked.

    Parameters
    ----------
    x, weight, bias : tensor
        As for `torch.nn.functional.linear`; x has two dimensions.
    source : tensor
        The parameter from which the weight was cast, or the weight itself; its state has the options of its module.
    """
    backend, x, state, index = _backend(x), _rows(x), state_of(source), x.get_device()
    if listed := backend.listed(index):
        deliver_all(listed)
    known = _of_weight(backend, "forward", state, weight, bias, source, index)
    checked = on_gpu.checked_forward(x, weight, bias, known, state) if state.options.gemm != "library" else None
    if checked is None:
        y = multiply["forward"](x, weight, bias)
        found = backend.check("forward", (x, weight), y, bias, known, state)
    else:
        y, found = checked
    if found:
        deliver_all(found)
    return y


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, source: Tensor, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, the weight and the bias; each is None if it is not wanted. Parameters: see `forward`.

    The gradient of the bias is a sum, not a product; it is not checked.
    """
    backend, grad, x, state, index = _backend(grad), grad.contiguous(), _rows(x), state_of(source), grad.get_device()
    if listed := backend.listed(index):
        deliver_all(listed)
    of_input = of_weight = of_bias = None
    found: list[Any] = []
    is_empty = not grad.numel() or not x.numel()
    if wanted[0]:
        of_input = multiply["grad_input"](grad, weight)
        if not is_empty:
            known = _of_weight(backend, "grad_input", state, weight, None, source, index)
            found += backend.check("grad_input", (grad, weight), of_input, None, known, state)
    if wanted[1]:
        of_weight = multiply["grad_weight"](grad, x)
        if not is_empty:
            known, of_bias = backend.of_grad_weight(grad, x, state, of_bias=wanted[2])
            found += backend.check("grad_weight", (grad, x), of_weight, None, known, state)
    if wanted[2] and of_bias is None:
        of_bias = grad.sum(0)
    if found:
        deliver_all(found)
    return of_input, of_weight, of_bias


_SUPPORTED = frozenset(getattr(torch, name) for name in DTYPES)


def _backend(x: Tensor) -> Any:
    """Return the module with the checks for x's device; raise TypeError if there are none for its dtype or device."""
    if x.dtype in _SUPPORTED:
        if x.is_cuda:
            return on_gpu
        if x.is_cpu:
            return on_cpu
        raise TypeError(f"the input is on {x.device}; protected modules support the CPU and NVIDIA GPUs")
    raise TypeError(f"the input has dtype {x.dtype}; protected modules support {', '.join(DTYPES)}")


def _rows(x: Tensor) -> Tensor:
    """Return x with contiguous rows, copied if necessary."""
    return x if x.stride(1) == 1 else x.contiguous()


def _of_weight(
    backend: Any, product: str, state: State, weight: Tensor, bias: Tensor | None, source: Tensor, index: int
) -> Known:
    """Return the checksums of a weight for a product: those computed before, if it has not changed since."""
    key, known = _key(source, weight, bias), state.checksums.get(product)
    if known is not None and key is not None and known.key == key and backend.usable(state, index):
        return known
    device = weight.device
    with state.lock:
        if backend.was_stale(state, index):
            state.invalidate()
        before = state.checksums.get(product)
        if key is not None and before is not None and before.key == key:
            backend.wait(state, device)
            return before
        rows = _rows(weight)
        found: Checksums = (backend.column_checksums if product == "forward" else backend.row_checksums)(rows)
        if product == "forward" and state.options.gemm != "library" and backend is on_gpu:
            found = on_gpu.with_parts(found, rows)
        if bias is not None:
            found = found._replace(bias_sum=backend.bias_sum(bias))
        if before is not None:
            found = _in_place(before.checksums, found)
        w = weight.shape[0 if product == "forward" else 1]
        known = Known(key, found, backend.pointers(product, found, state, w))
        state.checksums[product] = known
        backend.ready(state, device)
    return known


def _key(source: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Any, ...] | None:
    """Return a value that changes if the weight or the bias changes; None if torch does not count their versions."""
    try:
        of_weight = source.data_ptr(), source._version, weight.dtype, weight.shape, weight.stride()
        if bias is None or source is not weight:
            return of_weight
        return *of_weight, bias.data_ptr(), bias._version
    except RuntimeError:
        if source.is_inference() or (bias is not None and bias.is_inference()):
            return None
        raise


def _in_place(before: Checksums, now: Checksums) -> Checksums:
    """Copy checksums to the memory of those before, which captured CUDA graphs read; return them."""
    for old, new in zip(before, now, strict=True):
        if (old is None) != (new is None):
            return now
        if old is not None and (old.shape, old.dtype, old.device) != (new.shape, new.dtype, new.device):
            return now
    for old, new in zip(before, now, strict=True):
        if old is not None:
            old.copy_(new)
    return before


# --- Faults -----------------------------------------------------------------------------------------------------------


def deliver_all(found: Sequence[tuple[LinearFault, OnFault | None]]) -> None:
    """Report faults; if some are errors, raise the first one after all others were reported."""
    first: LinearFaultError | None = None
    for fault, on_fault in found:
        try:
            deliver(fault, on_fault)
        except LinearFaultError as error:
            first = first or error
    if first is not None:
        raise first


def check_faults() -> list[LinearFault]:
    """Wait for the GPUs, and report all faults of protected modules that have not been reported yet.

    Call it at the end of a step, before its results are used or saved: a module whose faults are reported `deferred`
    reports them at the next protected call, or here.

    Returns
    -------
    list of LinearFault
        The faults that this call has reported.

    Raises
    ------
    LinearFaultError
        If a fault was not repaired and its module has no `on_fault`.
    """
    found, lost = on_gpu.take_all()
    if lost:
        text = f"{lost} more rows had wrong elements; the list of faults had no place for them"
        warnings.warn(LinearFaultWarning(text), stacklevel=2)
    deliver_all(found)
    return [fault for fault, _ in found]
