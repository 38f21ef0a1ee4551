"""Public name of `tsapps.apps.abft`, whose docstring replaces this one."""

from tsapps.apps.abft import *  # noqa: F403
from tsapps.apps.abft import __all__, __doc__  # noqa: A004, F401
