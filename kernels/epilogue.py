"""Epilogues of tensor-core products: the code that a kernel runs on the accumulators of each tile of C."""

from dataclasses import dataclass

import numpy as np

__all__ = ["Epilogue"]


@dataclass(frozen=True)
class Epilogue:
    """A C++ class to which gemm_mma.cuh or gemm_wgmma.cuh passes accumulators; see the interface in tsm2/epilogue.cuh.

    Attributes
    ----------
    header : str
        The file that defines the class, relative to the root of the include path.
    name : str
        The name of the class with its template arguments.
    arguments : numpy.dtype
        The layout of the class as a NumPy structure; the kernel takes an instance by value.
    """

    header: str
    name: str
    arguments: np.dtype
