"""The rows of X, block by block, on the device of an engine: held there, or read from their source in every pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, UnitRows
from tsapps.kernels.arrays import to_host

__all__ = ["Blocks"]

T = TypeVar("T")


class Blocks(ABC):
    """X on one device, less its mean.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : numpy.dtype
        float32 or float64: the type that rows are computed with.
    sample_weight : numpy.ndarray of shape (n,), optional
        None means that every sample weighs 1.
    """

    #: The array library, `numpy` or `cupy`.
    xp: Any
    #: Where the engine runs, "cpu" or "cuda:i".
    device: str

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        self.source = source
        #: What passes read where X is not held: the source, or a copy of it in its own dtype.
        self.reader = source
        #: Whether rows and centers have norm 1, and distances are 1 − cos.
        self.spherical = isinstance(source, UnitRows)
        self.n_samples, self.n_features = source.shape
        self.dtype = np.dtype(dtype)
        self.mean = self.xp.zeros(self.n_features, self.dtype)
        self.sample_weight = None if sample_weight is None else self.xp.asarray(sample_weight, dtype=self.dtype)
        #: X on this device in `dtype`, less the mean; None where it is read from its source in every pass.
        self.held: Any = self._borrow()
        self._borrowed: Any = self.held
        if self.held is None and self.copies():
            self._hold()

    def copies(self) -> bool:
        """Tell whether to hold a copy of X where it cannot be borrowed."""
        return self.fits(self.held_bytes())

    def held_bytes(self) -> int:
        """Return the bytes of a copy of X, as it would be held."""
        return self.n_samples * self.n_features * self.dtype.itemsize

    def _hold(self) -> None:
        """Hold a copy of X, not centered."""
        held = self.xp.empty(self.source.shape, self.dtype)
        for start, block in self.source_blocks(self.block_rows(self.n_features)):
            held[start : start + len(block)] = block
        self.held = held

    def _borrow(self) -> Any | None:
        """Return the source's own array where it can be read as it is."""
        if not isinstance(self.source, ArrayRows):
            return None
        array = self.source.array
        usable = isinstance(array, self.xp.ndarray) and array.dtype == self.dtype and array.flags.c_contiguous
        return array if usable else None

    def __enter__(self) -> Self:
        """Make the engine's device the current one."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 (on the CPU there is nothing to do)
        """Give the device before back."""

    @abstractmethod
    def fits(self, size: int) -> bool:
        """Tell whether `size` more bytes for X leave the device room to work."""

    @abstractmethod
    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this device, in the source's own dtype, not centered."""
        return self.reader.blocks(rows)

    def blocks(self, n_columns: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block), to be passed through `prepared` before use."""
        rows = self.block_rows(n_columns)
        if self.held is None:
            yield from self.source_blocks(rows)
            return
        for start in range(0, self.n_samples, rows):
            yield start, self.held[start : start + rows]

    def prepared(self, block: Any) -> Any:
        """Return a block of `blocks` in `dtype`, row-major and centered."""
        if self.held is not None:
            return block
        prepared = block.astype(self.dtype, order="C", copy=False)
        if prepared is block:  # the source's own
            return block - self.mean
        prepared -= self.mean
        return prepared

    def center(self, mean: np.ndarray) -> None:
        """Subtract `mean` (d,) from every row read from here on. Never writes to an array of the caller's."""
        self.mean = self.xp.asarray(mean, dtype=self.dtype)
        if self.held is None or not mean.astype(self.dtype).any():
            return
        if self.held is not self._borrowed:
            self.held -= self.mean
        elif self.fits(self.held.nbytes):
            self.held = self.held - self.mean
        else:
            self.held = None

    @abstractmethod
    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centered rows in `dtype`, in row order.

        `n_columns` is the width of the widest temporary that `work` makes for a block.
        """

    def weights_of(self, start: int, block: Any) -> Any | None:
        """Return the weights of the samples of a block; None where all weigh 1."""
        return None if self.sample_weight is None else self.sample_weight[start : start + len(block)]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return these samples, centered, in host memory; shape (len(indices), d)."""
        rows = to_host(self.reader.rows(np.asarray(indices)))
        return rows.astype(self.dtype) - to_host(self.mean)

    def is_surely_finite(self, block: Any) -> bool:  # noqa: ARG002 (what may be told)
        """Tell whether a block is finite, if that is told sooner than which of its numbers are."""
        return False

    def refuse_non_finite(self) -> None:
        """Raise ValueError if X has a NaN or an infinity, naming the first."""

        def work(start: int, block: Any) -> None:
            if self.is_surely_finite(block):
                return
            finite = self.xp.isfinite(block)
            if not bool(finite.all()):
                row, column = np.argwhere(~to_host(finite))[0]
                place = f"{self.source.name}: row {start + row}, column {column} is {to_host(block)[row, column]}"
                raise ValueError(f"{place}: K-means needs finite numbers; remove or replace such rows first")

        for _ in self.each_block(work, self.n_features):
            pass

    def centered(self) -> Any:
        """Return the whole of X, centered, as an array of `xp`; shape (n, d)."""
        return self.xp.concatenate(list(self.each_block(lambda _, block: block.copy(), self.n_features)))
