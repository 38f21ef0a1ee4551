"""Fault injection into matrices at rest and into sidecars: thousands of faults per matrix, each in a separate block.

A trial encodes a matrix, injects faults and verifies it; the verdict's patches are compared with the original bytes.
One pass gives as many trials as it has faults, and its other blocks count as clean ones.
"""

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.abft import Sidecar, SidecarError, Verdict, encode, read_sidecar, verify
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, fold, layout
from tsapps.apps.abft.at_rest.sidecar import dump_sidecar
from tsapps.bench.abft.campaign import (
    CLEAN,
    DISTRIBUTIONS,
    TRIALS,
    Cell,
    Counts,
    bits_of,
    draw,
    flipped,
)

__all__ = ["Damage", "Matrix", "judged", "try_at_rest", "try_sidecar"]

# Block size of the float code; side of a zeroed square; columns reserved per square in the exact code; zeroed bytes of
# a sidecar.
_BLOCK, _TILE, _BESIDE, _RUN = 256, 16, 16, 64


class Damage(NamedTuple):
    """Corrupted bytes: the trial of each, its offset, and the flipped bits."""

    trials: np.ndarray
    offsets: np.ndarray
    masks: np.ndarray


@dataclass(frozen=True)
class Matrix:
    """Partition of a matrix at rest into independently repaired units: blocks of words, or tiles of elements.

    Attributes
    ----------
    shape : (int, int)
    itemsize : int
    exact : bool
        True for the exact code, False for the float code.
    """

    shape: tuple[int, int]
    itemsize: int
    exact: bool

    @property
    def units(self) -> int:
        """Number of blocks or tiles."""
        if self.exact:
            of = layout(self.shape, self.itemsize)
            return of.stripes * of.width
        return (self.shape[0] // _BLOCK) * (self.shape[1] // _BLOCK)

    def unit(self, offsets: np.ndarray) -> np.ndarray:
        """Return the block or tile of each byte offset."""
        if self.exact:
            width = layout(self.shape, self.itemsize).width
            rows, columns = np.divmod(offsets // WORD, width)
            return rows // ROWS * width + columns
        rows, columns = np.divmod(offsets // self.itemsize, self.shape[1])
        return rows // _BLOCK * (self.shape[1] // _BLOCK) + columns // _BLOCK

    def elements(self, trials: int, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return the offsets of `count` elements per trial, in different rows of the trial's unit, (trials, count)."""
        if self.exact:
            width = layout(self.shape, self.itemsize).width * WORD
            size = max(self.itemsize, WORD)
            stripes, columns = np.divmod(_some(self.units * WORD // size, trials, rng), width // size)
            rows = stripes[:, np.newaxis] * ROWS + _different(ROWS, (trials, count), rng)
            inside = rng.integers(0, size // self.itemsize, (trials, 1)) * self.itemsize
            return rows * width + columns[:, np.newaxis] * size + inside
        bands, sides = np.divmod(_some(self.units, trials, rng), self.shape[1] // _BLOCK)
        rows = bands[:, np.newaxis] * _BLOCK + _different(_BLOCK, (trials, count), rng)
        columns = sides[:, np.newaxis] * _BLOCK + rng.integers(0, _BLOCK, (trials, count))
        return (rows * self.shape[1] + columns) * self.itemsize

    def boxes(self, trials: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int, int]:
        """Return the first rows and columns of boxes that share no unit, and the boxes' height and width."""
        if self.exact and fold(self.shape, self.itemsize) != 1:
            raise ValueError(f"rows of {self.shape[1]} elements are folded; expected a matrix whose rows are not")
        height, width = (ROWS, _BESIDE) if self.exact else (_BLOCK, _BLOCK)
        across = self.shape[1] // width
        rows, columns = np.divmod(_some(self.shape[0] // height * across, trials, rng), across)
        return rows * height, columns * width, height, width


def _some(of: int, count: int, rng: np.random.Generator) -> np.ndarray:
    if count > of:
        raise ValueError(f"{count} trials do not fit into {of} units: use a larger matrix")
    return rng.permutation(of)[:count]


def _different(of: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return random integers below `of`, distinct within each row."""
    return rng.permuted(np.broadcast_to(np.arange(of), (shape[0], of)), axis=1)[:, : shape[1]]


def damage(cell: Cell, matrix: Matrix, A: np.ndarray, rng: np.random.Generator) -> tuple[Damage, set[int]]:
    """Return the faults of a cell, and the bits that they flip."""
    trials, bits = trials_of(cell), set[int]()
    if cell.fault in ("tile", "rectangle"):
        elements, values = (_tiles if cell.fault == "tile" else _rectangles)(A, matrix, trials, rng)
        offsets = elements.reshape(trials, -1, 1) * matrix.itemsize + np.arange(matrix.itemsize)
        masks = np.ascontiguousarray(values).reshape(trials, -1).view(np.uint8).reshape(offsets.shape)
        masks = masks ^ A.reshape(-1).view(np.uint8)[offsets]
    elif cell.fault in ("word", "two-words"):
        first = matrix.elements(trials, 1 if cell.fault == "word" else 2, rng)
        first = first // WORD * WORD + rng.integers(0, max(1, matrix.itemsize // WORD), (trials, 1)) * WORD
        flips, _ = flipped("word", 8 * WORD, first.size, rng)
        offsets, masks = _bytes(first, flips.reshape(first.shape), WORD)
    else:
        flips, bits = flipped(cell.fault, 8 * matrix.itemsize, trials, rng)
        offsets, masks = _bytes(matrix.elements(trials, 1, rng), flips[:, np.newaxis], matrix.itemsize)
    numbers = np.broadcast_to(np.arange(trials).reshape(trials, *(1,) * (offsets.ndim - 1)), offsets.shape)
    changed = masks != 0
    return Damage(numbers[changed], offsets[changed], masks[changed]), bits


def trials_of(cell: Cell) -> int:
    """Return the number of trials of a cell at rest: per bit for flips; one per tile for the float code."""
    if cell.code == "float":
        return (cell.m // _BLOCK) * (cell.n // _BLOCK)
    return TRIALS * bits_of(cell.dtype) if cell.fault == "bit" else 4 * TRIALS


def _bytes(first: np.ndarray, flips: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the byte offsets of words, and the bits to flip in each byte."""
    shifts = np.arange(size, dtype=np.uint64) * np.uint64(8)
    masks = (flips[..., np.newaxis] >> shifts & np.uint64(0xFF)).astype(np.uint8)
    return first[..., np.newaxis] + np.arange(size), masks


def _tiles(A: np.ndarray, matrix: Matrix, trials: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of squares, and zeros to replace them."""
    rows, columns, height, width = matrix.boxes(trials, rng)
    rows = rows + rng.integers(0, height - _TILE + 1, trials)
    columns = columns + rng.integers(0, width - _TILE + 1, trials)
    elements = (rows[:, np.newaxis] + np.arange(_TILE))[:, :, np.newaxis] * A.shape[1]
    elements = elements + (columns[:, np.newaxis] + np.arange(_TILE))[:, np.newaxis, :]
    return elements, np.zeros(elements.shape, A.dtype)


def _rectangles(A: np.ndarray, matrix: Matrix, trials: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of rectangles and their new values: +1 and −1, so that row and column sums are unchanged."""
    rows, columns, height, width = matrix.boxes(trials, rng)
    rows = rows[:, np.newaxis] + np.sort(_different(height, (trials, 2), rng), axis=1)
    columns = columns[:, np.newaxis] + np.sort(_different(width, (trials, 2), rng), axis=1)
    elements = rows[:, :, np.newaxis] * A.shape[1] + columns[:, np.newaxis, :]
    signs = np.array([[1, -1], [-1, 1]])
    return elements, (A.reshape(-1)[elements].astype(np.float64) + signs).astype(A.dtype)


# --- Outcomes ---------------------------------------------------------------------------------------------------------


def judged(matrix: Matrix, before: np.ndarray, verdict: Verdict, faults: Damage) -> Counts:
    """Count the outcomes of the faults in one matrix.

    Parameters
    ----------
    matrix : Matrix
    before : numpy.ndarray of shape (bytes,), uint8
        The original bytes.
    verdict : Verdict
        Verdict on the corrupted matrix.
    faults : Damage
        Faults whose trials share no unit.
    """
    size = matrix.itemsize
    owner = np.full(matrix.units, -1)
    owner[matrix.unit(faults.offsets)] = faults.trials
    trials = np.unique(faults.trials)
    detected, located, repaired, miscorrected = (np.zeros(trials.max(initial=0) + 1, bool) for _ in range(4))
    touched, named, refused = (np.zeros(matrix.shape, bool) for _ in range(3))
    touched.flat[faults.offsets // size] = True

    offsets, was = verdict.patches()
    named.flat[offsets // size] = True
    units = np.unique(matrix.unit(offsets))
    detected[owner[units[owner[units] >= 0]]] = True
    alarms = int((owner[units] < 0).sum())
    wrong = owner[matrix.unit(offsets[was != before[offsets]])]
    miscorrected[wrong[wrong >= 0]] = True
    for row, row_end, column, column_end in verdict.refused.array.tolist():
        there = slice(row, row_end), slice(column, column_end)
        refused[there] = True
        named[there] |= (row_end - row) * (column_end - column) == 1
        alarms += not touched[there].any()
    detected[faults.trials[refused.flat[faults.offsets // size]]] = True

    located[trials] = detected[trials]
    located[faults.trials[~named.flat[faults.offsets // size]]] = False
    beside = np.flatnonzero(named & ~touched) * size
    located[owner[matrix.unit(beside)][owner[matrix.unit(beside)] >= 0]] = False

    mended = np.zeros(len(faults.offsets), bool)
    if len(offsets):
        place = np.minimum(np.searchsorted(offsets, faults.offsets), len(offsets) - 1)
        mended = (offsets[place] == faults.offsets) & (was[place] == before[faults.offsets])
    repaired[trials] = True
    repaired[faults.trials[~mended]] = False
    repaired &= ~miscorrected
    found = Counts(
        trials=len(trials),
        detected=int(detected.sum()),
        located=int(located.sum()),
        repaired=int(repaired.sum()),
        miscorrected=int(miscorrected.sum()),
        # The float code counts weighted sums of matrices without a fault instead.
        clean=int((owner < 0).sum()) if matrix.exact else 0,
        false_alarms=alarms,
    )
    if matrix.exact:
        _count_certain(found, matrix, faults, detected, repaired)
    return found


def _count_certain(found: Counts, matrix: Matrix, faults: Damage, detected: np.ndarray, repaired: np.ndarray) -> None:
    """Count the trials with at most two corrupted words per block: their repair is guaranteed."""
    words = np.unique(faults.offsets // WORD)
    in_unit = np.bincount(matrix.unit(words * WORD), minlength=matrix.units)
    certain = np.zeros(len(detected), bool)
    certain[faults.trials] = True
    certain[faults.trials[in_unit[matrix.unit(faults.offsets)] > 2]] = False
    found.certain = int(certain.sum())
    found.certain_detected, found.certain_repaired = int((certain & detected).sum()), int((certain & repaired).sum())


# --- Cells ------------------------------------------------------------------------------------------------------------

# Matrix and sidecar of the previous cells, keyed by the parameters they were drawn from.
_last: dict[Any, tuple[np.ndarray, Sidecar]] = {}


def try_at_rest(cell: Cell, seed: int, device: str) -> Counts:
    """Run a cell with target "at-rest"; on a GPU, the GPU computes both kinds of sums."""
    if cell.fault == "none":
        return _try_clean(cell, seed, device)
    key = seed, device, cell.code, cell.dtype, cell.distribution, cell.m, cell.n
    if key not in _last:
        _last.clear()
        A = draw(cell.distribution, (cell.m, cell.n), cell.dtype, cell.generator(seed, data=True))
        _last[key] = A, encode(A, code=cell.code, block=_BLOCK, device=device)
    A, sidecar = _last[key]
    matrix = Matrix((cell.m, cell.n), A.itemsize, cell.code == "exact")
    faults, bits = damage(cell, matrix, A, cell.generator(seed))
    before = A.reshape(-1).view(np.uint8)
    damaged = A.copy()
    damaged.reshape(-1).view(np.uint8)[faults.offsets] ^= faults.masks
    found = judged(matrix, before, verify(damaged, sidecar, device=device), faults)
    found.bits = bits
    return found


class _OtherParts:
    """A matrix read in blocks of other sizes than an array's, so that sums accumulate in another order."""

    name = "the matrix"

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.shape, self.dtype = array, array.shape, array.dtype

    def blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first row, rows), with two thirds of the requested number of rows."""
        step = max(1, rows * 2 // 3)
        for first in range(0, len(self._array), step):
            yield first, self._array[first : first + step]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the rows with these indices."""
        return self._array[indices]


def _try_clean(cell: Cell, seed: int, device: str) -> Counts:
    """Encode matrices and verify them in blocks of other sizes; after encoding on a GPU, verify on the CPU."""
    rng, found = cell.generator(seed), Counts()
    while found.clean < CLEAN / len(DISTRIBUTIONS):
        A = draw(cell.distribution, (cell.m, cell.n), cell.dtype, rng)
        sidecar = encode(A, code=cell.code, block=_BLOCK, device=device)
        verdict = verify(_OtherParts(A), sidecar)
        matrix = Matrix((cell.m, cell.n), A.itemsize, cell.code == "exact")
        found.false_alarms += len(np.unique(matrix.unit(verdict.patches()[0]))) + len(verdict.refused)
        found.clean += matrix.units if sidecar.rows is None or sidecar.columns is None else _sums(sidecar)
    return found


def _sums(sidecar: Sidecar) -> int:
    return sum(tensor.size for name, tensor in sidecar.tensors.items() if name != "exact")


def try_sidecar(cell: Cell, seed: int, _device: str) -> Counts:
    """Run a cell with target "sidecar"; half of the faults hit the header, except faults in words of the sums."""
    sidecar = encode(draw(cell.distribution, (cell.m, cell.n), cell.dtype, cell.generator(seed, data=True)))
    file = io.BytesIO()
    dump_sidecar(file, sidecar)
    right, rng, found = np.frombuffer(file.getvalue(), np.uint8), cell.generator(seed), Counts()
    header = 8 + int(right[:8].view("<u8")[0])
    trials = 8 * TRIALS if cell.fault == "bit" else 2 * TRIALS
    flips, bits = flipped("word" if cell.fault not in ("bit", "two-bits") else cell.fault, 8, trials, rng)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sidecar.abft")
        for number, flip in enumerate(flips.tolist()):
            content = right.copy()
            first = int(rng.integers(0, (header if number % 2 else len(right)) - _RUN + 1))
            if cell.fault == "rectangle":
                sums = content[header:].view("<u8")
                sums[rng.choice(len(sums), 4, replace=False)] += np.array([1, -1, -1, 1]).astype(np.uint64)
            elif cell.fault == "tile":
                content[first : first + _RUN] = 0
            elif cell.fault == "word":
                content[first : first + WORD] = rng.integers(0, 256, WORD)
            else:
                content[first] ^= flip
            if np.array_equal(content, right):
                continue
            found.trials += 1
            with open(path, "wb") as damaged:
                damaged.write(content.tobytes())
            try:
                same = _same(read_sidecar(path), sidecar)
            except SidecarError:
                found.detected += 1
            else:
                found.harmless += same
                found.miscorrected += not same
    # A rejected sidecar is reported as such, not as a corrupted matrix: that locates the fault.
    found.located, found.bits = found.detected, bits
    return found


def _same(one: Sidecar, other: Sidecar) -> bool:
    """Return whether two sidecars have the same content."""
    tensors = one.tensors, other.tensors
    return (
        one.metadata == other.metadata
        and tensors[0].keys() == tensors[1].keys()
        and all(tensors[0][name].tobytes() == tensors[1][name].tobytes() for name in tensors[0])
    )
