"""The files of a checkpoint, which are read whole and replaced together.

    state.json   parameters, what identifies the data, state of the random generator, run and iteration, earlier runs
    centers.npy  the centers of the next iteration; at iteration 0, the initial centers of the run
    before.npy   the centers of the last iteration, from which centers.npy follow
    best.npy     the centers of the best run so far

Centers are centered and scaled as the samples of the engine are: state.json has the mean and the exponent. It also has
the digest of every array, and one of itself. Labels are not saved, since one pass over X computes them again.

Only the user may read the directory, whoever may read the data. A write replaces the directory in one step, so that a
process that is killed at any moment leaves a complete checkpoint.
"""

import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.results import Run
from tsapps.kernels.system.atomic_write import Commit, remove_leftovers, replacing_directory
from tsapps.kernels.system.printable import OneLineError
from tsapps.kernels.system.strict_json import JsonError, read_json
from tsapps.kernels.system.version import package_version

__all__ = [
    "CheckpointError",
    "Start",
    "State",
    "digest",
    "entries",
    "numbers_of",
    "read_position",
    "read_state",
    "restore",
    "write",
]

_KIND, _FORMAT = "tsapps kmeans checkpoint", 1
_STATE, _CENTERS, _BEFORE, _BEST = "state.json", "centers.npy", "before.npy", "best.npy"
_FILES = frozenset({_STATE, _CENTERS, _BEFORE, _BEST})
# Maximum size in bytes of state.json, which has some 25 bytes per feature; and of the header of a .npy file.
_MOST_STATE, _MOST_HEADER = 1 << 26, 4096
# The types of entries of state.json.
_TYPES: dict[str, type] = {"parameters": dict, "data": dict, "computation": dict, "generator": dict, "files": dict}
_TYPES |= {"finished": bool, "run": int, "iteration": int, "faults": int}


class CheckpointError(OneLineError):
    """A directory holds no checkpoint that a fit can continue: it is finished, or of another fit or program."""


@dataclass(frozen=True)
class Start:
    """Centers from which a run iterates.

    Attributes
    ----------
    centers : numpy.ndarray of shape (k, d)
    done : int
        Number of iterations of the run before.
    following : numpy.ndarray of shape (k, d) or None
        For a run that continues: the centers that the next iteration gave, and must give again. None for a new run.
    """

    centers: np.ndarray
    done: int = 0
    following: np.ndarray | None = None


@dataclass(frozen=True)
class State:
    """Where a fit is.

    Attributes
    ----------
    run : int
        Index of the current run.
    start : Start or None
        Where the run continues; None if its initial centers have not been drawn.
    best : Run or None
        The best of the earlier runs.
    faults : int
        Number of faults that a protected fit has found.
    """

    run: int = 0
    start: Start | None = None
    best: Run | None = None
    faults: int = 0


def read_state(directory: Path) -> dict[str, Any] | None:
    """Return the content of state.json of an unfinished checkpoint; None if the directory is new or empty.

    Raises
    ------
    CheckpointError
        If the directory holds a finished fit or other files, if another version wrote it, or if it cannot be replaced.
    ValueError
        If the file is damaged.
    """
    remove_leftovers(directory, _FILES)  # also restores a directory that a killed process had moved away
    if not os.path.lexists(directory):
        parent = Path(os.path.realpath(directory)).parent
        if not parent.is_dir():
            raise CheckpointError(f"{directory}: there is no directory {parent}: create it first (mkdir -p)")
        return None
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: exists and is not a directory: name another one")
    if os.path.samefile(directory, os.curdir):
        raise CheckpointError(f"{directory}: is the current directory, which cannot be replaced: name another one")
    names = set(os.listdir(directory))
    if not names:
        return None
    state = _read_json(directory / _STATE) if _STATE in names else {"files": {}}
    if foreign := sorted(names - {_STATE, *state["files"]}):
        raise CheckpointError(f"{directory}: holds {foreign[0]!r}, which is not of a checkpoint: name another one")
    if state["finished"]:
        raise CheckpointError(
            f"{directory}: holds a finished fit, which is not computed again: name another directory, or delete it"
        )
    return state


def _read_json(path: Path) -> dict[str, Any]:
    """Return the content of state.json, after checks of its digest and of the types of its entries."""
    try:
        state = read_json(path, _MOST_STATE)
    except JsonError as error:
        raise OneLineError(f"{error}: it is damaged: delete the checkpoint, and begin the fit again") from error
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise CheckpointError(f'{path}: is not of a checkpoint (its "kind" is not "{_KIND}"): name another directory')
    theirs, ours = str(state.get("tsapps"))[:40], package_version()
    if (state.get("format"), theirs) != (_FORMAT, ours):
        raise CheckpointError(
            f"{path}: was written by tsapps {theirs}, and this is {ours}, whose bits may differ: continue with that "
            "version, or begin again in another directory"
        )
    right = state.pop("digest", None) == _digest_of(state) and "best" in state and _is_request(state.get("request"))
    if not right or not all(type(state.get(name)) is kind for name, kind in _TYPES.items()):
        raise _damaged(path)
    return state


def _is_request(request: Any) -> bool:
    """Return True if `request` is None, or an object of texts, numbers, booleans and null."""
    if not isinstance(request, dict):
        return request is None
    return all(value is None or isinstance(value, str | int | float) for value in request.values())


def read_position(directory: Path, state: Mapping[str, Any], shape: tuple[int, int], dtype: np.dtype) -> State:
    """Return where a fit is.

    Parameters
    ----------
    directory : Path
    state : mapping
        The content of its state.json.
    shape : tuple of int
        (k, d).
    dtype : numpy.dtype
        The working type.

    Raises
    ------
    ValueError
        If a file is damaged.
    """
    try:
        arrays = {name: _read_npy(directory / name, given, shape, dtype) for name, given in state["files"].items()}
        best, start, iteration = None, None, state["iteration"]
        if state["best"] is not None:
            numbers = state["best"]
            best = Run(None, arrays[_BEST], float(numbers["inertia"]), numbers["n_iter"], numbers["converged"])
        if _BEFORE in arrays:
            start = Start(arrays[_BEFORE], iteration - 1, arrays[_CENTERS])
        elif _CENTERS in arrays:
            start = Start(arrays[_CENTERS])
    except (KeyError, TypeError) as error:
        raise _damaged(directory / _STATE) from error
    return State(state["run"], start, best, state["faults"])


def _read_npy(path: Path, given: str, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    """Return an array of a checkpoint, if its file has the digest `given`, and it has the shape and the dtype."""
    with path.open("rb") as file:
        content = file.read(_MOST_HEADER + math.prod(shape) * dtype.itemsize)
    if digest(content) != given:
        raise _damaged(path)
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    if array.shape != shape or array.dtype != dtype:
        raise _damaged(path)
    return array


def write(
    directory: Path,
    head: Mapping[str, Any],
    state: State,
    generator: np.random.RandomState,
    *,
    finished: bool,
    commit: Commit,
) -> None:
    """Replace the directory by one with these values.

    Parameters
    ----------
    directory : Path
    head : mapping
        The entries of state.json that remain the same: "parameters", "data", "computation" and "request".
    state : State
    generator : numpy.random.RandomState
    finished : bool
    commit : callable
        As for `replacing_directory`.

    Raises
    ------
    OSError
        If the directory cannot be written.
    """
    best, start, iteration = state.best, state.start, 0
    arrays = {} if best is None else {_BEST: best.centers}
    if start is not None and start.following is None:
        arrays[_CENTERS] = start.centers
    elif start is not None and start.following is not None:
        arrays |= {_BEFORE: start.centers, _CENTERS: start.following}
        iteration = start.done + 1
    numbers = None
    if best is not None:  # JSON has no infinity, which an inertia may be
        inertia = best.inertia if math.isfinite(best.inertia) else str(best.inertia)
        numbers = {"inertia": inertia, "n_iter": best.n_iter, "converged": best.converged}
    contents = {name: _npy(array) for name, array in arrays.items()}
    record = {"kind": _KIND, "format": _FORMAT, "tsapps": package_version(), "finished": finished, **head}
    record |= {"run": state.run, "iteration": iteration, "faults": state.faults, "best": numbers}
    record |= {"generator": numbers_of(generator), "files": {name: digest(some) for name, some in contents.items()}}
    contents[_STATE] = json.dumps({**record, "digest": _digest_of(record)}, indent=1, allow_nan=False).encode()
    with replacing_directory(directory, _FILES, commit=commit, mode=0o700) as temporary:
        for name, content in contents.items():
            with open(temporary / name, "xb", opener=partial(os.open, mode=0o600)) as file:
                file.write(content)


def entries(directory: Path) -> dict[str, tuple[int, int, int]] | None:
    """Return the identity, size and time of change of each file of a directory; None if there is no directory."""
    if not os.path.lexists(directory):
        return None
    with os.scandir(directory) as found:
        states = {entry.name: entry.stat(follow_symlinks=False) for entry in found}
    return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in states.items()}


def digest(content: Any) -> str:
    """Return the SHA-256 of bytes or of a C-contiguous array, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _digest_of(record: Mapping[str, Any]) -> str:
    return digest(json.dumps(record, sort_keys=True).encode())


def _npy(array: np.ndarray) -> bytes:
    """Return the content of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _damaged(path: Path) -> OneLineError:
    return OneLineError(f"{path}: is damaged: delete the checkpoint, and begin the fit again")


def numbers_of(generator: np.random.RandomState) -> dict[str, Any]:
    """Return the state of a random generator as numbers.

    Raises
    ------
    CheckpointError
        If it is not of the MT19937 kind.
    """
    state: Any = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise CheckpointError(f"checkpoints need a RandomState of the MT19937 kind, got {state['bit_generator']}")
    key, position = state["state"]["key"].tolist(), int(state["state"]["pos"])
    return {"key": key, "position": position, "has_gauss": int(state["has_gauss"]), "gauss": float(state["gauss"])}


def restore(generator: np.random.RandomState, directory: Path, state: Mapping[str, Any]) -> None:
    """Set a random generator to its state in a state.json.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    given = state["generator"]
    try:
        key = np.array(given["key"], np.uint32)
        generator.set_state(("MT19937", key, given["position"], given["has_gauss"], given["gauss"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _damaged(directory / _STATE) from error
