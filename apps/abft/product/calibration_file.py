"""The user's calibration files: read and write the calibration of a device name and dtype, one per file."""

import json
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from tsapps.apps.abft.product.calibrate import Calibration, Depth, Scale, device_name
from tsapps.apps.abft.product.rounding_model import RoundingModel
from tsapps.apps.abft.product.thresholds import statistical
from tsapps.kernels.gpu_specs import file_name_of
from tsapps.kernels.system.cache import cache_directory, read_cached, write_cached
from tsapps.kernels.system.printable import OneLineError
from tsapps.kernels.system.strict_json import parse_json

__all__ = ["calibration_path", "load_calibration", "save_calibration"]

# Version of the file format. Earlier versions:
#   1 to 3   errors relative to other magnitudes than the deviation; 1 had no version field
#   4        sums not compared with their emulation
#   5        a CPU's products not computed in runs (product/cpu.py)
#   6        runs of the lengths that the BLAS itself chose
#   7        no measurements of 16-bit data that lose bits by cancellation
_VERSION = 8

# For each type of a dataclass field: the Python types of JSON values that are accepted.
_PLAIN: dict[Any, tuple[type, ...]] = {float: (int, float), int: (int,), bool: (bool,), str: (str,)}
# Maximum number of accumulators of a model that is read from a file, several times that of any BLAS. The limit bounds
# the memory that a model needs.
_MOST_ACCUMULATORS = 64

_Kind = TypeVar("_Kind")


def calibration_path(device_name: str, dtype: str) -> Path:
    """Return the path of the user's calibration file for a device name and dtype; the file need not exist."""
    return cache_directory() / "abft" / f"{file_name_of(device_name)}-{dtype}.json"


def save_calibration(calibration: Calibration) -> Path:
    """Write a calibration atomically where `load_calibration` finds it, and return its path."""
    path = calibration_path(calibration.device, calibration.dtype)
    whole = {"version": _VERSION} | asdict(calibration)
    write_cached(path, (json.dumps(whole, indent=1) + "\n").encode())
    return path


def load_calibration(dtype: str, device: int | None = None) -> Calibration:
    """Read the user's calibration for a dtype on a device; `device` is the index of a GPU, or None for the CPU.

    Raises
    ------
    ValueError
        If there is no calibration file, or the file has another version or invalid content.
    """
    name = device_name(device)
    advice = (
        f"make one with tsapps abft-calibrate --dtype {dtype} --device {'cpu' if device is None else f'cuda:{device}'}"
    )
    try:
        path = calibration_path(name, dtype)
        content = read_cached(path)
    except FileNotFoundError as error:
        reason = "" if error.filename is not None else f" ({error.strerror})"
        raise ValueError(f"there is no calibration for {dtype} on {name}{reason}: {advice}") from error
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}: then {advice}") from error
    try:
        found = parse_json(content)
        version = found.pop("version", 1)
        if version != _VERSION:
            raise ValueError(f"it has version {version}; expected {_VERSION}")
        depths = tuple(_depth_of(depth) for depth in found.pop("depths"))
        calibration = _made(Calibration, found | {"depths": depths})
        wrong = (calibration.device, calibration.dtype) != (name, dtype) or not depths
        measured = [depth.k for depth in depths]
        if any(below >= above for below, above in pairwise((0, *measured))):
            raise ValueError(f"its depths are {measured}; expected ascending numbers, from 1 on")
        # `statistical` raises an error if a scale of the file is unusable.
        for depth in depths:
            for scale in (depth.own, depth.others):
                statistical(depth.k, 1, dtype, scale.error, calibration.p, model=scale.walk)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise OneLineError(f"{path}: is no calibration ({str(error)[:200]}): {advice}") from error
    if wrong:
        raise OneLineError(f"{path}: is no calibration for {dtype} on {name}: {advice}")
    return calibration


def _depth_of(written: dict[str, Any]) -> Depth:
    return _made(Depth, written | {name: _scale_of(written[name]) for name in ("own", "others")})


def _scale_of(written: dict[str, Any]) -> Scale:
    model = written["walk"]
    accumulators = tuple(model["accumulators"])
    if any(one > _MOST_ACCUMULATORS for one in accumulators):
        raise ValueError(f"accumulators are {accumulators}; expected at most {_MOST_ACCUMULATORS}")
    return _made(Scale, written | {"walk": _made(RoundingModel, model | {"accumulators": accumulators})})


def _made(kind: type[_Kind], values: dict[str, Any]) -> _Kind:
    """Return a dataclass with these field values; raise `ValueError` if a number or text has another type."""
    for field in fields(kind):  # type: ignore[arg-type]
        value, expected = values.get(field.name), _PLAIN.get(field.type, ())
        if expected and type(value) not in expected:
            raise ValueError(f"{field.name} is {str(value)[:40]!r}; expected a {expected[-1].__name__}")
    return kind(**values)
