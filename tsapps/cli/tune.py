"""``tsapps tune``: measure kernel plans on a GPU and store the fastest in the user's tuning table."""

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.options import Json, Quiet, choose
from tsapps.cli.output import live_line, print_json, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import NoDeviceError, UsageError

if TYPE_CHECKING:
    from tsapps.kernels.tune import Cell

__all__ = ["tune"]


class Shape(StrEnum):
    """Shape classes of products in tuning tables."""

    tsm2r = "tsm2r"
    tsm2l = "tsm2l"
    tsmttsm = "tsmttsm"


class Dtype(StrEnum):
    """Element types in tuning tables; bfloat16 uses the configurations of float16."""

    float64 = "float64"
    float32 = "float32"
    float16 = "float16"


class Order(StrEnum):
    """Memory layout of A."""

    row = "row"
    column = "col"


Shapes = Annotated[
    list[Shape] | None,
    typer.Option("--shape", metavar="tsm2r|tsm2l|tsmttsm", help="Shape of products to measure; may be repeated."),
]
Dtypes = Annotated[
    list[Dtype] | None,
    typer.Option(
        "--dtype",
        metavar="float64|float32|float16",
        help="Element type to measure; may be repeated. bfloat16 uses float16's configurations.",
    ),
]
Layouts = Annotated[
    list[Order] | None,
    typer.Option("--layout", metavar="row|col", help="Layout of A to measure, row- or column-major; may be repeated."),
]
Most = Annotated[
    int,
    typer.Option(
        min=1, help="Number of plans measured per product, best predicted first; algorithms of cuBLAS come on top."
    ),
]


def tune(
    shapes: Shapes = None,
    dtypes: Dtypes = None,
    layouts: Layouts = None,
    m: Annotated[int | None, typer.Option("--m", min=1, help="Rows of A and C, for a single product.")] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=1, help="Columns of A and rows of B, for a single product.")
    ] = None,
    w: Annotated[int | None, typer.Option("--w", min=1, help="Columns of B and C, for a single product.")] = None,
    device: Annotated[str, typer.Option("--device", metavar="cuda|cuda:i", help="GPU to measure on.")] = "cuda",
    most: Most = 18,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the products to measure; needs no GPU.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Remove your table for this GPU; measure nothing.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Measure which kernels are fastest on this GPU, for tsapps.matmul and tsapps.gram.

    C (m × w) = A (m × k) · B (k × w), w ≤ 64: tsm2r has m and k large, tsm2l only m, tsmttsm only k. Without options,
    measures some 190 products of up to 2 GB, which takes minutes; --m, --k and --w give a single product. B has the
    layout of A; for tsmttsm, the other one.

    A tuned configuration applies to products of the same shape, type and layout that are no wider, unless a narrower
    configuration applies. Your table overrides the one shipped with tsapps on every GPU of this name. It is written
    after each product: Ctrl-C keeps the measurements made so far.
    """
    show_logs(verbose)
    if reset:
        if shapes or dtypes or layouts or dry_run or (m, k, w) != (None, None, None):
            raise UsageError("--reset removes the whole table of the GPU: it takes no other option than --device")
        _reset(device, as_json=as_json, quiet=quiet)
        return
    cells = _cells(shapes, dtypes, layouts, (m, k, w))
    if dry_run:
        _list(cells, device, most, as_json=as_json)
        return
    _measure(cells, *_gpu(device), most, as_json=as_json, quiet=quiet)


def _measure(cells: list["Cell"], index: int, name: str, most: int, *, as_json: bool, quiet: bool) -> None:
    """Measure plans for each product and write the fastest to the user's table."""
    from tsapps.kernels import tune as tuning
    from tsapps.kernels.plan import user_table
    from tsapps.kernels.system.cache import check_cache_writable

    path = user_table.user_path(name)
    user_table.own_table(name)  # raises an error if the table is damaged, before any measurement
    check_cache_writable(path)
    began = time.perf_counter()
    found: list[dict[str, Any]] = []
    rows = 0
    with live_line(quiet=quiet) as show:

        def report(text: str) -> None:
            show(f"{len(found) + 1} of {len(cells)}: {text}")

        for row in tuning.tune(cells, most=most, index=index, report=report):
            found.append(row)
            rows = user_table.keep(name, row)
    if not found:
        raise ValueError("no product could be measured, and no table was written: see the warnings")
    signals.placed()
    seconds = time.perf_counter() - began
    if as_json:
        summary = {"device": f"cuda:{index}", "name": name, "path": str(path), "rows": rows, "seconds": seconds}
        print_json(summary | {"left_out": len(cells) - len(found), "measured": found})
    elif not quiet:
        ours = sum(row["kernel"] != "library" and "algorithm" not in row for row in found)
        count = f"{len(found)}, and {len(cells) - len(found)} skipped" if len(found) < len(cells) else f"{len(found)}"
        print_table(
            {
                "device": f"cuda:{index}: {name}",
                "products": f"{count}; fastest by kernels of tsapps: {ours}, by cuBLAS: {len(found) - ours}",
                "seconds": f"{seconds:.1f}",
                "written": f"{path}: {rows} rows",
            }
        )


def _cells(
    shapes: list[Shape] | None,
    dtypes: list[Dtype] | None,
    layouts: list[Order] | None,
    sizes: tuple[int | None, int | None, int | None],
) -> list["Cell"]:
    """Return the products to measure: the default products that match the options, or a product of the given sizes."""
    from tsapps.kernels.tune import CELLS, own_cell

    kinds, alongs = list(dtypes or Dtype), [order == Order.row for order in layouts or Order]
    m, k, w = sizes
    if m is None and k is None and w is None:
        wanted = list(shapes or Shape)
        return [cell for cell in CELLS if cell.shape in wanted and cell.dtype in kinds and cell.along in alongs]
    if m is None or k is None or w is None:
        missing = ", ".join(name for name, size in zip(("--m", "--k", "--w"), sizes, strict=True) if size is None)
        raise UsageError(f"{missing} is missing: a single product needs --m, --k and --w")
    if shapes:
        raise UsageError(
            "--shape applies to the default products only: --m, --k and --w determine that of a single product"
        )
    try:
        return [own_cell(m, k, w, str(dtype), along=along) for dtype in kinds for along in alongs]
    except ValueError as error:
        raise UsageError(f"--m {m} --k {k} --w {w}: {error}") from error


def _gpu(device: str) -> tuple[int, str]:
    """Return the index and the name of the requested GPU."""
    from tsapps.kernels.devices import gpus

    choice = choose("cuda" if device == "auto" else device)
    if not choice.is_gpu:
        raise UsageError(f"--device {device}: expected cuda or cuda:<number>: plans are measured on a GPU")
    return choice.index, gpus()[choice.index].name


def _reset(device: str, *, as_json: bool, quiet: bool) -> None:
    from tsapps.kernels.plan import user_table

    index, name = _gpu(device)
    path = user_table.user_path(name)
    with signals.placing():
        removed = user_table.reset(name)
    if as_json:
        print_json({"device": f"cuda:{index}", "name": name, "path": str(path), "removed": removed})
    elif not quiet:
        print_table({"removed": str(path) if removed else f"nothing: there is no {path}"})


def _list(cells: list["Cell"], device: str, most: int, *, as_json: bool) -> None:
    """Print each product with the number of plans to measure; without a GPU, print the maximum of that number."""
    from tsapps.kernels import tune as tuning

    try:
        gpu = tuning.live(_gpu(device)[0])
    except NoDeviceError:
        gpu = None
    plans = [most if gpu is None else len(tuning.promising(cell.problem(), gpu, most)) for cell in cells]
    about = "up to " if gpu is None else ""
    if as_json:
        listed = [{"product": str(cell), "plans": count} for cell, count in zip(cells, plans, strict=True)]
        print_json({"device": gpu and gpu.name, "cells": len(cells), "plans": sum(plans), "products": listed})
        return
    for cell, count in zip(cells, plans, strict=True):
        print(f"{cell}: {about}{count} plans")
    print(f"{len(cells)} products, {about}{sum(plans):,} plans")
