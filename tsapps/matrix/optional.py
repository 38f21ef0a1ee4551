"""Optional dependencies: libraries that only some formats need."""

from importlib import import_module
from typing import Any

from tsapps.errors import MatrixError

__all__ = ["optional_module"]


def optional_module(module: str, path: str) -> Any:
    """Import a library that reads `path`.

    Raises
    ------
    MatrixError
        If the library is not installed; the message says how to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise  # installed, but one of its own dependencies is missing: its message says more
        raise MatrixError(f"{path}: needs {library}, which is not installed: pip install {library}") from error
