"""`CompilingMachine`: a `Machine` without memory and launches, which finds out what kernels a program needs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.runtime.machine import Machine

__all__ = ["CompilingMachine", "DescribedGpu"]


@dataclass(frozen=True)
class DescribedGpu:
    """A GPU of which only the specification is known, with more memory than any program needs."""

    gpu: GpuSpec
    index: int = 0

    def current(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    def free_bytes(self) -> int:
        """Return 2⁶²."""
        return 1 << 62


class CompilingMachine:
    """`Machine` on which a program runs without computing, so that all its kernels begin to compile at once.

    Arrays are NumPy arrays of zeros, whose memory the operating system provides only when it is written. Launches and
    copies do nothing.

    Parameters
    ----------
    machine : Machine or DescribedGpu
        The GPU.
    begin : callable
        Takes the arguments of `Machine.kernels`; begins the compilation of the kernels, and does not wait for it.
    """

    def __init__(self, machine: Machine | DescribedGpu, begin: Callable[..., None]) -> None:
        self.xp, self.index, self.gpu, self._begin = _Zeros(), machine.index, machine.gpu, begin
        with machine.current():
            self._free_bytes = machine.free_bytes()

    def current(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing."""
        return nullcontext()

    def free_bytes(self) -> int:
        """Return the number of free bytes of the GPU when this object was created."""
        return self._free_bytes

    def unique_name(self) -> str:
        """Return no name."""
        return ""

    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return zeros."""
        return np.zeros(shape, dtype)

    def pin_in_place(self, array: np.ndarray) -> Any:
        """Return the array as one that is pinned."""
        return _Pinned(array)

    def on_gpu(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of the array."""
        return np.array(array)

    def workspace(self, size: int, counts: int) -> tuple[Any, Any]:
        """Return zeros."""
        return np.zeros(size, np.uint8), np.zeros(counts, np.uint32)

    def kernels(self, source: Path | str, *names: str) -> list[Any]:
        """Begin the compilation of kernels; return objects whose launches do nothing."""
        self._begin(source, *names)
        return [_Nothing() for _ in names]

    def private_kernels(
        self,
        source: Path | str,
        names: Sequence[str],
        variable: str,  # noqa: ARG002
    ) -> tuple[list[Any], int]:
        """Begin the compilation of kernels; return objects whose launches do nothing, and address 0."""
        return self.kernels(source, *names), 0

    def bind(self, *_: Any, **options: Any) -> Any:  # noqa: ARG002 (the interface of `Machine.bind`)
        """Return a launch that does nothing."""
        return _Nothing()

    def tensor_map(self, shape: tuple[int, int], row_stride: int, box: tuple[int, int]) -> Any:  # noqa: ARG002
        """Return an object that does nothing."""
        return _Nothing()

    def copy(self, to: Any, source: Any, stream: Any = None) -> None:
        """Do nothing."""

    def bind_copy(self, to: int, source: int, size: int) -> Callable[[], None]:  # noqa: ARG002
        """Return a function that does nothing."""
        return _Nothing()

    def fill(self, array: Any, byte: int) -> None:
        """Do nothing."""

    def stream(self) -> Any:
        """Return an object that has the interface of a stream and of an event, and does nothing."""
        return _Nothing()

    current_stream = event = stream


class _Nothing:
    """A kernel, launch, stream or event that does nothing."""

    ptr = 0
    max_dynamic_shared_size_bytes = 0

    def __call__(self, *_: Any, **options: Any) -> None:
        """Do nothing."""

    change = record = synchronize = wait_event = __call__


class _Pinned:
    """An array as a `PinnedArray`."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = self.on_gpu = array

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        return [(begin, end)]

    def release(self) -> None:
        pass


class _Zeros:
    """NumPy, except that new arrays of any kind are zeros that take no memory before they are written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: Any, dtype: Any = np.float64) -> np.ndarray:
        return np.zeros(shape, dtype)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any) -> np.ndarray:  # noqa: ARG004
        return np.zeros(shape, dtype)
