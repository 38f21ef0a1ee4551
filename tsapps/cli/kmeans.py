"""``tsapps kmeans``: cluster the rows of a matrix."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tsapps.cli import kmeans_options, result
from tsapps.cli.clock import Clock
from tsapps.cli.column_options import (
    Columns,
    Decimal,
    Exclude,
    Identifier,
    Missing,
    MissingOption,
    Scale,
    ScaleOption,
)
from tsapps.cli.info import versions
from tsapps.cli.kmeans_checkpoint import (
    CheckpointDirectory,
    ResumedDirectory,
    directory_of,
    open_checkpoint,
)
from tsapps.cli.kmeans_fit import Fit, fit
from tsapps.cli.kmeans_request import Inputs, Request, number_of_runs, numbers_of_clusters, read_inputs
from tsapps.cli.label_table import Distances, LabelFile, save_label_table, save_named_centers
from tsapps.cli.options import AllowExternal, Data, Devices, Header, Index, Json, Quiet, choose, stem
from tsapps.cli.output import live_line, print_json, print_table, print_text, seconds_by_phase
from tsapps.cli.report import ReportFile, write_report
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.cli.workers import check_workers

if TYPE_CHECKING:
    from tsapps.apps.kmeans.number_of_clusters import KChoice

__all__ = ["kmeans"]


def kmeans(
    ctx: typer.Context,
    data: Data,
    k: kmeans_options.Clusters,
    gap: kmeans_options.Gap = 0,
    init: kmeans_options.Init = "k-means++",
    n_init: kmeans_options.Runs = "auto",
    max_iter: kmeans_options.MaxIter = 300,
    tol: kmeans_options.Tolerance = 1e-4,
    seed: kmeans_options.Seed = 0,
    weights: kmeans_options.Weights = None,
    metric: kmeans_options.MetricOption = kmeans_options.Metric.euclidean,
    algorithm: kmeans_options.AlgorithmOption = kmeans_options.Algorithm.lloyd,
    precision: kmeans_options.PrecisionOption = kmeans_options.Precision.exact,
    protect: kmeans_options.Protect = False,
    device: Devices = "auto",
    dtype: kmeans_options.ComputeType = None,
    out: kmeans_options.OutDirectory = None,
    force: kmeans_options.Force = False,
    checkpoint: CheckpointDirectory = None,
    resume: ResumedDirectory = None,
    workers: kmeans_options.Workers = None,
    insecure: kmeans_options.Insecure = False,
    allow_external: AllowExternal = False,
    columns: Columns = None,
    exclude: Exclude = None,
    identifier: Identifier = None,
    scale: ScaleOption = Scale.none,
    missing: MissingOption = Missing.error,
    decimal: Decimal = ".",
    label_file: LabelFile = None,
    distances: Distances = False,
    report: ReportFile = None,
    header: Header = None,
    index: Index = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Cluster the rows of DATA into k clusters by exact K-means (Lloyd's algorithm).

    In float64, the same seed gives the same clustering as scikit-learn's KMeans, except for ties between centers. In
    float32, rounding can also change the initial centers. Writes DIR/labels.npy (int32), DIR/centers.npy and
    DIR/summary.json: all of them or none.

    DATA is a matrix of n rows (samples) and d columns (features), and may be larger than memory: .npy .npz .csv .tsv
    .txt .parquet .h5 .hdf5 .safetensors .fbin .f16bin .u8bin .i8bin .ibin .fvecs .bvecs .ivecs; FILE:NAME is an array
    of a file that has several. A directory of such files, or a quoted pattern such as 'points/*.parquet', is one
    matrix: the rows of its files, sorted by name. summary.json has the number of rows of each.
    """
    show_logs(verbose)
    given = locals()
    clock = Clock()
    parsed = {
        "command": ctx.meta["tsapps.command"],
        "ks": numbers_of_clusters(k),
        "n_init": number_of_runs(n_init),
        "out": out or Path(f"{stem(data)}-kmeans"),
        "checkpoint": directory_of(checkpoint, resume),
    }
    request = Request.of(given | parsed)
    request.check()
    summary = _fit_and_write(request, clock, quiet=quiet)
    if as_json:
        print_json(summary)
    elif not quiet:
        for line in [] if summary["sweep"] is None else _score_lines(summary["sweep"]["scores"], gap=request.gap > 0):
            print_text(line)
        print_table(_table(summary, request))


def _fit_and_write(request: Request, clock: Clock, *, quiet: bool) -> dict[str, Any]:
    """Cluster the data, write the output directory, and return the contents of summary.json."""
    check_workers(request)
    choose(request.device_here, several=True)  # before slow imports, so that a wrong device fails at once
    inputs = read_inputs(request)
    checkpoint = open_checkpoint(request, inputs)
    with live_line(quiet=quiet) as show:
        found = fit(request, inputs, clock, show, checkpoint, report=not quiet or request.report is not None)
        show(f"writing {request.out}")
        summary = _write(request, inputs, found, clock)
        if checkpoint is not None:
            checkpoint.finish()
    return summary


def _write(request: Request, inputs: Inputs, found: Fit, clock: Clock) -> dict[str, Any]:
    """Write the output directory and return the contents of summary.json."""
    from tsapps.kernels.system.permissions import mode_of_result
    from tsapps.matrix import replacing, save_npy

    out = request.out
    read = [path for path, _ in inputs.matrix.files]
    mode = mode_of_result(out, [*read, *request.other_files(), *filter(os.path.isfile, [out / "centers.npy"])])
    with result.new_directory(out, force=request.force, mode=mode) as directory:
        clock.start_lap()
        save_npy(directory / "labels.npy", inputs.data.spread(found.clustering.labels), mode=mode)
        save_npy(directory / "centers.npy", found.clustering.centers, mode=mode)
        save_named_centers(directory / "centers.csv", inputs.data, found.clustering.centers, mode=mode)
        clock.lap("write")
        summary = _summary(request, inputs, found, clock)
        with replacing(directory / "summary.json", mode=mode) as file:
            file.write(json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n")
    if request.label_file is not None:
        save_label_table(
            request.label_file,
            inputs.data,
            found.clustering.centers,
            found.clustering.labels,
            distances=request.distances,
            metric=str(request.metric),
            sources=request.other_files(),
        )
    if request.report is not None:
        write_report(request.report, inputs.data, found.clustering.centers, found.clustering.labels, summary)
    return summary


def _summary(request: Request, inputs: Inputs, found: Fit, clock: Clock) -> dict[str, Any]:
    (n, d), best = inputs.matrix.shape, found.clustering
    return {
        "kind": result.KIND,
        "schema": result.SCHEMA,
        "command": request.command,
        "input": os.path.abspath(request.data),
        "files": result.files_of(inputs.matrix),
        "weights": request.weights and os.path.abspath(request.weights),
        "n": n,
        "d": d,
        "k": len(best.centers),
        "sweep": None if found.choice is None else _sweep(found.choice, request.gap),
        **inputs.data.record(request.scale, request.missing),
        "data_dtype": str(inputs.matrix.dtype),
        "dtype": found.dtype,
        "metric": str(request.metric),
        "algorithm": str(request.algorithm),
        "precision": str(request.precision),
        "protect": request.protect,
        "faults": best.faults,
        "init": request.init if request.init_file is None else os.path.abspath(request.init_file),
        "n_init": request.n_init,
        "max_iter": request.max_iter,
        "tol": request.tol,
        "seed": request.seed,
        "checkpoint": request.checkpoint and os.path.abspath(request.checkpoint),
        "device": found.device,
        "device_reason": f"--workers {request.workers}" if request.workers else inputs.choice.reason,
        "step": best.step,
        "step_reason": best.step_reason,
        "inertia": best.inertia,
        "iterations": best.n_iter,
        "converged": best.converged,
        "history": [asdict(one) for one in found.history] or None,
        "cluster_sizes": best.cluster_sizes.tolist(),
        "seconds": clock.seconds | {"total": clock.total()},
        "versions": versions(),
    }


def _sweep(choice: "KChoice", references: int) -> dict[str, Any]:
    return {
        "criterion": "silhouette",
        "reason": choice.reason,
        "references": references,
        "scores": [asdict(one) for one in choice.scores],
    }


def _score_lines(scores: list[dict[str, Any]], *, gap: bool) -> list[str]:
    """Return the scores as lines of columns, with a headline before and an empty line after; or also the gaps."""
    names = ["k", "inertia", "silhouette", "± (95 %)", "simplified", "Calinski-Harabasz", "Davies-Bouldin"]
    keys = ["silhouette", "silhouette_error", "simplified_silhouette", "calinski_harabasz", "davies_bouldin"]
    if gap:
        names += ["gap", "± (s.e.)"]
        keys += ["gap", "gap_error"]
    rows = [[f"{one['k']:,}", f"{one['inertia']:.6g}", *(_short(one[key]) for key in keys)] for one in scores]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    return [*("  ".join(map(str.rjust, row, widths)) for row in (names, *rows)), ""]


def _short(number: float | None) -> str:
    return "–" if number is None else f"{number:.4g}"


def _table(summary: dict[str, Any], request: Request) -> dict[str, str]:
    import numpy as np

    low, middle, high = (int(np.quantile(summary["cluster_sizes"], q)) for q in (0, 0.5, 1))
    ended = "converged" if summary["converged"] else "not converged: raise --max-iter"
    shape = f"{summary['n']:,} × {summary['d']:,}"
    return {
        "data": f"{request.data}: {result.how_many(summary['files'])}{shape} {summary['data_dtype']}, computed in "
        f"{summary['dtype']}{result.dropped(summary['missing']['rows_dropped'])}",
        "clusters": f"{summary['k']:,}, of {low:,} to {high:,} rows (median {middle:,})"
        + ("" if summary["sweep"] is None else f": {summary['sweep']['reason']}"),
        "inertia": f"{summary['inertia']:.6g}",
        "iterations": f"{summary['iterations']}, {ended}",
        "device": f"{summary['device']}: {summary['device_reason']}",
        "seconds": seconds_by_phase(summary["seconds"]),
        "written": f"{request.out}/: {', '.join(result.names_in(request.out))}"
        + "".join(f"; {file}" for file in (request.label_file, request.report) if file),
    }
