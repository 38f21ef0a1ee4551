"""Measurements without a record: wrong results, errors, and problems that do not fit in memory, as lines of text."""

__all__ = ["LEFT_OUT", "WRONG", "NotRightError", "missing", "too_large"]

#: Part of every line on a wrong result, and of every line on a problem that was not tried.
WRONG, LEFT_OUT = "wrong, not recorded", "left out, "
# Longest part of an error message in a line.
_MOST = 160


class NotRightError(ValueError):
    """A result differs from its reference by more than its arithmetic explains."""


def missing(name: str, error: Exception) -> str:
    """Return a line that says why a measurement has no record, from the error that ended it."""
    text = next(iter(str(error).splitlines()), "")[:_MOST]
    if isinstance(error, NotRightError):
        return f"{name}: {WRONG}: {text}"
    if isinstance(error, MemoryError):
        return f"{name}: {LEFT_OUT}does not fit in memory: {text}"
    return f"{name}: not measured: {type(error).__name__}: {text}"


def too_large(name: str, needed: int, free: int) -> str | None:
    """Return a line on a problem that needs more bytes of memory than are free; None if it fits."""
    if needed <= free:
        return None
    return f"{name}: {LEFT_OUT}needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} are free"
