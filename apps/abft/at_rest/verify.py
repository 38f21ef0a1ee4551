"""Encode, verify and restore data at rest.

Each function reads a matrix of any size in passes over its rows. Apart from the checksums, each function needs some
tens of MiB of memory. The bytes of a matrix are those of its elements in row-major order, little-endian.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import ExactSums, sums_shape
from tsapps.apps.abft.at_rest.exact_decode import ExactCheck, exact_verdict
from tsapps.apps.abft.at_rest.exact_pass import exact_pass
from tsapps.apps.abft.at_rest.float_code import WeightedSums, check_weighted
from tsapps.apps.abft.at_rest.float_decode import WeightedCheck, weighted_verdict
from tsapps.apps.abft.at_rest.gpu.encode import sums_on_gpu
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar, sidecar_bytes
from tsapps.apps.abft.at_rest.source import Progress, Source, as_source, bytes_of, name_of, parts
from tsapps.apps.abft.at_rest.verdict import ChangedError, Verdict
from tsapps.kernels.devices import choose_device
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.logs import logger_of, timed

__all__ = ["CODES", "encode", "repaired", "sums_of", "verify"]

_log = logger_of(__name__)

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
    """Compute the checksums of a matrix, which detect and repair corrupted elements later.

    Parameters
    ----------
    X : array of any library, or Matrix
        NumPy, CuPy, torch, an object with DLPack or ``__cuda_array_interface__``, or a result of `open_matrix`. X may
        have any size, and is read once. A one-dimensional array is a matrix of one row.
    code : {"both", "exact", "float"}, optional
        "exact" stores sums of 32-bit words, of 2 % of the data's size. These sums restore the original bits of any two
        corrupted words per block of 512 words. "float" stores weighted sums of elements along rows and columns, which
        a matrix product preserves. These sums have 8·weights·(m·⌈n / block⌉ + n·⌈m / block⌉) bytes for a matrix of
        shape (m, n), or half of that for float16 and bfloat16. If a matrix has few rows or columns, the float sums are
        larger than the matrix. "both" stores the sums of both codes.
    weights : int, optional
        Number of weights of the float code, 1 to 4: the number of sums per row (or column) and block.
    block : int, optional
        Maximum number of elements per sum of the float code: 256, 512 or 1024.
    device : {"auto", "cpu", "cuda", "cuda:i"}, optional
        The device that computes the sums of data in host memory or in a file; by default the CPU. The sums of an array
        on a GPU are computed on that GPU. GPUs of compute capability 9.0 or higher support up to 2 weights and blocks
        of 512; in all other cases the CPU computes the sums.
    progress : callable, optional
        Called with the number of bytes read so far.

    Returns
    -------
    Sidecar

    Raises
    ------
    ValueError
        If a parameter is invalid, or the array is empty or has more than two dimensions.
    TypeError
        If `X` is not an array of integers or floating-point numbers.
    MemoryError
        If the checksums take more host memory than is available.

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
    with timed(_log, "computed the checksums (%s) of %s", code, name_of(source)):
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
    """Return the index of the GPU that `device` selects; None for the CPU, which is the default."""
    choice = None if device is None else choose_device(device)
    if choice is not None:
        _log.info("device %s: %s", choice.device, choice.reason)
    return choice.index if choice is not None and choice.is_gpu else None


def sums_of(
    source: Source, code: str, weights: int, block: int, progress: Progress | None = None, gpu: int | None = None
) -> dict[str, np.ndarray]:
    """Compute the arrays of sums of a matrix's sidecar, by name, in one pass over the matrix.

    The GPU that holds an array computes its sums. For other matrices, the GPU with index `gpu` computes the sums, or
    the CPU if `gpu` is None. The CPU also computes the sums if no kernel supports the matrix.
    """
    of = layout(source.shape, source.dtype.itemsize)
    if code != "exact":
        check_weighted(weights, block)
    sums = sums_on_gpu(source, gpu, of, code=code, weights=weights, block=block, progress=progress)
    if sums is not None:
        return sums
    found: dict[str, np.ndarray] = {}
    if code != "float":
        found["exact"] = np.empty(sums_shape(of), np.uint64)
    if code == "exact":
        exact_pass(source, of, found["exact"].__setitem__, progress)
        return found
    exact = ExactSums(of, found["exact"].__setitem__) if code == "both" else None
    weighted = WeightedSums(source.shape, source.dtype.name, weights, block)
    for row, column, elements in parts(source, progress):
        if exact is not None:
            exact.add(elements.reshape(-1).view(np.uint8))
        weighted.add(row, column, elements)
    if exact is not None:
        exact.finish()
    found["rows"], found["columns"] = weighted.stored()
    return found


def verify(X: Any, sidecar: Sidecar, *, device: str | None = None, progress: Progress | None = None) -> Verdict:
    """Find the elements of a matrix that have changed since its sidecar was made.

    The exact code is used if the sidecar has its sums, otherwise the float code. The float code does not detect:

    - changes smaller than the rounding errors of its sums;
    - changes of the sign of a zero or of the payload of a NaN;
    - changes of an element whose stored row sums and column sums are not finite. A sum is not finite if one of its
      elements is not, or if the sum overflows (float64 and bfloat16).

    An array on a GPU is verified there. A copy of the exact sums, 2 % of the array's size, remains in that GPU's memory
    for later calls, as long as the sidecar object exists.

    Parameters
    ----------
    X : array of any library, or Matrix
        As for `encode`; X may be on another device than at encoding.
    sidecar : Sidecar
    device : {"auto", "cpu", "cuda", "cuda:i"}, optional
        As for `encode`; used only with the exact code.
    progress : callable, optional
        Called with the number of bytes read so far in the first pass; further passes are not counted.

    Returns
    -------
    Verdict

    Raises
    ------
    ValueError
        If the shape or dtype of the matrix differs from the sidecar's.
    """
    source = as_source(X)
    found, expected = (tuple(source.shape), source.dtype.name), (sidecar.shape, sidecar.dtype)
    if found != expected:
        raise ValueError(
            f"{name_of(source)}: is {found[0][0]} × {found[0][1]} {found[1]}, and its sidecar is of a matrix of "
            f"{expected[0][0]} × {expected[0][1]} {expected[1]}: name the sidecar that was made of it"
        )
    with timed(_log, "compared %s with its checksums", name_of(source)):
        if sidecar.exact is not None:
            return exact_verdict(source, sidecar, progress, gpu_of(device))
        return weighted_verdict(source, sidecar, progress)


def repaired(
    X: Any, sidecar: Sidecar, *, verdict: Verdict | None = None, progress: Progress | None = None
) -> Iterator[bytes]:
    """Return the original bytes of a corrupted matrix, as an iterator that yields some MiB at a time.

    The matrix is read twice: once by this function, to verify it, and once while the iterator yields the bytes. After
    the last bytes, the iterator checks that all yielded bytes match the sidecar.

    Parameters
    ----------
    X : array of any library, or Matrix
    sidecar : Sidecar
    verdict : Verdict, optional
        The result of `verify`. If it is given, this function does not verify the matrix again.
    progress : callable, optional
        Called with the number of bytes yielded so far.

    Returns
    -------
    iterator of bytes
        The bytes of the elements in row-major order. If the iterator raises `ChangedError`, discard all bytes.

    Raises
    ------
    ValueError
        If the shape or dtype of the matrix differs from the sidecar's.
    AmbiguousError
        If some of the corruption cannot be repaired.
    """
    source = as_source(X)
    if verdict is None:
        verdict = verify(source, sidecar)
    verdict.check_repairable(name_of(source))
    return _patched(source, sidecar, verdict, progress)


def _patched(source: Source, sidecar: Sidecar, verdict: Verdict, progress: Progress | None) -> Iterator[bytes]:
    """Yield the repaired bytes of a matrix; at the end, raise `ChangedError` if their sums mismatch the sidecar's."""
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
