"""Options that only ``tsapps kmeans`` has."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tsapps.cli.help import COMPUTATION, OUTPUT

__all__ = [
    "Algorithm",
    "AlgorithmOption",
    "Clusters",
    "ComputeType",
    "Dtype",
    "Force",
    "Gap",
    "Init",
    "Insecure",
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
    "Workers",
]


class Dtype(StrEnum):
    """Floating-point type that K-means computes in."""

    float32 = "float32"
    float64 = "float64"


class Algorithm(StrEnum):
    """Use of bounds on a GPU: where they are likely to save time (lloyd), or wherever supported (elkan)."""

    lloyd = "lloyd"
    elkan = "elkan"


class Metric(StrEnum):
    """Distance that K-means minimizes."""

    euclidean = "euclidean"
    cosine = "cosine"


class Precision(StrEnum):
    """Whether every label is certified (exact), or float32 labels on a GPU are not (tf32)."""

    exact = "exact"
    tf32 = "tf32"


Clusters = Annotated[
    str,
    typer.Option(
        "--k",
        "-k",
        metavar="N|A:B|A:B:STEP|A:B:log",
        show_default=False,
        help="Number of clusters; or several, from A to B, of which the best is kept by its silhouette. log: each some "
        "1.4 times the one before.",
    ),
]
Gap = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="B",
        show_default=False,
        help="With several k: add the gap statistic, from fits of B uniform data sets of the size of DATA, each in "
        "memory and for every k.",
    ),
]
Init = Annotated[
    str,
    typer.Option(
        metavar="k-means++|'k-means||'|random|FILE",
        help="Initial centers: k-means++, k-means|| (five passes over DATA instead of k), random rows, or a file of k "
        "rows.",
    ),
]
Runs = Annotated[
    str,
    typer.Option(
        metavar="auto|N",
        help="Number of runs with different initial centers, of which the best is kept; auto: 10 for random, else 1.",
    ),
]
MaxIter = Annotated[int, typer.Option(min=1, help="Maximum number of iterations of a run.")]
Tolerance = Annotated[
    float,
    typer.Option(
        min=0,
        help="Tolerance: a run ends when the sum of squared center shifts is at most this times the mean variance of "
        "the columns, or when no label changes.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=2**32 - 1, help="Seed of the random draws: on one device, the same seed gives the same result."
    ),
]
Weights = Annotated[
    str | None, typer.Option(metavar="FILE", help="Weights of the rows, one number ≥ 0 per row.  [default: all are 1]")
]
MetricOption = Annotated[
    Metric, typer.Option(help="Distance; cosine: spherical K-means, with rows and centers scaled to norm 1.")
]
AlgorithmOption = Annotated[
    Algorithm,
    typer.Option(
        help="Bounds on a GPU skip rows whose nearest center cannot have changed; results are identical. lloyd: use "
        "bounds when they are likely to save time; elkan: use them whenever they are supported.",
        rich_help_panel=COMPUTATION,
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        help="Certification of labels; tf32: on a GPU, labels of float32 data are not certified, and some in ten "
        "thousand, of rows almost equally near two centers, may be wrong.",
        rich_help_panel=COMPUTATION,
    ),
]
Protect = Annotated[
    bool,
    typer.Option(
        "--protect",
        help="Check every iteration and the result for errors of the hardware, and recompute what fails a check; "
        "exits with 3 if the same step fails repeatedly.",
        rich_help_panel=COMPUTATION,
    ),
]
ComputeType = Annotated[
    Dtype | None,
    typer.Option(
        help="Type to compute in.  [default: float32 for float32 data, else float64]", rich_help_panel=COMPUTATION
    ),
]
OutDirectory = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Output directory.  [default: <name of DATA>-kmeans, in the current directory]",
        rich_help_panel=OUTPUT,
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Replace an earlier result in DIR.",
        rich_help_panel=OUTPUT,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Scheduler of a Dask cluster, for example tls://scheduler:8786. Each worker opens DATA for itself and "
        "reads its rows, so all machines need the files; centers and sums of clusters are exchanged, and in the end "
        "the labels. With --device cuda, each worker computes on its GPU. Whoever reaches a scheduler can run code on "
        "its workers, so use TLS.",
        rich_help_panel=COMPUTATION,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Allow a --workers address of another machine without TLS.", rich_help_panel=COMPUTATION
    ),
]
