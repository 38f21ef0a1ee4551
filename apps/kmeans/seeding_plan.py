"""How a step of k-means++ goes through X on a GPU, chosen from sizes alone."""

from dataclasses import dataclass

from tsapps.kernels.device import Device

__all__ = ["MOST_TRIALS", "SeedingPlan", "seeding_plan"]

#: Candidates a step that the kernels have registers for: enough for 59,874 clusters.
MOST_TRIALS = 12
# Of try_candidates: its warps and blocks a multiprocessor.
_WARP, _BLOCKS = 32, 2
# Rows of so many elements are shared by a whole warp, so many columns at a time (kStretch).
_LONG, _STRETCH = 512, 1024
# The most lanes that share a shorter row; each has two vectors of it or more, where the row has.
_MOST_LANES = 8
# float32 rows that a lane takes together, of up to so many points and of more (kTryRows).
_FEW, _ROWS_OF_FEW, _ROWS_OF_MORE = 8, 4, 2
# Chunks at most: with more, the sums of chunks take long to read; with fewer, the rows of one.
_MOST_CHUNKS = 1 << 14
# Bytes of shared memory that the system keeps of every block, and of what draw_candidates and others declare.
_RESERVED = 1024


@dataclass(frozen=True)
class SeedingPlan:
    """How the kernels of seeding.cuh are instantiated and launched.

    Attributes
    ----------
    trials : int
        Candidates a step.
    lanes : int
        That share a row.
    aligned : bool
        Whether lanes read 16 bytes at a time.
    chunk, chunks : int
        Rows of one sum, and how many sums there are.
    window : int
        Columns of the candidates in shared memory.
    shared_bytes : int
        Dynamic shared memory of try_candidates.
    """

    trials: int
    lanes: int
    aligned: bool
    chunk: int
    chunks: int
    window: int
    shared_bytes: int

    def kernel(self, name: str, scalar: str, *, weighted: bool) -> str:
        """Return the name expression of a kernel for data of the C++ type `scalar`."""
        flags = f"{str(self.aligned).lower()}, {str(weighted).lower()}"
        return f"{name}<{scalar}, {self.trials}, {self.lanes}, {flags}>"


def seeding_plan(n: int, d: int, trials: int, itemsize: int, *, aligned: bool, device: Device) -> SeedingPlan | None:
    """Choose how a step is computed; None where the kernels have no room for it.

    Parameters
    ----------
    n, d : int
    trials : int
        Candidates a step.
    itemsize : {4, 8}
        Bytes of an element.
    aligned : bool
        Whether rows begin at multiples of 16 bytes.
    device : Device

    Notes
    -----
    The sums are added in an order that `n`, `d`, `trials`, `itemsize` and `aligned` decide: the device has no say.
    """
    if not 1 <= trials <= MOST_TRIALS:
        return None
    points, vector = trials + 1, 16 // itemsize if aligned else 1
    lanes = _WARP
    if d < _LONG:
        lanes = 1
        while lanes < _MOST_LANES and 4 * lanes * vector <= d:
            lanes *= 2
    together = (_ROWS_OF_FEW if points <= _FEW else _ROWS_OF_MORE) * 4 // itemsize
    rows = together * _WARP // lanes
    chunk = rows * -(-n // (rows * _MOST_CHUNKS))
    window = _window(d, points * itemsize, device)
    if window is None:
        return None
    return SeedingPlan(trials, lanes, aligned, chunk, -(-n // chunk), window, window * points * itemsize)


def _window(d: int, column: int, device: Device) -> int | None:
    """Return the columns, of `column` bytes each, that fit: in as many blocks as can be resident, else in one."""
    for room in (device.shared_memory // _BLOCKS - _RESERVED, device.shared_memory_per_block):
        fit = min(room, device.shared_memory_per_block) // column
        if d <= fit:
            return d
        if fit >= _STRETCH:
            return fit // _STRETCH * _STRETCH
    return None
