"""Benchmark of `load_file` and `save_file` on a GPU, beside safetensors, and of the sums of whole files.

    python -m tsapps.bench.abft.load_save --directory /dev/shm

Engines, on the same file of tensors of one size each:

tsapps        `load_file`, which verifies every byte on the GPU; `save_file`, which sums every byte there
unverified    the same loader without a sidecar and without sums
safetensors   `safetensors.torch`, which does neither

gbs is the size of the file divided by the median time. Of buffers in GPU memory, beside `read_gbs`, the rate at which a
kernel reads as many bytes: "sums", the GPU's time for the sums; "check", that for sums and their comparison; "verify",
the time of a call of `verify`. A loaded file is compared with its tensors before it is
timed, and a corrupted word must be found and repaired.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tsapps.apps.abft.at_rest.gpu.encode import Comparison, add_checksums, plans
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.verify import encode, verify
from tsapps.apps.abft.files import load
from tsapps.apps.abft.files.save import save_file
from tsapps.apps.abft.files.scan import file_layout
from tsapps.bench.common import record
from tsapps.bench.common.roofline import measure_read_gbs
from tsapps.bench.common.timing import GpuClock
from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["FIELDS", "KEY", "main"]

KEY = ("what", "engine", "task", "n_tensors", "tensor_bytes")
FIELDS: dict[str, tuple[type, ...]] = {
    "task": (str,),
    **dict.fromkeys(("n_tensors", "tensor_bytes", "repeats"), (int,)),
    **dict.fromkeys(("seconds", "gbs"), (float,)),
    "read_gbs": (float, type(None)),
}
#: Numbers of tensors, and the bytes of each.
CASES = ((32, 1 << 26), (10_000, 1 << 16))
#: Sizes of buffers whose sums are timed, in bytes.
BUFFERS = (1 << 26, 1 << 28, 1 << 30, 1 << 32)


def _seconds(calls: dict[Any, Callable[[], Any]], repeats: int) -> dict[Any, float]:
    """Return the median time of each call; they take turns, so that what disturbs one disturbs all."""
    import torch

    times: dict[Any, list[float]] = {key: [] for key in calls}
    for number in range(repeats + 1):
        order = list(calls.items())
        for key, call in (*order[number % len(order) :], *order[: number % len(order)]):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times[key].append(time.perf_counter() - began)
    return {key: median(some[1:]) for key, some in times.items()}


def _check(path: Path, tensors: dict[str, Any]) -> None:
    """Raise RuntimeError unless a file is loaded right, also if one of its words is corrupted."""
    import torch

    place = path.stat().st_size // 2
    for corrupted in (False, True):
        with open(path, "r+b") as file:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ corrupted]))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = load.load_file(path, device="cuda")
        if bool(caught) != corrupted or not all(torch.equal(found[name], tensors[name]) for name in tensors):
            raise RuntimeError(f"{path}: was loaded wrongly, corrupted {corrupted}")
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(bytes([byte]))


def files(directory: Path, repeats: int) -> list[dict[str, Any]]:
    """Return the measurements of loading and saving."""
    import torch
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save_plain

    found = []
    for count, size in CASES:
        tensors = {f"t{n}": torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda") for n in range(count)}
        path = directory / "model.safetensors"
        save_file(tensors, path)
        _check(path, tensors)

        empty = directory / "empty"
        empty.touch()

        def unverified(path: Path = path, empty: Path = empty, match: Any = load._match) -> None:
            load._match = lambda *_: True  # type: ignore[assignment]
            try:
                load.load_file(path, empty, device="cuda")
            finally:
                load._match = match

        loads: dict[tuple[str, str], Callable[[], Any]] = {
            ("load", "tsapps"): partial(load.load_file, path, device="cuda"),
            ("load", "unverified"): unverified,
            ("load", "safetensors"): partial(load_file, path, device="cuda"),
        }
        saves: dict[tuple[str, str], Callable[[], Any]] = {
            ("save", "safetensors"): partial(save_plain, tensors, directory / "plain.safetensors"),
            ("save", "tsapps"): partial(save_file, tensors, path),
        }
        for calls, count_of in ((loads, 3 * repeats), (saves, max(1, repeats // 3))):
            for (task, engine), seconds in _seconds(calls, count_of).items():
                sizes = {"n_tensors": count, "tensor_bytes": size, "repeats": count_of}
                rates = {"seconds": seconds, "gbs": path.stat().st_size / seconds / 1e9, "read_gbs": None}
                found.append({"task": task, "engine": engine, **sizes, **rates})
        del tensors
    return found


def buffers(repeats: int) -> list[dict[str, Any]]:
    """Return the measurements of sums and of whole verifications, of buffers in GPU memory."""
    import cupy
    import torch

    clock = GpuClock()
    found = []
    for size in BUFFERS:
        ceiling = measure_read_gbs(clock, size)
        buffer = cupy.asarray(torch.randint(0, 256, (1, size), dtype=torch.uint8, device="cuda"))
        sidecar: Sidecar = encode(buffer, code="exact")
        if not verify(buffer, sidecar).clean:
            raise RuntimeError("a clean buffer is not clean")
        buffer[0, size // 3] ^= 1
        if len(verify(buffer, sidecar).faults) != 1:
            raise RuntimeError("a corrupted word was not found")
        buffer[0, size // 3] ^= 1
        machine = cuda_machine(cupy.cuda.Device().id)
        (plan,) = plans(1, size, "uint8", file_layout(size), code="exact", weights=0, block=0, gpu=machine.gpu) or ()
        sums, expected = partial(add_checksums, machine, buffer, plan), cupy.asarray(sidecar.exact)
        compared = Comparison(expected, cupy.empty(expected[:, 0].size, "i8"), cupy.zeros(1, "u8"))
        times = {
            "sums": median([clock.call_ms(sums) for _ in range(3 * repeats)]),
            "check": median([clock.call_ms(partial(sums, compared)) for _ in range(3 * repeats)]),
            "verify": median([clock.wall_ms(partial(verify, buffer, sidecar))[0] for _ in range(3 * repeats)]),
        }
        for task, ms in times.items():
            sizes = {"n_tensors": 1, "tensor_bytes": size, "repeats": 3 * repeats}
            rates = {"seconds": ms / 1e3, "gbs": size / ms / 1e6, "read_gbs": ceiling}
            found.append({"task": task, "engine": "tsapps", **sizes, **rates})
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and store its records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where files are written (default: a temporary directory)")
    parser.add_argument("--repeats", type=int, default=7)
    record.add_options(parser, "abft-load-save")
    options = parser.parse_args(arguments)
    modules = {"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy", "torch": "torch", "safetensors": "safetensors"}
    device = record.gpu_name()
    versions = record.module_versions(modules) | record.cuda_versions()
    common = record.of_run("abft-load-save", device, versions, options.commit)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        found = buffers(options.repeats) + files(Path(directory), options.repeats)
    for one in found:
        beside = f" of {one['read_gbs']:.0f}" if one["read_gbs"] else ""
        print(
            f"{one['task']:8}{one['engine']:12}{one['n_tensors']:7,} × {one['tensor_bytes']:,} bytes: "
            f"{1e3 * one['seconds']:.1f} ms, {one['gbs']:.1f}{beside} GB/s"
        )
    path = options.out or record.results_path(device, "abft-load-save")
    record.store_sorted(path, [{**common, **one} for one in found], KEY, FIELDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
