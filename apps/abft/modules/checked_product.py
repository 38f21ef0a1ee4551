"""Launches of products that check themselves (checked_product.cuh): forward products of bfloat16 on Hopper.

The product and its check take two launches. A and C are not read again after the product, as `row_check` (launch.py)
does for products that a library has computed. Results may differ from the library's in the last bit.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from tsapps.apps.abft.modules.bounds import LinearBounds
from tsapps.apps.abft.modules.faults import FaultLog
from tsapps.apps.abft.modules.launch import CHANGED_WORDS, FOLDER, ProductLayout, check_args
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.square_gemm import TILE_COLUMNS, SquareGemm, column_tiles, is_supported, utilization

__all__ = [
    "ALIGNMENT",
    "KERNELS",
    "PARTIAL_RESIDUALS",
    "PARTS",
    "ROW_RESIDUALS",
    "can_check",
    "checked_product",
    "is_faster",
    "n_partials",
    "split",
]

#: The C++ classes `PartialResiduals` and `RowResiduals` (checked_product.cuh) as NumPy structures.
PARTIAL_RESIDUALS = np.dtype([("sums", "u8"), ("squares", "u8"), ("pitch", "i8")])
ROW_RESIDUALS = np.dtype([("weights", "u8"), ("bias", "u8"), ("to", PARTIAL_RESIDUALS), ("m", "i4"), ("n", "i4")])
#: The kernels beside the product; {0} is the element type.
KERNELS = "check_residuals<{0}>", "split_checksums<{0}>"
#: Tests replace it by one that causes faults.
_EPILOGUE = Epilogue("apps/abft/modules/checked_product.cuh", "abft::RowResiduals<{0}>", ROW_RESIDUALS)
#: Parts of a checksum and of a weight.
PARTS = 3
# The epilogue's shared memory: rows of 16-bit weights of a tile's columns, with 16 bytes between them, and biases.
_SHARED_BYTES = (PARTS + 2) * 2 * TILE_COLUMNS + (PARTS + 1) * 16
_SPLIT_THREADS, _CHECK_THREADS, _CHECK_ROWS, _CHECK_BLOCKS = 256, 256, 64, 2
# Below it, libraries find tiles that fit better. Measured on an H200: above, a product took 0.7 to 1.02 times as long.
_LEAST_UTILIZATION = 0.9
#: Addresses of operands are multiples of so many bytes.
ALIGNMENT = 16


def can_check(gpu: GpuSpec, layout: ProductLayout) -> bool:
    """Return whether `checked_product` can compute products of a layout.

    With a single column tile, a wrong copy of A would change the product and its check alike.
    """
    (a, of_a), (of_b, b), (c, of_c) = layout.a, layout.b, layout.c
    shape, has_rows = (layout.m, layout.w, layout.k), of_a == of_b == of_c == 1
    several = column_tiles(layout.w) > 1
    return layout.dtype == "bfloat16" and has_rows and several and is_supported(gpu, layout.dtype, shape, (a, b, c))


def is_faster(gpu: GpuSpec, layout: ProductLayout) -> bool:
    """Return whether `checked_product` takes less time than a library's product and `launch.row_check`."""
    return utilization(layout.m, layout.w, gpu.multiprocessors) >= _LEAST_UTILIZATION


def n_partials(layout: ProductLayout) -> int:
    """Return the number of partial residuals of a product, and of their squares: float32."""
    return 2 * column_tiles(layout.w) * layout.m


def _kernel(machine: Machine, number: int, dtype: str) -> Any:
    names = [f"abft::{name}".format(ELEMENT[dtype]) for name in KERNELS]
    return machine.kernels(FOLDER / "checked_product.cuh", *names)[number]


def split(machine: Machine, stream: int, dtype: str, k: int, x: int, parts: int) -> None:
    """Launch split_checksums: write the parts of k checksums at address `x` to an array (`SIDE_ROWS`, k)."""
    kernel = _kernel(machine, 1, dtype)
    with machine.current():
        given = np.uint64(x), np.int64(k), np.uint64(parts)
        machine.bind(kernel, (-(-k // _SPLIT_THREADS),), (_SPLIT_THREADS,), given, dependent=False).on(stream)


def checked_product(
    machine: Machine, layout: ProductLayout, bounds: LinearBounds, log: FaultLog, repairs: bool
) -> Callable[..., None]:
    """Return a function that computes, checks and repairs products of one layout.

    Parameters
    ----------
    machine, layout, bounds, log, repairs
        As for `launch.row_check`; `can_check` is true for the layout.

    Returns
    -------
    callable
        Called with a stream, and the addresses of the parts of the checksums (`split`), of the weights, and of memory
        for `n_partials` numbers; then with what the function of `launch.row_check` takes after the stream. Weights are
        an array (`PARTS` + 1, w) of the products' dtype: v split into parts, then v². The addresses of the operands, of
        the bias and of the weights are multiples of `ALIGNMENT`.
    """
    m, k, n = layout.m, layout.k, layout.w
    tiles, element = column_tiles(n), ELEMENT[layout.dtype]
    partials = structure(PARTIAL_RESIDUALS, sums=None, squares=None, pitch=m)
    values = structure(ROW_RESIDUALS, weights=None, bias=None, to=partials, m=m, n=n)
    epilogue = Epilogue(_EPILOGUE.header, _EPILOGUE.name.format(element), _EPILOGUE.arguments)
    strides = layout.a[0], layout.b[1], layout.c[0]
    given = machine, layout.dtype, (m, n, k), strides, epilogue, values
    gemm = SquareGemm(*given, epilogue_shared_bytes=_SHARED_BYTES, side=True)
    blocks = min(-(-m // _CHECK_ROWS), _CHECK_BLOCKS * machine.gpu.multiprocessors)
    arguments = check_args(layout, bounds, log, repairs), partials, np.int32(tiles)
    with machine.current():
        check = machine.bind(_kernel(machine, 0, layout.dtype), (blocks,), (_CHECK_THREADS,), arguments)
    lock = Lock()

    def run(stream: int, parts: int, weights: int, sums: int, a: int, c: int, b: int, bias: int, *rest: int) -> None:
        squares = sums + 4 * tiles * m
        with lock:  # around both launches: the check uses the sums of this product
            gemm(stream, a, b, c, parts, (weights, bias, sums, squares))
            for word, value in zip(CHANGED_WORDS, (a, c, b, bias, *rest), strict=True):
                check.change(0, value, word)
            check.change(1, sums)
            check.change(1, squares, 1)
            check.on(stream)

    return run
