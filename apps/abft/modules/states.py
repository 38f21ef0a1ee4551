"""States of protected weights: options of their modules, checksums, and numbers by which faults name them."""

import itertools
import weakref
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

from tsapps.apps.abft.modules.faults import OnFault

__all__ = ["PRODUCTS", "Checksums", "Known", "Options", "State", "register", "resolve", "state_of"]

#: The products of a linear layer.
PRODUCTS = ("forward", "grad_input", "grad_weight")


@dataclass(frozen=True)
class Options:
    """How products of a module are computed, and their faults reported.

    Attributes
    ----------
    name : str
        The module's name in faults.
    on_fault : callable or None
    report : {"deferred", "immediate"}
    repair : bool
    gemm : {"auto", "library", "fused"}
    """

    name: str = "Linear"
    on_fault: OnFault | None = None
    report: str = "deferred"
    repair: bool = True
    gemm: str = "auto"

    def __post_init__(self) -> None:
        if self.gemm not in ("auto", "library", "fused"):
            raise ValueError(f"gemm is {self.gemm!r}; expected 'auto', 'library' or 'fused'")
        if self.report not in ("deferred", "immediate"):
            raise ValueError(f"report is {self.report!r}; expected 'deferred' or 'immediate'")
        if self.on_fault is not None and not callable(self.on_fault):
            raise TypeError(f"on_fault is a {type(self.on_fault).__name__}; expected a function of one fault, or None")


class Checksums(NamedTuple):
    """Checksums of B, and of the bias (symbols: bounds.py); tensors.

    Attributes
    ----------
    x, y : tensor
        ``x_l = Σ_j v_j b_lj`` and ``y_l = √(Σ_j (v_j b_lj)²)``.
    bias_sum : tensor or None
        ``Σ_j v_j bias_j``, in float64.
    parts : tensor or None
        x split into parts, for products that check themselves (checked_product.py).
    """

    x: Any
    y: Any
    bias_sum: Any = None
    parts: Any = None


class Known(NamedTuple):
    """Checksums of a product that a check takes.

    Attributes
    ----------
    key : tuple or None
        A value that differs if the checksums are those of another weight or bias; None if they must not be used again.
    checksums : Checksums
    pointers : tuple of int
        What a check on a GPU takes; see `on_gpu.pointers`.
    """

    key: tuple[Any, ...] | None
    checksums: Checksums
    pointers: tuple[int, ...]


@dataclass(eq=False)
class State:
    """State of one weight; the weight is a parameter, or any tensor that a compiled program passes.

    Attributes
    ----------
    weight : weakref.ref
    options : Options
    number : int
        A different number for every state.
    lock : threading.RLock
        Held while checksums are computed.
    checksums : dict
        Those of the weight, by product.
    ready : tuple or None
        An event after the last computation of checksums, and the streams that need not wait for it (GPU only).
    """

    weight: Any
    options: Options
    number: int
    lock: Any = field(default_factory=RLock)
    checksums: dict[str, Known] = field(default_factory=dict)
    ready: tuple[Any, set[int]] | None = None

    def invalidate(self) -> None:
        """Have the checksums computed anew when they are needed next, in the same memory."""
        for product, known in self.checksums.items():
            self.checksums[product] = known._replace(key=None)

    def call(self, product: str) -> int:
        """Return the number by which faults name a product of this weight."""
        return len(PRODUCTS) * self.number + PRODUCTS.index(product)


_states: dict[int, State] = {}
_by_number: weakref.WeakValueDictionary[int, State] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def register(weight: Any, options: Options) -> State:
    """Return the state of a weight, with these options; it is created if the weight has none."""
    state = _states.get(id(weight))
    if state is not None and state.weight() is weight:
        if state.options.gemm == "library" != options.gemm:
            state.invalidate()  # checksums without parts
        state.options = options
        return state
    key = id(weight)

    def forget(reference: Any) -> None:
        if key in _states and _states[key].weight is reference:
            del _states[key]

    state = State(weakref.ref(weight, forget), options, next(_numbers))
    _states[key] = _by_number[state.number] = state
    return state


def state_of(weight: Any) -> State:
    """Return the state of a weight; one without a registered module gets default options."""
    state = _states.get(id(weight))
    return state if state is not None and state.weight() is weight else register(weight, Options())


def resolve(call: int) -> tuple[str, str, OnFault | None]:
    """Return the module name, the product and `on_fault` for the number of a call."""
    number, product = divmod(call, len(PRODUCTS))
    state = _by_number.get(number)
    options = Options("a deleted module") if state is None else state.options
    return options.name, PRODUCTS[product], options.on_fault
