"""Protected modules by the launchers for GPUs, on a `HostMachine` with torch tensors on the CPU; and on a GPU."""

from types import SimpleNamespace

import numpy as np
import pytest
from host_cuda.machine import HostMachine

torch = pytest.importorskip("torch", reason="torch is not installed")

from tsapps.apps.abft.modules import checked_product, on_cpu, on_gpu, products  # noqa: E402
from tsapps.apps.abft.modules.faults import FaultLog, LinearFaultError, LinearFaultWarning  # noqa: E402
from tsapps.apps.abft.modules.linear import Linear, protect  # noqa: E402
from tsapps.apps.abft.modules.states import resolve, state_of  # noqa: E402
from tsapps.kernels.epilogue import Epilogue  # noqa: E402
from tsapps.kernels.gpu_specs import KNOWN  # noqa: E402

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PRODUCTS = ["forward", "grad_input", "grad_weight"]
# Features of a layer whose forward product can check itself.
WIDE = (40, 264)


class FakeGpu:
    """A `_Gpu` of a HostMachine."""

    def __init__(self):
        self.machine = HostMachine()
        self.log = FaultLog(self.machine, resolve)
        self.stale = np.zeros(on_gpu._FLAGS, np.uint32)
        self.stale_words = memoryview(self.stale)
        self.address_of_stale = self.stale.ctypes.data


def stream(_=None):
    return SimpleNamespace(cuda_stream=0, wait_event=lambda event: None, synchronize=lambda: None)


@pytest.fixture
def gpu(monkeypatch):
    """Let tensors on the CPU take the way of those on a GPU."""
    fake = FakeGpu()
    monkeypatch.setattr(on_gpu, "_gpu", lambda index: fake)
    monkeypatch.setattr(on_gpu, "_used", {0})
    monkeypatch.setattr(on_gpu, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(on_gpu, "arithmetic", on_cpu.arithmetic)
    monkeypatch.setattr(products, "_backend", lambda x: on_gpu)
    monkeypatch.setattr(torch.cuda, "current_stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda stream: None))
    return fake


def strike(monkeypatch, product, row, column, by=100.0):
    """Add a number to one element of the next products of this name."""
    multiply = products.multiply[product]

    def wrong(*arguments):
        result = multiply(*arguments)
        result[row, column] += by
        return result

    monkeypatch.setitem(products.multiply, product, wrong)


def faulty(monkeypatch, row, column, by):
    """Add a number to one element of the next fused products."""
    header, name = (
        "tests/abft/modules/faulty_residuals.cuh",
        f"abft::FaultyResiduals<{{0}}, {row}, {column}, {1024 * by}>",
    )
    monkeypatch.setattr(checked_product, "_EPILOGUE", Epilogue(header, name, checked_product.ROW_RESIDUALS))
    on_gpu._checked.cache_clear()


def step(layer, x, grad):
    """Return the output and the gradients of the input and of the parameters."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    return y.detach(), x.grad, *(one.grad for one in layer.parameters())


def reference(layer, x, grad):
    """The same by `torch.nn.Linear`."""
    plain = torch.nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=x.dtype)
    plain.load_state_dict(layer.state_dict())
    return step(plain, x, grad)


def problem(dtype, *, tokens=19, features=(40, 24), bias=True, **options):
    torch.manual_seed(0)
    layer = Linear(*features, bias=bias, dtype=DTYPES[dtype], **options)
    x, grad = (torch.randn(tokens, n, dtype=DTYPES[dtype]) for n in features)
    return layer, x, grad


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_products(gpu, dtype, bias):
    layer, x, grad = problem(dtype, bias=bias)
    found, expected = step(layer, x, grad), reference(layer, x, grad)
    assert all(torch.equal(*pair) for pair in zip(found[:3], expected[:3], strict=True))
    if bias:
        torch.testing.assert_close(found[3], expected[3])
    assert products.check_faults() == []
    assert not gpu.stale.any()
    assert gpu.log.count[0] == 0


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_faults_are_repaired_and_reported_by_the_next_call(gpu, monkeypatch, dtype, product):
    found = []
    layer, x, grad = problem(dtype, name="first", on_fault=found.append)
    expected = reference(layer, x, grad)
    with monkeypatch.context() as during:
        strike(during, product, 5, 7)
        outputs = step(layer, x, grad)
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other)
    if product == "forward":  # the backward pass has reported it
        assert len(found) == 1
    layer(x)
    (fault,) = found
    assert (fault.module, fault.product, fault.row, fault.column, fault.n_wrong) == ("first", product, 5, 7, 1)
    assert fault.repaired
    assert fault.found - fault.value == pytest.approx(100, rel=0.01)
    assert products.check_faults() == []


def test_fused_products(gpu, monkeypatch):
    monkeypatch.setitem(products.multiply, "forward", None)  # torch computes no forward product
    for bias in (True, False):
        layer, x, grad = problem("bfloat16", features=WIDE, bias=bias, gemm="fused")
        for one, other in zip(step(layer, x, grad), reference(layer, x, grad), strict=True):
            torch.testing.assert_close(one, other)
        with torch.no_grad():
            layer.weight.mul_(2)  # another version
        torch.testing.assert_close(step(layer, x, grad)[0], reference(layer, x, grad)[0])
    assert products.check_faults() == []
    assert not gpu.stale.any()


@pytest.mark.parametrize("report", ["deferred", "immediate"])
def test_faults_of_fused_products(gpu, monkeypatch, report):
    found = []
    layer, x, grad = problem(
        "bfloat16", features=WIDE, name="first", on_fault=found.append, gemm="fused", report=report
    )
    expected = reference(layer, x, grad)
    with monkeypatch.context() as during:
        faulty(during, 5, 7, 100)
        outputs = step(layer, x, grad)
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other)
    (fault,) = found
    assert (fault.module, fault.product, fault.row, fault.column, fault.n_wrong) == ("first", "forward", 5, 7, 1)
    assert fault.repaired
    assert products.check_faults() == []


def test_what_is_not_fused_has_the_bits_of_torch(gpu):
    """Another dtype, sizes that are no multiples of 8, a single column tile, another GPU, no rows, other options."""
    for dtype, features in (
        ("float32", (40, 24)),
        ("float16", (40, 24)),
        ("bfloat16", (41, 24)),
        ("bfloat16", (40, 23)),
    ):
        layer, x, grad = problem(dtype, features=features, gemm="fused")
        assert torch.equal(step(layer, x, grad)[0], reference(layer, x, grad)[0])
    gpu.machine = HostMachine(gpu=KNOWN["A100"])
    layer, x, grad = problem("bfloat16", features=WIDE, gemm="fused")
    assert torch.equal(step(layer, x, grad)[0], reference(layer, x, grad)[0])
    gpu.machine = HostMachine()
    layer, x, _ = problem("bfloat16", features=WIDE, gemm="fused")
    assert layer(x[:0]).shape == (0, 264)
    layer.abft_options = Linear(1, 1).abft_options
    plain = torch.nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), plain)


def test_the_faster_way_is_taken(gpu, monkeypatch):
    """Two column tiles of 256 rows fill a GPU of two multiprocessors; 19 rows would leave most of it idle."""
    layer, x, _ = problem("bfloat16", tokens=256, features=(16, 512))
    plain = torch.nn.functional.linear
    on_gpu._weight_parts.cache_clear()
    assert torch.equal(layer(x[:19]), plain(x[:19], layer.weight, layer.bias))
    made = on_gpu._weight_parts.cache_info().misses  # before a graph may be captured
    monkeypatch.setitem(products.multiply, "forward", None)  # torch computes no product
    torch.testing.assert_close(layer(x), plain(x, layer.weight, layer.bias))
    assert on_gpu._weight_parts.cache_info().misses == made == 1


def test_layers_can_be_fused_later(gpu, monkeypatch):
    layer, x, grad = problem("bfloat16", features=WIDE, gemm="library")
    step(layer, x, grad)
    protect(layer, gemm="fused")
    monkeypatch.setitem(products.multiply, "forward", None)
    torch.testing.assert_close(step(layer, x, grad)[0], reference(layer, x, grad)[0])


@pytest.mark.parametrize("wrong", ["depth", "dtype", "dtype of the bias", "length of the bias"])
def test_torch_refuses_operands_that_do_not_fit(gpu, wrong):
    layer, x, _ = problem("bfloat16", features=WIDE, gemm="fused")
    layer(x)
    given = {"input": x, "weight": layer.weight, "bias": layer.bias.detach()}
    given |= {
        "depth": {"input": torch.cat([x, x], 1)},
        "dtype": {"input": x.float()},
        "dtype of the bias": {"bias": layer.bias.detach().float()},
        "length of the bias": {"bias": layer.bias.detach()[:8]},
    }[wrong]
    with pytest.raises((RuntimeError, ValueError)):
        products.forward(*given.values(), layer.weight)


def test_the_name_of_a_gemm():
    with pytest.raises(ValueError, match=r"gemm is 'cublas'; expected 'auto', 'library' or 'fused'"):
        Linear(3, 3, gemm="cublas")


def test_immediate_reports_and_default_reactions(gpu, monkeypatch):
    layer, x, _ = problem("float32", report="immediate")
    strike(monkeypatch, "forward", 2, 3)
    with pytest.warns(LinearFaultWarning, match=r"Linear, forward: row 2 had 1 wrong element, .* column 3: .*repaired"):
        layer(x)
    layer, x, _ = problem("float32", report="immediate", repair=False)
    with pytest.raises(LinearFaultError, match="not repaired: repeat the step"):
        layer(x)
    layer, x, _ = problem("float32", repair=False)
    layer(x)
    with pytest.raises(LinearFaultError):
        products.check_faults()
    assert products.check_faults() == []


def test_weights_that_changed_without_a_version(gpu):
    layer, x, _ = problem("bfloat16")
    before = layer(x)
    layer.weight.data.mul_(2)
    layer(x)
    assert gpu.stale[state_of(layer.weight).number] == 1
    after = layer(x)
    assert not gpu.stale.any()
    assert not torch.equal(before, after)
    assert products.check_faults() == []


def test_more_faults_than_the_list_has_places_for(gpu, monkeypatch):
    found = []
    layer, x, _ = problem("float32", tokens=1500, features=(8, 4), on_fault=found.append)
    with monkeypatch.context() as during:
        strike(during, "forward", slice(None), 3)
        y = layer(x)
    torch.testing.assert_close(y, torch.nn.functional.linear(x, layer.weight, layer.bias))
    with pytest.warns(LinearFaultWarning, match="476 more rows had wrong elements"):
        assert len(products.check_faults()) == 1024
    assert len(found) == 1024
    with monkeypatch.context() as during:
        strike(during, "forward", 1, 3)
        layer(x)
    assert [fault.row for fault in products.check_faults()] == [1]


@pytest.mark.parametrize("features", [(8, 4), (0, 4), (8, 0)])
@pytest.mark.parametrize("tokens", [0, 3])
def test_empty_products(gpu, features, tokens):
    layer, x, grad = problem("float32", tokens=tokens, features=features)
    for found, expected in zip(step(layer, x, grad), reference(layer, x, grad), strict=True):
        torch.testing.assert_close(found, expected)
    assert products.check_faults() == []


def test_a_launch_for_other_layers_and_settings(gpu):
    """Layers of one layout share a launch; each check has the addresses of its own layer."""
    layers = [problem("float32", bias=bias) for bias in (True, True, False)]
    for _ in range(2):
        for layer, x, grad in layers:
            for found, expected in zip(step(layer, x, grad), reference(layer, x, grad), strict=True):
                torch.testing.assert_close(found, expected)
    before = on_gpu._check.cache_info().misses
    layers[0][0](layers[0][1])
    assert on_gpu._check.cache_info().misses == before
    torch.set_float32_matmul_precision("high")
    try:
        layers[0][0](layers[0][1])
    finally:
        torch.set_float32_matmul_precision("highest")
    assert on_gpu._check.cache_info().misses == before + 1
    assert products.check_faults() == []
    assert not gpu.stale.any()


# --- On a GPU ---------------------------------------------------------------------------------------------------------


def on_a_gpu(dtype, tokens, features, **options):
    """Return a protected layer on the GPU, a plain one with its parameters, an input and an output's gradient."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(*features, dtype=DTYPES[dtype], device="cuda")
    layer = Linear(*features, dtype=DTYPES[dtype], device="cuda", **options)
    layer.load_state_dict(plain.state_dict())
    x, grad = (torch.randn(tokens, n, dtype=DTYPES[dtype], device="cuda") for n in features)
    return layer, plain, x, grad


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 1000, 777), (1, 64, 64), (513, 512, 24), (0, 64, 32)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_right_products(dtype, shape):
    layer, plain, x, grad = on_a_gpu(dtype, shape[0], shape[1:])
    found, expected = step(layer, x, grad), step(plain, x, grad)
    assert all(torch.equal(*pair) for pair in zip(found[:3], expected[:3], strict=True))
    torch.testing.assert_close(found[3], expected[3], rtol=1e-2, atol=1e-2)
    with torch.no_grad():
        assert torch.equal(layer(x), expected[0])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        assert torch.equal(layer(x), expected[0])
    assert products.check_faults() == []


@pytest.mark.gpu
@pytest.mark.parametrize("report", ["deferred", "immediate"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gpu_faults(monkeypatch, dtype, product, report):
    found = []
    layer, plain, x, grad = on_a_gpu(dtype, 300, (256, 136), name="first", on_fault=found.append, report=report)
    expected = step(plain, x, grad)
    with monkeypatch.context() as during:
        strike(during, product, 5, 7)
        outputs = step(layer, x, grad)
    if report == "immediate":
        assert len(found) == 1
    products.check_faults()  # the deferred report may have come with a later product already
    (fault,) = found
    assert (fault.module, fault.product, fault.row, fault.column, fault.n_wrong) == ("first", product, 5, 7, 1)
    assert fault.repaired
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
def test_gpu_compile_and_graph(monkeypatch):
    found = []
    layer, plain, x, grad = on_a_gpu("bfloat16", 64, (256, 136), on_fault=found.append)
    compiled = torch.compile(layer, fullgraph=True)
    assert torch.equal(step(compiled, x, grad)[0], plain(x))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, plain(x))
    assert products.check_faults() == []
    strike(monkeypatch, "forward", 2, 3)
    struck = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(struck):
        y = layer(x)
    struck.replay()
    products.check_faults()
    assert [(fault.row, fault.column, fault.repaired) for fault in found] == [(2, 3, True)]
    torch.testing.assert_close(y, plain(x), rtol=1e-2, atol=1e-2)


@pytest.fixture
def fused_gpu():
    """Skip the test where no product is fused; forget kernels with faults after it."""
    if not on_gpu._gpu(0).machine.gpu.has_wgmma:
        pytest.skip("fused products need compute capability 9.0")
    yield
    on_gpu._checked.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 1000, 776), (1, 64, 264), (513, 512, 1024), (2048, 4096, 4096)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_gpu_fused_products(monkeypatch, fused_gpu, shape, bias):
    layer, plain, x, grad = on_a_gpu("bfloat16", shape[0], shape[1:], gemm="fused")
    if not bias:
        layer.bias = plain.bias = None
    expected = step(plain, x, grad)
    monkeypatch.setitem(products.multiply, "forward", None)
    for one, other in zip(step(layer, x, grad), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = layer(x)
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, expected[0], rtol=1e-2, atol=1e-2)
    assert products.check_faults() == []


@pytest.mark.gpu
@pytest.mark.parametrize("report", ["deferred", "immediate"])
@pytest.mark.parametrize("place", [(0, 0), (299, 775), (130, 257)], ids=str)
def test_gpu_faults_of_fused_products(monkeypatch, fused_gpu, place, report):
    found = []
    how = {"name": "first", "on_fault": found.append, "report": report, "gemm": "fused"}
    layer, plain, x, grad = on_a_gpu("bfloat16", 300, (1000, 776), **how)
    expected = step(plain, x, grad)
    faulty(monkeypatch, *place, 100)
    outputs = step(layer, x, grad)
    products.check_faults()
    (fault,) = found
    assert (fault.product, fault.row, fault.column, fault.n_wrong, fault.repaired) == ("forward", *place, 1, True)
    for one, other in zip(outputs, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
