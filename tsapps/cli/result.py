"""The output directory of ``tsapps kmeans``, the model that ``tsapps predict`` reads.

All files of the directory are written, or none.

labels.npy
    int32, shape (n,): the cluster of every row.
centers.npy
    Shape (k, d), in the dtype of the computation; float64 if float32 would round the centers too coarsely.
centers.csv
    The same with the names of the columns and in the units of the data, if columns have names or were scaled.
summary.json
    Parameters of the run, and the quality of the clustering.
"""

import os
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsapps.cli.output_directory import check_output_directory, written_whole
from tsapps.errors import MatrixError, UsageError
from tsapps.kernels.system.strict_json import JsonError, read_json

if TYPE_CHECKING:
    from tsapps.matrix import Matrix

__all__ = [
    "KIND",
    "SCHEMA",
    "check_place",
    "dropped",
    "files_of",
    "how_many",
    "names_in",
    "new_directory",
    "read_labels",
    "read_model",
]

#: Values of "kind" and "schema" in summary.json; docs/reference/kmeans-summary.schema.json describes it.
KIND, SCHEMA = "tsapps kmeans", 1

# Maximum valid size of summary.json in bytes; the file has some ten bytes per cluster.
_MOST_SUMMARY = 1 << 26

# In the order in which they are listed.
_FILES = ("labels.npy", "centers.npy", "centers.csv", "summary.json")


def check_place(directory: Path, *, force: bool) -> None:
    """Check that a result may be written to `directory`.

    Raises
    ------
    UsageError
        If `directory` exists and `force` is not set, if it is neither an earlier result nor an empty directory, or if
        its parent is not writable.
    """
    what = "does not belong to a kmeans result: --force replaces only such results"
    replaces = check_output_directory(directory, _FILES, _FILES.__contains__, what, force=force)
    if replaces and os.listdir(directory) and not _is_result(directory):
        raise UsageError(f"{directory}: is not a kmeans result (by its summary.json): choose another --out")


def names_in(directory: Path) -> list[str]:
    """Return the names of the files of a result."""
    return [name for name in _FILES if (directory / name).exists()]


def _is_result(directory: Path) -> bool:
    """Return whether a directory holds a summary.json that ``tsapps kmeans`` wrote."""
    try:
        return _read_summary(directory) is not None
    except MatrixError:
        return False


def _read_summary(directory: Path) -> dict[str, Any] | None:
    """Return the contents of summary.json, or None if there is no such file.

    Raises
    ------
    MatrixError
        If summary.json is damaged, or ``tsapps kmeans`` did not write it.
    """
    path = directory / "summary.json"
    try:
        summary = read_json(path, _MOST_SUMMARY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except JsonError as error:
        raise MatrixError(f"{error}: it is damaged: run tsapps kmeans again") from error
    if not isinstance(summary, dict) or summary.get("kind") != KIND:
        raise MatrixError(f'{path}: is not a summary of tsapps kmeans (its "kind" is not "{KIND}"): name its --out')
    return summary


def new_directory(directory: Path, *, force: bool, mode: int = 0o666) -> AbstractContextManager[Path]:
    """Return a context in which a result is written; see `written_whole`. `check_place` is called again at its end."""
    return written_whole(directory, _FILES, partial(check_place, directory, force=force), mode)


def files_of(matrix: "Matrix") -> list[dict[str, Any]] | None:
    """Return the path and the number of rows of each file of a matrix that has several; None for any other."""
    files = [{"file": os.path.abspath(path), "rows": rows} for path, rows in matrix.files]
    return files if len(files) > 1 else None


def dropped(count: int) -> str:
    """Return the number of rows that were left out, for a line on a matrix: ", 2 rows dropped", or nothing."""
    return f", {count:,} rows dropped" if count else ""


def how_many(files: list[dict[str, Any]] | None) -> str:
    """Return the number of files for a line on a matrix, such as "12 files, "; nothing for a single file."""
    return "" if files is None else f"{len(files):,} files, "


def read_labels(directory: Path, k: int) -> Any:
    """Return the labels of a result, a `numpy.ndarray` of int32, from -1 to k − 1.

    Raises
    ------
    MatrixError
        If labels.npy is missing or damaged.
    """
    import numpy as np

    path = directory / "labels.npy"
    try:
        labels = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise MatrixError(f"{path}: cannot be read ({error}): run tsapps kmeans again") from error
    if labels.dtype != np.int32 or labels.ndim != 1 or not len(labels) or not (labels.min() >= -1 and labels.max() < k):
        raise MatrixError(f"{path}: does not hold labels of {k} clusters: run tsapps kmeans again")
    return labels


def read_model(directory: Path) -> tuple[Any, dict[str, Any]]:
    """Return the centers, a `numpy.ndarray` of shape (k, d), and the summary of a result.

    Raises
    ------
    UsageError
        If `directory` holds no summary.json.
    MatrixError
        If summary.json is damaged or was not written by ``tsapps kmeans``, or if the files do not match.
    """
    import numpy as np

    from tsapps.apps.kmeans.open_engine import METRICS
    from tsapps.matrix import open_matrix

    summary = _read_summary(directory)
    if summary is None:
        raise UsageError(f"{directory}: is not a result of tsapps kmeans (it has no summary.json): name its --out")
    matrix = open_matrix(directory / "centers.npy")
    expected = (summary.get("k"), summary.get("d"), summary.get("dtype"))
    narrow = expected[2] == "float32" and matrix.dtype == np.float64
    found = (*matrix.shape, "float32" if narrow else str(matrix.dtype))
    if found != expected or matrix.dtype not in (np.float32, np.float64):
        raise MatrixError(
            f"{matrix.name}: is {matrix.shape[0]} × {matrix.shape[1]} {matrix.dtype}, but summary.json next to it says "
            f"{f'{expected[0]} × {expected[1]} {expected[2]}'[:80]}: run tsapps kmeans again"
        )
    if summary.setdefault("metric", METRICS[0]) not in METRICS:
        raise MatrixError(
            f"{directory / 'summary.json'}: says the metric {str(summary['metric'])[:40]!r}; expected one of "
            f"{', '.join(METRICS)}: run tsapps kmeans again"
        )
    return matrix.read(), summary
