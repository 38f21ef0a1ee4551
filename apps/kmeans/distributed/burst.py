"""Bursts: several iterations of the GPUs of several processes, which exchange sums by NCCL, not through the driver.

An iteration by questions to the parts takes the driver some 10 ms, a GPU may need one. So the driver asks all parts at
once for a burst, of iterations for about two seconds. Only the first part answers with the result; the others answer
with its digest. If a process is lost, the others abandon the burst, whose result nobody has seen yet. The parts then
bring themselves to the state before it, as with any question, and the driver goes on by questions.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from tsapps.apps.kmeans.distributed.deadline import OneGpu
from tsapps.apps.kmeans.results import Assignment, IterationResult
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.all_reduce import GroupError, Identity, join, nccl_version

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.device_step import DeviceStep
    from tsapps.kernels.runtime.machine import Machine

__all__ = ["Burst", "Gang", "Member", "gang_of", "member_of", "run_burst"]


class Member(NamedTuple):
    """Where a part computes."""

    #: A name that no process of another machine has, and one that no other GPU has.
    process: str
    gpu: str
    #: The version of NCCL; None if it is not installed.
    nccl: int | None


@dataclass(frozen=True)
class Gang:
    """The GPUs that take part in bursts.

    Attributes
    ----------
    identity : Identity or None
        Of the group of NCCL; None for one GPU.
    members : dict
        The member that has each part, by the part's first row, in the order of the parts.
    """

    identity: Identity | None
    members: dict[int, Member]


class Burst(NamedTuple):
    """The result of a burst, of numbers and arrays alone, which any `Communicator` exchanges."""

    #: Those of `IterationResult`, of which `iterations` is the count; `at` is never None.
    centers: np.ndarray
    iterations: int
    strict: bool
    shift: float
    at: np.ndarray
    #: Those of the last `Assignment`, if it left clusters empty.
    empty: tuple[int, np.ndarray, np.ndarray, float] | None
    #: The fixed-point sums of all rows for the last labels, (k, d + 1), int64.
    sums: np.ndarray
    #: The arguments of `Report` for each iteration.
    told: list[tuple[int, int, float]]
    seconds: float

    def digest(self) -> int:
        """Return a number that differs if the centers or the sums of two GPUs do."""
        return crc32(self.sums.tobytes(), crc32(self.centers.tobytes()))

    def result(self) -> IterationResult:
        """Return the result of the iterations."""
        empty = None if self.empty is None else Assignment(*self.empty)
        return IterationResult(self.centers, self.iterations, self.strict, self.shift, empty, self.at)


def member_of(machine: Machine) -> Member:
    """Return where parts on a GPU of this process compute."""
    return Member(f"{socket.gethostname()}:{os.getpid()}", machine.unique_name(), nccl_version())


def gang_of(
    members: Sequence[Member | None], first_rows: Sequence[int], identity: Callable[[], Identity]
) -> Gang | None:
    """Return the gang of all parts; None if one is not on a GPU of its own, or has no or another NCCL.

    Parameters
    ----------
    members : sequence of Member or None
        Where each part computes; None if its step cannot take part in bursts.
    first_rows : sequence of int
        The first row of each part.
    identity : callable
        Returns a new `Identity`, made in the process of the first part.
    """
    found = [member for member in members if member is not None]
    alone = len(members) == 1
    if len(found) < len(members) or len({member.gpu for member in found}) < len(found):
        return None
    if not alone and (None in {member.nccl for member in found} or len({member.nccl for member in found}) > 1):
        return None
    return Gang(None if alone else identity(), dict(zip(first_rows, found, strict=True)))


def run_burst(
    step: DeviceStep, first_row: int, centers: np.ndarray, before: int, last: int, tol: float, gang: Gang
) -> Burst:
    """Iterate from `centers`, together with the other parts of a gang, as `Step.iterate` does.

    Parameters
    ----------
    step : DeviceStep
        The step of the part that begins with `first_row`.
    first_row : int
    centers, before, last, tol
        As for `Step.iterate`.
    gang : Gang

    Returns
    -------
    Burst
        The same for all parts.

    Raises
    ------
    GroupError
        If the part is not where the gang has it, or another part is lost.
    TimeoutError
        If an iteration takes a minute longer than it should.
    """
    from tsapps.apps.kmeans.distributed.shared_iterations import SharedIterations

    data, rank = step.data, list(gang.members).index(first_row)
    expected, own = gang.members[first_row], member_of(data.machine)
    if own != expected:
        raise GroupError(f"the part that begins with row {first_row} is on {own}, no longer on {expected}")
    group = OneGpu() if gang.identity is None else join(data.machine, gang.identity, rank, len(gang.members))
    told: list[tuple[int, int, float]] = []
    begun = time.monotonic()
    shared = SharedIterations([step], group, data.n_total, f"{len(gang.members)} GPUs, of which {data.device} is one")
    found = shared.run(centers, before, last, tol, lambda *outcome: told.append(outcome))
    if not group.is_open:  # then a sum may have been abandoned in the middle, without an error
        raise GroupError("the group of GPUs was abandoned")
    empty, of = None, found.empty
    if of is not None:
        empty = of.n_reassigned, of.sums, of.weights, of.potential
    at, sums = step.centers_at(found.count - 1), np.array(to_host(step.buffers.total_sums))
    seconds = time.monotonic() - begun
    return Burst(found.centers, found.count, found.strict, found.shift, at, empty, sums, told, seconds)
