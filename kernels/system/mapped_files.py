"""The files whose pages are in a range of this process's memory (Linux's /proc/self/maps)."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MappedFile", "mapped_files"]

# A line of /proc/self/maps, see proc_pid_maps(5). Memory without a file has inode 0.
_MAPPING = re.compile(
    r"(?P<first>[0-9a-f]+)-(?P<end>[0-9a-f]+) .(?P<write>.).(?P<share>.) \S+ \S+ (?P<inode>\d+) *(?P<path>.*)"
)
# Memory without a file in huge pages.
_HUGE_PAGES = "/anon_hugepage"
# Shared memory of processes: files that are nowhere but in memory.
_SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero")


@dataclass(frozen=True)
class MappedFile:
    """A file that is mapped into memory.

    Attributes
    ----------
    path : str
    writable, shared : bool
        Whether the process may write the pages, and whether it then writes the file; a private page is copied first.
    """

    path: str
    writable: bool
    shared: bool

    @property
    def is_shared_memory(self) -> bool:
        """True if the file is memory that processes share, for example that of `multiprocessing.shared_memory`."""
        return self.shared and self.path.startswith(_SHARED_MEMORY)


def mapped_files(first: int, end: int, root: str | os.PathLike[str] = "/") -> list[MappedFile]:
    """Return the files with pages between two addresses of this process, one for each mapping.

    Parameters
    ----------
    first, end : int
        The address of the first byte, and that after the last.
    root : path-like, optional
        The directory that contains ``proc``. Without ``proc/self/maps``, no files are found.
    """
    table = Path(root) / "proc/self/maps"
    if not table.exists():
        return []
    found = []
    for line in table.read_text(errors="replace").splitlines():
        mapping = _MAPPING.match(line)
        if mapping is None or mapping["inode"] == "0" or mapping["path"].startswith(_HUGE_PAGES):
            continue
        if int(mapping["first"], 16) < end and first < int(mapping["end"], 16):
            found.append(MappedFile(mapping["path"], mapping["write"] == "w", mapping["share"] == "s"))
    return found
