"""Ranks of `fit_rank` for tests: threads that meet at a barrier, and processes that are joined by pipes."""

import threading
import traceback
from typing import Any

import numpy as np
from kmeans.distributed.cut_fits import within

from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.distributed.rank import fit_rank
from tsapps.apps.kmeans.init import oversampling_chunks

__all__ = ["PRELOADED", "Meeting", "Pipes", "on_threads", "run_rank"]

#: What the server of a "forkserver" context imports once for all processes that it forks, where it is installed.
PRELOADED = ["pytest", "distributed", "tsapps.apps.kmeans.distributed.dask_crew", "tsapps.apps.kmeans.distributed.rank"]


class Meeting:
    """Where the ranks of one process exchange values; who waits longer than `seconds` is told so."""

    def __init__(self, size: int, seconds: float = 20) -> None:
        self.size, self.values = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=seconds)
        #: The number of exchanges of each rank, and what rank 0 saw in each.
        self.calls, self.seen = [0] * size, []

    def rank(self, rank: int) -> "_Thread":
        return _Thread(self, rank)


class _Thread:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def all_gather(self, value: Any) -> list[Any]:
        meeting = self._meeting
        meeting.values[self.rank] = value
        meeting.barrier.wait()
        found = list(meeting.values)
        meeting.calls[self.rank] += 1
        if self.rank == 0:
            meeting.seen.append(found)
        meeting.barrier.wait()
        return found


def on_threads(
    rows: list[Any], k: int, *, weights: list[Any] | None = None, seconds: float = 20, **options: Any
) -> tuple[list[Any], Meeting]:
    """Return what `fit_rank` returns or raises on each rank, and the meeting; every rank ends, or the test fails."""
    meeting = Meeting(len(rows), seconds)

    def run(rank: int) -> Any:
        own = None if weights is None else weights[rank]
        try:
            return fit_rank(rows[rank], meeting.rank(rank), k, sample_weight=own, **options)
        except Exception as error:  # noqa: BLE001 (for the caller to look at)
            return error

    found: list[Any] = [None] * len(rows)

    def keep(rank: int) -> None:
        found[rank] = run(rank)

    threads = [threading.Thread(target=keep, args=(rank,), daemon=True) for rank in range(len(rows))]

    def all_of_them() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    within(3 * seconds, all_of_them)
    return found, meeting


class Pipes:
    """A rank that has a pipe to every other."""

    def __init__(self, rank: int, pipes: dict[int, Any], size: int) -> None:
        self.rank, self.size, self._pipes = rank, size, pipes

    def all_gather(self, value: Any) -> list[Any]:
        for other in self._pipes:
            # What does not fit into the pipe is read by the other rank, which then sends its own.
            if self.rank < other:
                self._pipes[other].send(value)
        found = [value] * self.size
        for other, pipe in self._pipes.items():
            found[other] = pipe.recv()
            if self.rank > other:
                pipe.send(value)
        return found


def run_rank(rank: int, pipes: dict[int, Any], answers: Any, rows: np.ndarray, k: int, options: dict[str, Any]) -> None:
    """Fit in a process, and put the result or the error into a queue."""
    blocks.SMALL, oversampling_chunks._CHUNK_ELEMENTS = 0, 1
    try:
        found: Any = fit_rank(rows, Pipes(rank, pipes, len(pipes) + 1), k, **options)
    except BaseException:  # noqa: BLE001 (the other process shows it)
        found = traceback.format_exc()
    answers.put((rank, found))
