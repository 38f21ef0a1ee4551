"""Data at rest: its checksums, which of its numbers are not what they were, and its bytes as they were.

All of it is one pass over rows, as `open_matrix` gives them, of a matrix of any size: some tens of MiB are in memory at
a time besides the checksums. The bytes are those of the elements row by row, in the machine's byte order, which is
little-endian.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS, ExactSums
from tsapps.apps.abft.at_rest.exact_decode import ExactCheck, exact_verdict
from tsapps.apps.abft.at_rest.float_code import WeightedSums, check_weighted
from tsapps.apps.abft.at_rest.float_decode import WeightedCheck, weighted_verdict
from tsapps.apps.abft.at_rest.gpu.encode import sums_on_gpu
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar, sidecar_bytes
from tsapps.apps.abft.at_rest.source import Progress, Source, as_source, bytes_of, name_of, parts
from tsapps.apps.abft.at_rest.verdict import ChangedError, Verdict
from tsapps.kernels.devices import choose_device
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["CODES", "encode", "repaired", "sums_of", "verify"]

CODES = ("exact", "float", "both")


def encode(
    X: Any,
    *,
    code: str = "both",
    weights: int = 2,
    block: int = 512,
    device: str | None = None,
    progress: Progress | None = None,
) -> Sidecar:
    """Return the checksums of a matrix, by which changed elements are found and repaired later.

    Parameters
    ----------
    X : array of any library, or Matrix
        NumPy, CuPy, torch, an object with DLPack or ``__cuda_array_interface__``, or what `open_matrix` gives, of any
        size; read once. An array of one dimension is a matrix of one row.
    code : {"both", "exact", "float"}, optional
        "exact" is sums of words, which repair any two of 512 bit by bit, and cost 2 %. "float" is weighted sums of
        elements along rows and columns, which a product carries along; they cost 8·weights·(m·⌈n / block⌉ +
        n·⌈m / block⌉) bytes (half of it for float16 and bfloat16), which is more than the matrix where it has only few
        rows or columns.
    weights : int, optional
        Of the float code, 1 to 4.
    block : int, optional
        Elements of its sums: 256, 512 or 1024.
    device : {"auto", "cpu", "cuda", "cuda:i"}, optional
        Where what is in host memory or a file is added up; by default on the CPU. Arrays on a GPU are added up there. A
        GPU of compute capability 9.0 or more serves up to 2 weights and blocks of 512; all else is the CPU's.
    progress : callable, optional
        Called with the bytes that have been read so far.

    Returns
    -------
    Sidecar

    Raises
    ------
    ValueError
        If a parameter is not one of those, the array is empty or has more than two dimensions.
    TypeError
        If `X` is no array of a known kind, or not one of numbers.
    MemoryError
        If the checksums alone take more memory than is available.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.arange(12.0).reshape(3, 4)
    >>> sidecar = encode(A)
    >>> A[1, 2] = np.nan
    >>> verify(A, sidecar).elements(sidecar)
    [(1, 2)]
    """
    if code not in CODES:
        raise ValueError(f"code must be one of {', '.join(CODES)}, got {code!r}")
    source = as_source(X)
    if code != "exact":
        check_weighted(weights, block)
    needed, found = sidecar_bytes(source.shape, source.dtype, code, weights, block), available_host_memory()
    if needed > found:
        raise MemoryError(
            f"{name_of(source)}: its checksums take {needed:,} bytes, and {found:,} are available: choose code='exact' "
            f"if it is not, or raise the memory limit of this process"
        )
    sums = sums_of(source, code, weights, block, progress, gpu_of(device))
    if code == "exact":
        weights = block = 0
    return Sidecar(
        source.shape,
        source.dtype.name,
        bytes_of(source),
        exact=sums.get("exact"),
        rows=sums.get("rows"),
        columns=sums.get("columns"),
        block=block,
        weights=weights,
    )


def gpu_of(device: str | None) -> int | None:
    """Return the number of the GPU that a device is; None of the CPU, and where none is said."""
    choice = None if device is None else choose_device(device)
    return choice.index if choice is not None and choice.is_gpu else None


def sums_of(
    source: Source, code: str, weights: int, block: int, progress: Progress | None = None, gpu: int | None = None
) -> dict[str, np.ndarray]:
    """Return the sums of a matrix as a sidecar has them, by their names, from one pass over it.

    Arrays on a GPU are read there, where a kernel serves them; all else on `gpu`, or on the CPU.
    """
    of = layout(source.shape, source.dtype.itemsize)
    if code != "exact":
        check_weighted(weights, block)
    sums = sums_on_gpu(source, gpu, of, code=code, weights=weights, block=block, progress=progress)
    if sums is not None:
        return sums
    found: dict[str, np.ndarray] = {}
    exact = weighted = None
    if code != "float":
        found["exact"] = np.empty((of.stripes, SUMS, of.width), np.uint64)
        exact = ExactSums(of, found["exact"].__setitem__)
    if code != "exact":
        weighted = WeightedSums(source.shape, source.dtype.name, weights, block)
    for row, column, elements in parts(source, progress):
        if exact is not None:
            exact.add(elements.reshape(-1).view(np.uint8))
        if weighted is not None:
            weighted.add(row, column, elements)
    if exact is not None:
        exact.finish()
    if weighted is not None:
        found["rows"], found["columns"] = weighted.stored()
    return found


def verify(X: Any, sidecar: Sidecar, *, device: str | None = None, progress: Progress | None = None) -> Verdict:
    """Return what of a matrix is not as it was when its sidecar was made.

    The exact code decides where the sidecar has it. The float code alone sees no change that is within rounding of its
    sums, nor a zero's sign or which NaN it is. It says nothing of rows and columns with elements that are not finite;
    nor does a sum that is larger than its type's largest number, which only sums of float64 and bfloat16 can be.

    An array on a GPU is held against the sidecar there. The exact code's sums stay on that GPU for the next time, 2 %
    of the array, until the sidecar object is no longer used.

    Parameters
    ----------
    X : array of any library, or Matrix
        As for `encode`; it need not lie where it lay then.
    sidecar : Sidecar
    device : {"auto", "cpu", "cuda", "cuda:i"}, optional
        As for `encode`, for the exact code.
    progress : callable, optional
        Called with the bytes that have been read so far; what is wrong is then read again, and not counted.

    Raises
    ------
    ValueError
        If the matrix has another shape or dtype.
    """
    source = as_source(X)
    found, expected = (tuple(source.shape), source.dtype.name), (sidecar.shape, sidecar.dtype)
    if found != expected:
        raise ValueError(
            f"{name_of(source)}: is {found[0][0]} × {found[0][1]} {found[1]}, and its sidecar is of a matrix of "
            f"{expected[0][0]} × {expected[0][1]} {expected[1]}: name the sidecar that was made of it"
        )
    if sidecar.exact is not None:
        return exact_verdict(source, sidecar, progress, gpu_of(device))
    return weighted_verdict(source, sidecar, progress)


def repaired(
    X: Any, sidecar: Sidecar, *, verdict: Verdict | None = None, progress: Progress | None = None
) -> Iterator[bytes]:
    """Return the bytes of a matrix as they were, some MiB at a time.

    The matrix is read twice: to find what is wrong, before this returns; and again as its bytes are asked for, whose
    sums must then be those of the sidecar.

    Parameters
    ----------
    X : array of any library, or Matrix
    sidecar : Sidecar
    verdict : Verdict, optional
        What `verify` found of it, to read it only once more.
    progress : callable, optional
        Called with the bytes that have been given so far.

    Returns
    -------
    iterator of bytes
        Of the elements row by row. It may raise `ChangedError`: then none of what came is to be used.

    Raises
    ------
    ValueError
        If the matrix has another shape or dtype.
    AmbiguousError
        If more was changed than can be repaired.
    """
    source = as_source(X)
    if verdict is None:
        verdict = verify(source, sidecar)
    verdict.check_repairable(name_of(source))
    return _patched(source, sidecar, verdict, progress)


def _patched(source: Source, sidecar: Sidecar, verdict: Verdict, progress: Progress | None) -> Iterator[bytes]:
    """Yield the bytes of a matrix with patches, and hold their sums against the sidecar's."""
    offsets, was = verdict.patches()
    check: ExactCheck | WeightedCheck = WeightedCheck(sidecar) if sidecar.exact is None else ExactCheck(sidecar)
    begin = 0
    for row, column, elements in parts(source, progress):
        right = elements.copy()
        content = right.reshape(-1).view(np.uint8)
        first, last = np.searchsorted(offsets, [begin, begin + len(content)])
        content[offsets[first:last] - begin] = was[first:last]
        check.add(row, column, right)
        yield content.tobytes()
        begin += len(content)
    if not check.passed():
        raise ChangedError(name_of(source))
