"""Hooks of torch modules: a state dict carries the exact sums of its tensors, and is verified when it is loaded."""

from typing import Any

import numpy as np

from tsapps.apps.abft.files.tensor_sums import restore, sums_of

__all__ = ["protect_state_dict"]

# The key of the sums in the metadata of a state dict.
_KEY = "tsapps.exact_sums"


def protect_state_dict(module: Any) -> Any:
    """Make `module.state_dict()` carry sums of its tensors, and `module.load_state_dict` verify those that have some.

    The sums lie in the metadata of the state dict, which `torch.save` and ``torch.load(…, weights_only=True)`` keep.
    They are computed on the tensors' device. Words that were corrupted since, in memory or in the file, are restored.

    Parameters
    ----------
    module : torch.nn.Module

    Returns
    -------
    torch.nn.Module
        The same module.

    Notes
    -----
    `load_state_dict` raises `AmbiguousError` if more was corrupted than can be repaired, and warns of what it repaired.
    """
    if not getattr(module, "_tsapps_protects_state_dict", False):
        module.register_state_dict_post_hook(_attach)
        module.register_load_state_dict_pre_hook(_verify)
        module._tsapps_protects_state_dict = True
    return module


def _attach(_module: Any, state_dict: Any, prefix: str, local_metadata: dict[str, Any]) -> None:
    import torch

    sums: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        if name.startswith(prefix) and isinstance(tensor, torch.Tensor):
            found = sums_of(tensor)
            if found is not None:
                sums[name[len(prefix) :]] = torch.from_numpy(found.view(np.int64).copy())
    local_metadata[_KEY] = sums


def _verify(_module: Any, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *_: Any) -> None:
    for name, sums in local_metadata.get(_KEY, {}).items():
        tensor = state_dict.get(prefix + name)
        if tensor is not None:
            restore(tensor, sums.cpu().numpy().view(np.uint64), prefix + name)
