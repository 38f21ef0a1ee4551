"""Options of ``tsapps kmeans`` that no other command has."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Algorithm",
    "AlgorithmOption",
    "Clusters",
    "ComputeType",
    "Dtype",
    "Force",
    "Init",
    "MaxIter",
    "Metric",
    "MetricOption",
    "OutDirectory",
    "Precision",
    "PrecisionOption",
    "Protect",
    "Runs",
    "Seed",
    "Tolerance",
    "Weights",
]


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


Clusters = Annotated[int, typer.Option("--k", "-k", min=1, show_default=False, help="Number of clusters.")]
Init = Annotated[
    str,
    typer.Option(
        metavar="k-means++|'k-means||'|random|FILE",
        help="First centers: drawn by k-means++, by k-means|| (five passes over DATA, where k-means++ takes k), at "
        "random from the rows, or a file of k rows.",
    ),
]
Runs = Annotated[
    str,
    typer.Option(
        metavar="auto|N",
        help="Runs from different first centers, of which the best is kept; auto: 10 for random, else 1.",
    ),
]
MaxIter = Annotated[int, typer.Option(min=1, help="Iterations of a run at most.")]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0,
        help="End a run when the centers move less than this in all: squared distance, relative to the mean "
        "variance of the columns.",
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random draws: the same seed, the same result.")
]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="One number ≥ 0 a row: its weight.  [default: all weigh 1]")
]
MetricOption = Annotated[Metric, typer.Option(help="cosine: spherical K-means, of rows and centers scaled to norm 1.")]
AlgorithmOption = Annotated[
    Algorithm,
    typer.Option(
        help="On a GPU, rows whose nearest center cannot have changed are left out, with the same result; lloyd: "
        "where that is likely to pay; elkan: wherever it can be done."
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        help="tf32: on a GPU, labels of float32 data are not proved; some rows in ten thousand, about as near to "
        "two centers, may get either."
    ),
]
Protect = Annotated[
    bool,
    typer.Option(
        "--protect",
        help="Check every step, make again what went wrong, and compute the result twice; exit code 3 if the same "
        "step goes wrong again and again.",
    ),
]
ComputeType = Annotated[
    Dtype | None, typer.Option(help="Type to compute in.  [default: float32 for float32 data, else float64]")
]
OutDirectory = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory to write.  [default: <name of DATA>-kmeans, in the current one]"),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier result in DIR.")]
