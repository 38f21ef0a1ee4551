"""The devices that a request names, on machines with two GPUs and with none."""

import pytest

from tsapps.kernels import devices
from tsapps.kernels.devices import InstalledGpu, NoDeviceError, choose_device


@pytest.fixture
def two_gpus(monkeypatch):
    found = tuple(InstalledGpu(i, "NVIDIA H100", "9.0", 132, 80 << 30, 50 << 20) for i in range(2))
    monkeypatch.setattr(devices, "gpus", lambda: found)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "gpus", lambda: ())
    monkeypatch.setattr(devices, "why_no_gpu", lambda: "CUDA finds no GPU")


@pytest.mark.parametrize(
    ("request_", "resident", "device", "indices"),
    [
        ("auto", None, "cuda:0", (0,)),
        ("auto", 1, "cuda:1", (1,)),
        ("cuda", None, "cuda:0", (0,)),
        ("cuda", 1, "cuda:1", (1,)),
        ("cuda:1", 0, "cuda:1", (1,)),
        ("cuda:0,1", None, "cuda:0,1", (0, 1)),
        ("cuda:1,0", 0, "cuda:1,0", (1, 0)),
        ("cuda:all", None, "cuda:0,1", (0, 1)),
    ],
)
def test_gpus_that_a_request_names(request_, resident, device, indices, two_gpus):
    choice = choose_device(request_, resident=resident, several=True)
    assert (choice.device, choice.indices, choice.index) == (device, indices, indices[0])
    assert choice.is_gpu


@pytest.mark.parametrize("several", [False, True])
def test_the_cpu(several, two_gpus):
    choice = choose_device("cpu", several=several)
    assert (choice.device, choice.is_gpu) == ("cpu", False)


@pytest.mark.parametrize(
    "given", ["cuda:", "cuda:0,", "cuda:,1", "cuda:a", "cuda:0;1", "cuda:-1", "cuda:²", "tpu", 3, "all"]
)
def test_other_names(given, two_gpus):
    with pytest.raises(ValueError, match=r"device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', for several GPUs"):
        choose_device(given, several=True)


@pytest.mark.parametrize("given", ["cuda:0,1", "cuda:all"])
def test_several_gpus_where_one_is_expected(given, two_gpus):
    with pytest.raises(ValueError, match=r"device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got "):
        choose_device(given)


def test_a_gpu_that_is_named_twice(two_gpus):
    with pytest.raises(ValueError, match="device must name different GPUs, got 'cuda:1,1'"):
        choose_device("cuda:1,1", several=True)


def test_gpus_that_do_not_exist(two_gpus):
    with pytest.raises(NoDeviceError, match="device 'cuda:0,2' was asked for, but the last GPU is cuda:1"):
        choose_device("cuda:0,2", several=True)


@pytest.mark.parametrize("given", ["cuda:0,1", "cuda:all", "cuda", "cuda:0"])
def test_without_a_gpu(given, no_gpu):
    with pytest.raises(NoDeviceError, match=f"device '{given}' was asked for, but CUDA finds no GPU"):
        choose_device(given, several=True)
