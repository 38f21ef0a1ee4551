"""Kernels on a GPU: compiled in background threads, and loaded at the first use."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.jit.compiler import architecture, build

__all__ = ["Kernel", "begin_compilation", "compile_header", "cubin_of", "kernel_of"]


class Kernel:
    """A kernel on a GPU: the constructor starts the compilation in another thread, and the first use waits for it.

    Parameters
    ----------
    source, kernels
        As for `build`.
    kernel : str
        The name expression of this kernel, one of `kernels`.
    device : int
        The number of the GPU.
    """

    def __init__(self, source: str, kernels: Sequence[str], kernel: str, device: int) -> None:
        self._given, self._kernel, self._device = (source, tuple(kernels), architecture(device)), kernel, device
        self._most_shared = 0
        _begun(*self._given)

    @cached_property
    def loaded(self) -> Any:
        """The kernel as a `cupy.RawKernel`; the first access waits for the compilation and loads the kernel.

        Raises
        ------
        RuntimeError
            If the source does not compile.
        """
        import cupy

        cubin = _result_of(*self._given)
        with cupy.cuda.Device(self._device):
            kernel = cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[self._kernel])
            if self._most_shared:
                kernel.max_dynamic_shared_size_bytes = self._most_shared
        return kernel

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Maximum bytes of dynamic shared memory of a launch; 0 if never set, which means CUDA's default limit."""
        return self._most_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._most_shared = size
        if "loaded" in vars(self):
            self.loaded.max_dynamic_shared_size_bytes = size

    @property
    def ptr(self) -> int:
        """The kernel's handle in the CUDA driver (CUfunction)."""
        return int(self.loaded.kernel.ptr)

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_mem: int = 0
    ) -> None:
        """Launch the kernel on the current stream; arguments as for a `cupy.RawKernel`."""
        self.loaded(grid, block, arguments, shared_mem=shared_mem)


@cache
def _begun(source: str, kernels: tuple[str, ...], arch: str) -> Future[Cubin]:
    """Start the compilation of a source in the background, once for all `Kernel` objects of that source."""
    return _compilers().submit(build, source, kernels, arch)


def _result_of(source: str, kernels: tuple[str, ...], arch: str) -> Cubin:
    """Return the result of `_begun`; a compilation that failed is repeated, so that every use raises its error."""
    begun = _begun(source, kernels, arch)
    return build(source, kernels, arch) if begun.exception() else begun.result()


@cache
def _compilers() -> ThreadPoolExecutor:
    """Return the pool of compiler threads, which run in parallel because NVRTC releases Python's interpreter lock."""
    return ThreadPoolExecutor(os.cpu_count(), "tsapps-compiler")


@cache
def kernel_of(source: Path | str, kernels: tuple[str, ...], kernel: str, device: int) -> Kernel:
    """Return kernel `kernel` of a source file or source text for GPU `device`; all `kernels` are compiled together."""
    return Kernel(_text_of(source), kernels, kernel, device)


def begin_compilation(source: Path | str, kernels: tuple[str, ...], arch: str) -> None:
    """Begin to compile `kernels` of a source file or source text in the background, unless that has begun before."""
    _begun(_text_of(source), kernels, arch)


def cubin_of(source: Path | str, kernels: tuple[str, ...], arch: str) -> Cubin:
    """Return the machine code of `kernels` of a source file or source text, compiled once in this process."""
    return _result_of(_text_of(source), kernels, arch)


@cache
def _text_of(source: Path | str) -> str:
    return source.read_text(encoding="utf-8") if isinstance(source, Path) else source


def compile_header(header: str, name: str, arch: str) -> Cubin:
    """Compile one kernel of a header, by its name expression, for an architecture; needs no GPU."""
    return build(f'#include "{header}"\n', [name], arch)
