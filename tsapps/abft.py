"""Re-export of `tsapps.apps.abft` under its public name; the docstring of `tsapps.apps.abft` replaces this one."""

from tsapps.apps.abft import *  # noqa: F403
from tsapps.apps.abft import __all__, __doc__  # noqa: A004, F401
