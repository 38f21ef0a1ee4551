"""Matrices from files and from memory, and files written whole or not at all.

open_matrix
    Any supported file or array as a `Matrix`: a name, a shape, a dtype, and blocks of rows.
check_finite
    The error that names the row and column of the first NaN or infinity.
replacing, save_npy
    Writers that leave nothing half written.

Rows and columns are counted from 0; the lines of a text file, as editors do, from 1.
"""

from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite
from tsapps.matrix.registry import EXTENSIONS, open_matrix
from tsapps.matrix.write import replacing, save_npy

__all__ = ["EXTENSIONS", "Matrix", "check_finite", "open_matrix", "replacing", "save_npy"]
