"""Kernels that are compiled in the background and loaded when they are wanted; a stand-in loads them without a GPU."""

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace

import pytest

from tsapps.kernels.jit import compiler
from tsapps.kernels.jit import kernel as kernel_module

pytestmark = pytest.mark.compile

# Dynamic shared memory that a kernel may have if nobody says so: 48 KiB less what it has besides, here 128 bytes.
LEFT = (48 << 10) - 128


class Loaded:
    """What stands in for a `cupy.RawKernel`, which needs a GPU."""

    kernel, max_dynamic_shared_size_bytes = SimpleNamespace(ptr=77), LEFT

    def __init__(self, path, name):
        self.path, self.name, self.launched = path, name, []

    def __call__(self, *sizes_and_arguments, shared_mem):
        self.launched.append((*sizes_and_arguments, shared_mem))


@pytest.fixture
def stand_in(monkeypatch):
    """No GPU is needed to load a kernel."""
    import cupy

    monkeypatch.setattr(kernel_module, "architecture", lambda device: "sm_90")
    monkeypatch.setattr(kernel_module, "_begun", functools.cache(kernel_module._begun.__wrapped__))
    monkeypatch.setattr(cupy.cuda, "Device", lambda device: nullcontext())
    module = functools.partial(functools.partial, Loaded)
    monkeypatch.setattr(cupy, "RawModule", lambda path: SimpleNamespace(get_function=module(Path(path))))


def test_a_kernel_is_loaded_once_and_as_it_was_set(cache, headers, stand_in, source):
    names = ["scale<float>", "scale<double>"]
    kernels = [kernel_module.Kernel(source, names, name, 0) for name in names]
    assert [kernel.max_dynamic_shared_size_bytes for kernel in kernels] == [0, 0]
    kernels[0].max_dynamic_shared_size_bytes = 48 << 10
    built = compiler.build(source, names, "sm_90")
    for kernel, name in zip(kernels, names, strict=True):
        assert kernel.ptr == 77
        assert kernel.loaded is kernel.loaded
        assert (kernel.loaded.path, kernel.loaded.name) == (built.path, built.names[name])
    assert [kernel.loaded.max_dynamic_shared_size_bytes for kernel in kernels] == [48 << 10, LEFT]
    kernels[1].max_dynamic_shared_size_bytes = 100 << 10
    assert kernels[1].loaded.max_dynamic_shared_size_bytes == 100 << 10
    kernels[1]((2,), (64,), (1, 2), shared_mem=8)
    kernels[1]((3,), (64,), ())
    assert kernels[1].loaded.launched == [((2,), (64,), (1, 2), 8), ((3,), (64,), (), 0)]
    assert len(list(cache.iterdir())) == 2


def test_kernels_are_compiled_beside_each_other(cache, headers, stand_in, monkeypatch, source):
    both, real = Barrier(2, timeout=60), compiler._compile

    def compiled(*arguments):
        both.wait()  # which one alone would never pass
        return real(*arguments)

    monkeypatch.setattr(kernel_module, "_compilers", functools.cache(lambda: ThreadPoolExecutor(2)))
    monkeypatch.setattr(compiler, "_compile", compiled)
    names = ["scale<float>", "scale<double>"]
    kernels = [kernel_module.Kernel(source, [name], name, 0) for name in names]
    assert {kernel.loaded.path for kernel in kernels} == set(cache.glob("*.cubin"))
    assert not both.broken


def test_a_kernel_that_does_not_compile_says_so_whenever_it_is_wanted(cache, headers, stand_in, source):
    (headers / "factor.cuh").write_text("#define FACTOR missing\n")
    kernel = kernel_module.Kernel(source, ["scale<float>"], "scale<float>", 0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="missing"):
            _ = kernel.loaded
    (headers / "factor.cuh").write_text("#define FACTOR 3\n")
    assert kernel.loaded.path.exists()
