"""Wall time of a command, by phase."""

import time
from collections.abc import Mapping

__all__ = ["Clock"]


class Clock:
    """Wall time of each phase of a command, and since the command began; `seconds` holds the ended phases by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = self._lap = time.perf_counter()

    def start_lap(self) -> None:
        """Start a phase now; the time since the end of the previous phase counts for no phase."""
        self._lap = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Add the seconds since the current phase began to those of `phase`, and start the next phase."""
        self.add({phase: time.perf_counter() - self._lap})

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds of phases that were measured elsewhere, and start the next phase."""
        for phase, taken in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + taken
        self.start_lap()

    def total(self) -> float:
        """Return the seconds since the command began."""
        return time.perf_counter() - self._began
