"""Calls made ahead of a run in several processes, for what they compile to lie in caches on disk.

Triton compiles kernels for each shape anew, a few seconds each on one core: of a grid, longer than all that is timed.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

__all__ = ["call_ahead"]


def call_ahead(
    call: Callable[..., None], arguments: Sequence[tuple[Any, ...]], processes: int, pool: Executor | None = None
) -> int:
    """Make a call with each of some arguments, side by side; return how many of them went well.

    What fails here fails again where it is timed, and is said there.

    Parameters
    ----------
    call : callable
        Of a module, as new processes import it.
    arguments : sequence of tuple
    processes : int
        How many at most, each with a GPU context of its own.
    pool : Executor, optional
        Where they run; so many new processes, if not given.
    """
    if not arguments or processes < 1:
        return 0
    with pool or ProcessPoolExecutor(min(processes, len(arguments)), mp_context=get_context("spawn")) as running:
        found = [running.submit(call, *one) for one in arguments]
        errors = [one.exception() for one in found]
    if any(isinstance(error, BrokenProcessPool) for error in errors):
        print("a process that compiled ahead came to an end; what is missing is compiled later", flush=True)
    return sum(error is None for error in errors)
