"""Checksums on a GPU: those of the CPU, from arrays there and from matrices in pieces."""

import numpy as np
import pytest

from tsapps.apps.abft import encode, inject, verify
from tsapps.apps.abft.at_rest.float_code import WeightedSums, gamma
from tsapps.apps.abft.at_rest.gpu import compare
from tsapps.apps.abft.at_rest.gpu import encode as gpu_pass
from tsapps.kernels.devices import gpus, why_no_gpu
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.matrix import open_matrix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpus(), reason=f"needs a GPU: {why_no_gpu()}"),
]
DTYPES = ["float64", "float32", "float16"]


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def served(monkeypatch):
    """The passes that ran on the GPU."""
    ran, add = [], gpu_pass.add_checksums

    def counted(machine, array, plan, *compared):
        ran.append(plan)
        return add(machine, array, plan, *compared)

    for module in (gpu_pass, compare):
        monkeypatch.setattr(module, "add_checksums", counted)
    return ran


def are_alike(one, other, A):
    np.testing.assert_array_equal(one.exact, other.exact)
    absolute = WeightedSums(A.shape, A.dtype.name, one.weights, one.block, absolute=True)
    absolute.add(0, 0, A)
    for name in ("rows", "columns"):
        here, there = getattr(one, name), getattr(other, name)
        assert here.dtype == there.dtype
        bound = 2 * gamma(one.block, here.dtype) * getattr(absolute, name)
        assert (np.abs(here.astype(np.float64) - there) <= bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5000, 4096), (20_000, 1000), (200_000, 128), (700, 40_000), (513, 136), (64, 8192)])
def test_arrays(shape, dtype, cupy, served, rng):
    A = rng.standard_normal(shape, np.float32).astype(dtype)
    sidecar = encode(cupy.asarray(A))
    assert served
    are_alike(sidecar, encode(A), A)
    assert verify(cupy.asarray(A), sidecar).clean


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["A100", "RTX 5090"])
def test_passes_of_gpus_with_less_shared_memory(name, dtype, cupy, served, rng, monkeypatch):
    make = gpu_pass.plans
    monkeypatch.setattr(gpu_pass, "plans", lambda *sizes, gpu, **given: make(*sizes, gpu=KNOWN[name], **given))
    A = rng.standard_normal((5000, 4096), np.float32).astype(dtype)
    are_alike(encode(cupy.asarray(A)), encode(A), A)
    assert [(plan.exact, plan.weights) for plan in served] == [(True, 0), (False, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_faults_are_found_there(dtype, cupy, served, rng):
    A = rng.standard_normal((9000, 2048), np.float32).astype(dtype)
    sidecar = encode(cupy.asarray(A))
    damaged = A.copy()
    places = inject(damaged, "words", rng, size=20)
    assert verify(cupy.asarray(damaged), sidecar).elements(sidecar) == sorted(places)
    assert len(served) >= 2


def test_matrices_in_pieces(cupy, served, monkeypatch, rng, tmp_path):
    monkeypatch.setattr(gpu_pass, "_PIECE_BYTES", 1 << 22)
    A = rng.standard_normal((30_000, 256), np.float32)
    np.save(tmp_path / "A.npy", A)
    seen = []
    sidecar = encode(open_matrix(tmp_path / "A.npy"), device="cuda", progress=seen.append)
    assert len(served) > 4
    assert seen[-1] == A.nbytes
    are_alike(sidecar, encode(A), A)
    assert verify(open_matrix(tmp_path / "A.npy"), sidecar, device="cuda").clean
    # Arrays on a GPU that are not contiguous come in pieces, too.
    are_alike(encode(cupy.asfortranarray(cupy.asarray(A))), sidecar, A)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_every_time(dtype, cupy, served, rng):
    on = cupy.asarray(rng.standard_normal((4200, 9000), np.float32).astype(dtype))
    sidecar = encode(on)
    assert served
    for _ in range(20):
        again = encode(on)
        for name in ("exact", "rows", "columns"):
            np.testing.assert_array_equal(getattr(again, name), getattr(sidecar, name))


def test_arrays_from_any_address(cupy, served, rng):
    A = rng.standard_normal((3000, 256), np.float32)
    held = cupy.empty(A.size + 1, A.dtype)
    array = held[1:].reshape(A.shape)
    array[...] = cupy.asarray(A)
    assert array.flags.c_contiguous
    assert array.data.ptr % 16 != 0
    sidecar = encode(array)
    assert served
    are_alike(sidecar, encode(A), A)
    assert verify(array, sidecar).clean


def test_what_the_kernel_does_not_serve_is_the_cpus(cupy, served, rng):
    A = rng.standard_normal((1000, 37))
    are_alike(encode(cupy.asarray(A)), encode(A), A)
    assert not served
    B = rng.standard_normal((2000, 512), np.float32)
    are_alike(encode(cupy.asarray(B), weights=3, block=256), encode(B, weights=3, block=256), B)
    assert not served


def test_streams_and_runs_do_not_disturb_each_other(cupy, rng):
    arrays = [cupy.asarray(rng.standard_normal((3000 + 500 * i, 2048), np.float32)) for i in range(3)]
    expected = [encode(one) for one in arrays]
    for _ in range(20):
        for one, first in zip(arrays, expected, strict=True):
            with cupy.cuda.Stream(non_blocking=True):
                again = encode(one)
            for name in ("exact", "rows", "columns"):
                np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


def test_torch(cupy, served, rng):
    torch = pytest.importorskip("torch")
    A = torch.from_numpy(rng.standard_normal((4000, 1024), np.float32))
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        on = A.to("cuda", kind)
        sidecar = encode(on)
        assert verify(on, sidecar).clean
        on[1234, 567] = 3e4
        assert verify(on, sidecar).elements(sidecar) == [(1234, 567)]
    assert len(served) >= 9
