"""Decoding of the exact code: compute the syndromes of all blocks in one pass, then locate the corrupted words."""

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import ExactSums, block_faults
from tsapps.apps.abft.at_rest.exact_pass import exact_pass
from tsapps.apps.abft.at_rest.gpu.compare import mismatches_on_gpu
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout, fold, layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.source import Progress, Source, bytes_at
from tsapps.apps.abft.at_rest.verdict import Verdict

__all__ = ["ExactCheck", "exact_faults", "exact_verdict"]


def exact_verdict(
    source: Source, sidecar: Sidecar, progress: Progress | None = None, gpu: int | None = None
) -> Verdict:
    """Return the verdict of the exact code: words that can be repaired, and regions of blocks that cannot."""
    faults, refused = exact_faults(source, sidecar, progress, gpu)
    if not len(refused):
        return Verdict(faults, np.empty((0, 4), np.int64))
    return Verdict(faults, _regions(refused, sidecar, layout(sidecar.shape, sidecar.itemsize)))


def exact_faults(
    source: Source, sidecar: Sidecar, progress: Progress | None = None, gpu: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the corrupted words that can be repaired, and the blocks that cannot.

    The sums of a block determine which words were changed and by how much. These words are then read again: the
    original value of a word is the value found minus the difference. A block is refused if it cannot be decoded, or if
    the original value of one of its words would not fit in 32 bits.

    Returns
    -------
    faults : numpy.ndarray of shape (k, 3), int64
        The fields `offset`, `found` and `was` of each `Fault`, ordered by offset.
    refused : numpy.ndarray of int64
        The ascending numbers stripe · width + column of blocks that cannot be repaired.
    """
    of, expected = layout(sidecar.shape, sidecar.itemsize), sidecar.exact
    if expected is None:
        raise ValueError("the sidecar has no sums of the exact code")
    by_gpu = mismatches_on_gpu(source, sidecar, gpu, progress)
    mismatches, sums = _mismatches(source, expected, of, progress) if by_gpu is None else by_gpu
    if not len(mismatches):
        return np.empty((0, 3), np.int64), np.empty(0, np.int64)
    solved, refused = _solved(mismatches, sums, expected, of)
    words, differences, blocks = solved.T
    order = np.argsort(words)
    words, differences, blocks = words[order], differences[order], blocks[order]
    found = _words_at(source, words, of)
    was = found - differences
    # Original values are below `most`: 2³², or less for the last word, whose padding bytes are always zero.
    most = np.where(words == of.n_words - 1, 1 << 8 * (of.n_bytes - (of.n_words - 1) * WORD), 1 << 8 * WORD)
    impossible = np.unique(blocks[(was < 0) | (was >= most)])
    possible = ~np.isin(blocks, impossible)
    return np.stack([words * WORD, found, was], axis=1)[possible], np.union1d(refused, impossible)


def _mismatches(
    source: Source, expected: np.ndarray, of: Layout, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray]:
    """Compare the sums of a matrix with those of a sidecar on the CPU.

    Returns
    -------
    blocks : numpy.ndarray of shape (k,)
        The ascending numbers stripe · width + column of the blocks whose sums differ.
    sums : numpy.ndarray of shape (k, 5)
        The current sums of these blocks.
    """
    blocks: list[np.ndarray] = []
    found: list[np.ndarray] = []

    def ended(stripe: int, sums: np.ndarray) -> None:
        columns = np.flatnonzero((sums != expected[stripe]).any(axis=0))
        blocks.append(stripe * of.width + columns)
        found.append(sums[:, columns].T)

    exact_pass(source, of, ended, progress)
    return np.concatenate(blocks), np.concatenate(found)


def _solved(blocks: np.ndarray, found: np.ndarray, expected: np.ndarray, of: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Return (word, difference, block) of each corrupted word, and the blocks that cannot be decoded.

    A listed block whose sums equal the expected ones has no corrupted words. A GPU may list such a block if the GPU's
    copy of the expected sums is corrupted.
    """
    words, refused = [], []
    for block, now in zip(blocks.tolist(), found, strict=True):
        stripe, column = divmod(block, of.width)
        changes = block_faults(now.tolist(), expected[stripe, :, column].tolist(), of.rows(stripe))
        places = [((stripe * ROWS + row) * of.width + column, delta) for row, delta in changes or []]
        if changes is None or not all(word < of.n_words and abs(delta) < 1 << 32 for word, delta in places):
            refused.append(block)
        else:
            words += [(word, delta, block) for word, delta in places]
    return np.array(words, np.int64).reshape(-1, 3), np.array(refused, np.int64)


def _words_at(source: Source, words: np.ndarray, of: Layout) -> np.ndarray:
    """Read the words of a matrix with these ascending indices; return their values as int64."""
    if not len(words):
        return words
    offsets = words[:, np.newaxis] * WORD + np.arange(WORD)
    there = offsets < of.n_bytes
    content = np.zeros(offsets.shape, np.uint8)
    content[there] = bytes_at(source, offsets[there])
    return content.view("<u4")[:, 0].astype(np.int64)


def _regions(blocks: np.ndarray, sidecar: Sidecar, of: Layout) -> np.ndarray:
    """Return, for each block, a region of the matrix that contains all words of the block.

    The result has shape (k, 4): the fields of `Region`.
    """
    n, itemsize = sidecar.shape[1], sidecar.itemsize
    stripes, columns = np.divmod(blocks, of.width)
    # `row_bytes`, `stripe_bytes`: bytes of a matrix row and of a stripe. `first`, `last`: offsets of the first and the
    # last byte of the block's words in a row of words.
    row_bytes, stripe_bytes, first = n * itemsize, ROWS * of.width * WORD, columns * WORD
    last = first + WORD - 1
    regions = np.stack(
        [
            stripes * stripe_bytes // row_bytes,
            -(-np.minimum(of.n_bytes, (stripes + 1) * stripe_bytes) // row_bytes),
            first % row_bytes // itemsize,
            last % row_bytes // itemsize + 1,
        ],
        axis=1,
    )
    spread = first // row_bytes != last // row_bytes  # True: each word crosses the end of a matrix row
    regions[spread | (fold(sidecar.shape, itemsize) == 0), 2:] = 0, n
    return regions


class ExactCheck:
    """Comparison of a matrix with the exact sums of a sidecar; the elements of the matrix are added in parts."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._expected, self._same = sidecar.exact, True
        self._sums = ExactSums(layout(sidecar.shape, sidecar.itemsize), self._ended)

    def _ended(self, stripe: int, sums: np.ndarray) -> None:
        self._same = self._same and self._expected is not None and np.array_equal(sums, self._expected[stripe])

    def add(self, _row: int, _column: int, elements: np.ndarray) -> None:
        """Add the next elements in row-major order."""
        self._sums.add(elements.reshape(-1).view(np.uint8))

    def passed(self) -> bool:
        """Return True if all sums of the matrix equal the sidecar's; call it after all elements were added."""
        self._sums.finish()
        return self._same
