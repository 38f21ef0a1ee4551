"""Precompilation: calls made in several processes before a benchmark, to fill compile caches on disk.

Triton compiles kernels for each shape, a few seconds each on one core: over a grid, that exceeds the timed work.
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
    """Make a call with each tuple of arguments, in parallel; return how many succeeded.

    Failures are not reported: the timed call fails again and is reported then.

    Parameters
    ----------
    call : callable
        A function of a module, importable by new processes.
    arguments : sequence of tuple
    processes : int
        Maximum number of processes, each with its own GPU context.
    pool : Executor, optional
        Executor to use; by default a pool of new processes.
    """
    if not arguments or processes < 1:
        return 0
    with pool or ProcessPoolExecutor(min(processes, len(arguments)), mp_context=get_context("spawn")) as running:
        found = [running.submit(call, *one) for one in arguments]
        errors = [one.exception() for one in found]
    if any(isinstance(error, BrokenProcessPool) for error in errors):
        print("a precompiling process died; missing kernels will be compiled later", flush=True)
    return sum(error is None for error in errors)
