"""Scratch memory of kernels: one buffer per stream, which the stream's kernels use one after another."""

from typing import Any

__all__ = ["scratch", "workspace", "zeroed_counts"]

_scratch: dict[tuple[int, int], Any] = {}
_counts: dict[tuple[int, int], Any] = {}


def scratch(device: int, stream: int, size: int) -> Any:
    """Return a buffer of at least `size` bytes, aligned to 256 bytes, for a launch on the stream at address `stream`.

    Keep a reference to the buffer until the launch is enqueued: another thread may replace the buffer by a larger one.
    """
    import cupy

    found = _scratch.get((device, stream))
    if found is None or found.size < size:
        found = _scratch[device, stream] = cupy.empty(size, cupy.uint8)
    return found


def zeroed_counts(device: int, stream: int, size: int) -> Any:
    """Return at least `size` 32-bit zeros for a launch on the stream `stream`; the kernel must reset them to zero.

    Keep a reference to the array until the launch is enqueued, as for `scratch`.
    """
    import cupy

    found = _counts.get((device, stream))
    if found is None or found.size < size:
        found = _counts[device, stream] = cupy.zeros(max(size, 4096), cupy.uint32)
    return found


def workspace(device: int, size: int, counts: int) -> tuple[Any, Any]:
    """Return (`scratch` of `size` bytes, `counts` elements of `zeroed_counts`) for a launch on the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    return scratch(device, stream, size), zeroed_counts(device, stream, counts)
