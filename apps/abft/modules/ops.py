"""Linear layers with checked products under autograd: a function for eager calls, custom operators for torch.compile.

Eager calls use `torch.autograd.Function`, because an operator with an autograd formula in Python takes the host some
50 µs more per call. Derivatives of gradients (``create_graph=True``) are right, but their products are not checked.
"""

from typing import Any

import torch
from torch import Tensor

from tsapps.apps.abft.modules import products

__all__ = ["eager_linear", "linear", "traced_linear"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x Wᵀ + bias`` with checked products, forward and backward; arguments as `torch.nn.functional.linear`."""
    return (traced_linear if torch.compiler.is_compiling() else eager_linear)(x, weight, bias)


def eager_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` outside of torch.compile. Arguments are only checked if torch refuses them."""
    source = weight
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(x.device.type):
        x, weight, bias = _cast(x, weight, bias)
    try:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled() and (
            weight.requires_grad or x.requires_grad or (bias is not None and bias.requires_grad)
        ):
            y: Tensor = _Linear.apply(rows, weight, bias, source)
        else:
            y = products.forward(rows, weight, bias, source)
    except (RuntimeError, IndexError):
        _check_shapes(x, weight, bias)
        raise
    return y if rows is x else y.reshape(*x.shape[:-1], weight.shape[0])


def traced_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` within torch.compile."""
    source = weight
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = _cast(x, weight, bias)
    _check_shapes(x, weight, bias)
    y = torch.ops.tsapps.protected_linear(x.reshape(-1, x.shape[-1]), weight, bias, source)
    return y.reshape(*x.shape[:-1], weight.shape[0])


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast to the dtype of autocast."""
    dtype = torch.get_autocast_dtype(x.device.type)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _check_shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dim() == 0 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"the input has shape {tuple(x.shape)}; expected {weight.shape[1]} features in its last dimension"
        )
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and (other.dtype != x.dtype or other.device != x.device):
            raise ValueError(
                f"the input is {x.dtype} on {x.device} and the {name} {other.dtype} on {other.device}; "
                "expected one dtype and one device"
            )


# --- Eager ------------------------------------------------------------------------------------------------------------


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, source: Tensor) -> Tensor:
        if source is weight:
            ctx.save_for_backward(x, weight)
        else:
            ctx.save_for_backward(x, weight, source)
        return products.forward(x, weight, bias, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *others = ctx.saved_tensors
        given = grad, x, weight, others[0] if others else weight, ctx.needs_input_grad[:3]
        # Gradients that record their own derivatives are rarely wanted.
        found = _LinearBackward.apply(*given) if torch.is_grad_enabled() else products.backward(*given)
        return *found, None


class _LinearBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor, source: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(grad, x, weight)
        return products.backward(grad, x, weight, source, wanted)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *_second_order(*ctx.saved_tensors, *grads), None, None


def _second_order(
    grad: Tensor, x: Tensor, weight: Tensor, of_input: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of `grad`, x and the weight from those of dX = grad W, dW = gradᵀ x and db = Σ grad."""
    of_grad = torch.zeros_like(grad)
    of_x = of_w = None
    if of_input is not None:
        of_grad, of_w = of_grad + of_input @ weight.t(), grad.t() @ of_input
    if of_weight is not None:
        of_grad, of_x = of_grad + x @ of_weight.t(), grad @ of_weight
    if of_bias is not None:
        of_grad = of_grad + of_bias
    return of_grad, of_x, of_w


# --- Operators --------------------------------------------------------------------------------------------------------


@torch.library.custom_op("tsapps::protected_linear", mutates_args=(), device_types=("cpu", "cuda"))
def _operator(x: Tensor, weight: Tensor, bias: Tensor | None, source: Tensor) -> Tensor:
    return products.forward(x, weight, bias, source)


@_operator.register_fake
def _(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


@torch.library.custom_op("tsapps::protected_linear_backward", mutates_args=(), device_types=("cpu", "cuda"))
def _backward_operator(
    grad: Tensor, x: Tensor, weight: Tensor, source: Tensor, of_input: bool, of_weight: bool, of_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    found = products.backward(grad, x, weight, source, (of_input, of_weight, of_bias))
    dx, dw, db = (grad.new_empty(0) if one is None else one for one in found)
    return dx, dw, db


@_backward_operator.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, _: Tensor, *wanted: bool) -> tuple[Tensor, Tensor, Tensor]:
    of_input, of_weight, of_bias = wanted
    dx = grad.new_empty(x.shape if of_input else (0,))
    dw = grad.new_empty(weight.shape if of_weight else (0,))
    return dx, dw, grad.new_empty(grad.shape[1:] if of_bias else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    x, weight, _, source = inputs
    ctx.save_for_backward(x, weight, source)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, source = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    found = torch.ops.tsapps.protected_linear_backward(grad, x, weight, source, *wanted)
    return *(one if want else None for one, want in zip(found, wanted, strict=True)), None


_operator.register_autograd(_gradients, setup_context=_save)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs[:3])
    ctx.wanted = inputs[4:]


def _gradients_of_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    given = (one if want else None for one, want in zip(grads, ctx.wanted, strict=True))
    return *_second_order(*ctx.saved_tensors, *given), None, None, None, None


_backward_operator.register_autograd(_gradients_of_backward, setup_context=_save_backward)
