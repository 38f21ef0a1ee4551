"""Protected linear layers: `Linear`, and `protect`, which protects the linear layers of a module."""

from typing import Any

from torch import Tensor, compiler, nn

from tsapps.apps.abft.modules.faults import OnFault
from tsapps.apps.abft.modules.ops import eager_linear, traced_linear
from tsapps.apps.abft.modules.states import Options, register

__all__ = ["Linear", "protect", "unprotect"]


class Linear(nn.Linear):
    """`torch.nn.Linear` with checked products, forward and backward (ABFT).

    Every product is compared with checksums, row by row. Wrong elements are replaced by the exact ones before anything
    can read them, in stream order, without waiting for the GPU.

    Parameters
    ----------
    *args, **kwargs
        As for `torch.nn.Linear`: in_features, out_features, bias, device and dtype. The dtype is float64, float32,
        float16 or bfloat16.
    name : str
        The name of the module in faults.
    on_fault : callable, optional
        Called with a `LinearFault` for every row with wrong elements. Without it, `LinearFaultWarning` is issued for a
        fault that was repaired, and `LinearFaultError` is raised for one that was not.
    report : {"deferred", "immediate"}
        When faults on a GPU are reported. "deferred": at the next call of a protected module that finds them listed,
        or by `check_faults`; nothing waits for the GPU. "immediate": by the call itself, which waits for the GPU.
        On the CPU, every call reports its faults.
    repair : bool
        If False, wrong elements are only reported.
    gemm : {"auto", "library", "fused"}
        How products are computed. "library": by torch, with the same bits as `torch.nn.Linear`; the check reads the
        operands again. "fused": forward products of bfloat16 on GPUs of compute capability 9.0, with sizes that are
        multiples of 8, by a kernel that checks them as it computes them; all others as with "library". "auto": as with
        "fused", but only for sizes for which that takes less time.

    Notes
    -----
    A row is compared with its checksum in float64, or in float32 for 16-bit types. Rows that differ by more than random
    rounding explains are computed once more, nearly exactly. An element is wrong if rounding cannot explain its error:
    correct elements are never reported or changed. An element is certainly found if its error exceeds 4.2 times the
    `limit` of its row (`LinearFault`), the proven rounding bound of the element, and nothing else in the row is wrong.

    Rows of the input with infinite or NaN elements are not checked. Nor are weights: what is wrong in memory is equally
    wrong in the checksums. If the error of a product has not been explained, checksums of weights are computed anew.

    Under autocast, the layer computes in the dtype of autocast, like `torch.nn.Linear`.
    """

    abft_options: Options

    def __init__(
        self,
        *args: Any,
        name: str = "Linear",
        on_fault: OnFault | None = None,
        report: str = "deferred",
        repair: bool = True,
        gemm: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.abft_options = Options(name, on_fault, report, repair, gemm)
        register(self.weight, self.abft_options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied module."""
        super().__setstate__(state)
        register(self.weight, self.abft_options)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the layer's output; see `torch.nn.Linear`."""
        weight = self.weight
        if compiler.is_compiling():
            return traced_linear(input, weight, self.bias)
        register(weight, self.abft_options)
        return eager_linear(input, weight, self.bias)


def protect(
    module: nn.Module,
    *,
    on_fault: OnFault | None = None,
    report: str = "deferred",
    repair: bool = True,
    gemm: str = "auto",
) -> nn.Module:
    """Protect the `torch.nn.Linear` layers of a module in place: they become `Linear`, with the same parameters.

    Parameters, hooks, the keys of ``state_dict``, devices and dtypes stay the same. Layers of derived classes are not
    protected, because their ``forward`` may do something else. Calling it again changes the options.

    Parameters
    ----------
    module : torch.nn.Module
        Faults have the qualified names of its layers, such as ``"encoder.layers.0.linear1"``.
    on_fault, report, repair, gemm
        As for `Linear`.

    Returns
    -------
    torch.nn.Module
        The given module.

    Raises
    ------
    ValueError
        If the module has no `torch.nn.Linear`.
    """
    layers = [(name, one) for name, one in module.named_modules() if type(one) in (nn.Linear, Linear)]
    if not layers:
        raise ValueError(f"{type(module).__name__} has no torch.nn.Linear layers; expected at least one")
    for name, layer in layers:
        layer.__class__ = Linear
        layer.abft_options = Options(name or "Linear", on_fault, report, repair, gemm)
        register(layer.weight, layer.abft_options)
    return module


def unprotect(module: nn.Module) -> nn.Module:
    """Turn the protected layers of a module back into `torch.nn.Linear`, in place; return the module."""
    for layer in module.modules():
        if type(layer) is Linear:
            del layer.abft_options
            layer.__class__ = nn.Linear
    return module
