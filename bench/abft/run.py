"""Fault-injection campaign for checksums, and their overhead relative to cuBLAS and to unprotected operations.

    python -m tsapps.bench.abft --campaign --device cpu --minutes 8
    python -m tsapps.bench.abft --campaign --device cuda --missing
    python -m tsapps.bench.abft --campaign --device cpu --target kmeans
    python -m tsapps.bench.abft --speed --job encode --job verify

The campaign writes one record per cell (`campaign.Cell`) to bench/results/<device>/abft-campaign.json: counts of
detected, located, repaired and miscorrected faults and of false positives, and the Clopper-Pearson interval of each
rate. It prints violations at the end (`findings`) and exits with 1 if there are any. The faults of a cell depend on
`--seed` and the cell alone.

`--speed` needs a GPU; see speed.py. `--missing` continues a run that `--minutes` ended: it skips cells that have
a record of the same device and commit.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from secrets import randbelow
from typing import Any

from tsapps.bench.abft import campaign
from tsapps.bench.abft.at_rest import try_at_rest, try_sidecar
from tsapps.bench.abft.campaign import DTYPES, Cell
from tsapps.bench.abft.kmeans import cells as cells_of_kmeans
from tsapps.bench.abft.kmeans import try_kmeans
from tsapps.bench.abft.product import try_judged, try_product
from tsapps.bench.abft.tasks import JOBS
from tsapps.bench.common import record
from tsapps.kernels.devices import Choice, gpus, why_no_gpu

_TRY = {
    "at-rest": try_at_rest,
    "sidecar": try_sidecar,
    "product": try_product,
    "mid-product": try_product,
    "judged": try_judged,
    "kmeans": try_kmeans,
}
# Records written at a time.
_TOGETHER = 50


def run_campaign(options: argparse.Namespace) -> int:
    """Run all requested cells; return the exit code."""
    end = time.perf_counter() + 60 * options.minutes
    common = common_of(options.device, "abft-campaign", options.commit)
    path = options.out or record.results_path(common["device"], "abft-campaign")
    done = recorded(path, common, campaign.KEY) if options.missing else set()
    waiting: list[dict[str, Any]] = []
    wrong: list[str] = []
    tried = left = 0
    for cell in _asked(options):
        name = {"what": "abft-campaign", "engine": options.device, **vars(cell)}
        if tuple(name[part] for part in campaign.KEY) in done:
            continue
        if time.perf_counter() > end:
            left += 1
            continue
        counts = _TRY[cell.target](cell, options.seed, options.device)
        one = {**common, **campaign.record_of(cell, counts, options.seed), "date": record.today()}
        waiting.append(one)
        tried += 1
        for finding in findings(one):
            wrong.append(f"{title(one)}: {finding}")
            print(wrong[-1], flush=True)
        if len(waiting) == _TOGETHER:
            record.store_sorted(path, waiting, campaign.KEY, campaign.FIELDS)
            waiting = []
    if waiting:
        record.store_sorted(path, waiting, campaign.KEY, campaign.FIELDS)
    rest = f"; {left} are left for --missing" if left else ""
    print(f"{tried} cells tried, {len(wrong)} findings{rest}: {path}", flush=True)
    return 1 if wrong else 0


def _asked(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the requested cells that the device can run."""
    for cell in chain(campaign.cells(), cells_of_kmeans()):
        asked = cell.dtype in (options.dtype or DTYPES) and cell.target in (options.target or _TRY)
        if not asked or options.device not in cell.engines:
            continue
        # bfloat16 arrays on a GPU are torch tensors.
        needs_torch = options.device == "cuda" and cell.dtype == "bfloat16" and "product" in cell.target
        if needs_torch and not find_spec("torch"):
            continue
        yield cell


def findings(one: Mapping[str, Any]) -> list[str]:
    """Return descriptions of the violations in a record; empty if there are none."""
    found = []
    if one["miscorrected"]:
        found.append(f"{one['miscorrected']} of {one['trials']} miscorrected")
    for name in ("certain_detected", "certain_repaired"):
        if one[name] < one["certain"]:
            found.append(f"{one[name]} of {one['certain']} {name.replace('_', ' to be ')}")
    # Statistical thresholds have some false positives: too many if the lower end of the rate's interval exceeds `P`.
    allowed = campaign.P if one["code"] == "statistical" else 0.0
    if one["false_alarms"] and one["intervals"]["false_alarms"][0] > allowed:
        found.append(f"{one['false_alarms']} false positives among {one['clean']}")
    return found


def title(one: Mapping[str, Any]) -> str:
    """Return a one-line description of a cell."""
    parts = (one[name] for name in ("target", "code", "dtype", "distribution", "fault"))
    return f"{' '.join(parts)} {one['m']} × {one['n']}"


# --- Both -------------------------------------------------------------------------------------------------------------


def common_of(engine: str, what: str, commit: str | None) -> dict[str, Any]:
    """Return the fields shared by all records of a run on the CPU or, if the engine is "cuda", the current GPU."""
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy"})
    device = record.cpu_name()
    if engine == "cuda":
        import cupy

        device = record.gpu_name()
        versions |= {"cupy": cupy.__version__, **record.cuda_versions()}
    commit = commit or record.commit_of()
    return {"what": what, "engine": engine, "device": device, "versions": versions, "commit": commit}


def opened(choice: Choice, seed: int) -> Any:
    """Return what measures the speed of checksums on a device."""
    if not choice.is_gpu:
        from tsapps.bench.abft.speed_on_cpu import CpuSpeed

        return CpuSpeed(seed)
    import cupy

    from tsapps.bench.abft.speed import Speed

    cupy.cuda.Device(choice.index).use()
    return Speed(seed)


def recorded(path: Path, common: Mapping[str, Any], key: tuple[str, ...]) -> set[tuple[Any, ...]]:
    """Return the keys of a file's records with the present device and commit."""
    same = [one for one in record.load(path) if all(one[name] == common[name] for name in ("device", "commit"))]
    return {tuple(one[name] for name in key) for one in same}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--campaign", action="store_true", help="run the fault-injection campaign")
    task.add_argument("--speed", action="store_true", help="time encoding, verification, products and K-means on a GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="element type; may be repeated")
    parser.add_argument("--target", choices=list(_TRY), action="append", help="target of the campaign; may be repeated")
    parser.add_argument("--job", choices=list(JOBS), action="append", help="job of --speed; may be repeated")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument("--missing", action="store_true", help="skip cells that have a record of this commit")
    parser.add_argument("--out", type=Path, help="file of records (default: in bench/results/<device>)")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of faults and data (default: random)")
    parser.add_argument("--commit", help="tested commit, if git is not available")
    options = parser.parse_args(arguments)
    if options.speed and options.device == "cpu":
        parser.error("--speed times a GPU: omit --device cpu")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if options.device == "cuda" and not gpus():
        print(f"no GPU: {why_no_gpu()}; --campaign --device cpu needs none", file=sys.stderr)
        return 1
    if options.campaign:
        return run_campaign(options)
    from tsapps.bench.abft.speed import KEY, run_speed

    common = common_of(options.device, "abft", options.commit)
    path = options.out or record.results_path(common["device"], "abft")
    return run_speed(options, common, path, recorded(path, common, KEY) if options.missing else set())
