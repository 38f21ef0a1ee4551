"""``tsapps abft-calibrate``: measure rounding errors on a device and store them for the statistical threshold."""

import time
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.options import Device, Json, Quiet, choose
from tsapps.cli.output import live_line, print_json, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import UsageError

__all__ = ["abft_calibrate"]


class Dtype(StrEnum):
    """Element types of protected products."""

    float64 = "float64"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def abft_calibrate(
    dtypes: Annotated[
        list[Dtype] | None,
        typer.Option(
            "--dtype",
            metavar="float64|float32|float16|bfloat16",
            help="Element type to measure; may be repeated.  [default: all]",
        ),
    ] = None,
    device: Device = "auto",
    p: Annotated[float, typer.Option("--p", help="False-positive rate per element.")] = 1e-9,
    level: Annotated[
        float, typer.Option("--confidence", help="Confidence level of the calibrated error bounds.")
    ] = 0.99,
    rows: Annotated[int, typer.Option(min=16, help="Rows of each measured product.")] = 4096,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random products.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Measure rounding errors on this device, for the statistical threshold of protected products.

    Computes products of several depths and seven distributions as tsapps.abft.matmul does, and compares them with exact
    products. The calibration replaces an earlier one in your cache directory; threshold="statistical" uses it on every
    device of this name. It is written after each type: Ctrl-C loses only the type being measured.
    """
    show_logs(verbose)
    from tsapps.apps.abft.product.thresholds import RAREST

    for name, value, least in (("--p", p, RAREST), ("--confidence", level, 0)):
        if not least <= value < 1 or value == 0:
            raise UsageError(f"{name} {value:g}: expected a number between {least:g} and 1")
    choice = choose(device)
    from tsapps.apps.abft.product.calibrate import Calibration, calibrate, device_name
    from tsapps.apps.abft.product.calibration_file import calibration_path, save_calibration
    from tsapps.kernels.system.cache import check_cache_writable

    began = time.perf_counter()
    found: list[tuple[Calibration, str]] = []
    index = choice.index if choice.is_gpu else None
    wanted = list(dtypes or Dtype)
    for dtype in wanted:  # before the long measurements, so that no result is lost
        check_cache_writable(calibration_path(device_name(index), str(dtype)))
    with live_line(quiet=quiet) as show:
        for number, dtype in enumerate(wanted, 1):
            show(f"{number} of {len(wanted)}: {dtype}")
            one = calibrate(str(dtype), index, p=p, level=level, rows=rows, seed=seed)
            with signals.placing(last=number == len(wanted)):
                found.append((one, str(save_calibration(one))))
    seconds = time.perf_counter() - began
    if as_json:
        print_json({"device": choice.device, "seconds": seconds, "calibrations": [_summary(*one) for one in found]})
    elif not quiet:
        lines = {"device": f"{choice.device}: {found[0][0].device}", "seconds": f"{seconds:.1f}"}
        lines["threshold"] = f"exceeded by rounding with probability {p:g}; intervals of confidence {level:g}"
        for one, path in found:
            errors = ", ".join(f"{depth.own.error:.2g} (k = {depth.k})" for depth in one.depths)
            lines[one.dtype] = errors + ("; sums of tall products are emulated bit for bit" if one.predicted else "")
            lines[f"{one.dtype} written"] = path
        print_table(lines)


def _summary(one: Any, path: str) -> dict[str, Any]:
    return asdict(one) | {"path": path}
