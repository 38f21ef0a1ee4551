"""Exact sums of single torch tensors, of any dtype and rank, computed where they lie."""

import warnings
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.correct import correct
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.verdict import AmbiguousError
from tsapps.apps.abft.at_rest.verify import encode, verify

__all__ = ["restore", "sums_of"]


def sums_of(tensor: Any) -> np.ndarray | None:
    """Return the exact sums of a torch tensor's bytes, (stripes, 5, width); None if it has none.

    Parameters
    ----------
    tensor : torch.Tensor
        On any device, of any strides; the bytes are those of a contiguous copy.
    """
    return encode(_bytes(tensor), code="exact").exact if tensor.numel() else None


def restore(tensor: Any, exact: np.ndarray | None, name: str) -> None:
    """Compare a torch tensor with its exact sums, and restore corrupted words in place.

    Raises
    ------
    AmbiguousError
        If more was corrupted than can be repaired.
    ValueError
        If the sums are those of another number of bytes.

    Warns
    -----
    UserWarning
        If words were restored.
    """
    n_bytes = tensor.numel() * tensor.element_size()
    if (exact is None) != (n_bytes == 0):
        raise AmbiguousError(f"{name}: has {n_bytes:,} bytes, and its sums are of other bytes")
    if exact is None:
        return
    sums, found = Sidecar((1, n_bytes), "uint8", n_bytes, exact=exact), _bytes(tensor)
    verdict = verify(found, sums)
    if verdict.clean:
        return
    if verdict.refused:
        raise AmbiguousError(f"{name}: more was corrupted than its sums restore: load another checkpoint")
    right = correct(found, sums)
    tensor.copy_(right.view(tensor.dtype).reshape(tensor.shape))
    words = f"{len(verdict.faults):,} word{'s' if len(verdict.faults) != 1 else ''} of 32 bits"
    warnings.warn(f"{name}: corrupted in {words}, which are right in memory: check the checkpoint", stacklevel=3)


def _bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor, as one row."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).reshape(1, -1)
