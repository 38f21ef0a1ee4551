"""Fault-injection campaign for protected files: faults of every kind in a model directory, then verify and repair.

    python -m tsapps.bench.abft.files_campaign --trials 10000

A trial damages a copy of a protected directory of four shards, a configuration, a .npz and a .npy file, in one way of
`FAULTS`; half of the directories have a parity file. Three results are wrong:

missed         `verify_files` reports nothing, although a byte of a file, sidecar or manifest differs
miscorrected   after `repair_files`, a file reported as intact or repaired does not have its original bytes; or a file
               that is reported as lost has other bytes than before
broken         something that is promised (`Fault.promised`) was not repaired bit by bit, or verify_files finds damage
               after a complete repair

There is one record per kind of fault, with the number of trials and of each wrong result.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

from tsapps.apps.abft.files.manifest import MANIFEST
from tsapps.apps.abft.files.places import PARITY, SIDECAR
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.report import BAD, FileReport
from tsapps.apps.abft.files.verify import verify_files
from tsapps.bench.common import record

__all__ = ["FAULTS", "FIELDS", "KEY", "Fault", "Outcome", "model_directory", "run", "trial"]

KEY = ("what", "engine", "fault", "parity")
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("fault", "parity"), (str,)),
    **dict.fromkeys(("trials", "seed", "missed", "miscorrected", "broken", "promised", "repaired"), (int,)),
}
# dtypes of safetensors, and their bytes.
_DTYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I8": 1, "U8": 1, "BOOL": 1}
_SHARDS, _PAGE = 4, 4096


@dataclass
class Damaging:
    """A protected directory that is to be damaged, and a source of random numbers."""

    root: Path
    rng: np.random.Generator

    def names(self, kind: str) -> list[str]:
        """Return the names of shards, sidecars or parity files."""
        every = sorted(one.name for one in self.root.iterdir() if one.is_file())
        if kind == "sidecar":
            return [name for name in every if name.endswith(".safetensors" + SIDECAR)]
        if kind == "parity":
            return [name for name in every if name.startswith(PARITY) and not name.endswith(SIDECAR)]
        return [name for name in every if name.endswith(".safetensors")]

    def one(self, kind: str = "shard") -> Path:
        """Return a random file of a kind."""
        return self.root / self.rng.choice(self.names(kind))

    def overwrite(self, path: Path, offset: int, content: bytes) -> None:
        """Overwrite bytes of a file in place."""
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(content)

    def flip(self, path: Path, count: int = 1, most: int | None = None) -> None:
        """Flip `count` different bits of a file, of its first `most` bytes."""
        size = min(path.stat().st_size, most or 1 << 62)
        for bit in self.rng.choice(8 * size, count, replace=False).tolist():
            with open(path, "r+b") as file:
                file.seek(bit // 8)
                (byte,) = file.read(1)
                file.seek(bit // 8)
                file.write(bytes([byte ^ 1 << bit % 8]))

    def words(self, path: Path, count: int) -> None:
        """Overwrite `count` random words."""
        for _ in range(count):
            self.overwrite(path, 4 * int(self.rng.integers(path.stat().st_size // 4)), self.rng.bytes(4))

    def region(self, path: Path, size: int) -> None:
        """Overwrite an aligned region by zeros, ones, random bytes or another region of the file."""
        total = path.stat().st_size
        begin = size * int(self.rng.integers(max(1, total // size)))
        size = min(size, total - begin)
        content = path.read_bytes()
        other = int(self.rng.integers(total - size + 1))
        kinds = (bytes(size), b"\xff" * size, self.rng.bytes(size), content[other : other + size])
        self.overwrite(path, begin, kinds[int(self.rng.integers(4))])

    def cut(self, path: Path) -> None:
        """Truncate a file at a random size."""
        os.truncate(path, int(self.rng.integers(path.stat().st_size)))

    def extend(self, path: Path) -> None:
        """Append random bytes."""
        with open(path, "ab") as file:
            file.write(self.rng.bytes(int(self.rng.integers(1, 5000))))


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes
    ----------
    inject : callable
    promised : {"always", "parity", "never"}
        Whether the repair is promised: without parity too, with parity only, or not at all.
    """

    inject: Callable[[Damaging], None]
    promised: str = "always"


def _two_shards(to: Damaging) -> list[Path]:
    first, second = to.rng.choice(to.names("shard"), 2, replace=False)
    return [to.root / first, to.root / second]


def _swap(to: Damaging) -> None:
    first, second = _two_shards(to)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def _lost_and_bit(to: Damaging) -> None:
    first, second = _two_shards(to)
    first.unlink()
    to.flip(second)


def _two_lost(to: Damaging) -> None:
    for path in _two_shards(to):
        path.unlink()


def _bit_without_sidecar(to: Damaging) -> None:
    path = to.one()
    to.flip(path)
    path.with_name(path.name + SIDECAR).unlink()


def _bit_with_bad_sidecar(to: Damaging) -> None:
    path = to.one()
    to.flip(path)
    to.flip(path.with_name(path.name + SIDECAR), 3)


def _sidecar_of_another(to: Damaging) -> None:
    first, second = _two_shards(to)
    shutil.copyfile(first.with_name(first.name + SIDECAR), second.with_name(second.name + SIDECAR))


def _parity_or_shard(to: Damaging, act: Callable[[Path], None]) -> None:
    """Damage a parity file, or a shard if there is none."""
    act(to.root / to.rng.choice(to.names("parity") or to.names("shard")))


FAULTS: dict[str, Fault] = {
    "nothing": Fault(lambda _: None),
    "bit": Fault(lambda to: to.flip(to.one())),
    "two bits": Fault(lambda to: to.flip(to.one(), 2)),
    "header": Fault(lambda to: to.flip(to.one(), 2, most=200)),
    "word": Fault(lambda to: to.words(to.one(), 1)),
    "two words": Fault(lambda to: to.words(to.one(), 2)),
    "many words": Fault(lambda to: to.words(to.one(), int(to.rng.integers(3, 200))), "parity"),
    "sector": Fault(lambda to: to.region(to.one(), 512)),
    "page": Fault(lambda to: to.region(to.one(), _PAGE), "parity"),
    "pages": Fault(lambda to: [to.region(to.one(), _PAGE) for _ in range(3)] and None, "never"),
    "large region": Fault(lambda to: to.region(to.one(), 1 << 17), "parity"),
    "all zeros": Fault(lambda to: _zero(to.one()), "parity"),
    "truncated": Fault(lambda to: to.cut(to.one()), "parity"),
    "extended": Fault(lambda to: to.extend(to.one())),
    "deleted": Fault(lambda to: to.one().unlink(), "parity"),
    "two deleted": Fault(_two_lost, "never"),
    "swapped": Fault(_swap, "never"),
    "deleted, and a bit": Fault(_lost_and_bit, "parity"),
    "sidecar bit": Fault(lambda to: to.flip(to.one("sidecar"))),
    "sidecar page": Fault(lambda to: to.region(to.one("sidecar"), _PAGE)),
    "sidecar truncated": Fault(lambda to: to.cut(to.one("sidecar"))),
    "sidecar deleted": Fault(lambda to: to.one("sidecar").unlink()),
    "sidecar of another": Fault(_sidecar_of_another),
    "bit, sidecar deleted": Fault(_bit_without_sidecar, "parity"),
    "bit, sidecar bits": Fault(_bit_with_bad_sidecar, "parity"),
    "manifest bit": Fault(lambda to: to.flip(to.root / MANIFEST)),
    "manifest truncated": Fault(lambda to: to.cut(to.root / MANIFEST)),
    "manifest deleted": Fault(lambda to: (to.root / MANIFEST).unlink()),
    "manifest deleted, and a bit": Fault(lambda to: ((to.root / MANIFEST).unlink(), to.flip(to.one()))[1]),
    "parity bit": Fault(lambda to: _parity_or_shard(to, to.flip)),
    "parity deleted": Fault(lambda to: _parity_or_shard(to, lambda path: path.unlink()), "parity"),
    "bits everywhere": Fault(lambda to: [to.flip(to.root / name) for name in to.names("shard")] and None),
}


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def model_directory(root: Path, rng: np.random.Generator, scale: int = 1) -> None:
    """Write a made-up model: four shards of tensors of all ranks and dtypes, and other files.

    Shards have about 300 kB times `scale`, each a different size.
    """
    root.mkdir()
    for shard in range(_SHARDS):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        parts: list[bytes] = []
        offset = 0
        for number, (dtype, size) in enumerate(_DTYPES.items()):
            rank = (shard + number) % 5
            shape = [int(one) for one in rng.integers(1, 12, rank)]
            if rank == 2:
                shape = [64, 700 * scale // size]
            count = int(np.prod(shape, dtype=np.int64)) * size
            header[f"layers.{shard}.{number}.{dtype.lower()}"] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [offset, offset + count],
            }
            parts.append(rng.bytes(count))
            offset += count
        # Packed integers, as most of the bytes; all zero in every second shard.
        packed = (rng.integers(0, 256, (250_000 + 1009 * shard) * scale) * (shard % 2)).astype(np.uint8).tobytes()
        header["packed"] = {"dtype": "U8", "shape": [len(packed)], "data_offsets": [offset, offset + len(packed)]}
        text = json.dumps(header).encode()
        (root / f"model-{shard + 1:05}-of-{_SHARDS:05}.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + b"".join(parts) + packed
        )
    (root / "config.json").write_text(json.dumps({"hidden_size": 700, "layers": list(range(200))}))
    (root / "empty.txt").write_bytes(b"")
    np.savez(root / "optimizer.npz", step=np.int64(7), moments=rng.standard_normal((30, 50)))
    np.save(root / "norms.npy", rng.standard_normal(1000).astype(np.float32))


@dataclass
class Outcome:
    """What trials of a kind of fault gave; `examples` describes wrong results."""

    trials: int = 0
    missed: int = 0
    miscorrected: int = 0
    broken: int = 0
    promised: int = 0
    repaired: int = 0
    examples: list[str] = field(default_factory=list)


def _contents(root: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in root.iterdir() if one.is_file()}


def _is_data(name: str) -> bool:
    return name != MANIFEST and not name.endswith(SIDECAR) and not name.endswith(".damaged")


def trial(root: Path, name: str, rng: np.random.Generator, outcome: Outcome, *, parity: bool) -> None:
    """Damage a protected directory, verify and repair it, and count what became of it."""
    fault, before = FAULTS[name], _contents(root)
    times = {one.name: one.stat().st_mtime_ns for one in root.iterdir()}
    fault.inject(Damaging(root, rng))
    if rng.integers(2):  # a fault of a disk does not change the time of modification
        for one in root.iterdir():
            os.utime(one, ns=(times[one.name], times[one.name]))
    damaged = _contents(root)
    found = {report.state for report in verify_files([root])}
    outcome.trials += 1

    def wrong(kind: str, what: str) -> None:
        setattr(outcome, kind, getattr(outcome, kind) + 1)
        outcome.examples.append(f"{name}, parity {parity}: {what}")

    if (damaged != before) != bool(found & {*BAD}):
        wrong("missed", f"states {sorted(found)}")
    reports: list[FileReport] = list(repair_files([root]))
    after = _contents(root)
    states = {Path(report.path).name: report.state for report in reports}
    for file in (one for one in before if _is_data(one)):
        state = states.get(file, "nothing")
        if after.get(file) != (damaged.get(file) if state == "lost" else before[file]):
            wrong("miscorrected", f"{file} is reported as {state}")
    whole = all(after.get(file) == content for file, content in before.items() if _is_data(file))
    promised = fault.promised == "always" or (parity and fault.promised == "parity")
    outcome.promised += promised
    outcome.repaired += whole
    clean = not {report.state for report in verify_files([root])} & {*BAD}
    if (promised and not whole) or (whole and not clean):
        wrong("broken", f"whole {whole}, clean {clean}")


def run(trials: int, seed: int, scale: int = 1) -> dict[tuple[str, bool], Outcome]:
    """Run trials of all kinds of faults in turn, and return what they gave by fault and parity."""
    outcomes = {(name, parity): Outcome() for name in FAULTS for parity in (True, False)}
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as top:
        for parity in (True, False):
            root = Path(top, f"model-{parity}")
            model_directory(root, rng, scale)
            list(protect_files([root], parity="1/8" if parity else None))
        for number in range(trials):
            name, parity = list(outcomes)[number % len(outcomes)]
            work = Path(top, "work")
            shutil.copytree(Path(top, f"model-{parity}"), work)
            trial(work, name, rng, outcomes[name, parity], parity=parity)
            shutil.rmtree(work)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign, store its records, and return 1 if a result was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--scale", type=int, default=1, help="size of the shards in 300 kB")
    record.add_options(parser, "abft-files-campaign")
    options = parser.parse_args(arguments)
    seed = randbelow(1 << 32) if options.seed is None else options.seed
    device = record.cpu_name()
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "blake3": "blake3"})
    common = record.of_run("abft-files-campaign", device, versions, options.commit)
    outcomes = run(options.trials, seed, options.scale)
    records = []
    for (name, parity), outcome in outcomes.items():
        counts = {key: value for key, value in vars(outcome).items() if key != "examples"}
        cell = {"engine": "cpu", "fault": name, "parity": "1/8" if parity else "none", "seed": seed}
        records.append({**common, **cell, **counts})
        print("\n".join(outcome.examples[:3]), end="\n" if outcome.examples else "")
    record.store_sorted(options.out or record.results_path(device, "abft-files-campaign"), records, KEY, FIELDS)
    names = ("trials", "missed", "miscorrected", "broken", "promised", "repaired")
    total = {name: sum(one[name] for one in records) for name in names}
    print(", ".join(f"{value:,} {key}" for key, value in total.items()))
    return int(any(total[key] for key in ("missed", "miscorrected", "broken")))


if __name__ == "__main__":
    sys.exit(main())
