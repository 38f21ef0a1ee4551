"""Planners of torch.distributed.checkpoint: checkpoints carry exact sums of their tensors, verified when loaded.

    dcp.save(state, checkpoint_id=path, planner=ProtectedSavePlanner())
    dcp.load(state, checkpoint_id=path, planner=ProtectedLoadPlanner())

The sums of each chunk are computed where the tensor lies, before bytes are written, and are stored in the metadata of
the checkpoint. A chunk that is loaded whole is verified where it then lies. One that is loaded in parts, because the
number of ranks has changed, has no sums of its parts: `tsapps verify` of the directory covers it.
"""

from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, WriteItemType

from tsapps.apps.abft.files.tensor_sums import restore, sums_of

__all__ = ["ProtectedLoadPlanner", "ProtectedSavePlanner"]

# The key of the sums in the planner data of the checkpoint's metadata, and of those of a rank's plan.
_KEY = "tsapps.exact_sums"


def _place(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    """Return what identifies a chunk: the tensor's name, and the chunk's offsets in it."""
    return index.fqn, tuple(index.offset or ())


class ProtectedSavePlanner(DefaultSavePlanner):
    """`DefaultSavePlanner` that stores the exact sums of every chunk of a tensor in the checkpoint's metadata."""

    def create_local_plan(self) -> SavePlan:
        """Plan what this rank writes, and compute its sums."""
        plan = super().create_local_plan()
        sums = {}
        for item in plan.items:
            if item.type != WriteItemType.BYTE_IO:
                sums[_place(item.index)] = sums_of(self.resolve_data(item))
        return replace(plan, planner_data={**(plan.planner_data or {}), _KEY: sums})

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Join the plans of all ranks, and their sums in the metadata."""
        sums: dict[Any, Any] = {}
        without = []
        for plan in all_plans:
            data = dict(plan.planner_data or {})
            sums |= data.pop(_KEY, {})
            without.append(replace(plan, planner_data=data))
        plans, metadata = super().create_global_plan(without)
        kept = {place: sums[place] for plan in plans for item in plan.items if (place := _place(item.index)) in sums}
        data = {**(metadata.planner_data or {}), _KEY: kept}
        return plans, replace(metadata, planner_data=data)


class ProtectedLoadPlanner(DefaultLoadPlanner):
    """`DefaultLoadPlanner` that verifies every chunk that is loaded whole, and restores corrupted words.

    Attributes
    ----------
    unverified : list of str
        Names of tensors of which a chunk was loaded in parts, or without sums.
    """

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Take the sums from the metadata."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        data = {} if metadata is None else metadata.planner_data or {}
        self._sums = data.get(_KEY, {}) if isinstance(data, dict) else {}
        self._sizes = {} if metadata is None else metadata.state_dict_metadata
        self.unverified: list[str] = []

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Verify a chunk after it was copied to its tensor.

        Raises
        ------
        AmbiguousError
            If more was corrupted than its sums restore.
        """
        place = _place(read_item.storage_index)
        name = place[0]
        chunks = getattr(self._sizes.get(name), "chunks", ())
        size = next((chunk.sizes for chunk in chunks if tuple(chunk.offsets) == place[1]), None)
        if place not in self._sums or size is None or tuple(read_item.lengths) != tuple(size):
            self.unverified.append(name)
        else:
            restore(tensor, self._sums[place], name)
        super().commit_tensor(read_item, tensor)
