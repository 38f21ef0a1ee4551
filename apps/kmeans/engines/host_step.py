"""Lloyd step on the CPU, by NumPy and BLAS.

For data in memory, `TSKMeans` runs scikit-learn's compiled Lloyd instead, which is up to twice as fast for small k and
d. This step runs where scikit-learn's cannot, for example for data larger than memory, or for progress reports.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import ldexp, overflow_exponent
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.engines.block_step import BlockStep

__all__ = ["HostStep"]

# Maximum number of scores per GEMM: 0.5 MiB of float32 or 1 MiB of float64, so that the arg-min reads them from the L2
# cache.
_SCORE_ELEMENTS = 1 << 17
# Rows per GEMM in scikit-learn. For small data, this step uses the same number: scores then have scikit-learn's bits,
# and ties give the same labels.
_CHUNK_ROWS = 256
# Maximum number of features, and of bytes of the scores of a row (256 scores at most), for `_nearest_by_center`. It is
# 1.1 to 2.1 times as fast as argmin there; beyond, its product is slower than the one with row-major scores.
_MOST_FEATURES, _MOST_SCORE_BYTES = 16, 128


class HostStep(BlockStep):
    """Lloyd step by NumPy and BLAS, over `HostData`."""

    data: HostData

    def __init__(self, data: HostData) -> None:
        super().__init__(data)
        # Load SciPy's BLAS here, not in a worker thread: `one_blas_thread` limits only BLAS libraries loaded before it.
        self._product = _scipy_product(data.dtype) if data.is_small else None

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Label the rows of a block, and sum the rows of each label; see `BlockStep.assign_block`."""
        labels = np.empty(len(block), np.int32)
        lowest = np.empty(len(block), self.data.dtype) if potential else None
        # A fit scales its rows so that scores do not overflow (`Frame`). Rows of `predict` may be larger, so they are
        # scaled down here.
        exponent = overflow_exponent(block, minus_2_centers) if self.data.may_be_far else 0
        block, minus_2_centers = ldexp(block, -exponent), ldexp(minus_2_centers, -exponent)
        norms, product = ldexp(norms, -2 * exponent), self._product
        if product is not None:
            minus_2_centers = np.asfortranarray(minus_2_centers)
        rows = _CHUNK_ROWS if product is not None else max(_CHUNK_ROWS, _SCORE_ELEMENTS // len(norms))
        by_center = product is None and block.shape[1] <= _MOST_FEATURES and norms.nbytes <= _MOST_SCORE_BYTES
        for start in range(0, len(block), rows):
            part = slice(start, start + rows)
            if by_center:
                labels[part], least = _nearest_by_center(block[part], minus_2_centers, norms)
                if lowest is not None:
                    lowest[part] = least
                continue
            if product is not None:
                scores = _scores_of_chunk(product, block[part], minus_2_centers, norms)
            else:
                scores = block[part] @ minus_2_centers
                scores += norms
            labels[part] = scores.argmin(axis=1)
            if lowest is not None:
                lowest[part] = scores.min(axis=1)
        if not update:
            return labels, lowest, 0, 0
        return labels, lowest, *self.sum_block(block, weights, labels, len(norms))

    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sum and weight of the rows of each label in a block; see `BlockStep.sum_block`."""
        from scipy.sparse import csr_matrix

        # The sums are the transpose of the weighted one-hot label matrix, times the rows.
        entries = np.ones(len(block), self.data.dtype) if weights is None else weights
        one_hot = csr_matrix((entries, labels, np.arange(len(block) + 1)), shape=(len(block), k))
        return one_hot.T @ block, np.bincount(labels, weights=weights, minlength=k)


def _scipy_product(dtype: np.dtype) -> Callable[..., np.ndarray]:
    """Return the GEMM of SciPy's BLAS, which scikit-learn uses to label rows; NumPy may link another BLAS."""
    from scipy.linalg import get_blas_funcs

    return get_blas_funcs("gemm", dtype=dtype)


def _nearest_by_center(
    rows: np.ndarray, minus_2_centers: np.ndarray, norms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the label and the lowest score of each row, for few features and centers.

    The scores of a center are contiguous, so that all operations are on long vectors. `argmin` over the short rows of a
    score matrix takes longer than the product.
    """
    k = len(norms)
    scores = np.ascontiguousarray(minus_2_centers.T) @ rows.T
    scores += norms[:, np.newaxis]
    lowest = scores.min(axis=0)
    # The first of equal scores is the one of most centers that follow it.
    following = (scores == lowest).view(np.uint8)
    following *= np.arange(k - 1, -1, -1, dtype=np.uint8)[:, np.newaxis]
    return k - 1 - following.max(axis=0).astype(np.int32), lowest


def _scores_of_chunk(
    product: Callable[..., np.ndarray], rows: np.ndarray, minus_2_centers: np.ndarray, norms: np.ndarray
) -> np.ndarray:
    """Return the scores ‖c‖² − 2·x·c (m, k) of rows x (m, d), bit-identical to scikit-learn's.

    The GEMM call and the BLAS library are scikit-learn's; the GEMM adds −2·x·c to the norms. SciPy holds the GIL during
    the call.
    """
    scores = np.empty((len(rows), len(norms)), rows.dtype)
    scores[:] = norms
    # BLAS arrays are column-major, so the call passes the transposes of the row-major arrays.
    found = product(1.0, minus_2_centers, rows.T, beta=1.0, c=scores.T, trans_a=1, overwrite_c=1)
    return found.T
