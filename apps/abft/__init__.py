"""Checksums that find and repair numbers that went wrong (ABFT, algorithm-based fault tolerance).

encode
    The checksums of an array or file of any size: a `Sidecar`.
verify, locate
    What is not as it was: a `Verdict`; rows and columns.
correct, repaired
    An array as it was; the bytes of a file of any size as they were.
read_sidecar, write_sidecar
    The checksums in a file.
inject
    Faults, for trying it out.
"""

from tsapps.apps.abft.arrays import correct, locate
from tsapps.apps.abft.faults import inject
from tsapps.apps.abft.rest import encode, repaired, verify
from tsapps.apps.abft.sidecar import Sidecar, SidecarError, read_sidecar, write_sidecar
from tsapps.apps.abft.verdict import AmbiguousError, ChangedError, Fault, Region, Verdict

__all__ = [
    "AmbiguousError",
    "ChangedError",
    "Fault",
    "Region",
    "Sidecar",
    "SidecarError",
    "Verdict",
    "correct",
    "encode",
    "inject",
    "locate",
    "read_sidecar",
    "repaired",
    "verify",
    "write_sidecar",
]
