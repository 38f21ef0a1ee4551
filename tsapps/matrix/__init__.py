"""Matrices from files and from memory, and atomic writes of files.

open_matrix
    Opens any supported file or array as a `Matrix`: a name, a shape, a dtype, and blocks of rows.
check_finite
    Raises an error that names the row and column of the first NaN or infinity.
replacing, save_npy
    Writers that replace a file as a whole or leave it unchanged.

Rows and columns are counted from 0. Lines of a text file are counted from 1, as in editors.
"""

from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import check_finite
from tsapps.matrix.registry import EXTENSIONS, open_matrix
from tsapps.matrix.write import replacing, save_npy

__all__ = ["EXTENSIONS", "Matrix", "check_finite", "open_matrix", "replacing", "save_npy"]
