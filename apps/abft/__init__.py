"""Checksums that detect and repair corrupted numbers (ABFT, algorithm-based fault tolerance).

encode
    Compute the checksums of an array or file of any size; returns a `Sidecar`.
verify, locate
    Find corruption: `verify` returns a `Verdict`; `locate` returns the rows and columns of corrupted elements.
correct, repaired
    Repair corruption: `correct` restores an array in memory; `repaired` yields the original bytes of an array or file.
read_sidecar, write_sidecar
    Read and write a `Sidecar` as a file.
matmul, check_product
    `matmul` computes a product with checksums; `check_product` checks a finished product.
calibrate
    Measure the rounding errors of products on a device, for the statistical threshold.
inject
    Corrupt an array on purpose, for tests.
protect_files, verify_files, repair_files
    Protect whole files and directories; each yields a `FileReport` for every file.
load_file, save_file
    Load and save safetensors files for torch, verified and encoded where the tensors lie.
protect_state_dict, ProtectedSavePlanner, ProtectedLoadPlanner
    Checksums in state dicts and distributed checkpoints of torch.
Linear, protect, unprotect, check_faults
    Linear layers of torch whose products are checked and repaired, forward and backward; imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tsapps.apps.abft.at_rest.correct import correct, locate
from tsapps.apps.abft.at_rest.sidecar import Sidecar, SidecarError, read_sidecar, write_sidecar
from tsapps.apps.abft.at_rest.verdict import AmbiguousError, ChangedError, Fault, Region, Verdict
from tsapps.apps.abft.at_rest.verify import encode, repaired, verify
from tsapps.apps.abft.files.load import load_file
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.repair import repair_files
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.save import save_file
from tsapps.apps.abft.files.state_dict import protect_state_dict
from tsapps.apps.abft.files.verify import verify_files
from tsapps.apps.abft.inject import inject
from tsapps.apps.abft.product.calibrate import Calibration, calibrate
from tsapps.apps.abft.product.calibration_file import load_calibration, save_calibration
from tsapps.apps.abft.product.matmul import Checked, ProductFault, check_product, matmul

if TYPE_CHECKING:
    from tsapps.apps.abft.files.dcp import ProtectedLoadPlanner, ProtectedSavePlanner  # noqa: F401
    from tsapps.apps.abft.modules.faults import LinearFault, LinearFaultError, LinearFaultWarning  # noqa: F401
    from tsapps.apps.abft.modules.linear import Linear, protect, unprotect  # noqa: F401
    from tsapps.apps.abft.modules.products import check_faults  # noqa: F401

__all__ = [
    "AmbiguousError",
    "Calibration",
    "ChangedError",
    "Checked",
    "Fault",
    "FileReport",
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
    "load_file",
    "locate",
    "matmul",
    "protect_files",
    "protect_state_dict",
    "read_sidecar",
    "repair_files",
    "repaired",
    "save_calibration",
    "save_file",
    "verify",
    "verify_files",
    "write_sidecar",
]

# Names that need torch, or are of use only with it, and their modules. They are not in __all__, because
# `from tsapps.abft import *` would import torch.
TORCH_NAMES = {
    "Linear": "modules.linear",
    "LinearFault": "modules.faults",
    "LinearFaultError": "modules.faults",
    "LinearFaultWarning": "modules.faults",
    "ProtectedLoadPlanner": "files.dcp",
    "ProtectedSavePlanner": "files.dcp",
    "check_faults": "modules.products",
    "protect": "modules.linear",
    "unprotect": "modules.linear",
}


def __getattr__(name: str) -> Any:
    if name not in TORCH_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"tsapps.apps.abft.{TORCH_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *TORCH_NAMES])
