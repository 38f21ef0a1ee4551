"""`GpuRows`: where X is for the kernels of a GPU: copied, in place, or streamed block by block."""

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.data.host_stream import buffer_rows, stream_to_gpu
from tsapps.apps.kmeans.data.pinned_rows import is_half, pin, pinnable
from tsapps.apps.kmeans.data.pinned_windows import copied_windows
from tsapps.apps.kmeans.data.plan import ROWS
from tsapps.apps.kmeans.data.rows import ArrayRows, RescaledRows, Rows, unscaled
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.pin_in_place import PinningError

__all__ = ["GpuRows", "memory_of_fit"]

# Target size in bytes of the widest temporary array of a block: so large that launches take a small part of the time.
_BLOCK_BYTES = 512 << 20
# Memory of a fit beside X and copies of X, in numbers of the working type per sample. With kernels of this package: a
# label, and in k-means++ the distance to the nearest center. With cuBLAS, k-means++ stores the distances of each sample
# to 2 + ⌊ln k⌋ candidates, which are 12 for k = 22,000.
_KERNEL_NUMBERS, _LIBRARY_NUMBERS = 3, 16
# Minimum number of features for which a fit prefers X in host memory to a copy that leaves no memory for the
# half-precision copy: kernels for fewer features have none.
_LEAST_IN_PLACE = 65
# Maximum number of rows per block: float32 represents counts up to this number exactly.
_MOST_ROWS = 1 << 24


def memory_of_fit(n: int, d: int, dtype: np.dtype, x_dtype: np.dtype) -> int:
    """Return the bytes of GPU memory of a fit that holds n rows of X of type `x_dtype`, and their half-precision copy.

    `dtype` is the working type.
    """
    element = x_dtype.itemsize if is_half(x_dtype, dtype) else dtype.itemsize
    copied = 2 if d >= _LEAST_IN_PLACE else 0
    return n * d * (element + copied) + _working_bytes(n, dtype, _KERNEL_NUMBERS)


def _working_bytes(n: int, dtype: np.dtype, numbers: int) -> int:
    return n * dtype.itemsize * numbers + 2 * _BLOCK_BYTES


class GpuRows(FixedPointData):
    """X for the kernels of a GPU; see `Data`.

    The GPU holds a copy of X in `dtype`, or of 16-bit X in its own type, if the copy fits in memory. Otherwise every
    pass reads the source: in place if the source is on the GPU, else streamed from host memory or a file through two
    pinned buffers. A fit first pins such a source in place (`pin_rows`): then kernels read single rows, or all of them,
    through the link.

    Parameters
    ----------
    source, dtype, sample_weight, shard
        As for `FixedPointData`.
    machine : Machine
        The GPU.
    takes_16_bit : bool
        True if kernels read 16-bit X in its own type, and X is not converted until `center` is called.

    Attributes
    ----------
    shift : array of shape (d,)
        The point that kernels subtract from the rows that they read.
    why_streamed : str or None
        Why a fit cannot read X in place, although the GPU holds no copy.
    """

    as_kernels = True
    why_streamed: str | None = None

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: Any,
        machine: Machine,
        *,
        takes_16_bit: bool = False,
        shard: Shard | None = None,
    ) -> None:
        self.machine, self.xp, self.gpu, self.device = machine, machine.xp, machine.gpu, f"cuda:{machine.index}"
        self._context = machine.current()
        self._takes_16_bit = takes_16_bit
        self._pinned: Any = None  # pinned buffer of copies to the host
        self._pinned_rows: Any = None  # X in host memory that is pinned in place, a `PinnedArray`
        with self._context:
            # 16-bit X in GPU memory, in its own type: the source's array, or a copy.
            self._half_rows = self._half_array(source, np.dtype(dtype))
            super().__init__(source, dtype, sample_weight, shard)
            self.shift = self.xp.zeros(self.n_features, self.dtype)

    def __enter__(self) -> Self:
        """Make the GPU of the data current."""
        self._context.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        """Restore the previous GPU."""
        self._context.__exit__(*exception)

    def available_bytes(self) -> int:
        """Return the number of bytes that copies of X may use: the free bytes minus the other memory of a fit."""
        per_sample = _KERNEL_NUMBERS if self._takes_16_bit else _LIBRARY_NUMBERS
        return self.machine.free_bytes() - _working_bytes(self.n_samples, self.dtype, per_sample)

    def fits(self, size: int) -> bool:
        """Return True if a copy of X with `size` bytes leaves enough memory for a fit; see `Data.fits`."""
        return size <= self.available_bytes()

    def copies(self) -> bool:
        """Return True if a copy of X fits in memory and X is not read in place instead.

        A fit reads long rows in host memory in place if their copy leaves no memory for the half-precision copy, from
        which it reads most of what it needs.
        """
        if self._half_rows is not None or not self.fits(self.held_bytes()):
            return False
        half_copy = 2 * self.n_samples * self.n_features if self.n_features >= _LEAST_IN_PLACE else 0
        return self.fits(self.held_bytes() + half_copy) or self._pinnable() is None

    def held_bytes(self) -> int:
        """Return the size in bytes of a copy of X held on the GPU."""
        return super().held_bytes() // (2 if self._is_half else 1)

    def _hold(self) -> None:
        """Copy X to the GPU, not centered yet: 16-bit X in its own type, if kernels read it; else in `dtype`."""
        if self._is_half:
            self._half_rows = self._copied(self.source.dtype)
        else:
            super()._hold()

    def hold_numbers(self) -> None:
        """Copy X to the GPU in `dtype`, even if kernels read its own type, if the copy fits in memory."""
        if self.fits(super().held_bytes()):
            super()._hold()
            self._half_rows = None

    def pin_rows(self) -> None:
        """Pin X in place for a fit, if X is in host memory or in a file and the GPU holds no copy."""
        array = self._pinnable() if self.rows_on_gpu is None else None
        if array is None:
            return
        try:
            self._pinned_rows = pin(array, self.machine)
        except PinningError as error:
            self.copy_or_stream(error)

    def copy_or_stream(self, error: PinningError) -> None:
        """Copy X to the GPU or, if it does not fit, stream it from now on, as its pages cannot be pinned."""
        self.unpin_rows()
        self.why_streamed = f"X does not fit in GPU memory, and {error}"
        with self._context:
            if self.fits(self.held_bytes()):
                self._hold()

    def move_away(self, *, pinned: bool) -> None:
        """Take X on the GPU, an array of zeros that nothing reads, for one that is elsewhere, pinned or streamed."""
        if pinned:
            self._pinned_rows = self.machine.pin_in_place(self.rows_on_gpu)
        self.held = self._half_rows = None

    def check_pinned(self) -> None:
        """Raise an error if X is pinned and its file has changed; passes that read the file itself check it too."""
        if self.over_link and hasattr(self.source, "check_unchanged"):
            self.source.check_unchanged()

    def unpin_rows(self) -> None:
        """Release the pages that `pin_rows` pinned, if it did."""
        if self._pinned_rows is not None:
            self._pinned_rows.release()
        self._pinned_rows = None

    def _pinnable(self) -> np.ndarray | None:
        return pinnable(self.source, self.dtype) if self._takes_16_bit else None

    def copy_to_host(self, array: Any) -> np.ndarray:
        """Return a copy of an array in pinned host memory, which is faster to copy to; see `Data.copy_to_host`."""
        if self._pinned is None or self._pinned.nbytes < array.nbytes:
            self._pinned = self.machine.pinned(array.nbytes, np.uint8)
        host: np.ndarray = self._pinned[: array.nbytes].view(array.dtype).reshape(array.shape)
        self.machine.copy(host, array)
        self.machine.current_stream().synchronize()
        return host

    def on_device(self, points: np.ndarray) -> Any:
        """Return points on the GPU; see `Data.on_device`."""
        return self.machine.on_gpu(np.asarray(points, self.dtype))

    @property
    def _is_half(self) -> bool:
        """True if X is in host memory, in a 16-bit type that kernels read."""
        return self._takes_16_bit and self.source.device is None and is_half(self.source.dtype, self.dtype)

    def _half_array(self, source: Rows, dtype: np.dtype) -> Any | None:
        """Return the source's array if it is row-major, has a 16-bit type and is on this GPU; else None."""
        if not self._takes_16_bit or not isinstance(source, ArrayRows) or source.device != self.machine.index:
            return None
        return source.array if is_half(source.dtype, dtype) and source.array.flags.c_contiguous else None

    @property
    def uncentered(self) -> Any:
        """Row-major X on the GPU in `dtype`, from which the mean may not have been subtracted; else None."""
        return self._borrowed if self.held is None else self.held

    @property
    def rows_on_gpu(self) -> Any:
        """Row-major X for kernels, in the working type or a 16-bit type: on the GPU, or pinned in place; else None.

        Pins all pages that are not pinned yet.
        """
        if self.held is not None:
            return self.held
        return self._half_rows if self._pinned_rows is None else self._pinned_rows.on_gpu

    @property
    def over_link(self) -> bool:
        """True if `rows_on_gpu` are in host memory, where the GPU reads them through the link."""
        return self.held is None and self._pinned_rows is not None

    def rows_argument(self, rows: slice = slice(None)) -> Any:
        """Return rows of X, `shift` and the rows' weights as a kernel argument, a `ROWS` structure."""
        d, weights = self.n_features, self.sample_weight
        some = None if weights is None else weights[rows]
        return structure(ROWS, X=self.rows_on_gpu[rows], leading=d, d=d, mean=self.shift, weights=some)

    @property
    def dtype_as_read(self) -> np.dtype:
        """The type of X as kernels read it; see `FixedPointData.dtype_as_read`."""
        if self.over_link:
            return np.dtype(self._pinned_rows.array.dtype)
        if self.rows_on_gpu is not None:
            return np.dtype(self.rows_on_gpu.dtype)
        return super().dtype_as_read if self._takes_16_bit else self.dtype

    def rows_as_read(self, indices: range | np.ndarray) -> Any:
        """Return rows as kernels read them, before they subtract `shift`; see `FixedPointData.rows_as_read`."""
        if self.rows_on_gpu is None:
            return to_host(self.reader.rows(np.array(indices)))
        if isinstance(indices, range):
            return self.rows_on_gpu[indices.start : indices.stop : indices.step]
        return self.rows_on_gpu[self.xp.asarray(indices)]

    def windows(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, window) for X as kernels read it, in windows of `rows` rows; the last may have fewer.

        A window is row-major and on the GPU. It is valid until the next window is requested; then launches on the
        current stream that read it may still run. `shift` is not subtracted.
        """
        if self.over_link:
            yield from copied_windows(self.machine, self._pinned_rows, rows)
        elif self.rows_on_gpu is not None:
            for start in range(0, self.n_samples, rows):
                yield start, self.rows_on_gpu[start : start + rows]
        else:
            for start, block in self.source_blocks(rows):
                yield start, block.astype(self.dtype_as_read, order="C", copy=False)

    def block_rows(self, n_columns: int) -> int:
        """Return the number of rows per block for a pass whose widest temporary array has `n_columns` columns."""
        if n_columns == 0 and self.held is not None:
            return self.n_samples
        rows = min(_BLOCK_BYTES // (self.dtype.itemsize * max(n_columns, self.n_features)), _MOST_ROWS)
        if self.held is None and self._half_rows is None and self.source.device is None:
            rows = min(rows, buffer_rows(self._unscaled))
        return max(1, rows) if n_columns else max(1, rows // self.chunk) * self.chunk

    @property
    def _unscaled(self) -> Rows:
        """The matrix that is streamed from the host: `RescaledRows` are scaled on the GPU."""
        return unscaled(self.source)

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this GPU, in the source's own dtype, not centered."""
        if self._half_rows is not None:
            return ((start, self._half_rows[start : start + rows]) for start in range(0, self.n_samples, rows))
        if self.source.device is not None:
            return self.source.blocks(rows)
        streamed = stream_to_gpu(self.machine, self._unscaled, rows)
        return self.source.scaled(streamed) if isinstance(self.source, RescaledRows) else streamed
