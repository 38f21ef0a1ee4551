"""`Crew`: the parts of X, wherever they are, and how they are asked; and a crew in this process."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import lcm
from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.data.shard import cut
from tsapps.apps.kmeans.distributed.part import Part, PartSpec, PartState
from tsapps.apps.kmeans.init.oversampling_chunks import oversampling_chunk
from tsapps.apps.kmeans.init.plan import plusplus_chunk

__all__ = ["ClusterError", "Crew", "LocalCrew", "chunk_of_parts", "cut_rows", "specs_of"]


class ClusterError(ConnectionError):
    """Workers of a cluster are missing, silent, of another version, or were lost again and again with their rows."""


class Crew(Protocol):
    """The parts of X, in the order of their rows.

    Attributes
    ----------
    parts : sequence of range
        The rows of each part; none is empty.
    device : str
        Where the parts are, as `TSKMeans.device_` names it.
    """

    parts: Sequence[range]
    device: str

    def ask(self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask parts in parallel, and return their answers in the order of the parts.

        Parameters
        ----------
        question : str
            Name of a method of `Part`.
        state : PartState
        *arguments
            Arguments of the method.
        parts : sequence of int, optional
            Which parts are asked; by default all.
        """


def chunk_of_parts(n: int, d: int, dtype: np.dtype) -> int:
    """Return the number of rows of which parts of X, of shape (n, d), have a multiple: chunks of all sums are whole."""
    return lcm(oversampling_chunk(n, d, dtype.itemsize), plusplus_chunk(n, d, dtype.itemsize))


def cut_rows(n: int, d: int, dtype: np.dtype, shares: Sequence[float]) -> list[range]:
    """Cut n rows of d features into parts of whole chunks; one part for each share, or fewer if there are fewer chunks.

    Parameters
    ----------
    n, d : int
    dtype : {float32, float64}
        Working type.
    shares : sequence of float
        Positive numbers; see `shard.cut`.
    """
    return cut(n, chunk_of_parts(n, d, dtype), list(shares))


def specs_of(
    parts: Sequence[range], dtype: np.dtype, *, spherical: bool, name: str = "X", device: str = "cpu"
) -> list[PartSpec]:
    """Return the `PartSpec` of each part of X, whose rows are those of all parts; all compute on `device`."""
    return [PartSpec(part.start, parts[-1].stop, dtype.name, spherical, name, device) for part in parts]


class LocalCrew:
    """Parts of an array in this process, each with one thread.

    Parameters
    ----------
    X : numpy.ndarray of shape (n, d)
    weights : numpy.ndarray of shape (n,), optional
    dtype : {float32, float64}
        Working type.
    parts : sequence of range
        See `cut_rows`.
    spherical : bool
        Whether rows are scaled to norm 1.
    device : {"cpu", "cuda", "cuda:i"}
        What computes.
    """

    def __init__(
        self,
        X: np.ndarray,
        weights: np.ndarray | None,
        dtype: np.dtype,
        parts: Sequence[range],
        *,
        spherical: bool = False,
        device: str = "cpu",
    ) -> None:
        self.parts, self.device = parts, device
        specs = specs_of(parts, dtype, spherical=spherical, device=device)
        slices = [slice(part.start, part.stop) for part in parts]
        self._parts = [
            Part(X[some], None if weights is None else weights[some], spec)
            for some, spec in zip(slices, specs, strict=True)
        ]
        self._pool = ThreadPoolExecutor(len(parts))

    def ask(self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask parts in parallel; see `Crew.ask`."""
        asked = self._parts if parts is None else [self._parts[i] for i in parts]
        return list(self._pool.map(lambda part: part.ask(question, state, *arguments), asked))
