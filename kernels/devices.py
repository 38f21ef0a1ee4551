"""Device selection: the CPU or GPUs, from the user's request, the location of the data and the machine's GPUs."""

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
    """The selected device, "cpu", "cuda:0" or "cuda:0,1", and the reason for the selection in one phrase."""

    device: str
    reason: str

    @property
    def is_gpu(self) -> bool:
        """True if the selected device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def index(self) -> int:
        """The CUDA device index of the selected GPU; of the first, if there are several. Not for the CPU."""
        return self.indices[0]

    @property
    def indices(self) -> tuple[int, ...]:
        """The CUDA device indices of the selected GPUs. Raises ValueError if the CPU is selected."""
        return tuple(int(number) for number in self.device.removeprefix("cuda:").split(","))


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


def choose_device(request: str = "auto", *, resident: int | None = None, several: bool = False) -> Choice:
    """Select the device on which to compute.

    Parameters
    ----------
    request : {"auto", "cpu", "cuda", "cuda:i", "cuda:i,j,…", "cuda:all"}
        The user's request.
    resident : int, optional
        Index of the GPU that holds the data; None if the data is in host memory.
    several : bool
        Whether the caller can use several GPUs: the last two forms.

    Returns
    -------
    Choice
        `auto` selects the GPU that holds the data, else the first GPU, else the CPU. `cuda` selects the GPU that holds
        the data, else GPU 0. `cuda:all` selects all GPUs.

    Raises
    ------
    ValueError
        If `request` has none of these forms, names several GPUs that the caller cannot use, or names one twice.
    NoDeviceError
        If this process cannot use a requested GPU.
    """
    if request == "cpu":
        return Choice("cpu", "the CPU was asked for")
    if request == "auto":
        if resident is not None:
            return Choice(f"cuda:{resident}", f"the data is on GPU {resident}")
        if gpus():
            return Choice("cuda:0", f"{gpus()[0].name} is available")
        return Choice("cpu", why_no_gpu())
    indices = _indices_of(request, resident, several=several)
    if not gpus():
        raise NoDeviceError(f"device {request!r} was asked for, but {why_no_gpu()}")
    if request == "cuda:all":
        indices = list(range(len(gpus())))
    if max(indices) >= len(gpus()):
        raise NoDeviceError(f"device {request!r} was asked for, but the last GPU is cuda:{len(gpus()) - 1}")
    return Choice(f"cuda:{','.join(map(str, indices))}", f"{request} was asked for")


def _indices_of(request: str, resident: int | None, *, several: bool) -> list[int]:
    """Return the indices of the GPUs that a request names; none for "cuda:all"."""
    kind, _, numbers = request.partition(":") if isinstance(request, str) else ("", "", "")
    if request == "cuda":
        return [0 if resident is None else resident]
    if several and request == "cuda:all":
        return []
    parts = numbers.split(",")
    usable = kind == "cuda" and all(part.isascii() and part.isdigit() for part in parts)
    if not usable or (len(parts) > 1 and not several):
        forms = "'auto', 'cpu', 'cuda' or 'cuda:<number>'"
        more = ", for several GPUs 'cuda:<number>,<number>' or 'cuda:all'" if several else ""
        raise ValueError(f"device must be {forms}{more}, got {request!r}")
    indices = [int(part) for part in parts]
    if len(set(indices)) < len(indices):
        raise ValueError(f"device must name different GPUs, got {request!r}")
    return indices


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
