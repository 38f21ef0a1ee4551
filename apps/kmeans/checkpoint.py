"""Checkpoints of a fit: a directory from which a fit that was killed continues to the same bits.

A checkpoint is written before the first run, after every run, and in a run about once a minute (`SECONDS`). A fit with
the directory of an unfinished fit of the same parameters and data continues it. For the files, see checkpoint_files.py.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.checkpoint_files import (
    CheckpointError,
    Start,
    State,
    digest,
    entries,
    numbers_of,
    read_position,
    read_state,
    restore,
    write,
)
from tsapps.apps.kmeans.data.rows import as_numbers
from tsapps.apps.kmeans.results import Run
from tsapps.kernels.arrays import to_host
from tsapps.kernels.system.logs import logger_of

__all__ = ["Checkpoint", "checkpoint_of", "parameters_of"]

_log = logger_of(__name__)
#: Least time in seconds between two checkpoints in a run. If writing one takes more than `_MOST_COST` seconds, the time
#: becomes longer in proportion, so that checkpoints take at most a twentieth of a fit.
SECONDS = 60.0
_MOST_COST = 3.0

# What messages call values that they do not show, and others that users know by another name.
_OPAQUE = {"values": "values of X", "mean": "mean of X", "sample_weight": "sample_weight"}
_NAMES = {"shape": "shape of X", "type": "type of X", "dtype": "working type"}


class Checkpoint:
    """The checkpoint directory of one fit: reads an earlier checkpoint, and replaces it as the fit proceeds.

    Parameters
    ----------
    directory : path-like
        A directory with an unfinished checkpoint of the same fit; or an empty or new directory.
    parameters : mapping
        The `parameters_of` the fit.
    request : mapping, optional
        What the caller needs to begin the fit again, which `read_state` returns: texts, numbers or None by name. By
        default, that of the unfinished checkpoint.

    Raises
    ------
    CheckpointError
        If the directory holds a finished fit, one of other parameters, or other files; or if its parent is missing.
    ValueError
        If the checkpoint is damaged.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        parameters: Mapping[str, Any],
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._head: dict[str, Any] = {"parameters": dict(parameters), "request": request and dict(request)}
        self._found = read_state(self.directory)
        self._entries = entries(self.directory)
        if self._found is not None:
            self._compare("parameters")
            self._head["request"] = self._head["request"] or self._found["request"]
        self._state, self._generator = State(), np.random.RandomState(0)
        # When the next checkpoint is due; how many iterations the last call of `last_iteration` allowed, and when.
        self._due, self._count, self._asked = time.monotonic() + SECONDS, 0, 0.0

    def begin(
        self, facts: Mapping[str, Mapping[str, Any]], generator: np.random.RandomState
    ) -> tuple[State, np.random.RandomState]:
        """Return where the fit continues, and the generator of its draws; write the first checkpoint of a new fit.

        Parameters
        ----------
        facts : mapping
            What determines the bits of the fit besides parameters: "data" and "computation", each by name.
        generator : numpy.random.RandomState
            It is set to the state in the checkpoint, but NumPy's global generator is not: a new one is.

        Raises
        ------
        CheckpointError
            If the checkpoint is one of other data, or `generator` is not of the MT19937 kind.
        ValueError
            If the checkpoint is damaged.
        """
        numbers_of(generator)  # raises for other kinds
        self._head |= {name: dict(some) for name, some in facts.items()}
        self._generator = generator
        if self._found is None:
            self._write()
            return self._state, generator
        for name in facts:
            self._compare(name)
        if generator is np.random.mtrand._rand:
            self._generator = np.random.RandomState()
        restore(self._generator, self.directory, self._found)
        shape = self._head["parameters"]["n_clusters"], facts["data"]["shape"][1]
        self._state = read_position(self.directory, self._found, shape, np.dtype(facts["computation"]["dtype"]))
        _log.info("%s: continues in run %d", self.directory, self._state.run + 1)
        return self._state, self._generator

    def begin_run(self, run: int, start: Start, faults: int) -> None:
        """Begin or continue a run, and save its initial centers if a checkpoint is due: drawing them may take long."""
        is_new = start is not self._state.start
        self._state, self._count = replace(self._state, run=run, start=start, faults=faults), 0
        if is_new and time.monotonic() >= self._due:
            self._write()

    def last_iteration(self, done: int, most: int) -> int:
        """Return the iteration after which a run with `done` iterations must call `reached`, at most `most`.

        It is the next iteration if a checkpoint is due, so that the centers before it are known. Otherwise so many
        iterations are allowed as will end when one is due, judging by the last: on a GPU, they run without the host.
        """
        now = time.monotonic()
        left, each = self._due - now, (now - self._asked) / max(1, self._count)
        self._count = 1 if left <= 0 else max(1, min(2 * self._count, int(left / max(each, 1e-9))))
        self._asked = now
        return min(done + self._count, most)

    def reached(self, done: int, centers: np.ndarray, before: np.ndarray, faults: int) -> None:
        """Write a checkpoint if one is due.

        Parameters
        ----------
        done : int
            Number of iterations of the run.
        centers, before : numpy.ndarray of shape (k, d)
            The centers of the next and of the last iteration.
        faults : int
        """
        if time.monotonic() >= self._due:
            self._state = replace(self._state, start=Start(before, done - 1, centers), faults=faults)
            self._write()

    def check_repeated(self, start: Start, centers: np.ndarray) -> None:
        """Raise CheckpointError unless the iteration that a run repeated from `start` gave the same bits again."""
        if start.following is not None and start.following.tobytes() != centers.tobytes():
            raise CheckpointError(
                f"{self.directory}: iteration {start.done + 1} of run {self._state.run + 1}, computed again, gives "
                "other centers than the checkpoint has: it was written on another machine, with other libraries, or of "
                "other data: begin again in another directory"
            )

    def end_run(self, best: Run, faults: int) -> None:
        """Write a checkpoint after a run; `best` is the best run so far."""
        self._state = State(self._state.run + 1, None, best, faults)
        self._write()

    def finish(self) -> None:
        """Mark the fit as finished, once its result is where the caller wants it."""
        self._write(finished=True)

    def _compare(self, part: str) -> None:
        """Raise CheckpointError if a part of the checkpoint is not that of this fit."""
        assert self._found is not None
        there, here = self._found[part], json.loads(json.dumps(self._head[part]))
        different = [name for name in here if there.get(name) != here[name] and name != "name"]
        if different:
            raise CheckpointError(
                f"{self.directory}: holds an unfinished fit of other data or parameters "
                f"({'; '.join(_difference(name, there.get(name), here[name]) for name in different)}): name another "
                "directory, or delete this one"
            )

    def _write(self, *, finished: bool = False) -> None:
        """Write the current state."""
        began = time.monotonic()
        write(self.directory, self._head, self._state, self._generator, finished=finished, commit=self._unchanged)
        self._entries, now = entries(self.directory), time.monotonic()
        self._due = now + SECONDS * max(1.0, (now - began) / _MOST_COST)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Raise CheckpointError if the directory is not as this object found or wrote it; see `replacing_directory`."""
        if entries(self.directory) != self._entries:
            raise CheckpointError(
                f"{self.directory}: has been changed by another program since the last checkpoint: let one fit at a "
                "time use it, and keep other files elsewhere"
            )
        yield


def checkpoint_of(model: Any) -> Checkpoint | None:
    """Open the checkpoint of a `TSKMeans`; return None if it has none."""
    if model.checkpoint is None:
        return None
    names = "n_clusters", "init", "n_init", "max_iter", "tol", "metric", "precision", "random_state"
    return Checkpoint(model.checkpoint, parameters_of(**{name: getattr(model, name) for name in names}))


def parameters_of(
    *,
    n_clusters: int,
    init: Any,
    n_init: int | str,
    max_iter: int,
    tol: float,
    metric: str,
    precision: str,
    random_state: Any,
) -> dict[str, Any]:
    """Return the parameters that determine the bits of a fit, as JSON has them; see `TSKMeans`.

    An array is replaced by its digest, and a RandomState by that of its state. A function is not identified.
    """
    if callable(init):
        init = "a callable"
    elif not isinstance(init, str):
        init = f"array {digest(np.ascontiguousarray(to_host(as_numbers(init, 'init')), np.float64))[:16]}"
    if isinstance(random_state, np.random.RandomState):
        random_state = f"RandomState {digest(json.dumps(numbers_of(random_state)).encode())[:16]}"
    elif random_state is not None:
        random_state = int(random_state)
    return {
        "n_clusters": int(n_clusters),
        "init": init,
        "n_init": n_init if isinstance(n_init, str) else int(n_init),
        "max_iter": int(max_iter),
        "tol": float(tol),
        "metric": str(metric),
        "precision": str(precision),
        "random_state": random_state,
    }


def _difference(name: str, there: Any, here: Any) -> str:
    """Return how a value of this fit differs from that in a checkpoint."""
    return f"other {_OPAQUE[name]}" if name in _OPAQUE else f"{_NAMES.get(name, name)}: {there!r} there, {here!r} here"
