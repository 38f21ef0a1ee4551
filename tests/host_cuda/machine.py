"""A machine that runs the kernels' own source on the CPU, so that tests run the project's launchers without a GPU."""

import contextlib
import ctypes
import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from host_cuda import harness
from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime.launch import pack

# What a launch may have of dynamic shared memory without asking.
_SHARED_BYTES = 48 << 10


def _empty(shape, dtype=np.float64, order="C"):
    """Return an array of bytes 0xFF: NaN in floats, −1 in integers, as what was never written may be anything."""
    array = np.empty(shape, dtype, order)
    ctypes.memset(array.ctypes.data, 0xFF, array.nbytes)
    return array


def placed(array, offset=0):
    """Return a copy that begins `offset` elements after a multiple of 256 bytes, as memory of a GPU does."""
    room = np.zeros(array.nbytes + 256 + offset * array.itemsize, np.uint8)
    begin = -room.ctypes.data % 256 + offset * array.itemsize
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class _Pinned:
    """An array as a `PinnedArray`."""

    def __init__(self, array):
        self.array, self.on_gpu = array, array.view()

    def pieces(self, begin, end):
        """Return two pieces of a range of bytes, as of an array of which two calls have pinned the pages."""
        middle = (begin + end) // 2
        return [(begin, middle), (middle, end)]

    def release(self):
        pass


class HostKernel:
    """A kernel built for the CPU when it is first launched."""

    def __init__(self, text, name, sources, flags):
        self.name, self._built_from = name, (sources, flags)
        self._number = [(text, name) for text, names in sources for name in names].index((text, name))
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid, block, arguments, shared_mem=0):
        _, addresses = packed = pack(arguments)
        self.launch(grid, block, arguments, addresses, shared_mem)
        del packed  # which the addresses point to

    def launch(self, grid, block, arguments, addresses, shared_mem, cluster=1):
        """Launch it with packed arguments, which have to be of the sizes and kinds of its parameters."""
        assert shared_mem <= max(_SHARED_BYTES, self.max_dynamic_shared_size_bytes), "shared memory was not asked for"
        library = _library(*self._built_from)
        expected, given = _parameters(library, self._number), [_sizes_and_kinds(one) for one in arguments]
        fits = len(given) == len(expected) and all(one in those for one, those in zip(expected, given, strict=True))
        assert fits, f"{self.name} has the parameters {expected}, got {given}"
        dimensions = np.array((*grid, 1, 1)[:3] + (*block, 1, 1)[:3] + (cluster,), np.uint32)
        library.call(f"launch_kernel_{self._number}", dimensions, int(shared_mem), addresses)


@cache
def _parameters(library, number):
    """Return the size and the kind of each parameter of an exported kernel: pointer, integer, floating or class."""
    sizes, kinds = np.zeros(64, np.uint64), np.zeros(64, np.uint8)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (sizes, kinds))
    count = library[f"parameters_kernel_{number}"](*pointers)
    return list(zip(sizes[:count].tolist(), kinds[:count].tobytes().decode(), strict=True))


def _sizes_and_kinds(argument):
    """Return the parameters that an argument is for."""
    if not isinstance(argument, np.generic):
        return {(8, "p")}
    size, kind = argument.nbytes, {"f": "f", "V": "c"}.get(argument.dtype.kind, "i")
    return {(size, kind), *([(8, "p")] if argument.dtype == np.uint64 else [])}


# The sources and names that a kernel is built with, by its source and its name; without an entry, those asked for.
_together = {}


def build_together(sources, share=8):
    """Have kernels of several sources built as one library, which takes less time than one by one.

    Parameters
    ----------
    sources : iterable of (source, names)
        As `HostMachine.kernels` is given them. Where they share a library, their declarations have no namespaces.
    share : int
        Sources of a library.
    """
    texts = list(dict.fromkeys((_text(source), tuple(names)) for source, names in sources))
    for first in range(0, len(texts), share):
        some = tuple(texts[first : first + share])
        _together.update(((text, name), some) for text, names in some for name in names)


@cache
def _library(sources, flags):
    """Return the library of the kernels of some sources."""
    included, bodies, numbers = [], [], itertools.count()
    for part, (text, names) in enumerate(sources):
        body = [text, *(f"EXPORT_KERNEL(kernel_{next(numbers)}, {name})" for name in names)]
        if len(sources) > 1:  # each in a namespace, but for its headers
            lines = "\n".join(body).splitlines()
            included += (line for line in lines if line.startswith("#include"))
            body = [f"namespace part_{part} {{", *(line for line in lines if not line.startswith("#include")), "}"]
        bodies += body
    return harness.build("\n".join([*dict.fromkeys(included), *bodies, ""]), flags)


def _text(source):
    return source.read_text(encoding="utf-8") if isinstance(source, Path) else source


class HostLaunch:
    """A launch of a `HostKernel`, as a `BoundLaunch`."""

    def __init__(self, kernel, grid, block, arguments, shared_mem, cluster):
        self._launch = kernel.launch, grid, block, arguments
        values, self._addresses = pack(arguments)
        self._words, self._sizes = values.view(np.uint64), (shared_mem, cluster)
        self._places = ((self._addresses - np.uintp(values.ctypes.data)) // np.uintp(8)).tolist()

    def change(self, place, value, word=0):
        self._words[self._places[place] + word] = value

    def change_words(self, place, word, values):
        for i, value in enumerate(values):
            self.change(place, value, word + i)

    def on(self, stream):
        self()

    def __call__(self):
        launch, *given = self._launch
        launch(*given, self._addresses, *self._sizes)


class _TensorMap:
    """A `TensorMap` that runtime.cpp reads."""

    def __init__(self, shape, row_stride, box):
        (rows, columns), (box_rows, box_columns), item_bytes = shape, box, 2
        self._rest = columns, rows, item_bytes * row_stride, box_columns, box_rows, item_bytes

    def at(self, address):
        assert address % 16 == 0
        return np.array([address, *self._rest, *(0,) * 9], np.uint64)


class _Done:
    """A stream, or an event: whatever it is to wait for is done."""

    ptr, done = 0, True

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def wait_event(self, event):
        pass


class HostMachine:
    """The CPU as a `Machine`: a GPU by its description, whose launches are done when they return.

    Parameters
    ----------
    multiprocessors : int
        Which decide grids.
    gpu : GpuSpec
        All else that launchers ask of it.
    memory : int
        The bytes that arrays may take.
    flags : sequence of str
        Further flags of the compiler, as for `harness.build`.
    edit : callable
        What the source of each kernel is passed through.
    """

    # NumPy, whose uninitialised arrays can be told.
    xp = SimpleNamespace(**{**vars(np), "empty": _empty})
    index = 0

    def __init__(self, multiprocessors=2, gpu=KNOWN["H200"], memory=1 << 34, flags=(), edit=str):
        self.gpu, self.memory = replace(gpu, multiprocessors=multiprocessors), memory
        self._flags, self._edit = tuple(flags), edit
        self.counts = np.zeros(0, np.uint32)

    def current(self):
        return contextlib.nullcontext()

    def unique_name(self):
        return f"HostMachine {id(self)}"

    def free_bytes(self):
        return self.memory

    def pinned(self, shape, dtype):
        return _empty(shape, dtype)

    def pin_in_place(self, array):
        return _Pinned(array)

    def on_gpu(self, array):
        return np.array(array)

    def workspace(self, size, counts):
        """Return scratch memory, and the counts that every launch so far has left at zero."""
        assert not self.counts.any(), "a launch left counts that are not zero"
        if self.counts.size < counts:
            self.counts = np.zeros(counts, np.uint32)
        return _empty(size, np.uint8), self.counts

    def kernels(self, source, *names):
        text = self._edit(_text(source))
        return [HostKernel(text, one, _together.get((text, one), ((text, names),)), self._flags) for one in names]

    def private_kernels(self, source, names, variable):
        text = self._edit(_text(source)) + f'\nextern "C" void* variable() {{ return &{variable}; }}\n'
        sources = ((text, tuple(names)),)
        address_of_variable = _library(sources, self._flags)["variable"]
        address_of_variable.restype = ctypes.c_void_p
        return [HostKernel(text, name, sources, self._flags) for name in names], address_of_variable()

    def bind(self, kernel, grid, block, arguments, shared_mem=0, *, dependent=True, cluster=1):
        return HostLaunch(kernel, grid, block, arguments, shared_mem, cluster)

    def tensor_map(self, shape, row_stride, box):
        return _TensorMap(shape, row_stride, box)

    def copy(self, to, source, stream=None):
        assert to.nbytes == source.nbytes, f"a copy of {source.nbytes} bytes to {to.nbytes}"
        ctypes.memmove(address(to), address(source), source.nbytes)

    def bind_copy(self, to, source, size):
        return lambda: ctypes.memmove(to, source, size)

    def fill(self, array, byte):
        ctypes.memset(address(array), byte, array.nbytes)

    def stream(self):
        return _Done()

    current_stream = event = stream
