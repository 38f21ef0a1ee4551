"""Memory that launches work in: those on one stream follow each other, so that they can share it."""

from typing import Any

__all__ = ["scratch", "workspace", "zeroed_counts"]

_scratch: dict[tuple[int, int], Any] = {}
_counts: dict[tuple[int, int], Any] = {}


def scratch(device: int, stream: int, size: int) -> Any:
    """Return so many bytes or more for a launch on the current stream, aligned to 256 as all of CuPy's memory.

    Hold what is returned until the launch is enqueued: another thread may put a larger one in its place.
    """
    import cupy

    found = _scratch.get((device, stream))
    if found is None or found.size < size:
        found = _scratch[device, stream] = cupy.empty(size, cupy.uint8)
    return found


def zeroed_counts(device: int, stream: int, size: int) -> Any:
    """Return so many 32-bit zeros or more for a launch on the current stream, which is to leave them at zero.

    Hold what is returned as that of `scratch`.
    """
    import cupy

    found = _counts.get((device, stream))
    if found is None or found.size < size:
        found = _counts[device, stream] = cupy.zeros(max(size, 4096), cupy.uint32)
    return found


def workspace(device: int, size: int, counts: int) -> tuple[Any, Any]:
    """Return `scratch` of so many bytes and so many `zeroed_counts`, for a launch on the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    return scratch(device, stream, size), zeroed_counts(device, stream, counts)
