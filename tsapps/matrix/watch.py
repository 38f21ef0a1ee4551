"""Detection of changes to a file since it was opened, by device, inode, size and time of the last write."""

import os
from dataclasses import dataclass
from typing import Self

from tsapps.matrix.checks import changed

__all__ = ["FileState"]


@dataclass(frozen=True)
class FileState:
    """Identity, size and modification time of a file.

    Attributes
    ----------
    path : str
        The file.
    found : tuple of int
        Device, inode, size in bytes, and time of the last write in nanoseconds.
    """

    path: str
    found: tuple[int, ...]

    @classmethod
    def of(cls, path: str) -> Self:
        """Return the present state of a file."""
        return cls(path, _state(os.stat(path)))

    def check(self, name: str) -> None:
        """Raise `MatrixError`, which names `name`, if the path now leads to another file or the file was modified."""
        try:
            now = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise changed(name) from error
        self._compare(now, name)

    def check_open(self, descriptor: int, name: str) -> None:
        """Raise `MatrixError`, which names `name`, if the file open as `descriptor` is another file or was modified."""
        self._compare(os.fstat(descriptor), name)

    def _compare(self, now: os.stat_result, name: str) -> None:
        if _state(now) != self.found:
            raise changed(name)


def _state(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
