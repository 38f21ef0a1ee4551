"""Parts of X on the workers of a Dask cluster, asked by tasks.

A `Part` is the result of a task, so it lives as long as its future. If its worker is lost, Dask reads its rows again
and makes the part anew on another worker, which brings itself to the state that comes with every question. So a fit
goes on with the same bits.

Every wait has a deadline: while answers are outstanding, a thread asks the scheduler which workers it hears of.
"""

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future as Outcome
from functools import partial
from threading import Event, Thread
from typing import Any, TypeVar
from uuid import uuid4

import distributed
import numpy as np
from distributed import Client, Future, KilledWorker, MultiLock, get_client
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError

from tsapps.apps.kmeans.distributed.burst import Gang
from tsapps.apps.kmeans.distributed.crew import ClusterError, gang_of_parts
from tsapps.apps.kmeans.distributed.part import Part, PartSpec, PartState
from tsapps.kernels.arrays import as_array, to_host
from tsapps.kernels.runtime.all_reduce import GroupError, leave
from tsapps.kernels.system.version import package_version

__all__ = ["DaskCrew", "check_versions", "current_client", "shares_of", "watched"]

T = TypeVar("T")

# Seconds without a word of the scheduler, of any worker, or of one worker, after which a fit is abandoned; and seconds
# between two questions to the scheduler.
_SECONDS, _INTERVAL = 60.0, 2.0
# Seconds that a burst waits for one of another fit on the same GPUs; without the lock, there is no burst.
_LOCK_SECONDS = 30.0


class DaskCrew:
    """Parts of X on the workers of a Dask cluster; see `Crew`.

    Parameters
    ----------
    client : distributed.Client
    blocks : sequence of distributed.Future
        The rows of X in blocks of any size, NumPy or CuPy arrays.
    sizes : sequence of int
        Number of rows of each block.
    parts : sequence of range
        See `crew.cut_rows`.
    specs : sequence of PartSpec
        See `crew.specs_of`.
    weights : numpy.ndarray of shape (n,), optional
    """

    def __init__(
        self,
        client: Client,
        blocks: Sequence[Future],
        sizes: Sequence[int],
        parts: Sequence[range],
        specs: Sequence[PartSpec],
        weights: np.ndarray | None,
    ) -> None:
        self.parts, self._client = parts, client
        self.device = f"dask: {len(parts)} × {specs[0].device}"
        ends = np.cumsum(sizes)
        self._parts = []
        for part, spec in zip(parts, specs, strict=True):
            first, last = np.searchsorted(ends, [part.start, part.stop - 1], side="right").tolist()
            some = range(first, last + 1)
            # The rows of the part in each of these blocks.
            slices = [
                slice(max(part.start - int(ends[i] - sizes[i]), 0), part.stop - int(ends[i] - sizes[i])) for i in some
            ]
            own = None if weights is None else weights[part.start : part.stop]
            given = [blocks[i] for i in some], slices, own, spec, _versions()
            self._parts.append(client.submit(_part, *given, key=f"tsapps-part-{uuid4().hex}", pure=False))

    def ask(self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask parts in parallel; see `Crew.ask`.

        Raises
        ------
        ClusterError
            If a part's workers were lost again and again, or if the scheduler or the workers are silent for a minute.
        """
        futures = self.futures(question, state, *arguments, parts=parts)
        try:
            return watched(self._client, lambda: self._client.gather(futures), question)
        except (FutureCancelledError, CommClosedError) as error:
            raise ClusterError(f"the connection to the scheduler was lost ({error}): is it running?") from error
        except KilledWorker as error:
            lost = next(i for i, future in enumerate(futures) if future.status == "error")
            part = self.parts[lost if parts is None else parts[lost]]
            raise ClusterError(
                f"rows {part.start} to {part.stop - 1} of X were lost with their workers again and again ({error}): "
                "look for the cause in the logs of the workers, such as too little memory"
            ) from error

    def gang(self, state: PartState) -> Gang | None:
        """Return the GPUs of all parts; see `Crew.gang`."""
        found = gang_of_parts(self, state)
        if found is not None:
            places = watched(self._client, lambda: self._client.who_has(self._parts), "the places of parts")
            self._places = {address for addresses in places.values() for address in addresses}
        return found

    def ask_gang(self, gang: Gang, question: str, state: PartState, *arguments: Any) -> list[Any] | None:
        """Ask all parts; see `Crew.ask_gang`. No other fit may ask some of these GPUs meanwhile.

        Raises
        ------
        ClusterError
            If the scheduler or the workers are silent for a minute.
        """
        lock = MultiLock([member.gpu for member in gang.members.values()], client=self._client)
        if not watched(self._client, lambda: lock.acquire(timeout=_LOCK_SECONDS), "the lock of a burst"):
            return None
        try:
            futures = self.futures(question, state, *arguments, gang)
            loss = _Loss(self._places, lambda: self._leave(gang))
            try:
                return watched(self._client, lambda: self._client.gather(futures), question, loss)
            except ClusterError:  # nobody could be told
                raise
            except BaseException as error:  # Ctrl-C too: the other GPUs wait for one that has failed
                self._leave(gang)
                if not isinstance(error, (GroupError, TimeoutError, KilledWorker)):
                    raise
                watched(self._client, lambda: distributed.wait(futures), "the end of a burst")
                return None
        finally:
            lock.release()

    def _leave(self, gang: Gang) -> None:
        """Have the GPUs of a gang abandon the group, so that none waits for one that is lost."""
        if gang.identity is not None:
            call = partial(self._client.run, leave, gang.identity, on_error="ignore")
            watched(self._client, call, "the end of a burst")

    def futures(
        self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None
    ) -> list[Future]:
        """Return the answers as futures; parameters as for `ask`."""
        asked = self._parts if parts is None else [self._parts[i] for i in parts]
        number = uuid4().hex
        return [
            self._client.submit(
                _answer, part, question, state, arguments, key=f"tsapps-{question}-{number}-{i}", pure=False
            )
            for i, part in enumerate(asked)
        ]


def _part(
    blocks: Sequence[Any],
    slices: Sequence[slice],
    weights: np.ndarray | None,
    spec: PartSpec,
    versions: dict[str, str],
) -> Part:
    """Return the part of these rows of blocks; runs on a worker, which may have joined during the fit.

    Raises
    ------
    ClusterError
        If the worker has other versions.
    """
    if _versions() != versions:
        raise ClusterError(f"a worker has {_versions()}, the fit was begun with {versions}: install the same versions")
    rows = [to_host(as_array(block))[some] for block, some in zip(blocks, slices, strict=True)]
    return Part(np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows)), weights, spec)


def _answer(part: Part, question: str, state: PartState, arguments: Sequence[Any]) -> Any:
    """Return the answer of a part; runs on a worker."""
    return part.ask(question, state, *arguments)


class _Loss:
    """Calls a function once if a worker is lost that has one of these addresses."""

    def __init__(self, addresses: Set[str], call: Callable[[], None]) -> None:
        self._addresses, self._call = addresses, call

    def look(self, workers: Set[str]) -> None:
        """Look for the addresses among those of the present workers."""
        if not self._addresses <= workers:
            self._addresses = set()
            self._call()


def watched(client: Client, call: Callable[[], T], what: str, loss: "_Loss | None" = None) -> T:
    """Return the result of a call that waits for workers.

    Parameters
    ----------
    client : distributed.Client
    call : callable
        Is called in another thread.
    what : str
        What is waited for, for messages.
    loss : _Loss, optional
        Is told of the workers.

    Raises
    ------
    ClusterError
        If the scheduler, all workers or one worker are silent for a minute.
    """
    done, outcome = Event(), Outcome[T]()

    def work() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 (raised again in the caller's thread)
            outcome.set_exception(error)
        done.set()

    Thread(target=work, daemon=True, name="tsapps-wait").start()
    if not done.wait(_INTERVAL):
        _wait_for(done, _Pulse(client), what, loss)
    return outcome.result()


def _wait_for(done: Event, pulse: "_Pulse", what: str, loss: _Loss | None) -> None:
    try:
        while not done.wait(_INTERVAL):
            if loss is not None and pulse.workers is not None:
                loss.look(pulse.workers)
            silent = pulse.silent()
            if silent is not None:
                raise ClusterError(f"{silent} for {_SECONDS:.0f} s, while {what!r} was waited for")
    finally:
        pulse.end()


class _Pulse:
    """Asks the scheduler from time to time when it heard of its workers."""

    def __init__(self, client: Client) -> None:
        now = time.monotonic()
        self._client, self._ended = client, Event()
        self._scheduler = self._any_worker = now
        # What the scheduler says of each worker, and when that changed.
        self._workers: dict[str, tuple[float, float]] = {}
        #: The addresses of the workers; None before they are known.
        self.workers: set[str] | None = None
        Thread(target=self._ask, daemon=True, name="tsapps-pulse").start()

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                workers = self._client.scheduler_info(n_workers=-1)["workers"]
            except (OSError, RuntimeError, ValueError, TypeError, KeyError):  # the scheduler is gone, or being replaced
                workers = None
            now = time.monotonic()
            if workers is not None:
                self._scheduler = now
                if any(info["status"] == "running" for info in workers.values()):  # others are paused, without memory
                    self._any_worker = now
                heard = {name: float(info["last_seen"]) for name, info in workers.items()}
                before, self.workers = self._workers, set(workers)
                self._workers = {
                    name: before[name] if name in before and before[name][0] == seen else (seen, now)
                    for name, seen in heard.items()
                }
            self._ended.wait(_INTERVAL)

    def silent(self) -> str | None:
        """Return who has been silent too long, or None."""
        since = time.monotonic() - _SECONDS
        if self._scheduler < since:
            return f"the scheduler at {_address(self._client)} has not answered"
        if self._any_worker < since:
            return "no worker (all are gone, or paused because their memory is full) has been running"
        for name, (_, changed) in self._workers.items():
            if changed < since:
                return f"the worker {name} has not been heard of"
        return None

    def end(self) -> None:
        """Stop asking."""
        self._ended.set()


def current_client() -> Client:
    """Return the client of the current process.

    Raises
    ------
    ValueError
        If there is none.
    ClusterError
        If there is no worker, or a worker has another version of this package or of NumPy.
    """
    try:
        client = get_client()
    except ValueError:
        raise ValueError(
            "X is a Dask collection, but there is no client: make one first, for example by "
            "distributed.Client(), which starts workers on this machine"
        ) from None
    check_versions(client)
    return client


def shares_of(client: Client, device: str) -> list[float]:
    """Return the shares of X of the parts: one for each thread of the workers or, on GPUs, for each worker."""
    threads = watched(client, lambda: list(client.nthreads().values()), "threads")
    return [1.0] * (len(threads) if device == "cuda" else sum(threads))


def _address(client: Client) -> str:
    return "an unknown address" if client.scheduler is None else str(client.scheduler.address)


def _versions() -> dict[str, str]:
    """Return what must be the same in all processes."""
    return {"tsapps": package_version(), "numpy": np.__version__}


def check_versions(client: Client) -> None:
    """Ask each worker for its versions, with a deadline."""
    workers = watched(client, lambda: list(client.nthreads()), "workers")
    if not workers:
        raise ClusterError(f"the scheduler at {_address(client)} has no workers: start one first")
    # If a worker is lost, another answers for it.
    asked = [
        client.submit(_versions, workers=[one], allow_other_workers=True, key=f"tsapps-versions-{uuid4().hex}")
        for one in workers
    ]
    own = _versions()
    for worker, found in zip(workers, watched(client, lambda: client.gather(asked), "versions"), strict=True):
        if found != own:
            raise ClusterError(f"the worker {worker} has {found}, this process {own}: install the same versions")
