"""``tsapps compile``: compile the GPU kernels of K-means before they are needed."""

import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from tsapps import signals
from tsapps.cli import kmeans_options
from tsapps.cli.options import Json, Quiet, choose
from tsapps.cli.output import live_line, print_json, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import UsageError

__all__ = ["compile_kernels"]


class Init(StrEnum):
    """Method that draws initial centers; only k-means++ has kernels that no other method has."""

    plus_plus = "k-means++"
    parallel = "k-means||"
    random = "random"


class DataType(StrEnum):
    """Type of the data on the GPU."""

    float32 = "float32"
    float64 = "float64"
    float16 = "float16"
    bfloat16 = "bfloat16"


Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="N,D,K",
        show_default=False,
        help="Rows and columns of the data, and number of clusters; may be repeated.  [default: 1000000,16,16, "
        "1000000,128,64 and 1000000,128,1000]",
    ),
]
Dtypes = Annotated[
    list[DataType] | None,
    typer.Option(
        "--dtype",
        metavar="float32|float64|float16|bfloat16",
        show_default=False,
        help="Type of the data on the GPU; may be repeated. Files and arrays in host memory are float32 there if they "
        "are float32 or 16-bit, else float64.  [default: float32]",
    ),
]
InitOption = Annotated[
    Init,
    typer.Option(
        metavar="k-means++|'k-means||'|random",
        help="Initial centers. For centers from a file, give random: neither has kernels of its own.",
    ),
]
GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        show_default=False,
        help="Compile for this GPU, such as H100 or RTX 4090, instead of one in this machine; needs no GPU, only CuPy.",
    ),
]


def compile_kernels(
    shapes: Shapes = None,
    dtypes: Dtypes = None,
    init: InitOption = Init.plus_plus,
    algorithm: kmeans_options.AlgorithmOption = kmeans_options.Algorithm.lloyd,
    precision: kmeans_options.PrecisionOption = kmeans_options.Precision.exact,
    protect: Annotated[bool, typer.Option("--protect", help="Also compile the checks of kmeans --protect.")] = False,
    weighted: Annotated[bool, typer.Option("--weighted", help="Also compile for rows with weights.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="cuda|cuda:i", help="GPU to compile for.")] = "cuda",
    gpu: GpuName = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Compile the kernels of K-means for the given shapes, so that the first fit on a GPU need not.

    Writes them to the cache that tsapps info shows. They serve tsapps kmeans, tsapps predict and TSKMeans, both
    metrics, and any values: a few kernels are compiled that not all data need. Other numbers of rows mostly use the
    same kernels; other numbers of columns or clusters mostly do not.

    With --gpu, a login node compiles for the nodes of a cluster, if they share the cache directory, tsapps and CuPy.
    """
    show_logs(verbose)
    wanted = [_parsed(text) for text in shapes or ()]
    if gpu is None:
        index = _index_of(device)
        place = f"cuda:{index}"
    else:
        _check_name(gpu)
        if device != "cuda":
            raise UsageError("--gpu names a GPU that need not be in this machine: it excludes --device")
        place = gpu

    from tsapps.apps.kmeans.engines.compile_kernels import COMMON_SHAPES
    from tsapps.apps.kmeans.engines.compile_kernels import compile_kernels as compile_for

    began = time.perf_counter()
    found: list[dict[str, Any]] = []
    with live_line(quiet=quiet) as show:
        for n, d, k in wanted or COMMON_SHAPES:
            for dtype in dtypes or [DataType.float32]:
                show(f"{n:,} × {d:,} {dtype}, k = {k:,}")
                start = time.perf_counter()
                some = compile_for(
                    n,
                    d,
                    k,
                    dtype=dtype,
                    init=init,
                    algorithm=algorithm,
                    precision=precision,
                    protect=protect,
                    weighted=weighted,
                    device=device,
                    gpu=gpu,
                )
                seconds = time.perf_counter() - start
                found.append({"n": n, "d": d, "k": k, "dtype": str(dtype), "seconds": seconds, "sources": some})
    signals.placed()
    _report(found, place, time.perf_counter() - began, as_json=as_json, quiet=quiet)


def _parsed(text: str) -> tuple[int, int, int]:
    """Parse ``--shape``: the numbers n, d and k."""
    numbers = text.split(",")
    if len(numbers) != 3 or not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--shape {text}: expected rows, columns and clusters, such as 1000000,128,64")
    n, d, k = map(int, numbers)
    if min(n, d, k) < 1 or k > n:
        raise UsageError(f"--shape {text}: expected at least 1 of each, and at most as many clusters as rows")
    return n, d, k


def _index_of(device: str) -> int:
    choice = choose("cuda" if device == "auto" else device)
    if not choice.is_gpu:
        raise UsageError(f"--device {device}: expected cuda or cuda:<number>: the CPU needs no kernels")
    return choice.index


def _check_name(gpu: str) -> None:
    from tsapps.apps.kmeans.engines.compile_kernels import GPUS

    if gpu not in GPUS:
        raise UsageError(f"--gpu {gpu}: expected one of {', '.join(GPUS)}: for another GPU, run this on its machine")


def _report(found: list[dict[str, Any]], place: str, seconds: float, *, as_json: bool, quiet: bool) -> None:
    """Print what was compiled for each shape, and the total."""
    from tsapps.kernels.system.cache import cache_directory

    cache = cache_directory() / "cubin"
    compiled = sum(not one.was_cached for shape in found for one in shape["sources"])
    if as_json:
        shapes = [shape | {"sources": [_as_dict(one) for one in shape["sources"]]} for shape in found]
        print_json({"device": place, "cache": str(cache), "compiled": compiled, "seconds": seconds, "shapes": shapes})
    elif not quiet:
        rows = {f"{one['n']:,} × {one['d']:,} {one['dtype']}, k = {one['k']:,}": _line(one) for one in found}
        print_table(rows | {"total": f"{seconds:.2f} s, {compiled} compiled for {place}", "cache": str(cache)})


def _line(shape: dict[str, Any]) -> str:
    """Return how long a shape took, and which kernel took longest."""
    fresh = [one for one in shape["sources"] if not one.was_cached]
    if not fresh:
        return f"{shape['seconds']:.2f} s, all {len(shape['sources'])} in the cache"
    longest = max(fresh, key=lambda one: one.seconds)
    counts = f"{len(fresh)} compiled, {len(shape['sources']) - len(fresh)} in the cache"
    return f"{shape['seconds']:.2f} s, {counts}; longest: {longest.source} {longest.seconds:.2f} s"


def _as_dict(one: Any) -> dict[str, Any]:
    return {"source": one.source, "kernels": one.kernels, "seconds": one.seconds, "was_cached": one.was_cached}
