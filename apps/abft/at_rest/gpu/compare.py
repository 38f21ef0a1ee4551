"""Comparison of exact sums on a GPU: list the blocks with a non-zero syndrome, and copy only their sums to the host.

The pass that sums a matrix also compares (`Comparison` of encode.py). Sums that exist already, or that only
word_columns.cuh can compute, are compared by another kernel (compare.cuh).

Both need the sidecar's sums in GPU memory. For a matrix in host memory they are uploaded piece by piece. For an array
on the GPU, all of the sidecar's sums (2 % of the array's size) are uploaded once. They remain in GPU memory as long as
the sidecar object exists, so that later verifications need no upload.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.gpu.encode import Comparison, add_checksums, machine_of, pieces_on_gpu, sum_columns
from tsapps.apps.abft.at_rest.gpu.plan import ChecksumsPlan
from tsapps.apps.abft.at_rest.interleave import Layout, layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.source import Progress, Source, whole_on_gpu
from tsapps.kernels.arrays import to_host
from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.runtime.machine import Machine

__all__ = ["KERNEL", "compiled", "mismatches", "mismatches_by_piece", "mismatches_of", "mismatches_on_gpu"]

_SOURCE = Path(__file__).with_name("compare.cuh")
#: The C++ name of the kernel, and the number of threads per thread block (kCompareThreads).
KERNEL, _THREADS = f"abft::list_mismatches<{SUMS}>", 256
# For each sidecar: the copies of its exact sums in GPU memory, by the index of the GPU.
_kept: WeakKeyDictionary[Sidecar, dict[int, Any]] = WeakKeyDictionary()


def compiled(arch: str) -> Cubin:
    """Compile the kernel for an architecture; needs no GPU."""
    return build(_SOURCE.read_text(encoding="utf-8"), [KERNEL], arch)


def mismatches_on_gpu(
    source: Source, sidecar: Sidecar, device: int | None, progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the blocks of a matrix whose exact sums differ from a sidecar's; None if no kernel supports the matrix.

    The copy of the sidecar's sums on the GPU may be corrupted. So the caller must compare the returned sums with the
    sidecar's sums in host memory again.

    Parameters
    ----------
    source : Source
    sidecar : Sidecar
        With sums of the exact code.
    device : int or None
        As for `machine_of`.
    progress : callable, optional
        Called with the number of bytes read so far.

    Returns
    -------
    blocks : numpy.ndarray of shape (k,), int64
        stripe · width + column, ascending.
    sums : numpy.ndarray of shape (k, 5), uint64
        The sums of these blocks, as computed from the matrix.
    """
    of, expected, machine = layout(sidecar.shape, sidecar.itemsize), sidecar.exact, machine_of(source, device)
    if machine is None or expected is None:
        return None
    there = expected if whole_on_gpu(source) is None else _cached_sums(machine, sidecar)
    found = mismatches_by_piece(machine, source, of, there, progress)
    if found is None:
        return None
    blocks, sums = [np.empty(0, np.int64)], [np.empty((0, SUMS), np.uint64)]
    for some, sums_of_some in found:
        blocks.append(some)
        sums.append(sums_of_some)
    return np.concatenate(blocks), np.concatenate(sums)


def mismatches_by_piece(
    machine: Machine, source: Source, of: Layout, expected: Any, progress: Progress | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]] | None:
    """Yield what `mismatches_on_gpu` returns, piece by piece; return None if no kernel supports the matrix.

    Parameters
    ----------
    machine : Machine
    source : Source
    of : Layout
    expected : array of shape (stripes, 5, width), uint64
        In host memory or on the machine.
    progress : callable, optional
        As for `mismatches_on_gpu`.
    """
    pieces = pieces_on_gpu(machine, source, of, code="exact", weights=0, block=0, progress=progress)
    if pieces is None:
        return None

    def found() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        stripe = 0
        for piece, plans in pieces:
            end = stripe + Layout(piece.nbytes, of.width).stripes
            blocks, sums = mismatches_of(machine, piece, plans, expected[stripe:end])
            yield stripe * of.width + blocks, sums
            stripe = end

    return found()


def _cached_sums(machine: Machine, sidecar: Sidecar) -> Any:
    """Return a copy of a sidecar's exact sums in GPU memory; the first call per GPU uploads them."""
    copies = _kept.setdefault(sidecar, {})
    if machine.index not in copies:
        with machine.current():
            copies[machine.index] = machine.xp.array(sidecar.exact, order="C")
            machine.current_stream().synchronize()  # a later call on another stream may read the copy
    return copies[machine.index]


def mismatches_of(
    machine: Machine, piece: Any, plans: tuple[ChecksumsPlan, ...] | None, expected: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending numbers of the blocks of a piece whose sums differ, and the found sums of these, (k, 5).

    The function waits for the stream.

    Parameters
    ----------
    machine : Machine
    piece, plans
        As `pieces_on_gpu` yields them.
    expected : array of shape (stripes, 5, width), uint64
        In host memory or on the machine.
    """
    if plans is None:
        return mismatches(machine, sum_columns(machine, piece, expected.shape[2]), expected)
    (plan,) = plans
    with machine.current():
        compared = _comparison(machine, expected)
        return _listed(machine, add_checksums(machine, piece, plan, compared)["exact"], compared)


def mismatches(machine: Machine, found: Any, expected: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the ascending numbers of the blocks whose sums differ, and the found sums of these blocks, (k, 5).

    The function waits for the stream.

    Parameters
    ----------
    machine : Machine
    found : array of `machine.xp`, of shape (stripes, 5, width), uint64
    expected : array of the shape of `found`, uint64
        In host memory or on the machine.
    """
    with machine.current():
        compared = _comparison(machine, expected)
        (kernel,) = machine.kernels(_SOURCE, KERNEL)
        n = compared.listed.size
        sizes = np.int64(found.shape[2]), np.int64(n)
        kernel((-(-n // _THREADS),), (_THREADS,), (found, compared.expected, *sizes, compared.listed, compared.count))
        return _listed(machine, found, compared)


def _comparison(machine: Machine, expected: Any) -> Comparison:
    xp, (stripes, _, width) = machine.xp, expected.shape
    there, listed = xp.asarray(expected, order="C"), xp.empty(stripes * width, np.int64)
    return Comparison(there, listed, xp.zeros(1, np.uint64))


def _listed(machine: Machine, found: Any, compared: Comparison) -> tuple[np.ndarray, np.ndarray]:
    """Wait for a comparison; return the ascending numbers of the blocks that differ, and their sums among `found`."""
    n = int(compared.count[0])
    if not n:
        return np.empty(0, np.int64), np.empty((0, SUMS), np.uint64)
    blocks = np.sort(to_host(compared.listed[:n]))
    return blocks, to_host(found.ravel()[machine.xp.asarray(_places(blocks, found.shape[2]))])


def _places(blocks: np.ndarray, width: int) -> np.ndarray:
    """Return the flat indices, (k, 5), of the sums of k blocks in an array of shape (stripes, 5, width)."""
    stripes, columns = np.divmod(blocks, width)
    return (stripes * SUMS * width + columns)[:, np.newaxis] + width * np.arange(SUMS)
