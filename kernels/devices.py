"""Which processor does the work: `cuda` or `cpu`, found from the data in hand and from the machine.

Nothing here imports CuPy unless a GPU is asked for or a driver is present, so that a machine without one pays nothing.
"""

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
    """A GPU was asked for and there is none that this process can use."""


@dataclass(frozen=True)
class InstalledGpu:
    """One NVIDIA GPU that CuPy can reach.

    Attributes
    ----------
    index : int
        CUDA's number for it in this process.
    name : str
    compute_capability : str
        For example ``"9.0"``.
    multiprocessors : int
    memory : int
        Bytes in all.
    l2 : int
        Bytes of level-2 cache.
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
    """The device chosen for a piece of work, and the reason in one sentence."""

    device: str
    reason: str

    @property
    def is_gpu(self) -> bool:
        """Whether the work runs on a GPU."""
        return self.device.startswith("cuda")

    @property
    def index(self) -> int:
        """The number of the GPU; an error on the CPU."""
        return int(self.device.removeprefix("cuda:"))


@cache
def _probe() -> tuple[tuple[InstalledGpu, ...], str]:
    """Return the GPUs that CuPy can use, and why there is none where there is none."""
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
    """Return the GPUs that this process can use; empty where there is none."""
    return _probe()[0]


def why_no_gpu() -> str:
    """Return why `gpus` is empty, in one line; the empty string where it is not."""
    return _probe()[1]


def choose_device(request: str = "auto", *, resident: int | None = None) -> Choice:
    """Choose where the work runs.

    Parameters
    ----------
    request : {"auto", "cpu", "cuda", "cuda:i"}
        What the user asked for.
    resident : int, optional
        The GPU on which the data already lies.

    Returns
    -------
    Choice
        `auto` follows the data to its GPU, else takes the first GPU there is, else the CPU.

    Raises
    ------
    ValueError
        If `request` is none of the four forms.
    NoDeviceError
        If a GPU is asked for that this process cannot use.
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
    """Return how many of the machine's cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
