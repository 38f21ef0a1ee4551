"""Array interoperability: zero-copy views of any library's arrays in NumPy or CuPy, and conversion back.

The type of an array identifies its library. A library is imported only when one of its arrays occurs.
"""

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "DeviceMatrix",
    "address",
    "as_array",
    "columns_without_numbers",
    "device_matrix",
    "gapless",
    "gpu_index",
    "is_sparse",
    "kind_of",
    "like",
    "refuse_masked",
    "to_host",
]

# DLPack's device types (DLDeviceType).
_DLPACK_CPU = 1
_DLPACK_CUDA = 2


def kind_of(obj: Any) -> str | None:
    """Return the kind of array of `obj`: "numpy", "cupy", "torch", "cuda", "dlpack", "frame", or None.

    "frame" is a pandas or polars data frame. Arrays of other libraries are "cuda" if they have
    ``__cuda_array_interface__``, else "dlpack" if they have ``__dlpack__``. None means that `obj` is not an array.

    Raises
    ------
    TypeError
        If `obj` is a polars LazyFrame, which has no rows yet.
    """
    kind: Any = type(obj)  # mypy does not accept `type[Any]` as hashable
    known = _kind_of_type(kind)
    if known is not None:
        return known
    if hasattr(obj, "__cuda_array_interface__"):
        return "cuda"
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return "dlpack"
    return None


@cache
def _kind_of_type(kind: Any) -> str | None:
    """Return the kind of array of all objects whose type is `kind`, or None if the type does not determine it."""
    library = kind.__module__.partition(".")[0]
    if issubclass(kind, np.ndarray):
        return "numpy"
    if library == "cupy" and hasattr(kind, "__cuda_array_interface__"):
        return "cupy"
    if library == "torch" and hasattr(kind, "__dlpack__"):
        return "torch"
    if library == "polars" and kind.__name__ == "LazyFrame":
        raise TypeError("the data is a polars LazyFrame, which has no rows yet; expected a data frame: call collect()")
    if library in ("pandas", "polars") and hasattr(kind, "columns"):
        return "frame"
    return None


def refuse_masked(obj: Any, subject: str = "the array") -> None:
    """Raise ValueError for a masked array, and for a list or an object array that contains a masked array at any depth.

    Libraries ignore a mask and compute with the masked numbers. A masked array is refused even if no element is masked,
    so that a call does not start to fail when the first element is masked.
    """
    if isinstance(obj, np.ma.MaskedArray):
        raise ValueError(f"{subject} is masked; expected a number everywhere: fill the gaps with X.filled(value)")
    if isinstance(obj, np.ndarray) and obj.dtype.kind == "O":
        obj = obj.ravel()
    elif not isinstance(obj, (list, tuple)):
        return
    kinds = set(map(type, obj))
    if any(issubclass(kind, (np.ma.MaskedArray, np.ndarray, list, tuple)) for kind in kinds):
        for one in obj:
            refuse_masked(one, subject)


def as_array(obj: Any) -> Any:
    """View `obj` as a `numpy.ndarray` or a `cupy.ndarray`, without a copy where its library allows it.

    Parameters
    ----------
    obj : array of any library
        NumPy, CuPy, torch, an object with ``__cuda_array_interface__`` or DLPack, or a pandas or polars frame. The
        columns of a frame are copied into one array; missing values of nullable columns become NaN.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        A CuPy array if the data is on a GPU, else a NumPy array.

    Raises
    ------
    TypeError
        If `kind_of` does not recognize `obj`, if `obj` is on a device other than the CPU or an NVIDIA GPU, or if it
        holds big-endian numbers on a GPU.
    ValueError
        If `obj` is a masked array: its mask would be lost.
    """
    kind = kind_of(obj)
    if kind == "cupy":
        return obj
    if kind == "numpy":
        refuse_masked(obj)
        return np.asarray(obj)  # a plain ndarray, because slices of a subclass such as np.matrix keep that subclass
    if kind == "torch":
        obj = obj.detach()
    if kind == "frame":
        return _from_frame(obj)
    if kind == "cuda":
        import cupy

        if (typestr := obj.__cuda_array_interface__["typestr"]).startswith(">"):
            raise TypeError(
                f"{type(obj).__name__} holds {typestr} on a GPU; expected little-endian numbers: convert the array"
            )
        return cupy.asarray(obj)
    if kind in ("torch", "dlpack"):
        device_type, index = obj.__dlpack_device__()
        if device_type == _DLPACK_CPU:
            return _from_host_dlpack(obj)
        if device_type == _DLPACK_CUDA:
            import cupy

            with cupy.cuda.Device(index):
                return cupy.from_dlpack(obj)
        raise TypeError(
            f"{type(obj).__name__} is on DLPack device type {device_type}: move it to the CPU or an NVIDIA GPU"
        )
    raise TypeError(
        f"expected an array of NumPy, CuPy or torch, one with DLPack or __cuda_array_interface__, or a data frame; "
        f"got {type(obj).__module__}.{type(obj).__qualname__}"
    )


def _from_frame(frame: Any) -> np.ndarray:
    """Copy the columns of a frame into one array of their common numeric dtype; bools become 0 and 1.

    Without an explicit dtype, pandas returns an array of Python objects in two cases: if columns are nullable or
    Arrow-backed, and if bools and numbers are mixed.
    """
    if type(frame).__module__.startswith("polars"):
        import polars as pl

        return frame.cast({pl.Boolean: pl.UInt8}).to_numpy()
    types = [getattr(dtype, "numpy_dtype", dtype) for dtype in frame.dtypes]
    if not types or not all(isinstance(dtype, np.dtype) and dtype.kind in "iufb" for dtype in types):
        return frame.to_numpy()
    dtype = np.result_type(*types)
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    if all(isinstance(own, np.dtype) for own in frame.dtypes):
        return frame.to_numpy(dtype)
    if frame.isna().to_numpy().any():
        dtype = dtype if dtype.kind == "f" else np.dtype(np.float64)
        return frame.to_numpy(dtype, na_value=np.nan)
    return frame.to_numpy(dtype)


def columns_without_numbers(frame: Any) -> list[str]:
    """Return the columns of a frame that hold neither numbers nor bools, with their types: "species (str)"."""
    if type(frame).__module__.startswith("polars"):
        found = [
            (name, kind) for name, kind in frame.schema.items() if not (kind.is_numeric() or str(kind) == "Boolean")
        ]
    else:
        types = [getattr(dtype, "numpy_dtype", dtype) for dtype in frame.dtypes]
        numeric = [isinstance(dtype, np.dtype) and dtype.kind in "iufb" for dtype in types]
        found = [one for one, known in zip(frame.dtypes.items(), numeric, strict=True) if not known]
    return [f"{name} ({kind})" for name, kind in found]


def _from_host_dlpack(obj: Any) -> np.ndarray:
    if "bfloat16" in str(getattr(obj, "dtype", "")) and kind_of(obj) == "torch":
        # NumPy's DLPack reader does not support bfloat16, so the array is passed as 16-bit integers with the same bits.
        import ml_dtypes
        import torch

        return np.from_dlpack(obj.view(torch.int16)).view(ml_dtypes.bfloat16)
    return np.from_dlpack(obj)


def gpu_index(obj: Any) -> int | None:
    """Return the number of the GPU that holds `obj`, or None if `obj` is in host memory or is not an array."""
    kind = kind_of(obj)
    if kind == "cupy":
        return int(obj.device.id)
    if kind == "cuda":
        return int(as_array(obj).device.id)
    if kind == "torch":
        return obj.device.index if obj.is_cuda else None
    if kind == "dlpack":
        device_type, index = obj.__dlpack_device__()
        return int(index) if device_type == _DLPACK_CUDA else None
    return None


def address(array: Any) -> int:
    """Return the address of the first element of a NumPy or CuPy array."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def to_host(array: Any) -> np.ndarray:
    """Return a NumPy or CuPy array as a `numpy.ndarray`, copied only if it is on a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def like(array: Any, template: Any) -> Any:
    """Convert a NumPy or CuPy `array` to the kind and device of `template`.

    For a torch template, the result is a torch tensor on the device of the template. For any other template on a GPU,
    the result is a CuPy array on that GPU. For any other template, such as a list, it is a NumPy array.
    """
    index = gpu_index(template)
    if index is None:
        array = to_host(array)
    elif isinstance(array, np.ndarray):
        import cupy

        with cupy.cuda.Device(index):
            source, array = np.asarray(array, order="C"), cupy.empty(array.shape, array.dtype)
            stream = cupy.cuda.get_current_stream()
            array.set(source, stream)  # `cupy.asarray` takes the host several times as long
            stream.synchronize()
    if kind_of(template) == "torch":
        import torch

        return torch.from_dlpack(array)
    return array


class DeviceMatrix(NamedTuple):
    """A matrix in GPU memory, described for kernel launches independently of the library that owns it.

    Attributes
    ----------
    pointer : int
        The address of the first element.
    shape, strides : tuple of int
        Numbers of rows and columns; distances in bytes between neighboring rows and columns.
    dtype : str
        The name of the dtype, such as ``"bfloat16"``.
    itemsize : int
    device : int
        The number of the GPU.
    owner : object
        The object that keeps the memory alive.
    """

    pointer: int
    shape: tuple[int, int]
    strides: tuple[int, int]
    dtype: str
    itemsize: int
    device: int
    owner: Any

    @property
    def transposed(self) -> "DeviceMatrix":
        """The transposed matrix, in the same memory."""
        return self._replace(shape=self.shape[::-1], strides=self.strides[::-1])

    @property
    def stand_in(self) -> "DeviceMatrix":
        """A cache key for plans and launches: the same matrix without owner, with the address modulo 16."""
        return self._replace(pointer=self.pointer % 16, owner=None)

    def overlaps(self, other: "DeviceMatrix") -> bool:
        """Return True if an element of this matrix and an element of `other` overlap in memory."""
        (low, high), (other_low, other_high) = self._range, other._range
        if self.device != other.device or high <= other_low or other_high <= low:
            return False
        return np.shares_memory(self._addresses(), other._addresses())

    @property
    def _range(self) -> tuple[int, int]:
        """The lowest address of an element, and the end of the highest one; strides may be negative."""
        if 0 in self.shape:
            return self.pointer, self.pointer
        last = [(size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)]
        low, high = (self.pointer + sum(limit(0, offset) for offset in last) for limit in (min, max))
        return low, high + self.itemsize

    def _addresses(self) -> np.ndarray:
        """Return a NumPy array at the addresses of this matrix, whose elements in GPU memory must not be accessed."""
        interface = {
            "version": 3,
            "data": (self.pointer, True),
            "shape": self.shape,
            "strides": self.strides,
            "typestr": f"|V{self.itemsize}",
        }
        return np.asarray(type("Interface", (), {"__array_interface__": interface})())


def gapless(shape: tuple[int, int], dtype: str, itemsize: int, *, by_rows: bool) -> DeviceMatrix:
    """Describe a contiguous row- or column-major matrix without allocating it, to plan products of such matrices."""
    rows, columns = shape
    strides = (columns * itemsize, itemsize) if by_rows else (itemsize, rows * itemsize)
    return DeviceMatrix(0, shape, strides, dtype, itemsize, 0, None)


def device_matrix(name: str, obj: Any) -> DeviceMatrix:
    """View an array on a GPU as a `DeviceMatrix`, without a copy.

    Raises
    ------
    ValueError
        If the array is not two-dimensional; the message uses `name`.
    """
    if kind_of(obj) == "torch":
        shape, itemsize = tuple(obj.shape), obj.element_size()
        strides = tuple(step * itemsize for step in obj.stride())
        found = obj.data_ptr(), _name(obj.dtype), obj.device.index
    else:
        array = as_array(obj)
        shape, strides, itemsize = array.shape, array.strides, array.itemsize
        found = array.data.ptr, _name(array.dtype), array.device.id
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {tuple(shape)}; expected a matrix, (rows, columns)")
    pointer, dtype, device = found
    return DeviceMatrix(int(pointer), shape, strides, dtype, itemsize, int(device), obj)


@cache
def _name(dtype: Any) -> str:
    """Return the name of a NumPy or torch dtype; cached, because both libraries build the name on every access."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def is_sparse(X: Any) -> bool:
    """Return whether X is a SciPy or CuPy sparse matrix."""
    if type(X).__module__.startswith("cupyx.scipy.sparse"):
        return True
    scipy_sparse = sys.modules.get("scipy.sparse")  # None if not imported: X is then no SciPy matrix
    return scipy_sparse is not None and scipy_sparse.issparse(X)
