"""Kernel launches whose grid and arguments are packed once, for kernels that are launched many times.

CuPy inspects every argument at every launch, which takes the host about 10 µs for fifteen arguments. An iteration of
Lloyd's algorithm on small data launches four or five kernels in 30 µs. From compute capability 9.0 on, a kernel can
start while the last blocks of the previous kernel still run (`DependentLaunch`).
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from ctypes import POINTER, byref, c_int, c_uint, c_void_p
from functools import cache, cached_property, partial
from itertools import repeat
from typing import Any

import numpy as np

from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import live

__all__ = ["BoundLaunch", "DependentLaunch", "ProductLaunch", "driver_function", "pack", "structure"]

#: A launch function: it computes C ← alpha · A · B + beta · C on CuPy's current stream. Its arguments are the addresses
#: of A, B and C, then alpha and beta.
ProductLaunch = Callable[[int, int, int, float, float], None]

# Values of a structure that are stored as they are.
_PLAIN = (int, float, np.generic)
# Every argument begins at a multiple of this many bytes: the largest alignment of any type that kernels take.
_ALIGNMENT = 16
# Minimum compute capability for programmatic dependent launch.
_OVERLAPPING = 9.0


def pack(arguments: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Copy a kernel's arguments into one buffer.

    Parameters
    ----------
    arguments : iterable
        NumPy scalars and structures are passed by value, arrays by address.

    Returns
    -------
    values : numpy.ndarray of bytes
        The buffer with all arguments.
    addresses : numpy.ndarray of uintp
        The address of each argument in `values`; the arguments begin 16 bytes or more apart.
    """
    values, offsets = bytearray(), []
    for argument in arguments:
        offsets.append(len(values))
        values += (
            argument.tobytes() if isinstance(argument, np.generic) else address(argument).to_bytes(8, sys.byteorder)
        )
        values += bytes(-len(values) % _ALIGNMENT)
    held = np.frombuffer(values, np.uint8)
    return held, np.array(offsets, np.uintp) + np.uintp(address(held))


def structure(dtype: np.dtype, **fields: Any) -> Any:
    """Return a kernel argument for a parameter that is a C++ class, passed by value.

    Parameters
    ----------
    dtype : numpy.dtype
        The class as a NumPy structure.
    **fields
        A value for every field except padding: a number, a structure, an array (stored as its address), or None (stored
        as the null address).

    Raises
    ------
    TypeError
        If a field is missing or unknown.
    """
    names = _field_names(dtype)
    if fields.keys() != names:
        raise TypeError(f"a structure has fields {sorted(names)}, got {sorted(fields)}")
    values = tuple(
        value if isinstance(value, _PLAIN) else 0 if value is None else address(value)
        for value in map(fields.get, dtype.names or (), repeat(0))  # padding is zero
    )
    return np.array(values, dtype)[()]


@cache
def _field_names(dtype: np.dtype) -> frozenset[str]:
    """Return the names of the fields of a structure, without padding."""
    return frozenset(name for name in dtype.names or () if not name.startswith("padding"))


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, whose value has 64 bytes."""

    _fields_ = (("id", c_int), ("padding", c_int), ("value", c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *(("sizes", c_uint * 6), ("shared_mem", c_uint), ("stream", c_void_p)),
        *(("attributes", POINTER(_Attribute)), ("count", c_uint)),
    )


# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: a kernel may start before the previous one in its stream ends.
_OVERLAPS = 6, (1,)
# CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_CLUSTER = 4


def _attributes(*given: tuple[int, tuple[int, ...]]) -> Any:
    return (_Attribute * len(given))(*(_Attribute(name, 0, (c_int * 16)(*value)) for name, value in given))


@cache
def driver_function(name: str) -> Any:
    """Return a function of the CUDA driver."""
    return getattr(ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"), name)


@cache
def _launch_function(device: int) -> Any | None:
    """Return the driver's cuLaunchKernelEx, or None if the GPU is older than compute capability 9.0."""
    return None if float(live(device).compute_capability) < _OVERLAPPING else driver_function("cuLaunchKernelEx")


class BoundLaunch:
    """A kernel with fixed grid and packed arguments. Each call launches it on the current stream.

    Parameters
    ----------
    kernel : tsapps.kernels.jit.kernel.Kernel or cupy.cuda.Function
        A kernel of the current device.
    grid, block : sequence of int
        Up to three numbers each.
    arguments : sequence
        As for `pack`. This object holds references to the arguments, so their memory is not freed.
    shared_mem : int
        Bytes of dynamic shared memory.
    cluster : int
        Number of blocks of a cluster, along the first dimension of the grid; more than 1 needs a `DependentLaunch`.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_mem: int = 0,
        cluster: int = 1,
    ) -> None:
        import cupy

        self._arguments = arguments
        values, self._addresses = pack(arguments)
        self._words = values.view(np.uint64)  # the buffer as 8-byte words
        sizes = (*grid, 1, 1)[:3] + (*block, 1, 1)[:3]
        self._stream = cupy.cuda.get_current_stream
        self._launch = self._bound(kernel.ptr, (*sizes, shared_mem), int(self._addresses.ctypes.data), cluster)

    @staticmethod
    def _bound(function: int, sizes: tuple[int, ...], addresses: int, cluster: int) -> Callable[[int], None]:
        """Return a function that takes the address of a stream and launches the kernel on that stream."""
        import cupy

        if cluster != 1:
            raise ValueError(
                f"a cluster of {cluster} blocks needs a dependent launch, on compute capability 9.0 or later"
            )
        launch = partial(cupy.cuda.driver.launchKernel, function, *sizes)
        return lambda stream: launch(stream, addresses, 0)

    def change(self, place: int, value: int, word: int = 0) -> None:
        """Change argument number `place`, counted from 0, for the next launch and all later ones. Not thread-safe.

        The argument is an address or a nonnegative integer. In a structure, `word` is the index of the 8-byte word to
        change.
        """
        self._words[self._places[place] + word] = value

    def change_words(self, place: int, word: int, values: np.ndarray) -> None:
        """Change successive 8-byte words of argument number `place`, from `word` on; see `change`."""
        first = self._places[place] + word
        self._words[first : first + len(values)] = values

    @cached_property
    def _places(self) -> list[int]:
        """Index of the first word of each argument; most launches are never changed."""
        places: list[int] = ((self._addresses - self._addresses[0]) // 8).tolist()
        return places

    def __call__(self) -> None:
        """Launch the kernel on the current stream. Not thread-safe."""
        self._launch(self._stream().ptr)

    def on(self, stream: int) -> None:
        """Launch the kernel on the stream at an address, such as that of a stream of torch. Not thread-safe."""
        self._launch(stream)


class DependentLaunch(BoundLaunch):
    """A launch that may start before the previous kernel in the stream ends (programmatic dependent launch).

    The kernel must begin with `ptx::griddepcontrol_wait` (ptx/dependent_launch.cuh), which waits for the previous
    kernel. GPUs before compute capability 9.0 start the kernel only when the previous kernel has ended.
    """

    @staticmethod
    def _bound(function: int, sizes: tuple[int, ...], addresses: int, cluster: int) -> Callable[[int], None]:
        import cupy

        launch = _launch_function(cupy.cuda.Device().id)
        if launch is None:
            return BoundLaunch._bound(function, sizes, addresses, cluster)
        *of_grid_and_block, shared_mem = sizes
        attributes = _attributes(_OVERLAPS, *([(_CLUSTER, (cluster, 1, 1))] if cluster > 1 else []))
        config = _Config((c_uint * 6)(*of_grid_and_block), shared_mem, None, attributes, len(attributes))
        given = byref(config), c_void_p(function), c_void_p(addresses), None

        def launch_on(stream: int) -> None:
            config.stream = stream
            status = launch(*given)
            if status:
                raise cupy.cuda.driver.CUDADriverError(status)

        return launch_on
