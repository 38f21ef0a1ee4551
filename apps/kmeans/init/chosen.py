"""`Chosen`: how a caller learns how many initial centers have been chosen; and what tells it while a GPU chooses."""

from collections import deque
from collections.abc import Callable
from typing import Any

from tsapps.kernels.runtime.machine import Machine

__all__ = ["Chosen", "Finished"]

#: Called while initial centers are chosen. Parameters: how many centers are chosen, or passes of k-means‖ done; of how
#: many in total.
Chosen = Callable[[int, int], None]


class Finished:
    """Tells how many steps of a GPU have finished whenever another one has been launched, without waiting for any.

    Parameters
    ----------
    machine : Machine
        The GPU, which is current.
    chosen : Chosen
    total : int
        Number of steps.
    """

    def __init__(self, machine: Machine, chosen: Chosen, total: int) -> None:
        self._machine, self._chosen, self._total = machine, chosen, total
        self._launched = 0
        # An event for each step that may not have finished.
        self._events: deque[Any] = deque()

    def launched(self) -> None:
        """Count a step whose last kernel has just been launched."""
        event = self._machine.event()
        event.record()
        self._events.append(event)
        self._launched += 1
        before = len(self._events)
        while self._events and self._events[0].done:
            self._events.popleft()
        if len(self._events) < before:
            self._chosen(self._launched - len(self._events), self._total)
