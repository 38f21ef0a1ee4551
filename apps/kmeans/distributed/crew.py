"""`Crew`: the parts of X, wherever they are, and how they are asked; and a crew in this process."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import cycle
from math import lcm
from typing import Any, Protocol

import numpy as np

from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import cut
from tsapps.apps.kmeans.distributed.burst import Gang, gang_of
from tsapps.apps.kmeans.distributed.part import Part, PartSpec, PartState
from tsapps.apps.kmeans.init.oversampling_chunks import oversampling_chunk
from tsapps.apps.kmeans.init.plan import plusplus_chunk
from tsapps.kernels.runtime.all_reduce import Identity

__all__ = ["ClusterError", "Crew", "LocalCrew", "chunk_of_parts", "cut_rows", "gang_of_parts", "specs_of"]


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

    def gang(self, state: PartState) -> Gang | None:
        """Return the GPUs of all parts for bursts of the step in a state; None if it has none, now or ever."""
        return gang_of_parts(self, state)

    def ask_gang(self, gang: Gang, question: str, state: PartState, *arguments: Any) -> list[Any] | None:
        """Ask all parts a question for which they wait for each other; None if one was lost, and the gang is no more.

        Parameters are those of `ask`; the gang is the last argument of the question.
        """
        return self.ask(question, state, *arguments, gang)


def gang_of_parts(crew: Crew, state: PartState) -> Gang | None:
    """Return the gang of the parts of a crew, by asking them; see `Crew.gang`."""
    members = crew.ask("member", state)

    def identity() -> Identity:
        found: Identity = crew.ask("new_identity", state, parts=[0])[0]
        return found

    return gang_of(members, [part.start for part in crew.parts], identity)


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
    parts: Sequence[range], dtype: np.dtype, *, spherical: bool, name: str = "X", devices: Sequence[str] = ("cpu",)
) -> list[PartSpec]:
    """Return the `PartSpec` of each part of X, whose rows are those of all parts.

    Each part computes on one of the devices, in turn.
    """
    return [
        PartSpec(part.start, parts[-1].stop, dtype.name, spherical, name, device)
        for part, device in zip(parts, cycle(devices), strict=False)
    ]


class LocalCrew(Crew):
    """Parts in this process, each with one thread.

    Parameters
    ----------
    rows : sequence of numpy.ndarray or Rows
        Those of each part.
    weights : numpy.ndarray of shape (n,), optional
        Those of all rows.
    specs : sequence of PartSpec
    device : str
        See `Crew.device`.
    """

    def __init__(
        self,
        rows: Sequence[np.ndarray | Rows],
        weights: np.ndarray | None,
        specs: Sequence[PartSpec],
        device: str = "cpu",
    ) -> None:
        self.device = device
        sizes = [(spec.first, some.shape[0]) for spec, some in zip(specs, rows, strict=True)]
        self.parts: Sequence[range] = [range(first, first + size) for first, size in sizes]
        own = [None if weights is None else weights[part.start : part.stop] for part in self.parts]
        self._parts = list(map(Part, rows, own, specs))
        self._pool = ThreadPoolExecutor(len(self._parts))

    @contextmanager
    def fitting(self, k: int, *, draws: bool) -> Iterator[None]:
        """Let GPUs read rows in host memory where they are, while a fit runs; see `Engine.fitting`."""
        with ExitStack() as entered:
            for part in self._parts:
                entered.enter_context(part.fitting(k, draws=draws))
            yield

    def gang(self, state: PartState) -> Gang | None:  # noqa: ARG002 (see `Crew`)
        """Return None: an iteration takes much longer than a question, as GPUs that hold their rows are shards."""
        return None

    def ask(self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask parts in parallel; see `Crew.ask`. Returns, or raises an error, when all of them have answered."""
        asked = self._parts if parts is None else [self._parts[i] for i in parts]
        answers = [self._pool.submit(part.ask, question, state, *arguments) for part in asked]
        try:
            return [answer.result() for answer in answers]
        finally:
            wait(answers)
