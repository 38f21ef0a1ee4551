"""The plan of a product by cublasLt: the algorithm that computes it. Pure."""

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["LibraryAlgorithm"]


@dataclass(frozen=True)
class LibraryAlgorithm:
    """An algorithm of cublasLt.

    Attributes
    ----------
    rank : int
        Rank of the algorithm in the list from cublasLt's heuristics, counted from 1. If the list has fewer algorithms,
        the last of them runs.
    own_orders : bool
        Whether row-major matrices are passed to cublasLt as row-major. Otherwise it computes the equivalent product of
        column-major matrices.
    """

    kernel_name: ClassVar[str] = "cublaslt"

    rank: int = 1
    own_orders: bool = False
