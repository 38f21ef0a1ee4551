"""Available host memory: the smallest of what the machine, control groups and resource limits allow this process.

A container's limit is a control-group limit (cgroup version 1 or 2), which the machine's free memory does not show.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["available_host_memory"]

# Bytes of available memory that are assumed if the system reports none.
_UNKNOWN = 4 << 30
# By cgroup version: the files with limits, the file with the usage, and the key in memory.stat for the bytes of file
# pages that the kernel reclaims first.
_CGROUP_FILES = {
    1: (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}
# Fields of a line of mountinfo, see proc(5): the mounted group, the mount point, and the controllers of version 1.
_CGROUP_MOUNT = re.compile(r"(\S+ ){3}(?P<root>\S+) (?P<point>\S+) .*- (?P<kind>cgroup2?) \S+ (?P<options>\S+)")
# By resource limit: the field of /proc/self/status with the usage that counts towards the limit.
_RLIMITS = {"RLIMIT_AS": "VmSize", "RLIMIT_DATA": "VmData"}


def available_host_memory(root: str | os.PathLike[str] = "/") -> int:
    """Return the bytes of memory that this process can still allocate without swapping.

    The result is the smallest of Linux's MemAvailable and the unused part of each memory limit: those of the process's
    control group and its ancestors, RLIMIT_AS and RLIMIT_DATA. Without /proc/meminfo, half of the machine's memory
    replaces MemAvailable, or 4 GiB if the machine's memory is unknown.

    Parameters
    ----------
    root : path-like, optional
        The directory that contains ``proc`` and the mount points of control groups.
    """
    top = Path(root)
    found = [_machine_memory(top), *_cgroup_memory(top), *_rlimit_memory(top)]
    return max(0, min(found))


def _machine_memory(root: Path) -> int:
    available = _fields(root / "proc/meminfo").get("MemAvailable")
    if available is not None:
        return available * 1024
    if not hasattr(os, "sysconf"):
        return _UNKNOWN
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_memory(root: Path) -> Iterator[int]:
    """Yield the unused bytes of the memory limits of each control group of the process and of its ancestors."""
    for version, mount, group in _cgroups(root):
        limits, usage, reclaimable = _CGROUP_FILES[version]
        while True:
            least = min((limit for name in limits if (limit := _number(group / name)) is not None), default=None)
            used = _number(group / usage)
            if least is not None and used is not None:
                yield least - max(0, used - _fields(group / "memory.stat").get(reclaimable, 0))
            if group == mount:
                break
            group = group.parent


def _cgroups(root: Path) -> Iterator[tuple[int, Path, Path]]:
    """Yield (version, mount point, directory of this process's group) of each hierarchy that limits memory."""
    paths: dict[int, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        if (found := re.fullmatch(r"(\d+):([^:]*):/?(.*)", line)) is None:
            continue
        if found[1] == "0" and not found[2]:
            paths[2] = found[3]
        elif "memory" in found[2].split(","):
            paths[1] = found[3]
    for line in _lines(root / "proc/self/mountinfo"):
        if (found := _CGROUP_MOUNT.fullmatch(line)) is None:
            continue
        version = 2 if found["kind"] == "cgroup2" else 1
        if version not in paths or (version == 1 and "memory" not in found["options"].split(",")):
            continue
        # In a container, `paths` may hold the path on the host, although only the container's group is mounted.
        inside = os.path.relpath(f"/{paths[version]}", _unescaped(found["root"]))
        mount = root / _unescaped(found["point"]).lstrip("/")
        yield version, mount, mount if inside.startswith("..") else mount / inside


def _rlimit_memory(root: Path) -> Iterator[int]:
    """Yield the unused bytes of each resource limit of this process."""
    if sys.platform == "win32":
        return
    import resource

    used = _fields(root / "proc/self/status")
    for name, field in _RLIMITS.items():
        limit = resource.getrlimit(getattr(resource, name))[0]
        if limit != resource.RLIM_INFINITY and field in used:
            yield limit - used[field] * 1024


def _lines(path: Path) -> list[str]:
    """Return the lines of a system file; empty if the file cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return []


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if the file has no number, for example if a limit is "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a file with lines ``name number`` or ``name: number kB``."""
    found = {}
    for line in _lines(path):
        name, number = ([*line.split(), "", ""])[:2]
        if number.isdecimal():
            found[name.rstrip(":")] = int(number)
    return found


def _unescaped(field: str) -> str:
    """Return a field of mountinfo with its octal escapes of spaces, tabs and backslashes replaced."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
