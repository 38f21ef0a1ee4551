"""HDF5 datasets. Links to other files, and elements in other files, are rejected unless the caller allows them."""

import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tsapps.errors import MatrixError
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import Matrix, trimmed
from tsapps.matrix.checks import changed, check_memory, readable
from tsapps.matrix.containers import choose_array
from tsapps.matrix.optional import optional_module

__all__ = ["open_hdf5"]

# Exceptions of h5py: the tables in h5py's _errors.pyx map each HDF5 error to one of these types. Names that are not
# text and types that NumPy lacks raise some of these types, too.
_HDF5_ERRORS = (LookupError, OSError, RuntimeError, TypeError, ValueError)

# Bytes per read when rows are selected. A contiguous dataset is read in pieces of `_LEAST_PIECE_BYTES`: a disk needs as
# long for less. A chunked dataset is read chunk by chunk, but at most `_MOST_PIECE_BYTES` at a time: a chunk may be as
# large as the dataset.
_LEAST_PIECE_BYTES, _MOST_PIECE_BYTES = 1 << 16, 1 << 26
# Maximum length of a chain of soft links, equal to HDF5's own limit.
_MOST_LINKS = 16
# Environment variables that make HDF5 look for external files in directories other than those checked here.
_PREFIXES = ("HDF5_EXTFILE_PREFIX", "HDF5_VDS_PREFIX")
# Maximum stored size of a chunk: `_MOST_EXPANDED` times its size in memory, plus `_FILTER_BYTES`. Filters may enlarge a
# chunk by headers, or if its data is incompressible.
_MOST_EXPANDED, _FILTER_BYTES = 1.05, 4096


def open_hdf5(path: str, wanted: str | None, *, allow_external: bool = False) -> Matrix:
    """Open a dataset of an HDF5 file.

    Parameters
    ----------
    path : str
    wanted : str or None
        Path of the dataset in the file.
    allow_external : bool
        If True, follow external links and read elements stored in other files (external storage, virtual datasets).
        The author of the file chooses these paths, which may name any file on the machine.
    """
    h5py = optional_module("h5py", path)
    with readable(path, _HDF5_ERRORS), h5py.File(path, "r") as file:
        names: list[str] = []
        # visititems follows hard links only, and visits each object once.
        file.visititems(lambda name, thing: names.append(name) if isinstance(thing, h5py.Dataset) else None)
        if wanted is not None:
            wanted = wanted.strip("/")
            if wanted and isinstance(_find(h5py, file, path, wanted, allow_external=allow_external), h5py.Dataset):
                names.append(wanted)

        def shape_of(name: str) -> tuple[int, ...]:
            # To determine the shape of a virtual dataset, HDF5 may open other files, which must be allowed first.
            dataset = file[name]
            return (0, 0) if dataset.is_virtual and not allow_external else dataset.shape or ()

        name = choose_array(path, wanted, names, shape_of)
        dataset = _find(h5py, file, path, name, allow_external=allow_external)
        full_name = f"{path}:/{shown(name)}"
        if dataset.is_virtual or dataset.external:
            _check_external(h5py, dataset, full_name, allow_external=allow_external)
        matrix = Hdf5Matrix(path, name, dataset.shape or (), dataset.dtype, allow_external=allow_external)
        _check_stored(dataset, matrix)
        return matrix


def _find(h5py: Any, file: Any, path: str, member: str, *, allow_external: bool) -> Any:
    """Return the object at a path in a file, or None; follow links one at a time.

    Raises
    ------
    MatrixError
        If the path leads to another file and that is not allowed, or soft links form a cycle.
    """
    if allow_external:
        return file.get(member)
    here, steps, links = file, deque(member.split("/")), 0
    while steps:
        step = steps.popleft()
        if step in ("", "."):
            continue
        link = here.get(step, getlink=True) if isinstance(here, h5py.Group) else None
        if isinstance(link, h5py.ExternalLink):
            raise MatrixError(
                f"{path}:/{member}: is a link to another file, {str(link.filename)[:200]!r}: name that file, or give "
                f"--allow-external (allow_external=True)"
            )
        if isinstance(link, h5py.SoftLink):
            links += 1
            if links > _MOST_LINKS:
                raise MatrixError(
                    f"{path}:/{member}: is a chain of more than {_MOST_LINKS} soft links: name the dataset itself"
                )
            steps.extendleft(reversed(link.path.split("/")))
            here = file if link.path.startswith("/") else here
        elif link is None:
            return None
        else:
            here = here[step]
    return here


def _check_external(h5py: Any, dataset: Any, name: str, *, allow_external: bool) -> None:
    """Raise `MatrixError` unless elements in other files are allowed and complete.

    For missing elements, HDF5 would return a fill value. Paths of external storage are relative to the current
    directory; paths of the sources of a virtual dataset are relative to the directory of the dataset's file.
    """
    if not allow_external:
        raise MatrixError(
            f"{name}: stores elements in other files, which its author chose: give --allow-external "
            f"(allow_external=True), or copy them into a dataset of one file"
        )
    for variable in _PREFIXES:
        if os.environ.get(variable):
            raise MatrixError(
                f"{name}: stores elements in other files: unset {variable}, which makes HDF5 search elsewhere"
            )
    size = math.prod(dataset.shape or ())
    if dataset.is_virtual:
        directory = os.path.dirname(dataset.file.filename)
        found = 0
        for source in dataset.virtual_sources():
            found += source.vspace.get_select_npoints()
            _check_source(h5py, dataset, os.path.join(directory, source.file_name), source, name)
    else:
        itemsize, end = dataset.id.get_type().get_size(), 0
        for file, offset, length in dataset.external:
            taken = min(length, size * itemsize - end)
            end += taken
            there = os.path.getsize(file) - offset if os.path.isfile(file) else 0
            if there < taken:
                raise _missing(name, os.fsdecode(file), f"{taken} bytes from byte {offset}")
        found = end // itemsize
    if found != size:
        raise MatrixError(f"{name}: has {size} elements, and other files have {found} of them: write it again")


def _check_source(h5py: Any, dataset: Any, file_name: str, source: Any, name: str) -> None:
    """Raise `MatrixError` unless a source of a virtual dataset holds every element that is mapped from it."""
    if source.file_name == ".":
        found = dataset.file.get(source.dset_name)
        stored = isinstance(found, h5py.Dataset) and _is_stored(found)
    elif os.path.isfile(file_name):
        with h5py.File(file_name, "r") as file:
            found = file.get(source.dset_name)
            stored = isinstance(found, h5py.Dataset) and _is_stored(found)
    else:
        stored = False
    if not stored:
        raise _missing(name, file_name, f"every element of {source.dset_name!r}")


def _missing(name: str, file: str, what: str) -> MatrixError:
    return MatrixError(f"{name}: has elements in {file[:200]}, which does not hold {what}: copy all files of it again")


def _expected_and_found(dataset: Any) -> tuple[str, int, int]:
    """Return the unit of a dataset's storage (bytes or chunks), the expected count and the count found in the file."""
    if dataset.chunks:
        expected = math.prod(-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True))
        return "chunks", expected, dataset.id.get_num_chunks()
    expected = math.prod(dataset.shape or ()) * dataset.id.get_type().get_size()  # of the stored type
    return "bytes", expected, dataset.id.get_storage_size()


def _is_stored(dataset: Any) -> bool:
    """Return whether a dataset stores all of its elements in its own file."""
    _, expected, found = _expected_and_found(dataset)
    return expected == found and not dataset.is_virtual and not dataset.external


def _check_stored(dataset: Any, matrix: "Hdf5Matrix") -> None:
    """Raise `MatrixError` unless a dataset's file holds all of its elements, in chunks that fit in memory.

    HDF5 returns a fill value for elements of chunks that were never written or whose index is damaged.
    """
    if dataset.is_virtual or dataset.external:
        return  # checked by `_check_external`
    what, expected, found = _expected_and_found(dataset)
    if found != expected:
        n, d = matrix.shape
        raise MatrixError(
            f"{matrix.name}: is {n} × {d} {matrix.dtype}, which take {expected} {what}, and "
            f"the file holds {found}: it was not completely written, or is damaged: write it again"
        )
    if dataset.chunks:
        _check_chunks(dataset, matrix.name)


def _check_chunks(dataset: Any, name: str) -> None:
    """Raise an error if a chunk is larger than memory, or its stored size is impossible for its filters.

    HDF5 reads whole chunks, and its gzip filter decompresses a stored chunk without a size limit.
    """
    size = math.prod(dataset.chunks) * dataset.id.get_type().get_size()
    check_memory(name, 2 * size, "a chunk")
    largest = 0

    def look(chunk: Any) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    dataset.id.chunk_iter(look)
    if largest > _MOST_EXPANDED * size + _FILTER_BYTES:
        raise MatrixError(f"{name}: has a chunk of {size} bytes that is stored in {largest}: write it again")


class Hdf5Matrix(Matrix):
    """A dataset of an HDF5 file; each pass opens the file and closes it."""

    begins_anywhere = True

    def __init__(self, path: str, member: str, shape: Sequence[int], dtype: np.dtype, *, allow_external: bool) -> None:
        super().__init__(f"{path}:/{shown(member)}", shape, dtype)
        self._path = path
        self._member = member
        self._allow_external = allow_external

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        return self._pieces(rows, range(0, self.shape[0], rows))

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        return trimmed(self._pieces(rows, range(first, end, rows)), first, end)

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        with self._opened() as dataset:
            chunks = dataset.chunks
        row_bytes = self.shape[1] * self.dtype.itemsize
        step = max(1, min(chunks[0], _MOST_PIECE_BYTES // row_bytes) if chunks else _LEAST_PIECE_BYTES // row_bytes)
        starts = np.unique(numbers // step) * step  # HDF5's selection by index is slow for more than a few rows
        return self._gather(self._pieces(step, starts.tolist()), numbers)

    def pieces(self, columns: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (row, column, piece of that row); see `Matrix.pieces`."""
        with self._opened() as dataset:
            for row in range(self.shape[0]):
                for column in range(0, self.shape[1], columns):
                    piece = dataset[row : row + 1, column : column + columns]
                    yield row, column, np.require(piece, self.dtype, ["C", "A"])

    def _pieces(self, rows: int, starts: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        check_memory(self.name, min(rows, self.shape[0]) * self.shape[1] * self.dtype.itemsize, "a block of rows")
        with self._opened() as dataset:
            for start in starts:
                yield start, np.require(dataset[start : start + rows], self.dtype, ["C", "A"])

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        h5py = optional_module("h5py", self._path)
        with readable(self.name, _HDF5_ERRORS), h5py.File(self._path, "r") as file:
            dataset = _find(h5py, file, self._path, self._member, allow_external=self._allow_external)
            if not isinstance(dataset, h5py.Dataset) or dataset.shape != self.shape:
                raise changed(self.name)
            if (dataset.is_virtual or dataset.external) and not self._allow_external:
                raise changed(self.name)
            yield dataset
