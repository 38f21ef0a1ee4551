"""Loggers of the package, named as its modules: ``tsapps.apps.kmeans.lloyd``.

INFO says what was read and written, which device and kernels were chosen and why, and how long stages took; DEBUG adds
details. The package configures nothing: an application does, by the module `logging`.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PACKAGE", "logger_of", "timed"]

#: The name of the logger above all of the package.
PACKAGE = "tsapps"
logging.getLogger(PACKAGE).addHandler(logging.NullHandler())


def logger_of(module: str) -> logging.Logger:
    """Return the logger of a module, by its ``__name__``."""
    return logging.getLogger(module)


@contextmanager
def timed(logger: logging.Logger, what: str, *arguments: object) -> Iterator[None]:
    """Log at INFO what the ``with`` block did, and its seconds, if it ends without an exception."""
    began = time.perf_counter()
    yield
    logger.info(f"{what} in %.2f s", *arguments, time.perf_counter() - began)
