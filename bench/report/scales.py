"""Linear and logarithmic scales of charts, with the values of their ticks."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, log10

__all__ = ["Scale", "linear", "logarithmic"]

# Largest number of ticks.
_MOST_TICKS = 7


@dataclass(frozen=True)
class Scale:
    """Map of values from `low` to `high` to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value; values outside the scale are mapped to its ends."""
        value = min(max(value, self.low), self.high)
        if self.high == self.low:
            return (self.start + self.end) / 2
        if self.is_log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values within the scale, in ascending order."""
        return self._decades() if self.is_log else self._multiples()

    def _decades(self) -> list[float]:
        first, last = floor(log10(self.low)), ceil(log10(self.high))
        step = ceil((last - first + 1) / _MOST_TICKS)
        powers = [10.0**power for power in range(first, last + 1, step)]
        finer = [power * mantissa for power in powers for mantissa in (1, 2, 5)] if step == 1 else powers
        found = [value for value in finer if self._has(value)]
        return found if len(found) <= _MOST_TICKS else [value for value in powers if self._has(value)]

    def _has(self, value: float) -> bool:
        return self.low <= value * (1 + 1e-9) and value <= self.high * (1 + 1e-9)

    def _multiples(self) -> list[float]:
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        rough = span / (_MOST_TICKS - 1)
        power = 10.0 ** floor(log10(rough))
        step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough * (1 - 1e-9))
        return [place * step for place in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def linear(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale of all values and zero."""
    found = [0.0, *values]
    low, high = min(found), max(found)
    return Scale(low, high if high > low else low + 1, start, end)


def logarithmic(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale of all values, which are positive; its ends are 1, 2 or 5 times a power of ten."""
    found = list(values)
    low, high = min(found), max(found)
    below, above = 10.0 ** floor(log10(low)), 10.0 ** floor(log10(high))
    low = max(below * mantissa for mantissa in (0.5, 1, 2, 5) if below * mantissa <= low * (1 + 1e-9))
    high = min(above * mantissa for mantissa in (1, 2, 5, 10, 20) if above * mantissa >= high * (1 - 1e-9))
    return Scale(low, high, start, end, is_log=True)
