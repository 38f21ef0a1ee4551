"""The records of GPUs: their arithmetic, their names, and the reading of one, without a GPU and on one."""

import dataclasses

import pytest

from tsapps.kernels.gpu_specs import KNOWN, GpuSpec, find, from_attributes, limited, live, measured_alike

# An RTX 4090 by another name, which is not in KNOWN: 128 SMs, 2520 MHz, GDDR6X of 10 501 MHz on 384 bits.
RTX_4090 = {
    "name": b"NVIDIA Some RTX 4090",
    "major": 8,
    "minor": 9,
    "multiProcessorCount": 128,
    "regsPerMultiprocessor": 65_536,
    "sharedMemPerMultiprocessor": 102_400,
    "sharedMemPerBlockOptin": 101_376,
    "maxThreadsPerMultiProcessor": 1536,
    "l2CacheSize": 75_497_472,
    "clockRate": 2_520_000,
    "memoryClockRate": 10_501_000,
    "memoryBusWidth": 384,
}


def test_a_record_made_by_hand():
    # 2 · 10.501 GHz · 48 bytes = 1008.096 GB/s; 2 · 128 · 128 · 2.52 GHz = 82.575 Tflop/s, and 1/64 of it in float64.
    device = from_attributes(RTX_4090)
    assert (device.name, device.compute_capability) == ("NVIDIA Some RTX 4090", "8.9")
    assert (device.multiprocessors, device.max_threads, device.l2) == (128, 1536, 75_497_472)
    assert (device.registers, device.shared_memory, device.shared_memory_per_block) == (65_536, 102_400, 101_376)
    assert device.clock_hz == 2.52e9
    assert device.bandwidth == pytest.approx(1008.096e9)
    assert device.peak("float32") == pytest.approx(82.575e12, rel=1e-5)
    assert device.peak("float64") == pytest.approx(device.peak("float32") / 64)


def test_a_known_gpu_has_its_published_rates_and_its_own_sizes():
    # The driver's memory clock of an H200 gives 4.9 TB/s; the data sheet says 4.8.
    reported = RTX_4090 | {"name": "NVIDIA H200", "major": 9, "minor": 0, "multiProcessorCount": 131}
    device = from_attributes(reported)
    assert device.multiprocessors == 131
    datasheet = KNOWN["H200"]
    assert (device.bandwidth, device.peaks, device.clock_hz) == (4.8e12, datasheet.peaks, datasheet.clock_hz)
    assert (device.memory_latency, device.compute_latency) == (datasheet.memory_latency, datasheet.compute_latency)


def test_a_known_gpu_needs_no_reported_clocks():
    rates = {"clockRate", "memoryClockRate", "memoryBusWidth"}
    reported = {key: value for key, value in RTX_4090.items() if key not in rates}
    assert from_attributes(reported | {"name": "NVIDIA H200", "major": 9, "minor": 0}).bandwidth == 4.8e12


def test_an_unknown_compute_capability_has_no_peaks():
    device = from_attributes(RTX_4090 | {"major": 99, "minor": 0})
    assert device.peaks == ()
    assert device.memory_latency == KNOWN["H100"].memory_latency
    with pytest.raises(ValueError, match=r"no peak for unit 'float32'; expected one of \(none\)"):
        device.peak("float32")


def test_a_missing_attribute():
    with pytest.raises(ValueError, match="attribute 'l2CacheSize' is missing"):
        from_attributes({key: value for key, value in RTX_4090.items() if key != "l2CacheSize"})


def test_no_clock():
    with pytest.raises(ValueError, match="expected positive clocks"):
        from_attributes(RTX_4090 | {"memoryClockRate": 0})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H200", "H200"),
        ("h200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla M40", "M40"),
        ("Tesla M40 24GB", "M40"),
        ("Tesla K40c", "K40c"),
        # Forms of the same GPUs that have other rates, and names that hold the name of another.
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GH200 144G HBM3e", None),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("NVIDIA A100-SXM4-40GB", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("Tesla P100-SXM2-16GB", None),
        ("Tesla K40m", None),
        ("", None),
    ],
)
def test_find(name, expected):
    assert find(name) is (KNOWN[expected] if expected else None)


@pytest.mark.parametrize(
    ("name", "alike"),
    [
        *(
            (f"NVIDIA {name}", True)
            for name in ("H100 80GB HBM3", "H100 PCIe", "H100 NVL", "H800", "H20", "GH200 480GB")
        ),
        ("NVIDIA H200 NVL", True),
        # The device itself, other generations, and names that only begin so.
        *((name, False) for name in ("NVIDIA H200", "H100", "NVIDIA A100-SXM4-80GB", "NVIDIA HGX", "NVIDIA H100x", "")),
    ],
)
def test_gpus_that_an_h200s_picks_serve(name, alike):
    assert measured_alike(name) == ("NVIDIA H200" if alike else None)


def test_every_known_gpu_is_found_by_its_name():
    assert set(KNOWN) == {
        *("K40c", "M40", "P100", "V100", "T4", "A100", "A10", "RTX 3090", "L4", "L40S", "RTX 4090"),
        *("H100", "H100 PCIe", "H100 NVL", "GH200", "H20", "H200", "B200", "GB200", "RTX 5090", "RTX PRO 6000"),
    }
    assert all(find(name) is device and device.name == name for name, device in KNOWN.items())


# An H20 has a part of the rates of its multiprocessors.
@pytest.mark.parametrize("name", [name for name in KNOWN if name != "H20"])
def test_published_peaks_agree_with_units_and_clock(name):
    """Data-sheet peaks are 2 · units · multiprocessors · clock, to the digits that the data sheets print.

    Tensor peaks of the H100 are published at 1830 MHz, 8 % below its boost clock; those of the H100 NVL at a clock
    13.5 % below, those of the L40S at one 1.2 % below. Some tensor cores add in float32 at twice the rate of the
    consumer GPUs of the generation.
    """
    device = KNOWN[name]
    reported = RTX_4090 | {
        "name": "a GPU of this compute capability",
        **dict(zip(("major", "minor"), map(int, device.compute_capability.split(".")), strict=True)),
        "multiProcessorCount": device.multiprocessors,
        "clockRate": device.clock_hz / 1e3,
    }
    computed = from_attributes(reported)
    assert {unit for unit, _ in computed.peaks} == {unit for unit, _ in device.peaks}
    twice = ("tf32", "float16", "bfloat16") if name in ("A10", "L4", "L40S", "RTX PRO 6000") else ()
    usual = 0.08 if device.compute_capability in ("9.0", "10.0") else 0.011
    rel = {"H100 NVL": 0.136, "L40S": 0.0121}.get(name, usual)
    for unit, peak in device.peaks:
        assert peak == pytest.approx(computed.peak(unit) * (2 if unit in twice else 1), rel=rel)


def test_immutable_and_hashable():
    device = KNOWN["H200"]
    assert len({*KNOWN.values(), dataclasses.replace(device)}) == len(KNOWN)
    with pytest.raises(dataclasses.FrozenInstanceError):
        device.bandwidth = 1.0
    with pytest.raises(TypeError):
        KNOWN["H200"] = device


def test_unknown_units_and_dtypes():
    with pytest.raises(ValueError, match="K40c has no peak for unit 'tf32'; expected one of float64, float32"):
        KNOWN["K40c"].peak("tf32")
    with pytest.raises(ValueError, match="K40c has no latency for dtype 'int8'"):
        KNOWN["K40c"].fma_latency("int8")
    assert KNOWN["M40"].fma_latency("float64") == 48


@pytest.mark.parametrize(("most", "capability"), [("80", "8.0"), ("89", "8.9"), ("90", "9.0"), ("120", "9.0")])
def test_a_gpu_as_one_of_an_earlier_generation(most, capability):
    h200 = dataclasses.replace(KNOWN["H200"], name="NVIDIA H200")
    found = limited(h200, most)
    assert found.compute_capability == capability
    assert h200.has_wgmma
    assert found.has_wgmma == (found is h200) == (most == "120")
    if found is not h200:
        assert (find(found.name), measured_alike(found.name)) == (None, None)
    assert found.shared_memory_per_block == h200.shared_memory_per_block


@pytest.mark.parametrize("most", ["8.0", "sm_80", "8", "", "1000", "٨٠"])
def test_what_is_no_compute_capability(most):
    with pytest.raises(ValueError, match="TSAPPS_MAX_ARCH must be a compute capability without its dot, such as 80"):
        limited(KNOWN["H200"], most)


@pytest.mark.gpu
def test_live():
    device = live()
    assert isinstance(device, GpuSpec)
    assert device.multiprocessors >= 1
    assert device.bandwidth > 1e10
    assert device.clock_hz > 1e8
    assert device.shared_memory >= device.shared_memory_per_block
