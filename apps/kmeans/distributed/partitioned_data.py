"""`PartitionedData`: X as parts that a crew holds; no array of as many elements as X has rows is made here."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.data.outliers import sampled_rows, typical_rows
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Statistics
from tsapps.apps.kmeans.distributed.crew import Crew
from tsapps.apps.kmeans.distributed.part import PartState
from tsapps.apps.kmeans.inertia.host_inertia import total_inertia
from tsapps.apps.kmeans.init.oversampling_chunks import oversampling_chunk
from tsapps.apps.kmeans.init.plusplus_order import PlusPlusOrder

__all__ = ["HeldRows", "PartitionedData", "PartitionedDraws", "PartitionedOversampling"]

T = TypeVar("T")


class HeldRows:
    """Shape, type and name of rows that a crew holds; they cannot be read here."""

    device: int | None = None

    def __init__(self, shape: tuple[int, int], dtype: np.dtype, name: str = "X") -> None:
        self.shape, self.dtype, self.name = shape, dtype, name

    def blocks(self, rows: int) -> Iterator[tuple[int, Any]]:  # noqa: ARG002 (see `Rows`)
        """Raise ValueError: the rows are in other processes."""
        raise ValueError(f"{self.name} is distributed over several processes, and is not read as a whole")

    def rows(self, indices: np.ndarray) -> Any:  # noqa: ARG002 (see `Rows`)
        """Raise ValueError: the rows are in other processes."""
        raise ValueError(f"{self.name} is distributed over several processes, and is not read by itself")


class PartitionedData(FixedPointData):
    """X as parts of a crew; see `Data`.

    Parameters
    ----------
    source : Rows
        `HeldRows`, or these rescaled.
    dtype : {float32, float64}
        Working type.
    sample_weight : numpy.ndarray of shape (n,), optional
    crew : Crew
    exponent : int
        Rows are multiplied by 2^−exponent.

    Attributes
    ----------
    state : PartState
        What the parts have been told.
    """

    xp = np
    as_kernels = True
    is_small = False  # small X is in one process

    def __init__(
        self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, crew: Crew, exponent: int = 0
    ) -> None:
        self.crew, self.device, self.state = crew, crew.device, PartState(exponent)
        self._first_rows = np.array([part.start for part in crew.parts])
        super().__init__(source, dtype, sample_weight)

    def _borrow(self) -> None:
        return None

    def copies(self) -> bool:
        """Return False: the parts hold the rows."""
        return False

    def fits(self, size: int) -> bool:  # noqa: ARG002 (see `Data`)
        """Return False: nothing is copied."""
        return False

    def ask(self, question: str, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask parts for the answer of a method of `Part`, in the current state; see `Crew.ask`."""
        return self.crew.ask(question, self.state, *arguments, parts=parts)

    def tell(self, **changes: Any) -> None:
        """Change the state that parts are in when they are asked next."""
        self.state = replace(self.state, **changes)

    def gathered(self, question: str, indices: np.ndarray) -> np.ndarray:
        """Return the answers about some rows, in the order of the indices; each part answers for its own rows."""
        indices = np.asarray(indices)
        return self.in_order(indices, lambda parts: self.ask(question, indices, parts=parts))

    def in_order(self, rows: np.ndarray, ask: Callable[[list[int]], list[np.ndarray]]) -> np.ndarray:
        """Return answers about rows of X in the order of the rows.

        `ask` takes the parts that have some of the rows, and returns from each the answers for its own.
        """
        of = np.searchsorted(self._first_rows, rows, side="right") - 1
        joined = np.concatenate(ask(np.unique(of).tolist()))
        found = np.empty_like(joined)
        found[np.argsort(of, kind="stable")] = joined
        return found

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered, in host memory; shape (len(indices), d)."""
        return self.gathered("rows", indices)

    def rows_as_read(self, indices: range | np.ndarray) -> np.ndarray:
        """Return rows as a kernel would read them, not centered; see `FixedPointData.rows_as_read`."""
        return self.gathered("rows_as_read", np.array(indices))

    def first_row(self) -> np.ndarray:
        """Return a sample; see `Data.first_row`."""
        found: np.ndarray = self.ask("first_row", parts=[0])[0]
        return found

    def partial_moments(self, origin: np.ndarray) -> np.ndarray:
        """Return the moments of each chunk, shape (3, chunks, d), float64; see `FixedPointData.partial_moments`."""
        return np.concatenate(self.ask("partial_moments", origin), axis=1)

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X and the mean variance of its features; see `Data.moments`."""
        found = super().moments()
        # Not on first use: until Python 3.12, threads that are ranks would wait for each other in `cached_property`.
        self._typical_rows = typical_rows(self.rows_as_read(sampled_rows(self.n_samples)), *self.cached_moments[1:])
        return found

    def center(self, mean: np.ndarray) -> None:
        """Subtract `mean`, (d,), from all rows that passes read from now on; see `Data.center`."""
        self._subtracted = mean.astype(self.dtype).astype(np.float64)
        self.mean = mean.astype(self.dtype)
        statistics = Statistics(
            self.origin, self.cached_moments, self._typical_rows, self.most_weight, self.weights_alike
        )
        self.tell(statistics=statistics, point=mean)

    def refuse_non_finite(self) -> None:
        """Raise ValueError if X has a NaN or an infinity; see `Data.refuse_non_finite`."""
        for message in self.ask("non_finite"):
            if message is not None:
                raise ValueError(message)

    def extents(self, first: np.ndarray) -> tuple[float, float]:
        """Return the extents of X; see `Data.extents`."""
        found = self.ask("extents", first)
        return max(one for one, _ in found), max(other for _, other in found)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the centered samples, in float64."""
        return float(sum(self.ask("square_norm")))

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ w·(x, 1) and ``Σ |w·(x, 1)|`` over the centered samples; see `Data.totals`."""
        totals, magnitudes = np.sum(self.ask("totals"), axis=0)
        return totals, magnitudes

    def inertia(self, centers: np.ndarray, labels: Any) -> float:  # noqa: ARG002 (those of the parts)
        """Return Σ w·‖x − c‖² for the current labels; see `Data.inertia`."""
        total = total_inertia(np.concatenate(self.ask("partial_inertia", centers)))
        return total / (2 if self.spherical else 1)

    def each_own_distance(
        self,
        centers: np.ndarray,
        labels: Any,  # noqa: ARG002 (those of the parts)
        *,
        weighted: bool = False,  # noqa: ARG002 (for the inertia, which the parts compute)
    ) -> Iterator[Any]:
        """Yield the distances of one part after another, for the current labels; see `Data.each_own_distance`."""
        for part in range(len(self.crew.parts)):
            yield self.ask("own_distances", centers, parts=[part])[0]

    def block_rows(self, n_columns: int) -> int:  # noqa: ARG002 (see `Data`)
        """Return the number of rows of X: there are no blocks."""
        return self.n_samples

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:  # noqa: ARG002
        """Raise ValueError: only the parts read rows."""
        raise ValueError(f"{self.source.name} is cut into parts, and not read as a whole: init must not be a callable")

    def square_distances(self, points: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Raise ValueError: there would be a number for each row."""
        raise ValueError(f"{self.source.name} is cut into parts, which find their own distances")

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Return the distance of every sample to every point, (n, len(points)); see `Data.distances`."""
        return np.concatenate(self.ask("distances", points))


class PartitionedDraws:
    """Samples that k-means++ draws from the parts of X, with `trials` candidates per step; see `ChunkedDraws`."""

    def __init__(self, data: PartitionedData, trials: int) -> None:
        self._data = data
        self.order = PlusPlusOrder.of(data.n_total, data.n_features, trials, data.dtype.itemsize)

    def rows_as_read(self, indices: np.ndarray) -> np.ndarray:
        """Return samples; see `ChunkedDraws.rows_as_read`."""
        return self._data.rows_as_read(indices)

    def add(self, point: np.ndarray) -> None:
        """Take a point as a center; see `ChunkedDraws.add`. The parts are told with the next question."""
        self._data.tell(seeds=(*self._data.state.seeds, point))

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return the potential of each point and chunk; see `ChunkedDraws.potentials`."""
        return np.concatenate(self._data.ask("potentials", points), axis=1)

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedDraws.sums`."""
        return np.concatenate(self._data.ask("sums"))

    def find(self, chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find samples; see `ChunkedDraws.find`."""
        points: list[np.ndarray] = []

        def ask(parts: list[int]) -> list[np.ndarray]:
            answers = self._data.ask("found", chunks, passed, targets, parts=parts)
            points.extend(of_part for _, of_part in answers)
            return [indices for indices, _ in answers]

        first_rows = chunks * self.order.chunk
        indices = self._data.in_order(first_rows, ask)
        return indices, self._data.in_order(first_rows, lambda _: points)


class PartitionedOversampling:
    """Samples that k-means‖ draws from the parts of X; see `ChunkedOversamplings`."""

    def __init__(self, data: PartitionedData) -> None:
        self._data, self._chunk = data, oversampling_chunk(data.n_total, data.n_features, data.dtype.itemsize)

    def add(self, points: np.ndarray) -> None:
        """Add newly drawn samples; see `Oversampling.add`. The parts are told with the next question."""
        self._data.tell(drawn=(*self._data.state.drawn, points))

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk; see `ChunkedOversamplings.sums`."""
        return np.concatenate(self._data.ask("sums"))

    def found(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return indices of samples; see `ChunkedOversamplings.found`."""
        ask = self._data.ask
        return self._data.in_order(chunks * self._chunk, lambda parts: ask("drawn_at", chunks, targets, parts=parts))

    def weights(self) -> np.ndarray:
        """Return the total weight of each drawn sample; see `Oversampling.weights`."""
        weights: np.ndarray = sum(self._data.ask("weights_of_drawn"))
        return weights
