"""Measurements without a record: wrong results, errors, and problems that are left out, as lines of text."""

__all__ = ["LEFT_OUT", "WRONG", "LeftOutError", "NotRightError", "check_memory", "missing"]

#: Part of every line on a wrong result, and of every line on a problem that a device cannot run.
WRONG, LEFT_OUT = "wrong, not recorded", "left out, "
# Longest part of an error message in a line.
_MOST = 160


class NotRightError(ValueError):
    """A result differs from its reference by more than its arithmetic explains."""


class LeftOutError(Exception):
    """A problem does not fit in memory, or the benchmark does not measure it on this device."""


def missing(name: str, error: Exception) -> str:
    """Return a line that says why a measurement has no record, from the error that ended it."""
    text = next(iter(str(error).splitlines()), "")[:_MOST]
    if isinstance(error, NotRightError):
        return f"{name}: {WRONG}: {text}"
    if isinstance(error, LeftOutError):
        return f"{name}: {LEFT_OUT}{text}"
    return f"{name}: not measured: {type(error).__name__}: {text or 'out of memory'}"


def check_memory(needed: int, free: int) -> None:
    """Raise `LeftOutError` if a problem needs more bytes of memory than are free."""
    if needed > free:
        raise LeftOutError(f"needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} are free")
