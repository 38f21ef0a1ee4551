"""Try checksums by faults, thousands of every kind; and time them beside the library and beside no protection.

    python -m bench.abft --campaign --device cpu --minutes 8
    python -m bench.abft --campaign --device cuda --missing
    python -m bench.abft --campaign --device cpu --target kmeans
    python -m bench.abft --speed --job encode --job verify

The campaign makes one record a cell (`abft_campaign.Cell`) in bench/results/<device>/abft-campaign.json: how many
faults were detected, located, repaired and miscorrected, how many false alarms there were, and the Clopper-Pearson
interval of each rate. It ends with what should not be (`findings`), and exit code 1 if there was any. A cell's faults
are drawn from `--seed` and the cell alone.

What is timed needs a GPU; see `abft_speed.py`. A run that `--minutes` end is gone on with by `--missing`, which leaves
out what the records' file has of the same device and commit.
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

from bench.abft import campaign
from bench.abft.at_rest import try_at_rest, try_sidecar
from bench.abft.campaign import DTYPES, Cell
from bench.abft.kmeans import cells as cells_of_kmeans
from bench.abft.kmeans import try_kmeans
from bench.abft.product import try_judged, try_product
from bench.common import record
from tsapps.kernels.devices import gpus, why_no_gpu

_TRY = {
    "at-rest": try_at_rest,
    "sidecar": try_sidecar,
    "product": try_product,
    "mid-product": try_product,
    "judged": try_judged,
    "kmeans": try_kmeans,
}
JOBS = ("encode", "verify", "matmul", "kmeans")
# Records that are written at a time.
_TOGETHER = 50


def run_campaign(options: argparse.Namespace) -> int:
    """Try every cell that is asked for; return the exit code."""
    end = time.perf_counter() + 60 * options.minutes
    common = common_of(options, "abft-campaign")
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
    """Yield the cells that are asked for and can be tried on the device."""
    for cell in chain(campaign.cells(), cells_of_kmeans()):
        asked = cell.dtype in (options.dtype or DTYPES) and cell.target in (options.target or _TRY)
        if not asked or options.device not in cell.engines:
            continue
        # An array of bfloat16 on a GPU is torch's.
        needs_torch = options.device == "cuda" and cell.dtype == "bfloat16" and "product" in cell.target
        if needs_torch and not find_spec("torch"):
            continue
        yield cell


def findings(one: Mapping[str, Any]) -> list[str]:
    """Return what a record says that should not be, in words; nothing if all is well."""
    found = []
    if one["miscorrected"]:
        found.append(f"{one['miscorrected']} of {one['trials']} miscorrected")
    for name in ("certain_detected", "certain_repaired"):
        if one[name] < one["certain"]:
            found.append(f"{one[name]} of {one['certain']} {name.replace('_', ' to be ')}")
    # Of statistical thresholds, some are expected: it is too many if even the rate's lower end is above what was asked.
    allowed = campaign.P if one["code"] == "statistical" else 0.0
    if one["false_alarms"] and one["intervals"]["false_alarms"][0] > allowed:
        found.append(f"{one['false_alarms']} false alarms of {one['clean']}")
    return found


def title(one: Mapping[str, Any]) -> str:
    """Return what was tried, as one line for people."""
    parts = (one[name] for name in ("target", "code", "dtype", "distribution", "fault"))
    return f"{' '.join(parts)} {one['m']} × {one['n']}"


# --- Both -------------------------------------------------------------------------------------------------------------


def common_of(options: argparse.Namespace, what: str) -> dict[str, Any]:
    """Return the fields that all records of a run share."""
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy"})
    device = record.cpu_name()
    if options.device == "cuda":
        import cupy

        runtime = cupy.cuda.runtime
        device = runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        versions |= {"cupy": cupy.__version__, "cuda-runtime": str(runtime.runtimeGetVersion())}
        versions |= {"cuda-driver": str(runtime.driverGetVersion())}
    commit = options.commit or record.commit_of()
    return {"what": what, "engine": options.device, "device": device, "versions": versions, "commit": commit}


def recorded(path: Path, common: Mapping[str, Any], key: tuple[str, ...]) -> set[tuple[Any, ...]]:
    """Return the keys of a file's records that are of the device and the commit in hand."""
    same = [one for one in record.load(path) if all(one[name] == common[name] for name in ("device", "commit"))]
    return {tuple(one[name] for name in key) for one in same}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--campaign", action="store_true", help="try faults of every kind")
    task.add_argument("--speed", action="store_true", help="time the jobs, on a GPU")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--target", choices=list(_TRY), action="append", help="of the campaign, only this one; likewise"
    )
    parser.add_argument("--job", choices=JOBS, action="append", help="of --speed, only this one; likewise")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing more after so long")
    parser.add_argument("--missing", action="store_true", help="leave out what there is a record of, of this commit")
    parser.add_argument("--out", type=Path, help="the records' file; one in bench/results/<device> if not given")
    parser.add_argument(
        "--seed", type=int, default=randbelow(2**31), help="of faults and data; a fresh one if not given"
    )
    parser.add_argument("--commit", help="what is tried, where there is no git to ask")
    options = parser.parse_args(arguments)
    if options.speed and options.device == "cpu":
        parser.error("--speed times a GPU: leave out --device cpu")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if options.device == "cuda" and not gpus():
        print(f"no GPU: {why_no_gpu()}; --campaign --device cpu needs none", file=sys.stderr)
        return 1
    if options.campaign:
        return run_campaign(options)
    from bench.abft.speed import KEY, run_speed

    common = common_of(options, "abft")
    path = options.out or record.results_path(common["device"], "abft")
    return run_speed(options, common, path, recorded(path, common, KEY) if options.missing else set())
