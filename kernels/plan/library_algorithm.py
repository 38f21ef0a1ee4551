"""Plans of a vendor library: which of its algorithms computes a product. Pure."""

from dataclasses import dataclass
from typing import ClassVar

__all__ = ["LibraryAlgorithm"]


@dataclass(frozen=True)
class LibraryAlgorithm:
    """An algorithm of cublasLt.

    Attributes
    ----------
    rank : int
        Its rank in the list from cublasLt's heuristics, from 1 on. If the list is shorter, its last algorithm runs.
    own_orders : bool
        Whether cublasLt gets row-major matrices as row-major; otherwise it gets the equivalent column-major product.
    """

    kernel_name: ClassVar[str] = "cublaslt"

    rank: int = 1
    own_orders: bool = False
