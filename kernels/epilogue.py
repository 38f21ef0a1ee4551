"""Epilogues of tensor-core products: what a kernel does with the sums of a tile."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Epilogue"]


@dataclass(frozen=True)
class Epilogue:
    """A C++ class that gemm_mma.cuh or gemm_wgmma.cuh hands its sums to; tsm2/epilogue.cuh says how.

    Attributes
    ----------
    header : str
        The file that defines it, from the root of the include path.
    name : str
        The class with its template arguments.
    arguments : numpy.dtype
        The class as a NumPy structure, which kernels take by value.
    """

    header: str
    name: str
    arguments: np.dtype
