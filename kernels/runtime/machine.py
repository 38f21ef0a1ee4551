"""The machine that kernels run on: memory, streams and launches of one GPU.

Launchers take a `Machine`, so that tests run the launchers themselves, and the kernels' own source, on a CPU.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import GpuSpec, live
from tsapps.kernels.jit.compiler import architecture, build
from tsapps.kernels.jit.kernel import Kernel, kernel_of
from tsapps.kernels.runtime.launch import BoundLaunch, DependentLaunch
from tsapps.kernels.runtime.workspace import workspace

__all__ = ["CudaMachine", "Launch", "Machine", "cuda_machine"]


class Launch(Protocol):
    """A kernel with its grid and its arguments, launched on the current stream by each call."""

    def __call__(self) -> None:
        """Launch the kernel."""

    def change(self, place: int, value: int, word: int = 0) -> None:
        """Change the argument at `place`, or a word of it; see `BoundLaunch.change`."""


class Machine(Protocol):
    """Memory, streams and launches of one GPU.

    Attributes
    ----------
    xp : module
        The array library whose arrays kernels read and write, with NumPy's functions.
    index : int
        CUDA's number of the GPU.
    gpu : GpuSpec
    """

    xp: Any
    index: int
    gpu: GpuSpec

    def __hash__(self) -> int:
        """Return the same number for one machine: caches have machines as keys."""

    def current(self) -> AbstractContextManager[Any]:
        """Return a context within which the GPU is the current one."""

    def free_bytes(self) -> int:
        """Return the bytes that arrays may still take."""

    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return memory of the host that kernels can write to, and that copies do not wait for."""

    def workspace(self, size: int, counts: int) -> tuple[Any, Any]:
        """Return scratch memory for launches on the current stream; see `runtime.workspace.workspace`."""

    def kernels(self, source: Path | str, *names: str) -> list[Any]:
        """Return the kernels with these name expressions of a source file, or of a source text, compiled together.

        Each is called with a grid, a block, the arguments and ``shared_mem``. A launch with more than 48 KiB of
        dynamic shared memory needs its ``max_dynamic_shared_size_bytes`` set.
        """

    def private_kernels(self, source: Path | str, names: Sequence[str], variable: str) -> tuple[list[Any], int]:
        """Return kernels of a source and the address of a global variable of it, loaded for the caller alone."""

    def bind(
        self,
        kernel: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_mem: int = 0,
        *,
        dependent: bool = True,
    ) -> Launch:
        """Return a launch to be made again and again.

        `dependent`: it may start before the launch ahead of it has ended; see `DependentLaunch`.
        """

    def copy(self, to: Any, source: Any, stream: Any = None) -> None:
        """Copy an array to one of as many bytes, on a stream (by default the current one), without waiting."""

    def bind_copy(self, to: int, source: int, size: int) -> Callable[[], None]:
        """Return what copies bytes between two addresses of the GPU, on the stream that is current now."""

    def fill(self, array: Any, byte: int) -> None:
        """Set every byte of an array, on the current stream, without waiting."""

    def stream(self) -> Any:
        """Return a new stream, which does not wait for the default one."""

    def current_stream(self) -> Any:
        """Return the current stream: ``ptr``, ``synchronize()``, ``wait_event(event)``."""

    def event(self) -> Any:
        """Return a new event: ``record(stream)``, ``synchronize()``."""


class CudaMachine:
    """A GPU, through CuPy; see `Machine`. `cuda_machine` returns the one of each GPU."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupyx import empty_pinned

        self.xp, self.index, self.gpu = cupy, index, live(index)
        self.pinned, self.current_stream = empty_pinned, cupy.cuda.get_current_stream
        self.stream = partial(cupy.cuda.Stream, non_blocking=True)
        self.event = partial(cupy.cuda.Event, disable_timing=True)
        self.workspace = partial(workspace, index)

    def current(self) -> AbstractContextManager[Any]:
        """Return a context within which the GPU is the current one."""
        context: AbstractContextManager[Any] = self.xp.cuda.Device(self.index)
        return context

    def free_bytes(self) -> int:
        """Return the bytes that arrays may still take: free ones of the GPU, and of CuPy's pool."""
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def kernels(self, source: Path | str, *names: str) -> list[Kernel]:
        """Return kernels of a source, compiled in the background; see `Machine.kernels`."""
        return [kernel_of(source, names, name, self.index) for name in names]

    def private_kernels(self, source: Path | str, names: Sequence[str], variable: str) -> tuple[list[Any], int]:
        """Return kernels in a module of their own; see `Machine.private_kernels`.

        CuPy loads a file once: its modules share their global variables.
        """
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        cubin = build(text, names, architecture(self.index))
        with self.current():
            module = self.xp.cuda.function.Module()
            module.load_file(str(cubin.path))
            kernels = [_PrivateKernel(module.get_function(cubin.names[name])) for name in names]
            return kernels, int(module.get_global_var(variable))

    def bind(
        self,
        kernel: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_mem: int = 0,
        *,
        dependent: bool = True,
    ) -> BoundLaunch:
        """Return a launch to be made again and again; see `Machine.bind`."""
        return (DependentLaunch if dependent else BoundLaunch)(kernel, grid, block, arguments, shared_mem)

    def copy(self, to: Any, source: Any, stream: Any = None) -> None:
        """Copy an array to one of as many bytes, without waiting; see `Machine.copy`."""
        on = self.current_stream() if stream is None else stream
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(address(to), address(source), source.nbytes, runtime.memcpyDefault, on.ptr)

    def bind_copy(self, to: int, source: int, size: int) -> Callable[[], None]:
        """Return what copies bytes between two addresses of the GPU; see `Machine.bind_copy`."""
        runtime = self.xp.cuda.runtime
        return partial(runtime.memcpyAsync, to, source, size, runtime.memcpyDeviceToDevice, self.current_stream().ptr)

    def fill(self, array: Any, byte: int) -> None:
        """Set every byte of an array, without waiting; see `Machine.fill`."""
        array.data.memset_async(byte, array.nbytes)


@cache
def cuda_machine(index: int) -> CudaMachine:
    """Return the machine of GPU `index`."""
    return CudaMachine(index)


class _PrivateKernel:
    """A kernel of a module that was loaded for one caller; holds the module."""

    def __init__(self, function: Any) -> None:
        self._function, self.ptr = function, function.ptr
        self._most_shared = 0

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory that it may be launched with; 0 if that was never set."""
        return self._most_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        from cupy.cuda import driver

        self._most_shared = size
        driver.funcSetAttribute(self.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
