"""Wall time of a command, by phase."""

import time

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
        """Store the seconds since the current phase began under the name `phase`, and start the next phase."""
        self.seconds[phase] = time.perf_counter() - self._lap
        self.start_lap()

    def total(self) -> float:
        """Return the seconds since the command began."""
        return time.perf_counter() - self._began
