"""Checksums that find and repair numbers that went wrong (ABFT, algorithm-based fault tolerance).

encode
    The checksums of an array or file of any size: a `Sidecar`.
verify, locate
    What is not as it was: a `Verdict`; rows and columns.
correct, repaired
    An array as it was; the bytes of a file of any size as they were.
read_sidecar, write_sidecar
    The checksums in a file.
matmul, check_product
    A product that finds and repairs what goes wrong in it; the check of one that is there.
calibrate
    How far rounding takes products on a device: what statistical thresholds stand on.
inject
    Faults, for trying it out.
"""

from tsapps.apps.abft.at_rest.correct import correct, locate
from tsapps.apps.abft.at_rest.sidecar import Sidecar, SidecarError, read_sidecar, write_sidecar
from tsapps.apps.abft.at_rest.verdict import AmbiguousError, ChangedError, Fault, Region, Verdict
from tsapps.apps.abft.at_rest.verify import encode, repaired, verify
from tsapps.apps.abft.inject import inject
from tsapps.apps.abft.product.calibrate import Calibration, calibrate
from tsapps.apps.abft.product.calibration_file import load_calibration, save_calibration
from tsapps.apps.abft.product.matmul import Checked, ProductFault, check_product, matmul

__all__ = [
    "AmbiguousError",
    "Calibration",
    "ChangedError",
    "Checked",
    "Fault",
    "ProductFault",
    "Region",
    "Sidecar",
    "SidecarError",
    "Verdict",
    "calibrate",
    "check_product",
    "correct",
    "encode",
    "inject",
    "load_calibration",
    "locate",
    "matmul",
    "read_sidecar",
    "repaired",
    "save_calibration",
    "verify",
    "write_sidecar",
]
