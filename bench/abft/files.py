"""Benchmark of checksums of a file on a CPU, beside hashes and PAR2: the same bytes in one run.

    python -m tsapps.bench.abft.files --gigabytes 2 --folder /tmp

Measured are encoding and verification by the exact code, of arrays in memory and of a file in the page cache, with the
sums by numba and by NumPy; `sha256sum`, `b3sum` and the Python package blake3; and `par2`, which creates 2 % of
redundancy, and verifies. All run on one core and on all cores, except for `sha256sum`, which uses one core. Tools that
are not installed are left out, and the output says so.

Results are checked before they are timed: the bytes as they are must be accepted. With one changed word, tsapps and
PAR2 must restore the bytes bit by bit, and a hash must be another one.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import randbelow
from shutil import which
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from tsapps import open_matrix
from tsapps.apps import abft
from tsapps.apps.abft.at_rest import exact_pass
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.select_adder import compiled_adder
from tsapps.apps.abft.at_rest.word_sums import AddRows, add_by_blas
from tsapps.bench.common import record
from tsapps.bench.common.outcome import LeftOutError, NotRightError, check_memory, missing
from tsapps.bench.common.timing import CpuClock, median, repeats_within
from tsapps.kernels.devices import available_cores
from tsapps.kernels.jit.numba_cache import numba_version
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["FIELDS", "KEY", "Data", "Job", "jobs", "main", "measured"]

KEY = ("engine", "options", "job", "where", "width", "cores", "bytes")
FIELDS: dict[str, tuple[type, ...]] = {
    "options": (str,),
    "job": (str,),
    "where": (str,),
    "width": (int, type(None)),
    "cores": (int,),
    "bytes": (int,),
    "stored_bytes": (int,),
    "seconds": (float,),
    "median_seconds": (float,),
    "gb_per_second": (float,),
    "repeats": (int,),
    "seed": (int,),
}
# Redundancy of PAR2 in percent, as much as that of the exact code; numbers of blocks (its default, and its maximum).
_REDUNDANCY, _PAR2_BLOCKS = 2, (2000, 32768)
# Columns of the matrices of float32 in memory that are measured besides one row of bytes.
_COLUMNS = (512, 5120, 1 << 19)
# The bits that are flipped in a word.
_FLIPPED = np.array([1, 0, 128, 7], np.uint8)
# Seconds of the repetitions of a measurement, and their maximum number.
_SECONDS, _MOST_REPEATS = 10.0, 7


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
        self._word = int(rng.integers(n_bytes // 4)) * 4
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
        self.array[0, self._word : self._word + 4] ^= _FLIPPED

    def flip_in_file(self) -> None:
        """Flip the same bits in the file; called again, restore it."""
        with self.path.open("r+b") as file:
            place = self.path.stat().st_size - self.array.size + self._word
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


@contextmanager
def on_cores(number: int) -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts, use so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measured(job: Job, cores: int) -> dict[str, Any]:
    """Check a job and time it on so many cores; return the fields of its record.

    Raises
    ------
    NotRightError
        If its result is wrong.
    """
    clock = CpuClock()
    with on_cores(cores):
        stored = job.check(cores)
        first = clock.call_ms(partial(job.call, cores))
        again = repeats_within(_SECONDS, first, _MOST_REPEATS) - 1
        times = [first, *(clock.call_ms(partial(job.call, cores)) for _ in range(again))]
    return {
        "engine": job.engine,
        "options": job.options,
        "job": job.job,
        "where": job.where,
        "width": job.width,
        "cores": cores,
        "bytes": job.n_bytes,
        "stored_bytes": stored,
        "seconds": min(times) / 1e3,
        "median_seconds": float(median(times)) / 1e3,
        "gb_per_second": job.n_bytes / min(times) / 1e6,
        "repeats": len(times),
    }


def jobs(data: Data) -> Iterator[Job]:
    """Yield the measurements of all installed tools; print which are left out."""
    yield from _tsapps("tsapps", compiled_adder(), data)
    yield from _tsapps("tsapps-numpy", add_by_blas, data)
    yield from _sha256sum(data)
    yield from _b3sum(data)
    yield from _blake3(data)
    yield from _par2(data)


def _left_out(name: str, why: str = "is not installed") -> None:
    print(missing(name, LeftOutError(why)), flush=True)


# --- tsapps -----------------------------------------------------------------------------------------------------------


def _tsapps(engine: str, add: AddRows | None, data: Data) -> Iterator[Job]:
    if add is None:
        _left_out(engine, "numba is not installed")
        return
    yield from _tsapps_jobs(engine, add, data, "memory", lambda: data.array)
    # The file is opened anew each time: the changes of a word are changes of the file.
    yield from _tsapps_jobs(engine, add, data, "file", lambda: open_matrix(data.path))
    for columns in _COLUMNS:
        if len(data.matrix(columns)):
            yield from _tsapps_jobs(engine, add, data, "memory", partial(data.matrix, columns))


def _tsapps_jobs(engine: str, add: AddRows, data: Data, where: str, opened: Callable[[], Any]) -> Iterator[Job]:
    shape, itemsize = opened().shape, opened().dtype.itemsize
    n_bytes = shape[0] * shape[1] * itemsize
    sidecars: list[abft.Sidecar] = []

    def encode(_: int) -> abft.Sidecar:
        with patch.object(exact_pass, "adder", lambda _: add):
            return abft.encode(opened(), code="exact")

    def verify(_: int) -> abft.Verdict:
        with patch.object(exact_pass, "adder", lambda _: add):
            return abft.verify(opened(), sidecars[0])

    def check(cores: int) -> int:
        sidecars[:] = [encode(cores)]
        if not verify(cores).clean:
            raise NotRightError("verification reports corruption in unchanged bytes")
        digest = hashlib.sha256()
        whole = n_bytes == data.array.size  # otherwise the word may be one of the last, which the matrix lacks
        with data.changed():
            verdict = verify(cores)
            if whole and len(verdict.faults) != 1:
                raise NotRightError(f"verification finds {len(verdict.faults)} changed words, expected 1")
            for part in abft.repaired(opened(), sidecars[0], verdict=verdict):
                digest.update(part)
        if digest.hexdigest() != hashlib.sha256(data.array[0, :n_bytes]).hexdigest():
            raise NotRightError("one changed word is not repaired")
        return sidecars[0].exact.nbytes

    width = layout(shape, itemsize).width
    yield Job(engine, "", "encode", where, width, n_bytes, None, check, encode)
    yield Job(engine, "", "verify", where, width, n_bytes, None, check, verify)


# --- Hashes -----------------------------------------------------------------------------------------------------------


def _sha256sum(data: Data) -> Iterator[Job]:
    if which("sha256sum") is None:
        _left_out("sha256sum")
        return

    def call(_: int) -> str:
        return _output("sha256sum", str(data.path)).split()[0].lstrip("\\")

    yield _hash_job("sha256sum", "file", data, 1, call, data.file_sha256)


def _b3sum(data: Data) -> Iterator[Job]:
    if which("b3sum") is None:
        _left_out("b3sum")
        return

    def call(cores: int) -> str:
        return _output("b3sum", "--num-threads", str(cores), str(data.path)).split()[0].lstrip("\\")

    yield _hash_job("b3sum", "file", data, None, call, call(1))


def _blake3(data: Data) -> Iterator[Job]:
    try:
        from blake3 import blake3
    except ImportError:
        _left_out("blake3")
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
        _left_out("par2")
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


# --- The run ----------------------------------------------------------------------------------------------------------


def tool_versions() -> dict[str, str]:
    """Return the versions of tsapps, its libraries, and the tools that are installed."""
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy"})
    versions |= {name: found for name, found in {"numba": numba_version()}.items() if found}
    for name, option in (("sha256sum", "--version"), ("b3sum", "--version"), ("par2", "-V")):
        if which(name) is not None:
            found = re.search(r"\d+(\.\d+)+", _output(name, option))
            versions[name] = found.group() if found else "unknown"
    return versions


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the data in 10⁹ bytes (default: 2)")
    parser.add_argument("--folder", type=Path, help="where the file is written (default: the temporary directory)")
    parser.add_argument("--engine", action="append", help="first letters of an engine's name; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="seed of the data (default: random)")
    record.add_options(parser, "abft-files")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all engines and store the records; return 1 if a result was wrong."""
    options = _parse(arguments)
    seed = randbelow(1 << 31) if options.seed is None else options.seed
    n_bytes = max(1 << 16, int(options.gigabytes * 1e9) // 4 * 4)
    check_memory(2 * n_bytes, available_host_memory())
    device, records, wrong = record.cpu_name(), [], 0
    common = record.of_run("abft-files", device, tool_versions(), options.commit)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for job in jobs(Data(Path(folder), n_bytes, seed)):
            if options.engine and not job.engine.startswith(tuple(options.engine)):
                continue
            name = f"{job.engine} {job.options} {job.job} {job.where} {job.width or ''}".replace("  ", " ").strip()
            for cores in sorted({1, min(available_cores(), job.most_cores or available_cores())}):
                try:
                    found = measured(job, cores)
                except NotRightError as error:
                    print(missing(name, error), flush=True)
                    wrong += 1
                    continue
                records.append({**common, **found, "seed": seed})
                print(f"{name}, cores: {cores}: {found['gb_per_second']:.2f} GB/s", flush=True)
    record.replace(options.out or record.results_path(device, "abft-files"), records, KEY, FIELDS)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
