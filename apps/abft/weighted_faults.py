"""Which elements of a matrix are not what they were, by the float code."""

import numpy as np

from tsapps.apps.abft.sidecar import Sidecar
from tsapps.apps.abft.source import Progress, Source, parts
from tsapps.apps.abft.verdict import Verdict
from tsapps.apps.abft.weighted import WeightedSums, unit_roundoff

__all__ = ["WeightedCheck", "weighted_verdict"]


def weighted_verdict(source: Source, sidecar: Sidecar, progress: Progress | None = None) -> Verdict:
    """Return what of a matrix is not as it was, by its weighted sums."""
    raise NotImplementedError


class WeightedCheck:
    """Whether elements that come in parts have a sidecar's weighted sums, up to rounding."""
