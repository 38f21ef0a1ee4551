"""Faults of protected modules: records, their delivery, and the list of faults that kernels write."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from tsapps.kernels.runtime.machine import Machine

__all__ = ["FAULT", "FaultLog", "LinearFault", "LinearFaultError", "LinearFaultWarning", "OnFault", "deliver"]

#: The C++ class `RowFault` (row_check.cuh) as a NumPy structure.
FAULT = np.dtype(
    [(name, "i8") for name in ("call", "row", "column", "n_wrong")]
    + [(name, "f8") for name in ("residual", "limit", "found", "value")]
    + [("is_repaired", "i8"), ("is_complete", "i8")]
)
# Number of faults that the list holds.
_CAPACITY = 1024
# Number of 8-byte words of a fault, and that of `is_complete` among them.
_FAULT_WORDS = FAULT.itemsize // 8
_COMPLETE = _FAULT_WORDS - 1


@dataclass(frozen=True)
class LinearFault:
    """A row with wrong elements in a product of a protected module.

    Attributes
    ----------
    module : str
        The name of the module.
    product : {"forward", "grad_input", "grad_weight"}
    row : int
        The row of the product: a token (forward, grad_input) or an output feature (grad_weight).
    column : int
        The first wrong element in the row.
    n_wrong : int
        The number of wrong elements in the row.
    found, value : float
        The first wrong element, and the exact value rounded to the product's dtype.
    residual, limit : float
        The difference between the row and its checksum, and the limit that it exceeded.
    repaired : bool
        True if the wrong elements were replaced by the exact values and the row then agreed with its checksum.
    """

    module: str
    product: str
    row: int
    column: int
    n_wrong: int
    found: float
    value: float
    residual: float
    limit: float
    repaired: bool

    def __str__(self) -> str:
        elements = f"{self.n_wrong} wrong element{'s' if self.n_wrong > 1 else ''}"
        return (
            f"{self.module}, {self.product}: row {self.row} had {elements}, the first in column {self.column}: "
            f"{self.found:g}, not {self.value:g}; {'repaired' if self.repaired else 'not repaired'}"
        )


#: A function that is called with each fault.
OnFault = Callable[[LinearFault], Any]


class LinearFaultWarning(UserWarning):
    """A product of a protected module had wrong elements, which were repaired."""


class LinearFaultError(RuntimeError):
    """A product of a protected module has wrong elements that were not repaired.

    Attributes
    ----------
    fault : LinearFault
    """

    def __init__(self, fault: LinearFault) -> None:
        super().__init__(f"{fault}: repeat the step from the last state that is known to be right")
        self.fault = fault

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.fault,)


def deliver(fault: LinearFault, on_fault: OnFault | None) -> None:
    """Report a fault: call `on_fault`. Without it, warn of a repaired fault, and raise LinearFaultError for others."""
    if on_fault is not None:
        on_fault(fault)
    elif fault.repaired:
        warnings.warn(LinearFaultWarning(str(fault)), stacklevel=2)
    else:
        raise LinearFaultError(fault)


class FaultLog:
    """The list of faults of one GPU: kernels write it to host memory, where it is read without waiting for the GPU.

    Parameters
    ----------
    machine : Machine
    resolve : callable
        Returns the module name, the product and `on_fault` for the number of a call.
    """

    def __init__(self, machine: Machine, resolve: Callable[[int], tuple[str, str, OnFault | None]]) -> None:
        self._machine, self._resolve, self._lock = machine, resolve, Lock()
        with machine.current():
            memory = machine.pinned((_CAPACITY + 1) * FAULT.itemsize, np.uint8)
            memory[...] = 0
            self.faults, self.count = memory.view(FAULT)[:_CAPACITY], machine.xp.zeros(1, np.uint64)
        self.capacity, self._next = _CAPACITY, 0
        # The list as 8-byte words, and the number of the word `is_complete` of the next fault. The list has one fault
        # more than its capacity, which is never written, so that a full list has nothing new. A memory view is read
        # three times as fast as an array.
        self._words = memoryview(memory.view(np.int64))  # type: ignore[arg-type]
        self._next_word = _COMPLETE

    @property
    def has_new(self) -> bool:
        """True if a fault is listed that `take` has not returned."""
        return self._words[self._next_word] != 0

    @property
    def is_half_full(self) -> bool:
        """True if the list should be emptied at the next occasion."""
        return self._next > _CAPACITY // 2

    def take(self) -> list[tuple[LinearFault, OnFault | None]]:
        """Return the faults listed since the last call, with their `on_fault`; does not wait for the GPU."""
        found = []
        with self._lock:
            while self.has_new:
                one = self.faults[self._next]
                self._next += 1
                self._next_word += _FAULT_WORDS
                module, product, on_fault = self._resolve(int(one["call"]))
                values = {name: one[name].item() for name in FAULT.names or () if name in LinearFault.__annotations__}
                repaired = bool(one["is_repaired"])
                found.append((LinearFault(module, product, **values, repaired=repaired), on_fault))
        return found

    def clear(self) -> int:
        """Empty the list, and return the number of faults for which it had no place. The GPU must be idle."""
        with self._lock, self._machine.current():
            lost = max(0, int(self.count[0]) - _CAPACITY)
            self.count[...] = 0
            self.faults["is_complete"] = 0
            self._next, self._next_word = 0, _COMPLETE
        return lost
