"""Interface `Machine` to the memory, streams and kernels of one GPU, and its implementation by CuPy.

All code that launches kernels takes a `Machine`. Tests pass one that runs the same launch code and kernel source on a
CPU.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from threading import Lock, local
from typing import Any, Protocol

import numpy as np

from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import GpuSpec, live
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.jit.kernel import Kernel, cubin_of, kernel_of
from tsapps.kernels.runtime.launch import BoundLaunch, DependentLaunch
from tsapps.kernels.runtime.pin_in_place import PinnedArray
from tsapps.kernels.runtime.tensor_map import TensorMap
from tsapps.kernels.runtime.workspace import workspace

__all__ = ["CudaMachine", "Launch", "Machine", "cuda_machine"]


class Launch(Protocol):
    """A kernel with its grid and its arguments, launched on the current stream by each call."""

    def __call__(self) -> None:
        """Launch the kernel."""

    def on(self, stream: int) -> None:
        """Launch the kernel on the stream at an address."""

    def change(self, place: int, value: int, word: int = 0) -> None:
        """Change the argument at `place`, or a word of it; see `BoundLaunch.change`."""

    def change_words(self, place: int, word: int, values: np.ndarray) -> None:
        """Change words of the argument at `place`; see `BoundLaunch.change_words`."""


class Machine(Protocol):
    """Memory, streams and launches of one GPU.

    Attributes
    ----------
    xp : module
        The array library, such as CuPy, whose arrays kernels read and write; it has NumPy's functions.
    index : int
        CUDA's number of the GPU.
    gpu : GpuSpec
    """

    xp: Any
    index: int
    gpu: GpuSpec

    def __hash__(self) -> int:
        """Return the hash, which never changes, because machines are keys of caches."""

    def current(self) -> AbstractContextManager[Any]:
        """Return a context within which the GPU is the current one."""

    def unique_name(self) -> str:
        """Return a name of the GPU that no other has, in this process or another."""

    def free_bytes(self) -> int:
        """Return the number of bytes of GPU memory that new arrays can occupy."""

    def pinned(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return page-locked host memory, which kernels can write to and asynchronous copies can use."""

    def pin_in_place(self, array: np.ndarray) -> Any:
        """Pin the pages of a host array, or raise OSError; see `PinnedArray` in runtime/pin_in_place.py."""

    def on_gpu(self, array: np.ndarray) -> Any:
        """Return a copy in GPU memory of an array in host memory, made on the current stream."""

    def workspace(self, size: int, counts: int) -> tuple[Any, Any]:
        """Return scratch memory for launches on the current stream; see `runtime.workspace.workspace`."""

    def kernels(self, source: Path | str, *names: str) -> list[Any]:
        """Return the kernels with these name expressions from a source file or source text, compiled together.

        Each kernel is called with a grid, a block, the arguments and ``shared_mem``. Before a launch with more than
        48 KiB of dynamic shared memory, set the kernel's ``max_dynamic_shared_size_bytes``.
        """

    def private_kernels(self, source: Path | str, names: Sequence[str], variable: str) -> tuple[list[Any], int]:
        """Return kernels of a source and the address of its global `variable`, from a module loaded for this call."""

    def bind(
        self,
        kernel: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_mem: int = 0,
        *,
        dependent: bool = True,
        cluster: int = 1,
    ) -> Launch:
        """Return a `Launch` that can be called many times.

        With `dependent`, the kernel may start before the previous kernel has ended; see `DependentLaunch`. `cluster` is
        the number of blocks of a cluster, along the first dimension of the grid.
        """

    def tensor_map(self, shape: tuple[int, int], row_stride: int, box: tuple[int, int]) -> Any:
        """Return a map with which kernels copy boxes of a matrix; see `TensorMap` in runtime/tensor_map.py."""

    def copy(self, to: Any, source: Any, stream: Any = None) -> None:
        """Enqueue a copy of an array to another of as many bytes, on `stream` or, if it is None, the current stream."""

    def bind_copy(self, to: int, source: int, size: int) -> Callable[[], None]:
        """Return a function that copies `size` bytes between two GPU addresses, on the stream that is current now."""

    def fill(self, array: Any, byte: int) -> None:
        """Enqueue on the current stream that every byte of an array is set to `byte`."""

    def stream(self) -> Any:
        """Return a new stream, which does not wait for the default stream."""

    def current_stream(self) -> Any:
        """Return the current stream, with ``ptr``, ``synchronize()`` and ``wait_event(event)``."""

    def event(self) -> Any:
        """Return a new event, with ``record(stream)``, ``synchronize()``, and ``done``, which waits for nothing."""


class CudaMachine:
    """`Machine` for a GPU, through CuPy; `cuda_machine` returns the only object for each GPU."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupyx import empty_pinned

        self.xp, self.index, self.gpu = cupy, index, live(index)
        self.pinned, self.current_stream = empty_pinned, cupy.cuda.get_current_stream
        self.stream = partial(cupy.cuda.Stream, non_blocking=True)
        self.event = partial(cupy.cuda.Event, disable_timing=True)
        self.workspace = partial(workspace, index)
        # The sources of copies to the GPU that may not have ended, with events.
        self._copied: list[tuple[Any, np.ndarray]] = []
        self._copying = Lock()

    def current(self) -> AbstractContextManager[Any]:
        """Return a context within which the GPU is the current one."""
        return _CurrentGpu(self.xp.cuda.runtime, self.xp.cuda.Device(self.index))

    def unique_name(self) -> str:
        """Return the UUID of the GPU, in hexadecimal digits."""
        return bytes(self.xp.cuda.runtime.getDeviceProperties(self.index)["uuid"]).hex()

    def free_bytes(self) -> int:
        """Return the number of bytes free on the current GPU plus those free in CuPy's memory pool."""
        free, _ = self.xp.cuda.runtime.memGetInfo()
        return int(free + self.xp.get_default_memory_pool().free_bytes())

    def pin_in_place(self, array: np.ndarray) -> PinnedArray:
        """Pin the pages of a host array; see `Machine.pin_in_place`."""
        return PinnedArray(array, self.index)

    def on_gpu(self, array: np.ndarray) -> Any:
        """Return a copy in GPU memory; for small arrays, it takes a fraction of the host's time of `cupy.asarray`."""
        source = np.array(array, order="C")
        copy, copied = self.xp.empty(source.shape, source.dtype), self.event()
        self.copy(copy, source)
        copied.record()
        with self._copying:  # a GPU that reads the host's pages itself may still do so
            self._copied = [(copied, source), *(one for one in self._copied if not one[0].done)]
        return copy

    def kernels(self, source: Path | str, *names: str) -> list[Kernel]:
        """Return kernels of a source, compiled in the background; see `Machine.kernels`."""
        return [kernel_of(source, names, name, self.index) for name in names]

    def private_kernels(self, source: Path | str, names: Sequence[str], variable: str) -> tuple[list[Any], int]:
        """Return kernels in a module of their own; see `Machine.private_kernels`.

        Each call loads a new module. CuPy itself loads each file only once, so all its users would share the variable.
        """
        cubin = cubin_of(source, tuple(names), architecture(self.index))
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
        cluster: int = 1,
    ) -> BoundLaunch:
        """Return a `Launch` that can be called many times; see `Machine.bind`."""
        return (DependentLaunch if dependent else BoundLaunch)(kernel, grid, block, arguments, shared_mem, cluster)

    def tensor_map(self, shape: tuple[int, int], row_stride: int, box: tuple[int, int]) -> TensorMap:
        """Return a map with which kernels copy boxes of a matrix; see `TensorMap`."""
        return TensorMap(shape, row_stride, box)

    def copy(self, to: Any, source: Any, stream: Any = None) -> None:
        """Enqueue a copy of an array to another of as many bytes; see `Machine.copy`."""
        on = self.current_stream() if stream is None else stream
        runtime = self.xp.cuda.runtime
        runtime.memcpyAsync(address(to), address(source), source.nbytes, runtime.memcpyDefault, on.ptr)

    def bind_copy(self, to: int, source: int, size: int) -> Callable[[], None]:
        """Return a function that copies bytes between two GPU addresses; see `Machine.bind_copy`."""
        runtime = self.xp.cuda.runtime
        return partial(runtime.memcpyAsync, to, source, size, runtime.memcpyDeviceToDevice, self.current_stream().ptr)

    def fill(self, array: Any, byte: int) -> None:
        """Enqueue that every byte of an array is set to `byte`; see `Machine.fill`."""
        array.data.memset_async(byte, array.nbytes)


@cache
def cuda_machine(index: int) -> CudaMachine:
    """Return the machine of GPU `index`."""
    return CudaMachine(index)


# Whether a thread has a CUDA context.
_thread = local()


class _CurrentGpu:
    """Context of `CudaMachine.current`: makes a GPU current, a `cupy.cuda.Device`, also in a new thread.

    A thread has no CUDA context before it calls CUDA's runtime, and launches need one. CuPy does not call the runtime
    to make a GPU current that is the thread's by default.
    """

    def __init__(self, runtime: Any, device: Any) -> None:
        self._runtime, self._device = runtime, device

    def __enter__(self) -> None:
        if not hasattr(_thread, "has_context"):
            self._runtime.setDevice(self._runtime.getDevice())
            _thread.has_context = True
        self._device.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._device.__exit__(*exception)


class _PrivateKernel:
    """A kernel of a module that `CudaMachine.private_kernels` loaded for one caller."""

    def __init__(self, function: Any) -> None:
        self._function, self.ptr = function, function.ptr
        self._most_shared = 0

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Maximum bytes of dynamic shared memory of a launch; 0 if never set, which means CUDA's default limit."""
        return self._most_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        from cupy.cuda import driver

        self._most_shared = size
        driver.funcSetAttribute(self.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
