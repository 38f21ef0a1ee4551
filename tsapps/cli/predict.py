"""``tsapps predict``: the nearest centre of every row, by the centres that ``tsapps kmeans`` found."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.info import versions
from tsapps.cli.options import (
    AllowExternal,
    Data,
    Device,
    Header,
    Index,
    Json,
    Quiet,
    check_input,
    check_output_file,
    check_room,
    choose,
    stem,
)
from tsapps.cli.output import live_line, print_json, print_table, seconds_by_phase
from tsapps.cli.result import read_model
from tsapps.errors import MatrixError, UsageError
from tsapps.names import split_name

__all__ = ["predict"]


def predict(
    ctx: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL_DIR", show_default=False, help="Directory that tsapps kmeans wrote.")
    ],
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy", help="File to write.  [default: <name of DATA>-labels.npy, in the current directory]"
        ),
    ] = None,
    device: Device = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.npy if it exists.")] = False,
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Give every row of DATA the number of its nearest centre in MODEL_DIR.

    Writes the numbers as int32, one a row. Computes in the type that the model was computed in.
    """
    began = time.perf_counter()
    out = out or Path(f"{stem(data)}-labels.npy")
    check_input(data)
    check_output_file(out, force=force)
    if out.exists() and os.path.exists(data) and os.path.samefile(out, data):
        raise UsageError(f"{out}: is DATA itself: choose another --out")
    choose(device)  # before the imports, which take longer

    import numpy as np

    from tsapps.apps.kmeans.data.frame import Frame, frame_about, ldexp
    from tsapps.apps.kmeans.open_engine import open_engine
    from tsapps.kernels.arrays import to_host
    from tsapps.matrix import open_matrix, save_npy
    from tsapps.permissions import mode_of_result

    centers, trained = read_model(model)
    matrix = open_matrix(data, header=header, index=index, allow_external=allow_external)
    (n, d), k = matrix.shape, len(centers)
    if d != centers.shape[1]:
        raise UsageError(
            f"{data}: has {d} columns, and the centres in {model} have {centers.shape[1]}: they must agree"
        )
    check_room(out, 4 * n)
    choice = choose(device, resident=matrix.device)
    metric = trained["metric"]
    seconds = {"start": time.perf_counter() - began}

    with live_line(quiet=quiet) as show:
        show(f"reading {data}: {n:,} × {d:,} {matrix.dtype}")
        lap = time.perf_counter()
        # The labels of a row do not depend on the other rows.
        dtype = np.dtype(trained["dtype"])
        frame = Frame(np.zeros(d, dtype)) if metric == "cosine" else frame_about(centers, dtype)
        with open_engine(matrix, dtype=dtype, device=device, metric=metric, exponent=frame.exponent) as engine:
            centers = engine.place(frame.centered(centers), frame.mean)
            seconds["read"] = time.perf_counter() - lap
            show("nearest centres")
            lap = time.perf_counter()
            engine.assign(centers, update=False)
            inertia = float(ldexp(engine.inertia(centers), 2 * frame.exponent))
            labels = to_host(engine.labels)
            sizes = engine.cluster_sizes(engine.labels, k).tolist()
        seconds["assign"] = time.perf_counter() - lap
        if not np.isfinite(inertia):
            raise MatrixError(f"{data}: the inertia overflows float64: scale the data down")
        lap = time.perf_counter()
        mode = mode_of_result(out, [split_name(data)[0], model / "centers.npy"])
        save_npy(out, labels, commit=signals.placing, mode=mode)
        seconds["write"] = time.perf_counter() - lap
    seconds["total"] = time.perf_counter() - began

    summary: dict[str, Any] = {
        "kind": "tsapps predict",
        "command": ctx.meta["tsapps.command"],
        "model": os.path.abspath(model),
        "input": os.path.abspath(data),
        "output": os.path.abspath(out),
        "n": n,
        "d": d,
        "k": k,
        "data_dtype": str(matrix.dtype),
        "dtype": trained["dtype"],
        "metric": metric,
        "device": engine.device,
        "device_reason": choice.reason,
        "inertia": inertia,
        "cluster_sizes": sizes,
        "seconds": seconds,
        "versions": versions(),
    }
    if as_json:
        print_json(summary)
    elif not quiet:
        print_table(
            {
                "data": f"{data}: {n:,} × {d:,} {matrix.dtype}, worked on in {engine.dtype}",
                "clusters": f"{k:,}, of {min(sizes):,} to {max(sizes):,} rows",
                "inertia": f"{inertia:.6g}",
                "device": f"{engine.device}: {choice.reason}",
                "seconds": seconds_by_phase(seconds),
                "written": str(out),
            }
        )
