"""``tsapps predict``: label every row by its nearest center in a result of ``tsapps kmeans``."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.clock import Clock
from tsapps.cli.column_options import Decimal, Identifier, PreparedData, open_as_model, opening_of
from tsapps.cli.help import OUTPUT
from tsapps.cli.info import versions
from tsapps.cli.label_table import Distances, LabelFile, check_label_file, save_label_table
from tsapps.cli.labels_by_file import check_directory, save_labels
from tsapps.cli.options import (
    AllowExternal,
    Data,
    Devices,
    Header,
    Index,
    Json,
    Quiet,
    check_apart,
    check_disk_space,
    check_input,
    check_output_file,
    choose,
    stem,
)
from tsapps.cli.output import live_line, print_json, print_table, seconds_by_phase
from tsapps.cli.result import dropped, files_of, how_many, read_model
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import MatrixError, UsageError
from tsapps.kernels.system.logs import logger_of

if TYPE_CHECKING:
    import numpy as np

    from tsapps.kernels.devices import Choice
    from tsapps.matrix import Matrix

__all__ = ["predict"]

_log = logger_of(__name__)

OutFile = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE.npy",
        help="File to write, or with --by-file a directory.  [default: <name of DATA>-labels.npy or <name of "
        "DATA>-labels, in the current directory]",
        rich_help_panel=OUTPUT,
    ),
]
ByFile = Annotated[
    bool,
    typer.Option(
        "--by-file",
        help="Write the labels of each file of DATA to a file in a directory.",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace what exists.",
        rich_help_panel=OUTPUT,
    ),
]


@dataclass(frozen=True)
class _Inputs:
    """The opened data, the device to compute on, and the centers (k, d) with the summary of the fit that found them."""

    data: str
    opened: PreparedData
    choice: "Choice"
    model: Path
    centers: "np.ndarray"
    trained: dict[str, Any]

    @property
    def matrix(self) -> "Matrix":
        """The rows that get labels, prepared as those of the model."""
        return self.opened.matrix


@dataclass(frozen=True)
class _Labels:
    """Labels (n,), int32, the nearest center of every row; for the summary, cluster sizes, inertia and device."""

    labels: "np.ndarray"
    cluster_sizes: list[int]
    inertia: float
    device: str


def predict(
    ctx: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", show_default=False, help="Directory that tsapps kmeans wrote.")
    ],
    data: Data,
    out: OutFile = None,
    by_file: ByFile = False,
    device: Devices = "auto",
    force: Force = False,
    allow_external: AllowExternal = False,
    identifier: Identifier = None,
    label_file: LabelFile = None,
    distances: Distances = False,
    decimal: Decimal = ".",
    header: Header = None,
    index: Index = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Label every row of DATA by its nearest center in MODEL_DIR.

    Writes one int32 label per row. Computes in the dtype of the model.
    """
    show_logs(verbose)
    clock = Clock()
    out = out or Path(f"{stem(data)}-labels{'' if by_file else '.npy'}")
    check_input(data, several=True)
    if not by_file:
        check_output_file(out, force=force)
    check_label_file(label_file, force=force, identifier=identifier, distances=distances)
    choose(device, several=True)  # before slow imports, so that a wrong device fails at once

    centers, trained = read_model(model)
    opening = opening_of(
        identifier=identifier, decimal=decimal, header=header, index=index, allow_external=allow_external
    )
    opened = open_as_model(data, model, trained, opening)
    _check_output(data, opened.matrix, out, by_file=by_file, force=force)
    _check_label_table(label_file, opened.matrix, model, None if by_file else out)
    check_disk_space(out, 4 * opened.rows)
    choice = choose(device, resident=opened.matrix.device, several=True)
    inputs = _Inputs(data, opened, choice, model, centers, trained)

    with live_line(quiet=quiet) as show:
        found = _label(inputs, device, clock, show)
        _write(inputs, found, out, clock, by_file=by_file, force=force)
        if label_file is not None:
            save_label_table(
                label_file,
                opened,
                centers,
                found.labels,
                distances=distances,
                metric=trained["metric"],
                sources=[model / "centers.npy"],
            )
    summary = _summary(ctx.meta["tsapps.command"], inputs, found, out, clock)
    if as_json:
        print_json(summary)
    elif not quiet:
        print_table(_table(summary, inputs, out))


def _check_output(data: str, matrix: "Matrix", out: Path, *, by_file: bool, force: bool) -> None:
    """Raise `UsageError` if the labels would replace a file of DATA or, by file, something else than labels."""
    files = [file for file, _ in matrix.files]
    if by_file:
        check_directory(out, files, force=force)
        return
    if out.exists() and any(os.path.samefile(out, file) for file in files):
        raise UsageError(f"{out}: is DATA itself: choose another --out")
    if os.path.isdir(data) and os.path.samefile(out.parent, data) and files[0].endswith(".npy"):
        raise UsageError(f"{out}: would be a file of DATA, {data}: choose another --out")


def _check_label_table(table: Path | None, matrix: "Matrix", model: Path, out: Path | None) -> None:
    """Raise `UsageError` if the table of labels would replace a file of DATA, of the model, or of ``--out``."""
    check_apart({"--labels": table}, files=[file for file, _ in matrix.files], directories={"MODEL_DIR": model})
    check_apart({"--out": out, "--labels": table}, files=(), directories={})


def _label(inputs: _Inputs, device: str, clock: Clock, show: Callable[[str], None]) -> _Labels:
    """Load the data to its device and find the nearest center of every row."""
    import numpy as np

    from tsapps.apps.kmeans.data.frame import Frame, frame_about, ldexp
    from tsapps.apps.kmeans.open_engine import open_engine
    from tsapps.kernels.arrays import to_host

    clock.lap("start")
    matrix, (k, d) = inputs.matrix, inputs.centers.shape
    show(f"reading {inputs.data}: {matrix.shape[0]:,} × {d:,} {matrix.dtype}")
    # The frame, by which data is centered and scaled, depends on the centers only: no row affects the label of another.
    dtype, metric = np.dtype(inputs.trained["dtype"]), inputs.trained["metric"]
    frame = Frame(np.zeros(d, dtype)) if metric == "cosine" else frame_about(inputs.centers, dtype)
    with open_engine(matrix, dtype=dtype, device=device, metric=metric, exponent=frame.exponent) as engine:
        clock.lap("read")
        centers = engine.place(frame.centered(inputs.centers), frame.mean)
        clock.lap("prepare")
        show("nearest centers")
        step = engine.step_for(k)
        step.assign(centers, update=False)
        inertia = float(ldexp(engine.data.inertia(centers, step.labels), 2 * frame.exponent))
        labels = to_host(step.labels)
        sizes = step.cluster_sizes(step.labels, k).tolist()
    clock.lap("assign")
    _log.info("labeled %s rows in %.2f s", f"{len(labels):,}", clock.seconds["assign"])
    if not np.isfinite(inertia):
        raise MatrixError(f"{inputs.data}: the inertia overflows float64: scale the data down")
    return _Labels(labels, sizes, inertia, engine.data.device)


def _write(inputs: _Inputs, found: _Labels, out: Path, clock: Clock, *, by_file: bool, force: bool) -> None:
    from tsapps.kernels.system.permissions import mode_of_result
    from tsapps.matrix import save_npy

    files = inputs.matrix.files
    mode, labels = mode_of_result(out, [*(file for file, _ in files), inputs.model / "centers.npy"]), found.labels
    labels = inputs.opened.spread(labels)
    if by_file:
        save_labels(out, files, labels, force=force, mode=mode)
    else:
        save_npy(out, labels, commit=signals.placing, mode=mode)
    clock.lap("write")


def _summary(command: str, inputs: _Inputs, found: _Labels, out: Path, clock: Clock) -> dict[str, Any]:
    (n, d), k = inputs.matrix.shape, len(inputs.centers)
    return {
        "kind": "tsapps predict",
        "command": command,
        "model": os.path.abspath(inputs.model),
        "input": os.path.abspath(inputs.data),
        "files": files_of(inputs.matrix),
        "output": os.path.abspath(out),
        "n": n,
        "rows_dropped": inputs.opened.rows - n,
        "d": d,
        "k": k,
        "data_dtype": str(inputs.matrix.dtype),
        "dtype": inputs.trained["dtype"],
        "metric": inputs.trained["metric"],
        "device": found.device,
        "device_reason": inputs.choice.reason,
        "inertia": found.inertia,
        "cluster_sizes": found.cluster_sizes,
        "seconds": clock.seconds | {"total": clock.total()},
        "versions": versions(),
    }


def _table(summary: dict[str, Any], inputs: _Inputs, out: Path) -> dict[str, str]:
    sizes = summary["cluster_sizes"]
    shape = f"{summary['n']:,} × {summary['d']:,}"
    return {
        "data": f"{inputs.data}: {how_many(summary['files'])}{shape} {summary['data_dtype']}, computed in "
        f"{summary['dtype']}{dropped(summary['rows_dropped'])}",
        "clusters": f"{summary['k']:,}, of {min(sizes):,} to {max(sizes):,} rows",
        "inertia": f"{summary['inertia']:.6g}",
        "device": f"{summary['device']}: {summary['device_reason']}",
        "seconds": seconds_by_phase(summary["seconds"]),
        "written": f"{out}/: {len(inputs.matrix.files):,} files" if out.is_dir() else str(out),
    }
