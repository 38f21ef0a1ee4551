"""load_file and save_file: the same tensors as safetensors gives, verified and repaired in memory."""

import json
import warnings

import numpy as np
import pytest

from tsapps.apps.abft.at_rest.sidecar import SidecarError
from tsapps.apps.abft.at_rest.verdict import AmbiguousError
from tsapps.apps.abft.files.load import load_file
from tsapps.apps.abft.files.places import SIDECAR
from tsapps.apps.abft.files.protect import protect_files
from tsapps.apps.abft.files.safetensors_header import tensors_in
from tsapps.apps.abft.files.save import save_file
from tsapps.apps.abft.files.verify import verify_files

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def content_of(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


def some_tensors(device, size=1000):
    torch.manual_seed(0)
    tensors = {
        "matrix": torch.randn(300, 100, dtype=torch.bfloat16),
        "double": torch.randn(7, dtype=torch.float64),
        "scalar": torch.tensor(True),
        "empty": torch.empty(0, 3),
        "float8": torch.randn(33).to(torch.float8_e4m3fn),
        "transposed": torch.arange(12).reshape(3, 4).T,
        "ä": torch.randint(0, 256, (size,), dtype=torch.uint8),
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def flip(path, *offsets):
    content = bytearray(path.read_bytes())
    for offset in offsets:
        content[offset] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1000, pytest.param(150_000_003, marks=pytest.mark.exhaustive)])
def test_as_by_safetensors(tmp_path, device, size):
    path, tensors = tmp_path / "x.safetensors", some_tensors(device, size)
    save_file(tensors, path, metadata={"format": "pt"})
    for found in (safetensors.load_file(path), load_file(path, device=device)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert content_of(found[name]) == content_of(tensor), name
    assert load_file(path, device=device)["matrix"].device.type == device
    # Its sidecar is that of `protect_files`, which therefore reads nothing.
    (report,) = protect_files([path])
    assert report.state == "unchanged"
    assert [report.state for report in verify_files([path])] == ["ok"]


@pytest.mark.parametrize("device", DEVICES)
def test_files_of_others(tmp_path, device):
    """The header of the library is a multiple of 8 bytes long, so that tensors may begin at odd multiples of 8."""
    for length in range(8):
        path = tmp_path / f"{length}.safetensors"
        tensors = some_tensors("cpu") | {"x" * length + "y": torch.ones(3)}
        safetensors.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        list(protect_files([path]))
        found = load_file(path, device=device)
        assert {name: content_of(tensor) for name, tensor in found.items()} == {
            name: content_of(tensor) for name, tensor in tensors.items()
        }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("offsets", [(0,), (3, 5000), (60,)], ids=["length", "length and data", "header"])
def test_corrupted_words_are_right_in_memory(tmp_path, device, offsets):
    path, tensors = tmp_path / "x.safetensors", some_tensors("cpu")
    save_file(tensors, path)
    flip(path, *offsets)
    with pytest.warns(UserWarning, match="word.* of 32 bits, which are right in memory: run tsapps repair"):
        found = load_file(path, device=device)
    assert all(content_of(found[name]) == content_of(tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_beyond_repair_is_refused(tmp_path, device):
    path = tmp_path / "x.safetensors"
    save_file(some_tensors("cpu"), path)
    flip(path, *range(0, path.stat().st_size, 4))
    with pytest.raises(AmbiguousError, match=r"x.safetensors: more was corrupted .* the tensors"):
        load_file(path, device=device)
    with open(path, "ab") as file:
        file.write(b"x")
    with pytest.raises(AmbiguousError, match="its sidecar is of a file of"):
        load_file(path, device=device)


def test_the_sidecar_is_checked(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(some_tensors("cpu"), path)
    flip(tmp_path / f"x.safetensors{SIDECAR}", 500)
    with pytest.raises(SidecarError, match="was corrupted"):
        load_file(path)
    (tmp_path / f"x.safetensors{SIDECAR}").unlink()
    with pytest.raises(FileNotFoundError):
        load_file(path)


@pytest.mark.gpu
def test_the_gpus_sums_are_those_of_the_host(tmp_path, monkeypatch):
    """A byte that changes between the GPU and the file is noticed before anything is written."""
    from tsapps.apps.abft.at_rest.verdict import ChangedError
    from tsapps.kernels.runtime.machine import CudaMachine

    original = CudaMachine.copy

    def copy(self, to, source, stream=None):
        original(self, to, source, stream)
        if isinstance(to, np.ndarray):
            self.current_stream().synchronize()
            to[len(to) // 2] ^= 1

    monkeypatch.setattr(CudaMachine, "copy", copy)
    with pytest.raises(ChangedError):
        save_file(some_tensors("cuda"), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="safetensors has no complex128"):
        save_file({"x": torch.ones(3, dtype=torch.complex128)}, tmp_path / "x")
    with pytest.raises(ValueError, match="no tensor of this name"):
        save_file({"__metadata__": torch.ones(3)}, tmp_path / "x")
    with pytest.raises(ValueError, match="expected one of blake3, sha256"):
        save_file({"x": torch.ones(3)}, tmp_path / "x", hash_name="md5")


def test_headers_that_lie():
    def header(entries):
        text = json.dumps(entries).encode()
        return len(text).to_bytes(8, "little") + text

    good = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    n_bytes = len(header({"x": good})) + 4
    assert tensors_in(header({"x": good}), n_bytes)["x"].shape == (4,)
    for wrong in (
        {"x": good | {"data_offsets": [0, 5]}},
        {"x": good | {"data_offsets": [-1, 3]}},
        {"x": good | {"data_offsets": [0]}},
        {"x": good | {"shape": [-4]}},
        {"x": good | {"shape": 4}},
        {"x": {}},
        [1],
    ):
        with pytest.raises(ValueError, match="no header of safetensors"):
            tensors_in(header(wrong), n_bytes)
    for short in (b"", b"12345678", header({"x": good})[:20]):
        with pytest.raises(ValueError, match="no header of safetensors"):
            tensors_in(short, len(short))


def test_no_warning_without_corruption(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file(some_tensors("cpu"), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_file(path)
