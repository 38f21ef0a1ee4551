"""Plan of a product that cublasLt computes: which of its algorithms to use. Pure."""

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["LibraryAlgorithm"]


@dataclass(frozen=True)
class LibraryAlgorithm:
    """An algorithm of cublasLt.

    Attributes
    ----------
    rank : int
        Rank of the algorithm in the list from cublasLt's heuristics, counted from 1. If the list has fewer than `rank`
        algorithms, its last algorithm is used.
    own_orders : bool
        True if row-major matrices are passed to cublasLt as row-major. If False, cublasLt computes the equivalent
        product of column-major matrices.
    """

    kernel_name: ClassVar[str] = "cublaslt"

    rank: int = 1
    own_orders: bool = False
