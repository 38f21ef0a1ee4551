"""``--checkpoint`` and ``--resume`` of ``tsapps kmeans``: from a request to its checkpoint, and back."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps.cli.kmeans_request import Inputs, Request
from tsapps.cli.options import check_disk_space
from tsapps.errors import UsageError

if TYPE_CHECKING:
    from tsapps.apps.kmeans.checkpoint import Checkpoint

__all__ = ["CheckpointDirectory", "ResumedDirectory", "directory_of", "open_checkpoint", "usage_errors"]

# Estimates of the bytes of a checkpoint: three arrays, and state.json without and with a feature.
_ARRAYS, _STATE, _FEATURE = 3, 32768, 25


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise `UsageError` for a checkpoint that cannot be used."""
    from tsapps.apps.kmeans.checkpoint_files import CheckpointError

    try:
        yield
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def _take_defaults(ctx: typer.Context, directory: Path | None) -> Path | None:
    """Make the recorded request of an unfinished fit the defaults of the other parameters."""
    if directory is None:
        return None
    from tsapps.apps.kmeans.checkpoint_files import read_state

    with usage_errors():
        state = read_state(directory)
    if state is None:
        raise UsageError(f"{directory}: holds no checkpoint: name the directory that --checkpoint named")
    if state["request"] is None:
        raise UsageError(f"{directory}: is the checkpoint of a fit in Python: continue it by TSKMeans(checkpoint=…)")
    ctx.default_map = {name: value for name, value in state["request"].items() if value is not None}
    return directory


CheckpointDirectory = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Save the state of the fit in DIR about once a minute, so that a fit that was killed can continue to the "
        "same bits. The command continues an unfinished fit of the same DATA and options in DIR.",
    ),
]
ResumedDirectory = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="DIR",
        is_eager=True,  # it has the defaults of the others
        callback=_take_defaults,
        help="Continue the unfinished fit in DIR, an earlier --checkpoint, with the DATA and the options that it was "
        "given, but for --allow-external, --json and --quiet. --device, --out and --force may be others.",
    ),
]


def directory_of(checkpoint: Path | None, resume: Path | None) -> Path | None:
    """Return the directory of checkpoints that the two options name; raise `UsageError` if they name two."""
    if checkpoint is not None and resume is not None:
        raise UsageError(
            f"--checkpoint {checkpoint}: a fit that continues saves its state in --resume {resume}: give one"
        )
    return resume if checkpoint is None else checkpoint


def open_checkpoint(request: Request, inputs: Inputs) -> "Checkpoint | None":
    """Return the checkpoint of a request; None if it names no directory.

    Raises
    ------
    UsageError
        If the directory is not one of an unfinished fit with the parameters of the request.
    OSError
        If the disk has no space for two checkpoints, of which one replaces the other.
    """
    if request.checkpoint is None:
        return None
    from tsapps.apps.kmeans.checkpoint import Checkpoint, parameters_of

    (_, d), k = inputs.matrix.shape, request.k
    parameters = parameters_of(
        n_clusters=k,
        init=inputs.first_centers,
        n_init=request.n_init,
        max_iter=request.max_iter,
        tol=request.tol,
        metric=request.metric,
        precision=request.precision,
        random_state=request.seed,
    )
    with usage_errors():
        found = Checkpoint(request.checkpoint, parameters, _recorded(request))
    check_disk_space(request.checkpoint, *2 * (*[8 * k * d] * _ARRAYS, _STATE + _FEATURE * d))
    return found


def _recorded(request: Request) -> dict[str, str | int | float | None]:
    """Return the parameters of the command, as it takes them in any directory.

    Permission to read other files is not recorded: a checkpoint that another user made must not give it.
    """
    without = ("command", "checkpoint", "allow_external", "ks")
    given = {name: value for name, value in asdict(request).items() if name not in without}
    for name in ("data", "weights", "out", "label_file", "report"):
        given[name] = given[name] and os.path.abspath(given[name])
    given["init"] = request.init if request.init_file is None else os.path.abspath(request.init_file)
    return given | {"n_init": str(request.n_init), "k": str(request.k)}
