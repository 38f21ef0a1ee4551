"""``tsapps kmeans``: cluster the rows of a matrix."""

import json
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps.cli import result
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
    check_room,
    choose,
    open_fitting,
    stem,
)
from tsapps.cli.output import live_line, print_json, print_table, seconds_by_phase
from tsapps.errors import CorruptionError, MatrixError, UsageError
from tsapps.names import split_name

if TYPE_CHECKING:
    import numpy as np

    from tsapps.apps.kmeans.lloyd import Progress
    from tsapps.matrix import Matrix

__all__ = ["kmeans"]

# What outputs are larger by than their elements, about; and what summary.json says of a cluster, at most.
_HEADER, _SUMMARY_BYTES = 4096, 24
_INITS = ("k-means++", "k-means||", "random")


class Dtype(StrEnum):
    """The types that K-means can work in."""

    float32 = "float32"
    float64 = "float64"


class Algorithm(StrEnum):
    """How iterations are made."""

    lloyd = "lloyd"
    elkan = "elkan"


class Metric(StrEnum):
    """What K-means compares rows by."""

    euclidean = "euclidean"
    cosine = "cosine"


class Precision(StrEnum):
    """How labels are found."""

    exact = "exact"
    tf32 = "tf32"


def kmeans(
    ctx: typer.Context,
    data: Data,
    k: Annotated[int, typer.Option("--k", "-k", min=1, show_default=False, help="Number of clusters.")],
    init: Annotated[
        str,
        typer.Option(
            metavar="k-means++|'k-means||'|random|FILE",
            help="First centres: drawn by k-means++, by k-means|| (five passes over DATA, where k-means++ takes k), at "
            "random from the rows, or a file of k rows.",
        ),
    ] = "k-means++",
    n_init: Annotated[
        str,
        typer.Option(
            metavar="auto|N",
            help="Runs from different first centres, of which the best is kept; auto: 10 for random, else 1.",
        ),
    ] = "auto",
    max_iter: Annotated[int, typer.Option(min=1, help="Iterations of a run at most.")] = 300,
    tol: Annotated[
        float,
        typer.Option(
            min=0,
            help="End a run when the centres move less than this in all: squared distance, relative to the mean "
            "variance of the columns.",
        ),
    ] = 1e-4,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random draws: the same seed, the same result.")
    ] = 0,
    weights: Annotated[
        str | None, typer.Option(metavar="FILE", help="One number ≥ 0 a row: its weight.  [default: all weigh 1]")
    ] = None,
    metric: Annotated[
        Metric, typer.Option(help="cosine: spherical K-means, of rows and centres scaled to norm 1.")
    ] = Metric.euclidean,
    algorithm: Annotated[
        Algorithm,
        typer.Option(
            help="On a GPU, rows whose nearest centre cannot have changed are left out, with the same result; lloyd: "
            "where that is likely to pay; elkan: wherever it can be done."
        ),
    ] = Algorithm.lloyd,
    precision: Annotated[
        Precision,
        typer.Option(
            help="tf32: on a GPU, labels of float32 data are not proved; some rows in ten thousand, about as near to "
            "two centres, may get either."
        ),
    ] = Precision.exact,
    protect: Annotated[
        bool,
        typer.Option(
            "--protect",
            help="Check every step, make again what went wrong, and compute the result twice; exit code 3 if the same "
            "step goes wrong again and again.",
        ),
    ] = False,
    device: Device = "auto",
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to compute in.  [default: float32 for float32 data, else float64]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory to write.  [default: <name of DATA>-kmeans, in the current one]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier result in DIR.")] = False,
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cluster the rows of DATA into k clusters by exact K-means (Lloyd's algorithm).

    The same seed finds the same clustering as scikit-learn's KMeans. Writes DIR/labels.npy (int32), DIR/centers.npy and
    DIR/summary.json, all of them or none.

    DATA is a matrix of n rows (samples) and d columns (features), which need not fit in memory: .npy .npz .csv .tsv
    .txt .parquet .h5 .hdf5 .safetensors .fbin .f16bin .u8bin .i8bin .ibin .fvecs .bvecs .ivecs; FILE:NAME is an array
    of a file that has several.
    """
    clock = _Clock()
    out = out or Path(f"{stem(data)}-kmeans")
    runs = _number_of_runs(n_init)
    for path in (data, *filter(None, [weights])):
        check_input(path)
    if init not in _INITS and not os.path.exists(split_name(init)[0]):
        raise UsageError(
            f"--init {init}: expected k-means++, k-means||, random or a file of k rows, and there is no such file"
        )
    if not tol < float("inf"):
        raise UsageError(f"--tol {tol}: expected a finite number, at least 0")
    result.check_place(out, force=force)
    choose(device)  # before the imports, which take longer

    import numpy as np

    from tsapps.apps.kmeans import lloyd
    from tsapps.apps.kmeans.open_engine import open_engine
    from tsapps.apps.kmeans.protect.checks import FaultError
    from tsapps.kernels.arrays import to_host
    from tsapps.matrix import open_matrix, replacing, save_npy
    from tsapps.permissions import mode_of_result

    matrix = open_matrix(data, header=header, index=index, allow_external=allow_external)
    n, d = matrix.shape
    choice = choose(device, resident=matrix.device)
    if k > n:
        raise UsageError(f"--k {k}: {data} has {n} rows, and there can be no more clusters than rows: lower --k")
    check_room(out, _HEADER + 4 * n, _HEADER + 8 * k * d, _HEADER + _SUMMARY_BYTES * k)
    first_centers = init if init in _INITS else _read_first_centers(init, k, d, allow_external=allow_external)
    sample_weight = None if weights is None else _read_weights(weights, n, allow_external=allow_external)
    clock.lap("start")

    with live_line(quiet=quiet) as show:
        show(f"reading {data}: {n:,} × {d:,} {matrix.dtype}")
        engine = open_engine(
            matrix,
            dtype=None if dtype is None else np.dtype(dtype),
            sample_weight=sample_weight,
            device=device,
            metric=metric,
            precision=precision,
            bounds=True if algorithm == Algorithm.elkan else None,
        )
        clock.lap("read")
        show(f"{init}: first centres")
        try:
            best = lloyd.fit(
                engine,
                k,
                init=first_centers,
                n_init=runs,
                max_iter=max_iter,
                tol=tol,
                random_state=np.random.RandomState(seed),
                progress=None if quiet else lambda progress: show(_describe(progress)),
                protect=protect,
            )
        except FaultError as error:
            raise CorruptionError(str(error)) from error
        clock.seconds |= best.seconds
        if not np.isfinite(best.inertia):
            raise MatrixError(f"{data}: the inertia overflows float64: scale the data down")
        show(f"writing {out}")
        inputs = [split_name(path)[0] for path in (data, weights, init) if path and path not in _INITS]
        mode = mode_of_result(out, [*inputs, *filter(os.path.isfile, [out / "centers.npy"])])
        with result.new_directory(out, force=force, mode=mode) as directory:
            clock.start_lap()
            save_npy(directory / "labels.npy", to_host(best.labels), mode=mode)
            save_npy(directory / "centers.npy", best.centers, mode=mode)
            clock.lap("write")
            summary: dict[str, Any] = {
                "kind": result.KIND,
                "command": ctx.meta["tsapps.command"],
                "input": os.path.abspath(data),
                "weights": weights and os.path.abspath(weights),
                "n": n,
                "d": d,
                "k": k,
                "data_dtype": str(matrix.dtype),
                "dtype": str(engine.dtype),
                "metric": str(metric),
                "algorithm": str(algorithm),
                "precision": str(precision),
                "protect": protect,
                "faults": best.faults,
                "init": init if init in _INITS else os.path.abspath(init),
                "n_init": runs,
                "max_iter": max_iter,
                "tol": tol,
                "seed": seed,
                "device": engine.device,
                "device_reason": choice.reason,
                "inertia": best.inertia,
                "iterations": best.n_iter,
                "converged": best.converged,
                "cluster_sizes": best.cluster_sizes.tolist(),
                "seconds": clock.seconds | {"total": clock.total()},
                "versions": versions(),
            }
            with replacing(directory / "summary.json", mode=mode) as file:
                file.write(json.dumps(summary, indent=2, allow_nan=False).encode() + b"\n")

    if as_json:
        print_json(summary)
    elif not quiet:
        print_table(_table(summary, data, out, best.cluster_sizes))


class _Clock:
    """Wall time by phase, and since the command began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = self._lap = time.perf_counter()

    def start_lap(self) -> None:
        self._lap = time.perf_counter()

    def lap(self, phase: str) -> None:
        self.seconds[phase] = time.perf_counter() - self._lap
        self.start_lap()

    def total(self) -> float:
        return time.perf_counter() - self._began


def _number_of_runs(n_init: str) -> int | str:
    if n_init == "auto":
        return n_init
    if not n_init.isdecimal() or int(n_init) < 1:
        raise UsageError(f"--n-init {n_init}: expected auto or a number of runs, at least 1")
    return int(n_init)


def _read_first_centers(path: str, k: int, d: int, *, allow_external: bool) -> "np.ndarray":
    matrix = open_fitting(path, lambda shape: shape == (k, d), allow_external=allow_external)
    if matrix.shape != (k, d):
        raise UsageError(
            f"--init {path}: is {matrix.shape[0]} × {matrix.shape[1]}; expected k × d, {k} × {d}: one row a centre"
        )
    return matrix.read()


def _read_weights(path: str, n: int, *, allow_external: bool) -> "np.ndarray":
    matrix = _open_column(path, n, allow_external=allow_external)
    if matrix.shape not in ((n, 1), (1, n)):
        raise UsageError(
            f"--weights {path}: is {matrix.shape[0]} × {matrix.shape[1]}; expected one number for each of the {n} rows"
        )
    found = matrix.read().ravel()
    if found.min() < 0:
        row = int(found.argmin())
        raise MatrixError(f"{path}: the weight of row {row} is {found[row]}; expected numbers ≥ 0")
    if not found.any():
        raise MatrixError(f"{path}: every weight is 0; expected at least one row that counts")
    return found


def _open_column(path: str, n: int, *, allow_external: bool) -> "Matrix":
    """Open a matrix of n numbers, or a .npy file of one dimension as a matrix of one column."""
    from tsapps.matrix.binary import open_elements, read_npy_header
    from tsapps.matrix.watch import FileState

    if path.lower().endswith(".npy") and os.path.isfile(path):
        state = FileState.of(path)
        with open(path, "rb") as file:
            shape, _, dtype = read_npy_header(file, path)
            if len(shape) == 1:
                column = open_elements(path, file.tell(), (shape[0], 1), dtype)
                column.file_state = state
                return column
    return open_fitting(path, lambda shape: shape in ((n, 1), (1, n)), allow_external=allow_external)


def _describe(progress: "Progress") -> str:
    run = f"run {progress.run + 1}, " if progress.run else ""
    return (
        f"{run}iteration {progress.iteration}: inertia {progress.inertia:.6g}, {progress.n_reassigned:,} labels moved"
    )


def _table(summary: dict[str, Any], data: str, out: Path, sizes: "np.ndarray") -> dict[str, str]:
    import numpy as np

    low, middle, high = (int(np.quantile(sizes, q)) for q in (0, 0.5, 1))
    ended = "converged" if summary["converged"] else "not converged: raise --max-iter"
    return {
        "data": f"{data}: {summary['n']:,} × {summary['d']:,} {summary['data_dtype']}, worked on in {summary['dtype']}",
        "clusters": f"{summary['k']:,}, of {low:,} to {high:,} rows (median {middle:,})",
        "inertia": f"{summary['inertia']:.6g}",
        "iterations": f"{summary['iterations']}, {ended}",
        "device": f"{summary['device']}: {summary['device_reason']}",
        "seconds": seconds_by_phase(summary["seconds"]),
        "written": f"{out}/: labels.npy, centers.npy, summary.json",
    }
