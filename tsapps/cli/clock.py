"""Wall time of a command, by phase."""

import time

__all__ = ["Clock"]


class Clock:
    """Wall time of each phase, and since the command began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = self._lap = time.perf_counter()

    def start_lap(self) -> None:
        """Start a phase now; the time since the end of the last phase is counted for no phase."""
        self._lap = time.perf_counter()

    def lap(self, phase: str) -> None:
        """End a phase and start the next one."""
        self.seconds[phase] = time.perf_counter() - self._lap
        self.start_lap()

    def total(self) -> float:
        """Return the seconds since the command began."""
        return time.perf_counter() - self._began
