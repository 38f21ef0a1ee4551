"""Data at rest: its checksums, which of its numbers are not what they were, and its bytes as they were.

All of it is one pass over rows, as `open_matrix` gives them, of a matrix of any size: some MiB are in memory at a time.
The bytes are those of the elements row by row, in the machine's byte order, which is little-endian.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tsapps.apps.abft.exact import WORD, Fault, exact_sums, in_stripes, layout, stripe_faults
from tsapps.apps.abft.sidecar import Sidecar

__all__ = ["AmbiguousError", "Verdict", "encode", "repaired", "verify"]

# Rows are asked for by so many bytes.
_BLOCK_BYTES = 1 << 24


class AmbiguousError(ValueError):
    """More was changed than can be repaired for certain."""


@dataclass(frozen=True)
class Verdict:
    """What is not as it was.

    Attributes
    ----------
    faults : list of Fault
        Words that can be repaired, by their offsets.
    refused : list of (stripe, column)
        Blocks in which more was changed than two words, so that what they were is not known.
    """

    faults: list[Fault] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether everything is as it was."""
        return not self.faults and not self.refused

    def elements(self, sidecar: Sidecar) -> list[tuple[int, int]]:
        """Return the rows and columns of the matrix whose elements can be repaired, each once, in order."""
        size, d = np.dtype(sidecar.dtype).itemsize, sidecar.shape[1]
        touched = {
            offset // size
            for fault in self.faults
            for offset in range(fault.offset, min(fault.offset + WORD, sidecar.n_bytes))
            if (fault.found ^ fault.was) >> 8 * (offset - fault.offset) & 0xFF
        }
        return [divmod(element, d) for element in sorted(touched)]


def encode(source: Any) -> Sidecar:
    """Return the checksums of a matrix.

    Parameters
    ----------
    source : Matrix
        As `open_matrix` gives it; its elements are read once, and taken bit by bit.
    """
    sums = exact_sums(_bytes_of(source), layout(source.nbytes))
    return Sidecar(tuple(source.shape), source.dtype.name, source.nbytes, sums)


def verify(source: Any, sidecar: Sidecar) -> Verdict:
    """Return what of a matrix is not as it was when its sidecar was made.

    Raises
    ------
    ValueError
        If the matrix has another shape or dtype.
    """
    verdict = Verdict()
    for _, faults, refused in _judged(source, sidecar):
        verdict.faults.extend(faults)
        verdict.refused.extend(refused)
    return verdict


def repaired(source: Any, sidecar: Sidecar) -> Iterator[bytes]:
    """Yield the bytes of a matrix as they were, some MiB at a time.

    Raises
    ------
    ValueError
        If the matrix has another shape or dtype.
    AmbiguousError
        Where more was changed than can be repaired: what came before is right, what would follow is not known.
    """
    of = layout(sidecar.n_bytes)
    for stripe, (data, faults, refused) in enumerate(_judged(source, sidecar)):
        begin, end = of.stripe_bytes(stripe)
        if refused:
            raise AmbiguousError(
                f"{source.name}: in {len(refused)} blocks of stripe {stripe} more was changed than two words each: "
                f"restore bytes {begin} to {end} from a copy"
            )
        right = bytearray(data)
        for fault in faults:
            place = fault.offset - begin
            word = fault.was.to_bytes(WORD, "little")[: len(right) - place]
            right[place : place + len(word)] = word
        yield bytes(right)


def _judged(source: Any, sidecar: Sidecar) -> Iterator[tuple[memoryview, list[Fault], list[tuple[int, int]]]]:
    """Yield the bytes of each stripe, its faults, and its blocks that are refused."""
    found, expected = (tuple(source.shape), source.dtype.name), (sidecar.shape, sidecar.dtype)
    if found != expected:
        raise ValueError(
            f"{source.name}: is {found[0][0]} × {found[0][1]} {found[1]}, and its sidecar is of a matrix of "
            f"{expected[0][0]} × {expected[0][1]} {expected[1]}: name the sidecar that was made of it"
        )
    of = layout(sidecar.n_bytes)
    for stripe, data in enumerate(in_stripes(_bytes_of(source), of)):
        faults, refused = stripe_faults(data, stripe, sidecar.exact[stripe], of)
        yield data, faults, [(stripe, column) for column in refused]


def _bytes_of(source: Any) -> Iterator[memoryview]:
    """Yield the bytes of a matrix, row by row, some MiB at a time."""
    rows = max(1, _BLOCK_BYTES // (source.shape[1] * source.dtype.itemsize))
    for _, block in source.blocks(rows):
        host = block if isinstance(block, np.ndarray) else block.get()
        yield host.reshape(-1).view(np.uint8).data
