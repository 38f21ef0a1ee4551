"""Products C = A · Bᵀ of matrices of which no dimension is small, with an epilogue: launches of gemm_square.cuh."""

from threading import Lock
from typing import Any

import numpy as np

from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.tensor_map import TENSOR_MAP

__all__ = [
    "SIDE_ROWS",
    "SQUARE_OPERANDS",
    "TILE_COLUMNS",
    "SquareGemm",
    "blocks_of",
    "column_tiles",
    "is_supported",
    "utilization",
]

#: The C++ class `SquareOperands` (square/square_pipeline.cuh) as a NumPy structure.
SQUARE_OPERANDS = np.dtype(
    [(name, TENSOR_MAP) for name in ("A", "B", "side")]
    + [(name, "i4") for name in ("m", "n", "k", "has_side")]
    + [("padding", "u8", 6)]
)
#: The number of columns of a tile; that of rows of the side.
TILE_COLUMNS, SIDE_ROWS = 256, 8
_TILE_ROWS, _CHUNK, _THREADS, _CLUSTER, _STORE_COLUMNS = 128, 64, 384, 2, 32
_STORE_BYTES = 64 * 2 * _STORE_COLUMNS
_STAGE_BYTES = (_TILE_ROWS + TILE_COLUMNS + SIDE_ROWS) * 128
_MAP_WORDS = TENSOR_MAP.itemsize // 8
# Two barriers of a stage.
_BARRIER_BYTES = 16
# Addresses and distances of rows are multiples of so many bytes.
_ALIGNMENT = 16
_HEADER = "kernels/square/gemm_square.cuh"


def column_tiles(n: int) -> int:
    """Return the number of tiles that n columns of C have."""
    return -(-n // TILE_COLUMNS)


def blocks_of(m: int, n: int, multiprocessors: int) -> int:
    """Return the number of blocks that compute a product (m × n), one on each multiprocessor or fewer.

    With fewer blocks, the busiest blocks have as many tiles, and the others nearly as many.
    """
    pairs, turns = _pairs_and_turns(m, n, multiprocessors)
    return _CLUSTER * -(-pairs // turns)


def utilization(m: int, n: int, multiprocessors: int) -> float:
    """Return the part of the multiprocessors' time that goes into elements of C (m × n), not into edges of tiles."""
    turns = _pairs_and_turns(m, n, multiprocessors)[1]
    return m * n / (turns * (multiprocessors // _CLUSTER) * _CLUSTER * _TILE_ROWS * TILE_COLUMNS)


def _pairs_and_turns(m: int, n: int, multiprocessors: int) -> tuple[int, int]:
    """Return the number of pairs of tiles, and that of the busiest cluster."""
    pairs = -(-m // (_CLUSTER * _TILE_ROWS)) * column_tiles(n)
    return pairs, -(-pairs // (multiprocessors // _CLUSTER))


def is_supported(gpu: GpuSpec, dtype: str, shape: tuple[int, int, int], row_strides: tuple[int, int, int]) -> bool:
    """Return whether the kernel can compute a product (m × n × k) whose operands have these distances of rows.

    Addresses must be multiples of 16 bytes, which is not tested here.
    """
    (_, n, k), (a, b, c) = shape, row_strides
    regular = a >= k and b >= k and c >= n and all(2 * size % _ALIGNMENT == 0 for size in (n, k, a, b, c))
    return gpu.has_wgmma and dtype in ("float16", "bfloat16") and regular and min(shape) > 0 and max(shape) < 1 << 30


class SquareGemm:
    """The product of matrices with certain sizes and distances of rows, with an epilogue; see gemm_square.cuh.

    Parameters
    ----------
    machine : Machine
    dtype : {"float16", "bfloat16"}
    shape : tuple of int
        m, n and k.
    row_strides : tuple of int
        The distances of the rows of A, B and C in elements.
    epilogue : Epilogue
        A class with the interface in gemm_square.cuh, and without template arguments that the name lacks.
    values : structure
        An instance of the epilogue.
    epilogue_shared_bytes : int
        The epilogue's shared memory for a warpgroup.
    side : bool
        Whether there is a side, a matrix (8 × k).
    stages, stores : int
        Stages of the pipeline, and buffers of C for each of the two warpgroups: at least 2 of each.
    """

    def __init__(
        self,
        machine: Machine,
        dtype: str,
        shape: tuple[int, int, int],
        row_strides: tuple[int, int, int],
        epilogue: Epilogue,
        values: Any,
        *,
        epilogue_shared_bytes: int,
        side: bool,
        stages: int = 4,
        stores: int = 3,
    ) -> None:
        (m, n, k), (of_a, of_b, of_c) = shape, row_strides
        boxes = ((m, k), of_a, _TILE_ROWS), ((n, k), of_b, TILE_COLUMNS // 2), ((SIDE_ROWS, k), k, SIDE_ROWS)
        self._maps = [machine.tensor_map(shape, stride, (rows, _CHUNK)) for shape, stride, rows in boxes]
        self._maps.append(machine.tensor_map((m, n), of_c, (64, _STORE_COLUMNS)))
        source = f'#include "{_HEADER}"\n#include "{epilogue.header}"\n'
        name = f"tsm2::gemm_square<{ELEMENT[dtype]}, {stages}, {stores}, {epilogue.name}>"
        (kernel,) = machine.kernels(source, name)
        shared = stages * (_STAGE_BYTES + _BARRIER_BYTES) + 2 * (stores * _STORE_BYTES + epilogue_shared_bytes)
        kernel.max_dynamic_shared_size_bytes = shared
        empty = np.zeros((), TENSOR_MAP)[()]
        operands = structure(SQUARE_OPERANDS, A=empty, B=empty, side=empty, m=m, n=n, k=k, has_side=int(side))
        grid = (blocks_of(m, n, machine.gpu.multiprocessors),)
        with machine.current():
            given = kernel, grid, (_THREADS,), (operands, empty, values), shared
            self._launch = machine.bind(*given, cluster=_CLUSTER)
        self._lock = Lock()

    def __call__(self, stream: int, A: int, B: int, C: int, side: int, changes: tuple[int, ...]) -> None:
        """Compute a product on a stream.

        Parameters
        ----------
        stream : int
        A, B, C : int
            Addresses, multiples of 16.
        side : int
            The address of the side, or 0.
        changes : tuple of int
            New values of the first 8-byte words of the epilogue.
        """
        of_a, of_b, of_side, of_c = self._maps
        with self._lock:
            for i, (of, at) in enumerate(((of_a, A), (of_b, B), (of_side, side))):
                if at:
                    self._launch.change_words(0, i * _MAP_WORDS, of.at(at))
            self._launch.change_words(1, 0, of_c.at(C))
            for word, value in enumerate(changes):
                self._launch.change(2, value, word)
            self._launch.on(stream)
