"""`Shard`: which rows of X a GPU holds, if X is distributed over several GPUs."""

from dataclasses import dataclass

__all__ = ["Shard"]


@dataclass(frozen=True)
class Shard:
    """Consecutive rows of X: those from `first` on, of `n_total` rows in all.

    Sums over rows are computed by chunks, whose rows are a function of `n_total`. Shards consist of whole chunks, so
    that results have the same bits however X is distributed.

    Attributes
    ----------
    first : int
        Index of the first row of the shard in X; a multiple of the rows of a chunk.
    n_total : int
        Number of rows of X.
    """

    first: int
    n_total: int
