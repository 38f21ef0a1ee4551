"""Benchmark of checksums of a file on a CPU, beside hashes and PAR2: the same bytes in one run.

    python -m tsapps.bench.abft.files --gigabytes 2 --folder /tmp

Measured are encoding and verification by the exact code, of arrays in memory and of a file in the page cache, with the
sums by numba and by NumPy; SHA-256 by OpenSSL (`hashlib`) and by `sha256sum`; `b3sum` and the Python package blake3;
and `par2`, which creates 2 % of redundancy, and verifies. All run on one core and on all cores, except for SHA-256,
which uses one core. Tools that are not installed are left out, and the output says so.

Results are checked before they are timed: the bytes as they are must be accepted. With one changed word, tsapps and
PAR2 must restore the bytes bit by bit, and a hash must be another one.
"""

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import randbelow
from typing import Any
from unittest.mock import patch

from tsapps import open_matrix
from tsapps.apps import abft
from tsapps.apps.abft.at_rest import exact_pass
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.select_adder import compiled_adder
from tsapps.apps.abft.at_rest.word_sums import AddRows, add_by_blas
from tsapps.bench.abft.file_tools import Data, Job, jobs_of_tools, left_out, tool_versions
from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError, check_memory, missing
from tsapps.bench.common.timing import median, repeats_within
from tsapps.kernels.devices import available_cores
from tsapps.kernels.jit.numba_cache import numba_version
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["FIELDS", "KEY", "main", "measured"]

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
    "cpu_seconds": (float,),
    "gb_per_second": (float,),
    "repeats": (int,),
    "seed": (int,),
}
# Columns of the matrices of float32 in memory that are measured besides one row of bytes.
_COLUMNS = (512, 5120, 1 << 19)
# Seconds of the repetitions of a measurement, and their maximum number.
_SECONDS, _MOST_REPEATS = 10.0, 7


@contextmanager
def on_cores(number: int) -> Iterator[None]:
    """Let this thread, and the threads and processes that it starts, use so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:number])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cpu_seconds() -> float:
    """Return the processor time of this process and its ended children, which other programs lengthen less."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def measured(job: Job, cores: int) -> dict[str, Any]:
    """Check a job and time it on so many cores; return the fields of its record.

    Raises
    ------
    NotRightError
        If its result is wrong.
    """
    times, cpu = [], []

    def timed() -> float:
        before, start = _cpu_seconds(), time.perf_counter()
        job.call(cores)
        times.append(time.perf_counter() - start)
        cpu.append(_cpu_seconds() - before)
        return times[-1]

    with on_cores(cores):
        stored = job.check(cores)
        for _ in range(repeats_within(_SECONDS, 1e3 * timed(), _MOST_REPEATS) - 1):
            timed()
    return {
        "engine": job.engine,
        "options": job.options,
        "job": job.job,
        "where": job.where,
        "width": job.width,
        "cores": cores,
        "bytes": job.n_bytes,
        "stored_bytes": stored,
        "seconds": min(times),
        "median_seconds": float(median(times)),
        "cpu_seconds": min(cpu),
        "gb_per_second": job.n_bytes / min(times) / 1e9,
        "repeats": len(times),
    }


def jobs(data: Data) -> Iterator[Job]:
    """Yield all measurements; print which are left out."""
    yield from _tsapps("tsapps", compiled_adder(), data)
    yield from _tsapps("tsapps-numpy", add_by_blas, data)
    yield from jobs_of_tools(data)


def _tsapps(engine: str, add: AddRows | None, data: Data) -> Iterator[Job]:
    if add is None:
        left_out(engine, "numba is not installed")
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
        expected = int(data.word < n_bytes)  # matrices lack the last bytes, which fill no row
        with data.changed():
            verdict = verify(cores)
            if len(verdict.faults) != expected:
                raise NotRightError(f"verification finds {len(verdict.faults)} changed words, expected {expected}")
            for part in abft.repaired(opened(), sidecars[0], verdict=verdict):
                digest.update(part)
        if digest.hexdigest() != hashlib.sha256(data.array[0, :n_bytes]).hexdigest():
            raise NotRightError("one changed word is not repaired")
        return sidecars[0].exact.nbytes

    width = layout(shape, itemsize).width
    yield Job(engine, "", "encode", where, width, n_bytes, None, check, encode)
    yield Job(engine, "", "verify", where, width, n_bytes, None, check, verify)


def _versions() -> dict[str, str]:
    """Return the versions of tsapps, its libraries, and the tools that are installed."""
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy"})
    numba = numba_version()
    return versions | ({"numba": numba} if numba else {}) | tool_versions()


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
    common = record.of_run("abft-files", device, _versions(), options.commit)
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
                per_cpu = found["bytes"] / max(found["cpu_seconds"], 1e-2) / 1e9
                print(f"{name}, cores: {cores}: {found['gb_per_second']:.2f} GB/s, {per_cpu:.2f} per core", flush=True)
    record.replace(options.out or record.results_path(device, "abft-files"), records, KEY, FIELDS)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
