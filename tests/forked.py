"""Child processes that stop at a given line of some modules, for tests of interruption at any moment."""

import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

__all__ = ["at_line", "in_child"]


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a fork; return its exit status: negative after a signal, 99 after an exception."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def at_line(n: int, modules: Iterable[ModuleType], stop: Callable[[], object]) -> None:
    """Call `stop` before the nth line of `modules` that this thread executes from now on."""
    files, left = {module.__file__ for module in modules}, n

    def trace(frame, event, _):
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                stop()
        return trace

    sys.settrace(trace)
