"""The libraries behind some formats, which only those who open such files need."""

from importlib import import_module
from typing import Any

from tsapps.errors import MatrixError

__all__ = ["optional_module"]


def optional_module(module: str, path: str) -> Any:
    """Import a library that reads `path`.

    Raises
    ------
    MatrixError
        Saying how to install it, if it is not there.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        library = module.partition(".")[0]
        if error.name != library:
            raise  # it is there, and something that it needs is not: its own message says more
        raise MatrixError(f"{path}: needs {library}, which is not installed: pip install {library}") from error
