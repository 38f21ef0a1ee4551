"""Re-export of `tsapps.apps.abft` under its public name; the docstring of `tsapps.apps.abft` replaces this one."""

from typing import TYPE_CHECKING, Any

from tsapps.apps import abft as _abft
from tsapps.apps.abft import *  # noqa: F403
from tsapps.apps.abft import __all__, __doc__  # noqa: A004, F401

if TYPE_CHECKING:
    from tsapps.apps.abft import (  # noqa: F401
        Linear,
        LinearFault,
        LinearFaultError,
        LinearFaultWarning,
        ProtectedLoadPlanner,
        ProtectedSavePlanner,
        check_faults,
        protect,
        unprotect,
    )


def __getattr__(name: str) -> Any:
    return getattr(_abft, name)  # names that need torch


def __dir__() -> list[str]:
    return sorted([*globals(), *_abft.TORCH_NAMES])
