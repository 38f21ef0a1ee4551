"""Device selection: `cpu` or `cuda:i`, from the user's request, the location of the data and the machine's GPUs."""

import importlib.util
import os
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

__all__ = [
    "Choice",
    "InstalledGpu",
    "NoDeviceError",
    "available_cores",
    "choose_device",
    "gpus",
    "why_no_gpu",
]


class NoDeviceError(RuntimeError):
    """The requested GPU does not exist, or this process cannot use it."""


@dataclass(frozen=True)
class InstalledGpu:
    """One NVIDIA GPU that CuPy can reach.

    Attributes
    ----------
    index : int
        CUDA device index of the GPU in this process.
    name : str
    compute_capability : str
        For example ``"9.0"``.
    multiprocessors : int
    memory : int
        Size of the device memory, in bytes.
    l2 : int
        Size of the level-2 cache, in bytes.
    """

    index: int
    name: str
    compute_capability: str
    multiprocessors: int
    memory: int
    l2: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """The selected device, and the reason for the selection in one phrase."""

    device: str
    reason: str

    @property
    def is_gpu(self) -> bool:
        """True if the selected device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def index(self) -> int:
        """The CUDA device index of the selected GPU. Raises ValueError if the CPU is selected."""
        return int(self.device.removeprefix("cuda:"))


@cache
def _probe() -> tuple[tuple[InstalledGpu, ...], str]:
    """Return the GPUs that CuPy can use, and the reason why there are none (empty if there is a GPU)."""
    if importlib.util.find_spec("cupy") is None:
        return (), "CuPy is not installed (pip install 'cupy-cuda13x[ctk]')"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (), f"CUDA finds no usable GPU: {error}"
    found = []
    for index in range(count):
        properties = cupy.cuda.runtime.getDeviceProperties(index)
        found.append(
            InstalledGpu(
                index,
                properties["name"].decode(),
                f"{properties['major']}.{properties['minor']}",
                properties["multiProcessorCount"],
                properties["totalGlobalMem"],
                properties["l2CacheSize"],
            )
        )
    return tuple(found), "" if found else "CUDA finds no GPU"


def gpus() -> tuple[InstalledGpu, ...]:
    """Return the GPUs that this process can use, or an empty tuple."""
    return _probe()[0]


def why_no_gpu() -> str:
    """Return in one line why `gpus()` finds no GPU, or an empty string if it finds a GPU."""
    return _probe()[1]


def choose_device(request: str = "auto", *, resident: int | None = None) -> Choice:
    """Select the device on which to compute.

    Parameters
    ----------
    request : {"auto", "cpu", "cuda", "cuda:i"}
        The user's request.
    resident : int, optional
        Index of the GPU that holds the data; None if the data is in host memory.

    Returns
    -------
    Choice
        `auto` selects the GPU that holds the data, else the first GPU, else the CPU. `cuda` selects the GPU that holds
        the data, else GPU 0.

    Raises
    ------
    ValueError
        If `request` has none of the four forms.
    NoDeviceError
        If this process cannot use the requested GPU.
    """
    if request == "cpu":
        return Choice("cpu", "the CPU was asked for")
    if request == "auto":
        if resident is not None:
            return Choice(f"cuda:{resident}", f"the data is on GPU {resident}")
        if gpus():
            return Choice("cuda:0", f"{gpus()[0].name} is available")
        return Choice("cpu", why_no_gpu())
    kind, _, number = request.partition(":") if isinstance(request, str) else ("", "", "")
    if kind != "cuda" or not (number.isdigit() or request == "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got {request!r}")
    index = int(number) if number else resident if resident is not None else 0
    if not gpus():
        raise NoDeviceError(f"device {request!r} was asked for, but {why_no_gpu()}")
    if index >= len(gpus()):
        raise NoDeviceError(f"device {request!r} was asked for, but the last GPU is cuda:{len(gpus()) - 1}")
    return Choice(f"cuda:{index}", f"{request} was asked for")


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
