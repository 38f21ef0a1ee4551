"""Arguments of ``tsapps kmeans``: validation, and reading of the files that the arguments name."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsapps.cli import result
from tsapps.cli.column_options import Missing, PreparedData, open_data, opening_of
from tsapps.cli.label_table import check_label_file
from tsapps.cli.options import check_apart, check_disk_space, check_input, choose, open_fitting
from tsapps.cli.report import check_report
from tsapps.errors import MatrixError, UsageError
from tsapps.names import split_name

if TYPE_CHECKING:
    import numpy as np

    from tsapps.kernels.devices import Choice
    from tsapps.matrix import Matrix

__all__ = ["Inputs", "Request", "number_of_runs", "numbers_of_clusters", "read_inputs"]

# Estimates of the space that a result needs: bytes of an output file besides its elements or cluster sizes, and maximum
# bytes of summary.json per cluster.
_HEADER, _SUMMARY_BYTES = 4096, 24
_MOST_NUMBERS = 1000
_INITS = ("k-means++", "k-means||", "random")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of the command, with ``n_init`` parsed and the default of ``out`` filled in."""

    command: str
    data: str
    ks: tuple[int, ...]
    gap: int
    init: str
    n_init: int | str
    max_iter: int
    tol: float
    seed: int
    weights: str | None
    metric: str
    algorithm: str
    precision: str
    protect: bool
    device: str
    dtype: str | None
    out: Path
    force: bool
    checkpoint: Path | None
    workers: str | None
    insecure: bool
    allow_external: bool
    header: bool | None
    index: bool | None
    columns: str | None
    exclude: str | None
    identifier: str | None
    scale: str
    missing: str
    decimal: str
    label_file: Path | None
    distances: bool
    report: Path | None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Request":
        """Return the request with these members by name; other names are ignored."""
        return cls(**{member.name: given[member.name] for member in fields(cls)})

    @property
    def k(self) -> int:
        """The largest number of clusters."""
        return self.ks[-1]

    @property
    def device_here(self) -> str:
        """The device of this process: with `workers`, `device` is that of each worker."""
        return self.device if self.workers is None else "cpu"

    @property
    def init_file(self) -> str | None:
        """Return the file of the initial centers; None if the initial centers are drawn from the rows."""
        return None if self.init in _INITS else self.init

    def other_files(self) -> list[str]:
        """Return the paths of the input files besides the data, without names of arrays."""
        return [split_name(path)[0] for path in (self.weights, self.init_file) if path]

    def check(self) -> None:
        """Raise `UsageError` for errors that can be found without reading a file."""
        check_input(self.data, several=True)
        if self.weights is not None:
            check_input(self.weights)
        if self.init_file is not None and not os.path.exists(split_name(self.init_file)[0]):
            raise UsageError(
                f"--init {self.init}: expected k-means++, k-means||, random or a file of k rows, and there is no such "
                f"file"
            )
        if self.init_file is not None:
            check_input(self.init_file)
        check_apart(
            {"--labels": self.label_file, "--report": self.report},
            files=self.other_files(),
            directories={"--out": self.out, "--checkpoint": self.checkpoint},
        )
        several = {
            "--weights": self.weights,
            "--checkpoint": self.checkpoint,
            "--workers": self.workers,
            "--init FILE": self.init_file,
        }
        if len(self.ks) > 1 and (given := next((name for name, value in several.items() if value), None)):
            raise UsageError(f"--k: several numbers of clusters cannot be tried with {given}: name one")
        if self.gap and (len(self.ks) == 1 or self.metric != "euclidean"):
            raise UsageError(f"--gap {self.gap}: needs several numbers of clusters and --metric euclidean: drop it")
        if not self.tol < float("inf"):
            raise UsageError(f"--tol {self.tol}: expected a finite number, at least 0")
        result.check_place(self.out, force=self.force)
        identifier, distances = self.identifier, self.distances
        check_label_file(self.label_file, force=self.force, identifier=identifier, distances=distances)
        check_report(self.report, force=self.force)
        if self.checkpoint is not None:
            out, checkpoint = (Path(os.path.realpath(path)) for path in (self.out, self.checkpoint))
            if checkpoint in (out, *out.parents) or out in checkpoint.parents:
                raise UsageError(
                    f"--checkpoint {self.checkpoint}: overlaps --out {self.out}: name separate directories"
                )


@dataclass(frozen=True)
class Inputs:
    """The data, the device to compute on, the initial centers or the method that draws them, and the weights."""

    data: PreparedData
    choice: "Choice"
    first_centers: "str | np.ndarray"
    sample_weight: "np.ndarray | None"

    @property
    def matrix(self) -> "Matrix":
        """The rows and columns that are clustered."""
        return self.data.matrix


def number_of_runs(n_init: str) -> int | str:
    """Parse ``--n-init``: "auto", or a number of runs."""
    if n_init == "auto":
        return n_init
    if not n_init.isdecimal() or int(n_init) < 1:
        raise UsageError(f"--n-init {n_init}: expected auto or a number of runs, at least 1")
    return int(n_init)


def numbers_of_clusters(text: str) -> tuple[int, ...]:
    """Parse ``--k``: a number, or numbers from A to B, ascending."""
    parts = text.split(":")
    numbers = [int(part) for part in parts if part.isascii() and part.isdecimal() and 0 < int(part) < 1 << 31]
    is_log = len(parts) == 3 and parts[2] == "log"
    if len(numbers) != len(parts) - is_log or len(parts) > 3 or (len(parts) > 1 and numbers[0] > numbers[1]):
        raise UsageError(f"--k {text}: expected a number such as 8, or several such as 2:20, 2:20:3 or 2:200:log")
    if len(parts) == 1:
        return (numbers[0],)
    first, last = numbers[:2]
    if not is_log and (last - first) // (*numbers[2:], 1)[0] >= _MOST_NUMBERS:
        raise UsageError(f"--k {text}: are more than {_MOST_NUMBERS:,} numbers; expected fewer: give a step, or log")
    if not is_log:
        return tuple(range(first, last + 1, *numbers[2:]))
    found = [first]
    while found[-1] < last:
        found.append(min(last, max(found[-1] + 1, round(found[-1] * 2**0.5))))
    return tuple(found)


def read_inputs(request: Request) -> Inputs:
    """Open the data; check it against k, the device and the disk; read initial centers and weights from their files."""
    k, external = request.k, request.allow_external
    opening = opening_of(
        columns=request.columns,
        exclude=request.exclude,
        identifier=request.identifier,
        missing=Missing(request.missing),
        decimal=request.decimal,
        header=request.header,
        index=request.index,
        allow_external=external,
    )
    data = open_data(request.data, opening, request.scale, request.missing)
    read = [file for file, _ in data.matrix.files]
    check_apart({"--labels": request.label_file, "--report": request.report}, files=read, directories={})
    n, d = data.matrix.shape
    choice = choose(request.device_here, resident=data.matrix.device, several=True)
    if k > n:
        raise UsageError(f"--k {k}: {request.data} has {n} rows; expected at most as many clusters as rows: lower --k")
    check_disk_space(request.out, _HEADER + 4 * data.rows, _HEADER + 8 * k * d, _HEADER + _SUMMARY_BYTES * k)
    path = request.init_file
    first_centers: str | np.ndarray = request.init
    if path is not None:
        first_centers = data.scaled(_read_first_centers(path, k, data.matrix, allow_external=external))
    weights = None if request.weights is None else _read_weights(request.weights, data.rows, allow_external=external)
    if weights is not None and data.kept is not None:
        weights = weights[data.kept]
    return Inputs(data, choice, first_centers, weights)


def _read_first_centers(path: str, k: int, data: "Matrix", *, allow_external: bool) -> "np.ndarray":
    """Read centers; their columns are those with the names of the data's columns, if the file has all of these."""
    from tsapps.matrix.prepared import PickedColumns

    d, wanted = data.shape[1], data.column_names
    matrix = open_fitting(path, lambda shape: shape == (k, d), allow_external=allow_external)
    names = matrix.column_names
    if wanted is not None and names is not None and set(wanted) <= set(names):
        matrix = PickedColumns(matrix, [names.index(name) for name in wanted])
    if matrix.shape != (k, d):
        raise UsageError(
            f"--init {path}: is {matrix.shape[0]} × {matrix.shape[1]}; expected k × d, {k} × {d}: one row a center"
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
        raise MatrixError(f"{path}: every weight is 0; expected at least one positive weight")
    return found


def _open_column(path: str, n: int, *, allow_external: bool) -> "Matrix":
    """Open a matrix of n numbers, or a one-dimensional .npy file as a matrix of one column."""
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
