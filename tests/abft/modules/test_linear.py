"""Protected modules on the CPU: `Linear`, `protect`, autograd and torch.compile."""

import copy
import io
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")


from tsapps import abft  # noqa: E402
from tsapps.apps.abft.modules import on_cpu, products  # noqa: E402
from tsapps.apps.abft.modules.bounds import bounds_of, guaranteed  # noqa: E402
from tsapps.apps.abft.modules.ops import linear  # noqa: E402
from tsapps.apps.abft.modules.states import state_of  # noqa: E402

nn = torch.nn
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
PRODUCTS = ["forward", "grad_input", "grad_weight"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", abft.LinearFaultWarning)
        yield


@pytest.fixture
def strike(monkeypatch):
    """Change the results of a product in place: `change(result)`."""

    def strike(product, change):
        multiply = products.multiply[product]

        def wrong(*arguments):
            result = multiply(*arguments)
            change(result)
            return result

        monkeypatch.setitem(products.multiply, product, wrong)

    return strike


def pair(*features, **how):
    """Return a protected layer and a `torch.nn.Linear` with the same parameters."""
    plain = nn.Linear(*features, **how)
    return abft.protect(copy.deepcopy(plain)), plain


def step(layer, x, grad):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    return y.detach(), x.grad, *(one.grad for one in layer.parameters())


def test_by_hand(strike):
    found = []
    layer = abft.Linear(2, 3, bias=False, name="first", on_fault=found.append)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [2, 1]]))
    x = torch.tensor([[1.0, 2], [3, 4]])
    assert layer(x).tolist() == [[1, 2, 4], [3, 4, 10]]

    def change(y):
        y[1, 2] = 14

    strike("forward", change)
    assert layer(x).tolist() == [[1, 2, 4], [3, 4, 10]]
    (fault,) = found
    golden = (5**0.5 - 1) / 2
    assert fault == abft.LinearFault("first", "forward", 1, 2, 1, 14, 10, fault.residual, fault.limit, True)
    assert fault.residual == pytest.approx(4 * (1.5 - golden), rel=1e-12)
    assert 0 < fault.limit < 1e-4
    assert str(fault) == "first, forward: row 1 had 1 wrong element, the first in column 2: 14, not 10; repaired"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(30,), (7, 30), (0, 30), (2, 3, 30), (2, 0, 30), (2, 1, 4, 30)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_as_torch(dtype, shape, bias):
    layer, plain = pair(30, 11, bias=bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype)
    grad = torch.randn((*shape[:-1], 11), dtype=dtype)
    for found, expected in zip(step(layer, x, grad), step(plain, x, grad), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-6, atol=1e-2)
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]
)
def test_gradients_that_are_not_wanted(wanted):
    layer, _ = pair(6, 5)
    x = torch.randn(4, 6, requires_grad=wanted[0])
    layer.weight.requires_grad_(wanted[1]), layer.bias.requires_grad_(wanted[2])
    layer(x).sum().backward()
    assert [one.grad is not None for one in (x, layer.weight, layer.bias)] == list(wanted)


def test_layouts_of_the_input():
    layer, plain = pair(12, 8)
    wide = torch.randn(5, 40)
    for x in (torch.randn(12, 5).t(), wide[:, 3:15], wide[:, :24:2], torch.randn(12, 3, 2).permute(1, 2, 0)):
        grad = torch.ones(()).expand(*x.shape[:-1], 8)  # all strides are zero
        for found, expected in zip(step(layer, x, grad), step(plain, x, grad), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, strike):
    layer, plain = pair(12, 8)
    x, y = torch.randn(5, 12), plain(torch.zeros(1, 12))
    with mode():
        assert torch.equal(layer(x), plain(x))
        made_here = abft.protect(nn.Linear(12, 8))
        y = made_here(x)
        made_here.weight.mul_(2)
        torch.testing.assert_close(made_here(x) - made_here.bias, 2 * (y - made_here.bias))


def test_gradcheck():
    layer = abft.Linear(5, 4, dtype=torch.float64)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    given = x, layer.weight, layer.bias
    assert torch.autograd.gradcheck(linear, given)
    assert torch.autograd.gradgradcheck(linear, given)
    operator = lambda *given: torch.ops.tsapps.protected_linear(*given, given[1].detach())  # noqa: E731
    assert torch.autograd.gradcheck(operator, given)
    assert torch.autograd.gradgradcheck(operator, given)
    assert torch.autograd.gradcheck(lambda x, w: linear(x, w, None), given[:2])


# --- Faults -----------------------------------------------------------------------------------------------------------


def draw(kind, shape, dtype):
    x = torch.randn(shape, dtype=torch.float64)
    if kind == "heavy tails":
        x = x / torch.rand(shape, dtype=torch.float64).clamp_min(1e-3)
        x = x / 16 if dtype == torch.float16 else x  # no product overflows
    if kind == "cancelling":
        x[..., 1::2] = -x[..., : x.shape[-1] // 2 * 2 : 2] * (1 + 1e-3 * torch.randn_like(x[..., 1::2]))
    if kind == "positive":
        x = x.abs() + 1
    if kind == "sparse":
        x *= torch.rand(shape) < 0.05
    return x.to(dtype)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "cancelling", "positive", "sparse"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_right_products_are_never_reported(dtype, kind, monkeypatch):
    """Of any data, and hardly any row is tested element by element."""
    settle, settled = on_cpu._settle, []

    def count(rows, *others, **how):
        settled.append(len(rows))
        return settle(rows, *others, **how)

    monkeypatch.setattr(on_cpu, "_settle", count)
    for k, n, tokens in ((64, 48, 300), (500, 130, 60), (33, 1000, 50)):
        for _ in range(3):
            layer, _ = pair(k, n, dtype=dtype)
            x, grad = draw(kind, (tokens, k), dtype), draw(kind, (tokens, n), dtype)
            settled.clear()
            with torch.no_grad():
                layer.weight.copy_(draw(kind, layer.weight.shape, dtype))
                products.backward(grad, x, layer.weight, layer.weight, (True, True, True))
                layer(x)
            assert sum(settled) <= (2 * tokens + n) // 20, settled


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_fault_above_the_bound_is_found(dtype, product, strike):
    found = []
    layer, plain = pair(60, 50, dtype=dtype)
    abft.protect(layer, on_fault=found.append)
    x, grad = torch.randn(40, 60, dtype=dtype), torch.randn(40, 50, dtype=dtype)
    expected = dict(zip(PRODUCTS, step(plain, x, grad), strict=False))[product]
    a, b = {"forward": (x, plain.weight.t()), "grad_input": (grad, plain.weight), "grad_weight": (grad.t(), x)}[product]
    a, b, c = a.detach().double(), b.detach().double(), expected.double()
    bounds = bounds_of(a.shape[1], b.shape[1], on_cpu.arithmetic(dtype))
    v = torch.from_numpy(1 - (torch.arange(b.shape[1], dtype=torch.float64).numpy() * ((5**0.5 - 1) / 2) % 1) / 2)
    s, q = ((c * v) ** 2).sum(1), (a**2) @ ((b * v) ** 2).sum(1)
    limits = bounds.output * s.sqrt() + bounds.sum * (2 * s + q).sqrt() + bounds.absolute
    proven = bounds.element.magnitude * (a.abs() @ b.abs() + 1) + 2 * bounds.element.rounding * (c.abs() + 1)
    rows = torch.randperm(len(c))[:12].sort().values
    columns = torch.randint(c.shape[1], (12,))
    least = guaranteed(1) * limits[rows] + 2.1 * proven[rows, columns]
    by = least * 10 ** (2 * torch.rand(12, dtype=torch.float64)) * torch.randn(12, dtype=torch.float64).sign()

    def change(result):
        result[rows, columns] = (result[rows, columns].double() + by).to(dtype)
        result[rows[0], columns[0]] = float("nan")

    strike(product, change)
    outputs = dict(zip(PRODUCTS, step(layer, x, grad), strict=False))
    places = [(fault.row, fault.column, fault.n_wrong, fault.product) for fault in found]
    assert places == [(i, j, 1, product) for i, j in zip(rows.tolist(), columns.tolist(), strict=True)]
    assert all(fault.repaired for fault in found)
    assert ((outputs[product].double() - c).abs() <= proven).all()


def test_default_reactions(strike):
    layer, plain = pair(6, 5)
    x = torch.randn(4, 6)
    strike("forward", lambda y: y[2].zero_())
    with pytest.warns(abft.LinearFaultWarning, match="row 2 had 5 wrong elements"):
        y = layer(x)
    torch.testing.assert_close(y, plain(x))
    abft.protect(layer, repair=False)
    with pytest.raises(abft.LinearFaultError, match=r"Linear, forward: row 2 .*; not repaired") as info:
        layer(x)
    assert pickle.loads(pickle.dumps(info.value)).fault == info.value.fault


def test_every_fault_is_reported_before_an_error(strike):
    layer, _ = pair(6, 5)
    abft.protect(layer, repair=False)
    strike("forward", lambda y: y[1:3].zero_())
    with pytest.raises(abft.LinearFaultError, match="row 1 "):
        layer(torch.randn(4, 6))


def test_inputs_that_are_not_finite(strike):
    found = []
    layer, plain = pair(6, 5)
    abft.protect(layer, on_fault=found.append)
    x = torch.randn(6, 6)
    x[1, 2], x[3, 0] = float("nan"), float("inf")
    assert torch.equal(layer(x).isfinite(), plain(x).isfinite())
    assert found == []

    def change(y):
        y[4, 1] = float("inf")

    strike("forward", change)
    layer(x)
    assert [(fault.row, fault.column) for fault in found] == [(4, 1)]


def test_checksums_follow_the_weight(strike):
    layer, plain = pair(6, 5)
    x = torch.randn(4, 6)
    state = state_of(layer.weight)
    layer(x)
    first = state.checksums["forward"]
    layer(x)
    assert state.checksums["forward"] is first
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(x).sum().backward()
    optimizer.step()
    layer(x)
    assert state.checksums["forward"][0] != first[0]
    layer.weight.data.add_(1)  # has no version
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), plain(x))
    assert state.checksums["forward"][0] is None
    layer(x)
    assert state.checksums["forward"][0] is not None


# --- Modules ----------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.ModuleDict({"out": nn.Linear(8, 8)})["out"])
        self.head = nn.Linear(8, 4)
        self.tied = nn.Linear(8, 4, bias=False)
        self.tied.weight = self.head.weight

    def forward(self, x):
        return self.head(self.body(x)) + self.tied(self.body(x))


def test_protect_in_place(strike):
    model = Model()
    keys, parameters, x = list(model.state_dict()), list(model.parameters()), torch.randn(3, 6)
    calls = []
    model.head.register_forward_hook(lambda *given: calls.append(given))
    expected = model(x)
    found = []
    assert abft.protect(model, on_fault=found.append) is model
    assert abft.protect(model, on_fault=found.append) is model
    assert [type(one) is abft.Linear for one in (model.body[0], model.body[2], model.head, model.tied)] == [True] * 4
    assert isinstance(model.head, nn.Linear)
    assert list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert model.tied.weight is model.head.weight
    assert torch.equal(model(x), expected)
    assert len(calls) == 2
    strike("forward", lambda y: y[0].add_(1))
    model(x)
    assert [fault.module for fault in found] == ["body.0", "body.2", "head", "body.0", "body.2", "tied"]
    assert type(abft.unprotect(model).head) is nn.Linear
    assert not hasattr(model.head, "abft_options")


def test_state_dict_pickle_and_copy():
    layer, plain = pair(6, 5)
    plain.load_state_dict(layer.state_dict())
    layer.load_state_dict(plain.state_dict(), assign=True)
    x = torch.randn(3, 6)
    assert torch.equal(layer(x), plain(x))
    file = io.BytesIO()
    abft.protect(layer, report="immediate")
    torch.save(layer, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is abft.Linear
        assert other.abft_options.report == "immediate"
        assert torch.equal(other(x), plain(x))
    layer.double()
    torch.testing.assert_close(layer(x.double()), plain.double()(x.double()))
    layer.weight = nn.Parameter(torch.zeros(5, 6, dtype=torch.float64))
    torch.testing.assert_close(layer(x.double()), layer.bias.expand(3, 5))


def test_derived_layers_stay_as_they_are():
    class Scaled(nn.Linear):
        def forward(self, input):  # noqa: A002
            return 2 * super().forward(input)

    model = nn.Sequential(Scaled(3, 3), nn.Linear(3, 3))
    abft.protect(model)
    assert [type(one) for one in model] == [Scaled, abft.Linear]
    with pytest.raises(ValueError, match=r"ReLU has no torch.nn.Linear layers"):
        abft.protect(nn.ReLU())
    for options in ({"report": "later"}, {"on_fault": 3}):
        with pytest.raises((ValueError, TypeError), match="expected"):
            abft.protect(model, **options)


def test_autocast():
    layer, plain = pair(32, 16)
    x, grad = torch.randn(9, 32), torch.randn(9, 16, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = step(layer, x, grad), step(plain, x, grad)
    assert found[0].dtype == torch.bfloat16
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_unsupported_arguments():
    layer, _ = pair(6, 5)
    for x, message in (
        (torch.randn(3, 7), "shape (3, 7); expected 6 features"),
        (torch.randn(3, 6).double(), "the input is torch.float64 on cpu and the weight torch.float32 on cpu"),
    ):
        with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
            layer(x)
    weight = torch.zeros(5, 6, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"dtype torch.complex64; protected modules support float64"):
        linear(weight[:3], weight, None)


# --- torch.compile ----------------------------------------------------------------------------------------------------


def test_operators():
    x, w, b = torch.randn(3, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True), torch.randn(4)
    for bias in (b.requires_grad_(), None):
        torch.library.opcheck(torch.ops.tsapps.protected_linear, (x, w, bias, w.detach()))


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_compile(backend, strike):
    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    found = []
    abft.protect(model, on_fault=found.append)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    x = torch.randn(3, 6)
    outputs = []
    for one in (compiled, plain):
        y = one(x)
        y.square().sum().backward()
        outputs.append(y)
    torch.testing.assert_close(*outputs)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), plain(x), rtol=3e-2, atol=3e-2)
    assert found == []
    strike("forward", lambda y: y[0].add_(1))
    torch.testing.assert_close(compiled(x), outputs[1])
    assert {fault.module for fault in found} <= {"body.0", "body.2", "head", "tied"}
    assert len(found) >= 4
