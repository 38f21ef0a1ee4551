"""GPU specifications: sizes, rates and latencies, the input of the performance model and of the plans.

`KNOWN` holds published specifications (known_gpus.json), so that models and plans work without an installed GPU. `live`
reads the specification of an installed GPU through CuPy, but takes the rates from `KNOWN` if that contains the GPU.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tsapps.kernels.system.strict_json import read_json

__all__ = ["KNOWN", "GpuSpec", "file_name_of", "find", "from_attributes", "limited", "live", "measured_alike"]


def file_name_of(device_name: str) -> str:
    """Return the name of files about a device, without suffix: nvidia-h200 for "NVIDIA H200"."""
    return "-".join(device_name.lower().split())


@dataclass(frozen=True)
class GpuSpec:
    """The sizes, rates and latencies of one GPU.

    Attributes
    ----------
    name : str
    compute_capability : str
        For example ``"9.0"``.
    multiprocessors : int
    registers : int
        Number of 32-bit registers per multiprocessor.
    shared_memory : int
        Bytes of shared memory per multiprocessor.
    shared_memory_per_block : int
        Maximum bytes of shared memory per block, with CUDA's opt-in to more than 48 KiB.
    max_threads : int
        Maximum number of threads resident on a multiprocessor.
    clock_hz : float
        The boost clock; for the K40c the base clock, because the peaks of the K40c are published for that clock.
    bandwidth : float
        Peak memory bandwidth in bytes/s.
    l2 : int
        Size of the level-2 cache in bytes.
    peaks : tuple of (str, float)
        Peak flop/s by arithmetic unit; a fused multiply-add counts as two. ``"float64"`` and ``"float32"`` are the
        ordinary units; ``"float64_tensor"``, ``"tf32"``, ``"float16"`` and ``"bfloat16"`` are the tensor cores, without
        sparsity.
    memory_latency : int
        Cycles from a load to the arrival of its data, if the load misses all caches and the memory is idle.
    compute_latency : tuple of (str, int)
        Cycles from a fused multiply-add to the next one that uses its result, by dtype.
    is_portable : bool
        True for a GPU as which only instructions count that later GPUs have, too; see `limited`.
    """

    name: str
    compute_capability: str
    multiprocessors: int
    registers: int
    shared_memory: int
    shared_memory_per_block: int
    max_threads: int
    clock_hz: float
    bandwidth: float
    l2: int
    peaks: tuple[tuple[str, float], ...]
    memory_latency: int
    compute_latency: tuple[tuple[str, int], ...]
    is_portable: bool = False

    @property
    def has_wgmma(self) -> bool:
        """True if it has the instructions wgmma of Hopper (sm_90a), which later GPUs do not have."""
        return self.compute_capability == "9.0" and not self.is_portable

    def peak(self, unit: str) -> float:
        """Return the peak of a unit in flop/s; raise ValueError if the device has no such unit."""
        return _entry(self.peaks, unit, f"{self.name} has no peak for unit")

    def fma_latency(self, dtype: str) -> int:
        """Return the `compute_latency` of a dtype; raise ValueError for an unknown dtype."""
        return int(_entry(self.compute_latency, dtype, f"{self.name} has no latency for dtype"))


def _entry(pairs: tuple[tuple[str, float], ...], key: str, complaint: str) -> float:
    for name, value in pairs:
        if name == key:
            return value
    raise ValueError(f"{complaint} {key!r}; expected one of {', '.join(name for name, _ in pairs) or '(none)'}")


# Sizes and rates are from the vendor's data sheets and architecture white papers; tensor-core peaks are dense, with
# float32 sums. Sizes missing there (registers, shared memory, resident threads) are from the table of compute
# capabilities in the CUDA C++ Programming Guide.
#
# Latencies are measured. Kepler to Volta: Arafa, Badawy, Chennupati, Santhi, Eidenbenz, "Instructions' latencies
# characterization for NVIDIA GPGPUs" (arXiv:1905.08778), global memory and dependent fma/dfma. A100 and H100, global
# memory: Luo et al., "Benchmarking and dissecting the Nvidia Hopper GPU architecture via microbenchmarking"
# (arXiv:2402.13499), rounded. Assumed: the fma latency of A100 and later is Volta's, and later GPUs have the latencies
# of the A100 (compute capability 8.x) or of the H100.
#
# "called" is a regular expression for the name that CUDA reports, after "NVIDIA". Variants of a GPU with other clocks
# or other memory (PCIe, NVL, 40 GB, a MIG slice) are different devices and do not match.
_DATA: Mapping[str, Mapping[str, Any]] = read_json(Path(__file__).with_name("known_gpus.json"))


def _spec_of(name: str, of: Mapping[str, Any]) -> GpuSpec:
    return GpuSpec(
        name,
        of["compute_capability"],
        of["multiprocessors"],
        of["registers"],
        of["shared_kib"] << 10,
        of["shared_per_block_kib"] << 10,
        of["threads"],
        of["clock_mhz"] * 1e6,
        of["bandwidth_gbs"] * 1e9,
        of["l2_kib"] << 10,
        tuple((unit, peak * 1e12) for unit, peak in of["tflops"].items()),
        of["latencies"]["memory"],
        tuple((dtype, of["latencies"][dtype]) for dtype in ("float32", "float64")),
    )


#: The published specifications, by the short name of the GPU.
KNOWN: Mapping[str, GpuSpec] = MappingProxyType({name: _spec_of(name, of) for name, of in _DATA.items()})

# Fused multiply-adds per cycle and multiprocessor, by compute capability. Sources: "Arithmetic Instructions" of the
# CUDA C++ Programming Guide; for tensor cores, the architecture white papers. Tensor rates of 8.6, 8.9 and 12.0 depend
# on the model: those here are of the consumer GPUs, half of the others'.
_FMA_UNITS: dict[str, dict[str, int]] = {
    "3.5": {"float64": 64, "float32": 192},
    "3.7": {"float64": 64, "float32": 192},
    "5.0": {"float64": 4, "float32": 128},
    "5.2": {"float64": 4, "float32": 128},
    "5.3": {"float64": 4, "float32": 128},
    "6.0": {"float64": 32, "float32": 64},
    "6.1": {"float64": 4, "float32": 128},
    "6.2": {"float64": 4, "float32": 128},
    "7.0": {"float64": 32, "float32": 64, "float16": 512},
    "7.5": {"float64": 2, "float32": 64, "float16": 512},
    "8.0": {"float64": 32, "float32": 64, "float64_tensor": 64, "tf32": 512, "float16": 1024, "bfloat16": 1024},
    "8.6": {"float64": 2, "float32": 128, "tf32": 128, "float16": 256, "bfloat16": 256},
    "8.7": {"float64": 2, "float32": 128},
    "8.9": {"float64": 2, "float32": 128, "tf32": 128, "float16": 256, "bfloat16": 256},
    "9.0": {"float64": 64, "float32": 128, "float64_tensor": 128, "tf32": 1024, "float16": 2048, "bfloat16": 2048},
    "10.0": {"float64": 64, "float32": 128, "tf32": 2048, "float16": 4096, "bfloat16": 4096},
    "12.0": {"float64": 2, "float32": 128, "tf32": 128, "float16": 256, "bfloat16": 256},
}
# By major compute capability: the GPU in KNOWN whose measured latencies are used for all GPUs of that generation. Later
# generations use the latencies of the H100.
_GENERATIONS = {3: "K40c", 5: "M40", 6: "P100", 7: "V100", 8: "A100", 9: "H100"}


def find(name: str) -> GpuSpec | None:
    """Find the published specification of a GPU.

    Parameters
    ----------
    name : str
        The name from CUDA, for example ``"NVIDIA A100-SXM4-80GB"``, or the short name. Case does not matter.

    Returns
    -------
    GpuSpec or None
        None if the GPU is unknown, or is a variant of a known GPU with other rates.
    """
    for short, of in _DATA.items():
        if re.fullmatch(rf"(NVIDIA )?(Tesla )?({short}|{of['called']})", name.strip(), re.IGNORECASE):
            return KNOWN[short]
    return None


def measured_alike(name: str) -> str | None:
    """Return another GPU whose tuning table also applies to the GPU `name`, because their multiprocessors are the same.

    Parameters
    ----------
    name : str
        The name from CUDA.

    Returns
    -------
    str or None
        The H200 for other GPUs of its generation (all variants of H100 and GH200, H800, H20); else None.
    """
    return "NVIDIA H200" if re.fullmatch(r"NVIDIA G?H[1-9]\d+( .*)?", name) and name != "NVIDIA H200" else None


def from_attributes(attributes: Mapping[str, Any]) -> GpuSpec:
    """Build the specification of a GPU from CUDA's device properties. Pure.

    Parameters
    ----------
    attributes : mapping
        The fields of CUDA's ``cudaDeviceProp`` by name: ``name`` (bytes or str), ``major``, ``minor``,
        ``multiProcessorCount``, ``regsPerMultiprocessor``, ``sharedMemPerMultiprocessor``, ``sharedMemPerBlockOptin``
        (bytes), ``maxThreadsPerMultiProcessor``, ``l2CacheSize`` (bytes), ``clockRate``, ``memoryClockRate`` (kHz)
        and ``memoryBusWidth`` (bits).

    Returns
    -------
    GpuSpec
        Sizes are the reported ones. Rates of a known GPU (`find`) are the published ones. Other GPUs get bandwidth =
        2 · memory clock · bus width / 8 and peak = 2 · units · multiprocessors · clock, or no peaks if the units of
        their compute capability are unknown. Latencies are those measured on a GPU of the same generation.

    Raises
    ------
    ValueError
        If an attribute is missing, or if a clock or the bus width of an unknown GPU is not positive.
    """
    try:
        name = attributes["name"]
        name = name.decode() if isinstance(name, bytes) else name
        major, multiprocessors = attributes["major"], attributes["multiProcessorCount"]
        capability = f"{major}.{attributes['minor']}"
        datasheet = find(name)
        if datasheet is not None:
            clock, bandwidth, peaks = datasheet.clock_hz, datasheet.bandwidth, datasheet.peaks
        else:
            rates = {key: attributes[key] for key in ("clockRate", "memoryClockRate", "memoryBusWidth")}
            if min(rates.values()) <= 0:
                raise ValueError(f"{name} reports {rates}; expected positive clocks and bus width")
            clock = rates["clockRate"] * 1e3
            # Two transfers per clock: all GPU memory since GDDR3 is double data rate.
            bandwidth = 2 * rates["memoryClockRate"] * 1e3 * rates["memoryBusWidth"] / 8
            units = _FMA_UNITS.get(capability, {})
            peaks = tuple((unit, 2 * each * multiprocessors * clock) for unit, each in units.items())
        kin = KNOWN[_GENERATIONS.get(major, "H100")]
        return GpuSpec(
            name,
            capability,
            multiprocessors,
            attributes["regsPerMultiprocessor"],
            attributes["sharedMemPerMultiprocessor"],
            attributes["sharedMemPerBlockOptin"],
            attributes["maxThreadsPerMultiProcessor"],
            clock,
            bandwidth,
            attributes["l2CacheSize"],
            peaks,
            kin.memory_latency,
            kin.compute_latency,
        )
    except KeyError as error:
        raise ValueError(f"attribute {error.args[0]!r} is missing; got {', '.join(sorted(attributes))}") from None


@cache
def live(index: int = 0) -> GpuSpec:
    """Read the specification of an installed GPU through CuPy; with ``TSAPPS_MAX_ARCH``, as `limited`.

    Parameters
    ----------
    index : int
        CUDA's number of the GPU in this process.

    Returns
    -------
    GpuSpec
        The result of `from_attributes`.

    Raises
    ------
    ValueError
        If ``TSAPPS_MAX_ARCH`` is not a compute capability.
    ImportError
        If CuPy is not installed.
    cupy.cuda.runtime.CUDARuntimeError
        If the GPU does not exist.
    """
    from cupy.cuda import runtime

    # CUDA 13 removed the clocks from the device properties, but not from the device attributes. The numbers are those
    # of cudaDeviceAttr in driver_types.h.
    numbers = {"clockRate": 13, "memoryClockRate": 36, "memoryBusWidth": 37}
    rates = {key: runtime.deviceGetAttribute(number, index) for key, number in numbers.items()}
    found = from_attributes({**runtime.getDeviceProperties(index), **rates})
    most = os.environ.get("TSAPPS_MAX_ARCH", "")
    return limited(found, most) if most else found


def limited(spec: GpuSpec, most: str) -> GpuSpec:
    """Return a GPU as one of an earlier generation: for tests of what the kernels select there.

    Parameters
    ----------
    spec : GpuSpec
    most : str
        The largest compute capability, without its dot: "80".

    Returns
    -------
    GpuSpec
        The given one if its compute capability is smaller; else with this one, without instructions that later GPUs do
        not have, such as wgmma, and with a name that no table of tuned plans has.

    Raises
    ------
    ValueError
        If `most` is not a compute capability.
    """
    if not (most.isascii() and most.isdigit() and len(most) in (2, 3)):
        raise ValueError(f"TSAPPS_MAX_ARCH must be a compute capability without its dot, such as 80, got {most!r}")
    capability = f"{most[:-1]}.{most[-1]}"
    if float(spec.compute_capability) < float(capability):
        return spec
    name = f"sm_{most} of {spec.name}"
    return replace(spec, name=name, compute_capability=capability, is_portable=True)
