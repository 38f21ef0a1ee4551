"""Other formats for fuzzing: sidecars, models, tables, calibrations, bench records, the cache of machine code."""

import dataclasses
import io
import json
import os
import struct
from dataclasses import dataclass
from functools import cache as cached
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from problems import problem

from tsapps.apps.abft.at_rest.sidecar import SidecarError, container_digest, dump_sidecar, read_sidecar
from tsapps.apps.abft.at_rest.verify import encode
from tsapps.apps.abft.product import calibration_file
from tsapps.apps.abft.product.calibrate import Calibration, Depth, Scale
from tsapps.apps.abft.product.rounding_model import RoundingModel
from tsapps.bench.common import record
from tsapps.cli.result import KIND, read_model
from tsapps.errors import MatrixError
from tsapps.kernels.gpu_specs import KNOWN, GpuSpec
from tsapps.kernels.jit import cache
from tsapps.kernels.plan import select
from tsapps.kernels.plan import user_table as tables
from tsapps.kernels.plan.candidates import AnyPlan, candidates
from tsapps.kernels.problem import Problem

__all__ = ["RECORDS"]

_DEVICE = dataclasses.replace(KNOWN["H100"], name="Some H100")
_PROBLEMS = [
    problem(m, k, w, dtype)
    for dtype, m, k, w in (("float64", 20480, 20480, 8), ("float32", 4096, 4096, 4), ("float32", 64, 10_000, 64))
]


class Sidecars:
    """Sidecars; the digest detects any damage."""

    refusals: tuple[type[Exception], ...] = (SidecarError,)

    def make(self, directory: Path) -> bytes:
        file = io.BytesIO()
        dump_sidecar(file, encode(np.random.default_rng(0).standard_normal((12, 9)).astype("f4"), code="both"))
        return file.getvalue()

    def split(self, content: bytes) -> tuple[bytes, Any]:
        return content, None

    def join(self, part: bytes, rest: Any) -> bytes:
        return part

    def place(self, directory: Path, content: bytes) -> Path:
        path = directory / "x.npy.abft"
        path.write_bytes(content)
        return path

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        found = read_sidecar(path)
        path.write_bytes(valid)
        right = read_sidecar(path)
        same = found.metadata == right.metadata and all(
            np.array_equal(sums, right.tensors[name]) for name, sums in found.tensors.items()
        )
        return "" if same and len(found.tensors) == len(right.tensors) else "another content than was written"


class SealedSidecars(Sidecars):
    """Sidecars with a damaged header and corrected lengths and digest."""

    def split(self, content: bytes) -> tuple[bytes, Any]:
        (length,) = struct.unpack_from("<Q", content)
        return content[8 : 8 + length], content[8 + length :]

    def join(self, part: bytes, rest: Any) -> bytes:
        try:
            header = json.loads(part)
            metadata = header["__metadata__"]
            metadata.pop("digest", None)
            tensors = {name: self._tensor(one, rest) for name, one in header.items() if name != "__metadata__"}
            metadata["digest"] = container_digest({name: str(one) for name, one in metadata.items()}, tensors)
            part = json.dumps(header).encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            pass
        return struct.pack("<Q", len(part)) + part + rest

    @staticmethod
    def _tensor(entry: dict[str, Any], data: bytes) -> np.ndarray:
        begin, end = entry["data_offsets"]
        return np.frombuffer(data[begin:end], np.uint8)

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        found = read_sidecar(path)
        n, d = found.shape
        return "" if found.itemsize * n * d == found.n_bytes else f"{n} × {d} elements of {found.n_bytes} bytes"


@dataclass(frozen=True)
class Models(Sidecars):
    """Directories of ``tsapps kmeans`` in which one file is damaged."""

    damaged: str = "summary.json"
    refusals = (MatrixError,)

    def make(self, directory: Path) -> bytes:
        model = directory / "model"
        model.mkdir(exist_ok=True)
        np.save(model / "centers.npy", np.arange(12.0).reshape(4, 3))
        summary = {"kind": KIND, "k": 4, "d": 3, "dtype": "float64", "metric": "cosine", "seconds": {"total": 0.5}}
        (model / "summary.json").write_text(json.dumps(summary, indent=2))
        return (model / self.damaged).read_bytes()

    def place(self, directory: Path, content: bytes) -> Path:
        (directory / "model" / self.damaged).write_bytes(content)
        return directory / "model"

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        centers, summary = read_model(path)
        wrong = centers.shape != (4, 3) or summary["metric"] not in ("euclidean", "cosine")
        return f"{centers.shape}, {summary}" if wrong else ""


@cached
def _candidates(of: Problem, device: GpuSpec) -> list[AnyPlan]:
    """Return all plans; they do not depend on a table."""
    return candidates(of, device)


class Tables(Sidecars):
    """The user's tuning tables; accepted rows must give plans."""

    refusals = (ValueError,)

    def make(self, directory: Path) -> bytes:
        rows = [dict(row) for row in select.tuned_table("NVIDIA H200") if row["dtype"] in ("float64", "float32")]
        kinds: dict[Any, dict[str, Any]] = {}
        for row in rows:
            kinds.setdefault((row.get("kernel"), row["shape"], "algorithm" in row), row)
        lines = [row for row in kinds.values() if "kernel" in row]
        return ("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n").encode()

    def place(self, directory: Path, content: bytes) -> Path:
        os.environ["XDG_CACHE_HOME"] = str(directory)
        path = tables.user_path(_DEVICE.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        rows = tables.user_table(_DEVICE.name)
        with patch.object(select, "candidates", _candidates):
            return "" if all(select.plan(one, _DEVICE, rows) for one in _PROBLEMS) else "no plan"


class Calibrations(Sidecars):
    """The user's calibrations; accepted ones must give bounds."""

    refusals = (ValueError,)

    def make(self, directory: Path) -> bytes:
        os.environ["XDG_CACHE_HOME"] = str(directory)
        own, others = (
            Scale(RoundingModel(0.0, (1, 2), 256), 2e-7, 1e-7, 2e-7, 1e-7),
            Scale(RoundingModel(), 5e-7, 1e-7, 1e-7, 5e-7),
        )
        depths = tuple(Depth(k, 100, own, others, True) for k in (10, 100))
        return calibration_file.save_calibration(Calibration("cpu", "float32", 1e-6, 0.99, depths)).read_bytes()

    def place(self, directory: Path, content: bytes) -> Path:
        path = calibration_file.calibration_path("cpu", "float32")
        path.write_bytes(content)
        return path

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        found = calibration_file.load_calibration("float32")
        for own in (True, False):
            bounds = found.bounds(50, 8, own=own)
            if not 0 < bounds.row < float("inf"):
                return f"a bound of {bounds.row}"
        return ""


class BenchRecords(Sidecars):
    """Records of benchmarks."""

    refusals = (ValueError,)

    def make(self, directory: Path) -> bytes:
        one = record.of_run("gemm", "cpu", {"python": "3"}, "abc") | {"ms": 0.25, "shape": [3, 4]}
        return json.dumps([one, one | {"ms": 1e-3}], indent=1).encode()

    def place(self, directory: Path, content: bytes) -> Path:
        path = directory / "records.json"
        path.write_bytes(content)
        return path

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        return "" if all(isinstance(one, dict) for one in record.load(path)) else "records that are no objects"


@dataclass(frozen=True)
class CacheEntries(Sidecars):
    """Entries of the cache of machine code; a damaged entry must count as missing."""

    damaged: str = "x.json"
    refusals = ()

    def make(self, directory: Path) -> bytes:
        used = cache.Resources(40, 0, 0, 0, 0)
        cubin = cache.Cubin(directory / "x.cubin", {"scale<float>": "_Z5scale"}, {"scale<float>": used}, 0.5)
        cache._write(directory / "x.json", cubin, b"\x7fELF and so on" * 9, ["-arch=sm_90"])
        return (directory / self.damaged).read_bytes()

    def place(self, directory: Path, content: bytes) -> Path:
        (directory / self.damaged).write_bytes(content)
        return directory / "x.json"

    def examine(self, path: Path, valid: bytes, content: bytes) -> str:
        found = cache._read(path)
        (path.parent / self.damaged).write_bytes(valid)
        return "" if found in (None, cache._read(path)) else "another entry than was written"


RECORDS: dict[str, Any] = {
    "sidecar": Sidecars(),
    "sidecar-sealed": SealedSidecars(),
    "model-summary": Models("summary.json"),
    "model-centers": Models("centers.npy"),
    "table": Tables(),
    "calibration": Calibrations(),
    "bench-records": BenchRecords(),
    "cache-description": CacheEntries("x.json"),
    "cache-code": CacheEntries("x.cubin"),
}
