"""Hashes and PAR2 as measurements of `tsapps.bench.abft.files`, and the data that all its measurements share."""

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import numpy as np

from tsapps.bench.common.outcome import LeftOutError, NotRightError, missing

__all__ = ["Data", "Job", "jobs_of_tools", "left_out", "tool_versions"]

# Redundancy of PAR2 in percent, as much as that of the exact code; numbers of blocks (its default, and its maximum).
_REDUNDANCY, _PAR2_BLOCKS = 2, (2000, 32768)
# The bits that are flipped in a word.
_FLIPPED = np.array([1, 0, 128, 7], np.uint8)


class Job(NamedTuple):
    """A measurement: what is checked once, and called repeatedly with a number of cores."""

    engine: str
    options: str
    job: str
    where: str
    width: int | None
    n_bytes: int
    most_cores: int | None
    check: Callable[[int], int]  # returns the bytes of what is stored beside the data
    call: Callable[[int], Any]


class Data:
    """Random bytes in memory and in a file in .npy format.

    Parameters
    ----------
    folder : Path
    n_bytes : int
    seed : int
    """

    def __init__(self, folder: Path, n_bytes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.array = np.empty((1, n_bytes), np.uint8)
        for begin in range(0, n_bytes, 1 << 24):
            part = self.array[0, begin : begin + (1 << 24)]
            part[:] = rng.integers(0, 256, len(part), np.uint8)
        self.path = folder / "data.npy"
        np.save(self.path, self.array)
        self.word = int(rng.integers(n_bytes // 4)) * 4
        self.file_sha256 = self.digest_of_file()

    def digest_of_file(self) -> str:
        """Return the SHA-256 of the file, header included."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def matrix(self, columns: int) -> np.ndarray:
        """Return a matrix of float32 with so many columns that is a view of the first bytes."""
        rows = self.array.size // (4 * columns)
        return self.array[0, : rows * columns * 4].view(np.float32).reshape(rows, columns)

    def flip_in_memory(self) -> None:
        """Flip bits of one word in memory; called again, restore it."""
        self.array[0, self.word : self.word + 4] ^= _FLIPPED

    def flip_in_file(self) -> None:
        """Flip the same bits in the file; called again, restore it."""
        with self.path.open("r+b") as file:
            place = self.path.stat().st_size - self.array.size + self.word
            file.seek(place)
            word = np.frombuffer(file.read(4), np.uint8) ^ _FLIPPED
            file.seek(place)
            file.write(word.tobytes())

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Change one word in the ``with`` block, in memory and in the file."""
        self.flip_in_memory()
        self.flip_in_file()
        try:
            yield
        finally:
            self.flip_in_memory()
            self.flip_in_file()


def jobs_of_tools(data: Data) -> Iterator[Job]:
    """Yield the measurements of all installed tools; print which are left out."""
    yield from _hashlib(data)
    yield from _sha256sum(data)
    yield from _b3sum(data)
    yield from _blake3(data)
    yield from _par2(data)


def left_out(name: str, why: str = "is not installed") -> None:
    """Print that a tool is not measured."""
    print(missing(name, LeftOutError(why)), flush=True)


def tool_versions() -> dict[str, str]:
    """Return the versions of the tools that are installed."""
    versions = {}
    for name, option in (("sha256sum", "--version"), ("b3sum", "--version"), ("par2", "-V")):
        if which(name) is not None:
            found = re.search(r"\d+(\.\d+)+", _output(name, option))
            versions[name] = found.group() if found else "unknown"
    return versions


# --- Hashes -----------------------------------------------------------------------------------------------------------


def _hashlib(data: Data) -> Iterator[Job]:
    def of_memory(_: int) -> str:
        return hashlib.sha256(data.array).hexdigest()

    for where, call in (("memory", of_memory), ("file", lambda _: data.digest_of_file())):
        yield _hash_job("sha256-openssl", where, data, 1, call, call(1))


def _sha256sum(data: Data) -> Iterator[Job]:
    if which("sha256sum") is None:
        left_out("sha256sum")
        return

    def call(_: int) -> str:
        return _output("sha256sum", str(data.path)).split()[0].lstrip("\\")

    yield _hash_job("sha256sum", "file", data, 1, call, data.file_sha256)


def _b3sum(data: Data) -> Iterator[Job]:
    if which("b3sum") is None:
        left_out("b3sum")
        return

    def call(cores: int) -> str:
        return _output("b3sum", "--num-threads", str(cores), str(data.path)).split()[0].lstrip("\\")

    yield _hash_job("b3sum", "file", data, None, call, call(1))


def _blake3(data: Data) -> Iterator[Job]:
    try:
        from blake3 import blake3
    except ImportError:
        left_out("blake3")
        return

    def of_memory(cores: int) -> str:
        return blake3(data.array.data.cast("B"), max_threads=cores).hexdigest()

    def of_file(cores: int) -> str:
        return blake3(max_threads=cores).update_mmap(data.path).hexdigest()

    for where, call in (("memory", of_memory), ("file", of_file)):
        yield _hash_job("blake3", where, data, None, call, call(1))


def _hash_job(
    engine: str, where: str, data: Data, most_cores: int | None, call: Callable[[int], str], expected: str
) -> Job:
    def check(cores: int) -> int:
        if call(cores) != expected:
            raise NotRightError("the hash is wrong")
        with data.changed():
            if call(cores) == expected:
                raise NotRightError("the hash of other bytes is the same")
        return len(expected) // 2

    n_bytes = data.array.size if where == "memory" else data.path.stat().st_size
    return Job(engine, "", "hash", where, None, n_bytes, most_cores, check, call)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --- PAR2 -------------------------------------------------------------------------------------------------------------


def _par2(data: Data) -> Iterator[Job]:
    if which("par2") is None:
        left_out("par2")
        return
    (name,) = re.findall(r"^par2\S*", _output("par2", "-V"), re.MULTILINE)
    for blocks in _PAR2_BLOCKS:
        yield from _par2_jobs(name, data, blocks)


def _par2_jobs(name: str, data: Data, blocks: int) -> Iterator[Job]:
    folder, options = data.path.parent, f"-r{_REDUNDANCY} -b{blocks}"

    def par2(*arguments: str) -> int:
        return subprocess.run(["par2", *arguments], cwd=folder, capture_output=True, check=False).returncode

    def others() -> list[Path]:
        return [path for path in folder.glob("data.npy*") if path != data.path]

    def create(cores: int) -> None:
        for path in others():
            path.unlink()
        if par2("create", *options.split(), "-n1", f"-t{cores}", "data.npy.par2", "data.npy"):
            raise NotRightError("par2 create ends with an error")

    def verify(cores: int) -> int:
        return par2("verify", f"-t{cores}", "data.npy.par2")

    def check(cores: int) -> int:
        create(cores)
        stored = sum(path.stat().st_size for path in others())
        if verify(cores):
            raise NotRightError("par2 verify reports corruption in an unchanged file")
        data.flip_in_file()
        found = verify(cores)
        par2("repair", f"-t{cores}", "data.npy.par2")
        if data.digest_of_file() != data.file_sha256:
            data.flip_in_file()
            raise NotRightError("one changed word is not repaired")
        if not found:
            raise NotRightError("one changed word is not found")
        return stored

    for job, call in (("create", create), ("verify", verify)):
        n_bytes = data.path.stat().st_size
        yield Job(name, options, job, "file", None, n_bytes, None, check, call)
