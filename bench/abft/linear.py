"""Benchmark of protected linear layers beside `torch.nn.Linear`, on a GPU.

    python -m tsapps.bench.abft.linear

Tasks, for layers of 4096 × 4096 with a bias:

forward              the output, without gradients
forward + backward   the output, and the gradients of the input, the weight and the bias
host                 the host's time for the first, of a layer so small that the GPU does not count
host, both           the host's time for the second, likewise

Engines, on the same data by turns: "nn.Linear"; "protected", a protected layer; and for bfloat16, where that takes
another way, "library", a protected layer with ``gemm="library"``. `seconds` is the median time of a call between CUDA
events, with so many calls queued that the host is ahead; for the host, the least time of a call. `ratio` is the median
of the ratios to nn.Linear in the same turn. Before anything is timed, products of torch in a protected layer must have
nn.Linear's bits, and a wrong element must be found and repaired; fused products must be close to float64's, and wrong
checksums must be noticed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from tsapps.bench.common import record

__all__ = ["FIELDS", "KEY", "main"]

KEY = ("what", "engine", "task", "tokens", "dtype")
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "dtype"), (str,)),
    **dict.fromkeys(("tokens", "features", "repeats"), (int,)),
    **dict.fromkeys(("seconds", "ratio"), (float,)),
}
FEATURES = 4096
#: Numbers of tokens, by dtype.
TOKENS = {"bfloat16": (2048, 8192, 32768), "float16": (2048, 8192), "float32": (2048, 8192)}
# Layers, each with its input, whose calls take turns: more than the level-2 cache holds.
_LAYERS = 3
# Cycles of a kernel that waits while the host queues calls.
_AHEAD = 4_000_000
ENGINES = ("nn.Linear", "protected", "library")


class Layers:
    """A protected layer and a plain one with the same parameters, an input, and the gradient of the output."""

    def __init__(self, tokens: int, features: int, dtype: str, device: str = "cuda") -> None:
        import torch

        from tsapps import abft

        self.faults: list[Any] = []
        how: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}
        plain = torch.nn.Linear(features, features, **how)
        self.layers = {ENGINES[0]: plain}
        #: The engine whose products torch computes.
        self.library = "library" if dtype == "bfloat16" else "protected"
        for engine, gemm in zip(ENGINES[1:], ("auto", "library"), strict=True):
            if engine == "library" != self.library:
                continue
            layer = abft.Linear(features, features, on_fault=self.faults.append, gemm=gemm, **how)
            layer.load_state_dict(plain.state_dict())
            self.layers[engine] = layer
        self.x, self.grad = (torch.randn(tokens, features, **how) for _ in range(2))

    def forward(self, engine: str) -> Any:
        """Return the output of a layer, without gradients."""
        import torch

        with torch.no_grad():
            return self.layers[engine](self.x)

    def train(self, engine: str) -> list[Any]:
        """Return the output, and the gradients of the input and of the weight."""
        layer, x = self.layers[engine], self.x.detach().requires_grad_()
        layer.weight.grad = layer.bias.grad = None
        y = layer(x)
        y.backward(self.grad)
        return [y.detach(), x.grad, layer.weight.grad]

    def check(self) -> None:
        """Raise RuntimeError unless the protected layer is right, and finds and repairs a wrong element."""
        import torch

        from tsapps import abft
        from tsapps.apps.abft.modules import products

        expected = self.train("nn.Linear")
        right = all(map(torch.equal, self.train(self.library), expected))
        abft.check_faults()
        multiply = products.multiply["forward"]

        def wrong(*given: Any) -> Any:
            y = multiply(*given)
            y[-1, 7] += 1000
            return y

        products.multiply["forward"] = wrong
        try:
            y = self.forward(self.library)
        finally:
            products.multiply["forward"] = multiply
        abft.check_faults()
        places = [(one.row, one.column, one.repaired) for one in self.faults]
        self.faults.clear()
        if not right or places != [(len(self.x) - 1, 7, True)] or not torch.allclose(y, expected[0], rtol=0.02):
            raise RuntimeError(f"a protected layer is wrong: the same bits: {right}, faults found: {places}")
        if self.library != "protected":
            self._check_fused()

    def _check_fused(self) -> None:
        """Raise RuntimeError unless fused products are right, and notice that a weight and its checksums differ."""
        import torch

        from tsapps import abft
        from tsapps.apps.abft.modules import on_gpu, products
        from tsapps.apps.abft.modules.states import state_of

        layer, of_library = self.layers["protected"], products.multiply["forward"]
        weight = layer.weight.detach().clone()
        exact = torch.nn.functional.linear(self.x.double(), weight.double(), layer.bias.detach().double())
        products.multiply["forward"] = None  # torch must not be asked
        try:
            y = self.forward("protected").double()
            layer.weight.data[5, 7] += 1
            self.forward("protected")
            torch.cuda.synchronize()
            is_noticed = on_gpu.was_stale(state_of(layer.weight), self.x.get_device())
        finally:
            products.multiply["forward"] = of_library
            layer.weight.data.copy_(weight)
        error = float((y - exact).abs().max() / exact.abs().max())
        if faults := abft.check_faults():
            raise RuntimeError(f"a right fused product has faults: {faults[:3]}")
        if error > 2**-8 or not is_noticed:
            raise RuntimeError(f"a fused layer is wrong: error {error:.2g}, wrong checksums noticed: {is_noticed}")


def _queued(call: Callable[[int], Any], calls: int) -> tuple[Any, Any]:
    """Enqueue calls between two events; return the events."""
    import torch

    events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
    events[0].record()
    for number in range(calls):
        call(number)
    events[1].record()
    return events[0], events[1]


def gpu_seconds(calls: dict[str, Callable[[int], Any]], repeats: int, each: int) -> dict[str, list[float]]:
    """Return the seconds of a call of each engine, in turns of `each` calls, `repeats` times."""
    import torch

    for call in calls.values():
        _queued(call, _LAYERS)
    found: dict[str, list[float]] = {engine: [] for engine in calls}
    for _ in range(repeats):
        torch.cuda.synchronize()
        torch.cuda._sleep(_AHEAD)
        events = {engine: _queued(call, each) for engine, call in calls.items()}
        torch.cuda.synchronize()
        for engine, (start, stop) in events.items():
            found[engine].append(start.elapsed_time(stop) / each / 1e3)
    return found


def host_seconds(calls: dict[str, Callable[[int], Any]], repeats: int, each: int) -> dict[str, list[float]]:
    """Return the host's seconds of a call of each engine, like `gpu_seconds`."""
    import torch

    found: dict[str, list[float]] = {engine: [] for engine in calls}
    for _ in range(repeats + 1):
        for engine, call in calls.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for number in range(each):
                call(number)
            found[engine].append((time.perf_counter() - began) / each)
    return {engine: some[1:] for engine, some in found.items()}


def records_of(task: str, sizes: dict[str, Any], found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return the records of a task from the seconds of each engine, turn by turn."""
    plain = found[ENGINES[0]]
    summary = min if task.startswith("host") else median
    return [
        {
            **sizes,
            "task": task,
            "engine": engine,
            "repeats": len(some),
            "seconds": float(summary(some)),
            "ratio": float(median(one / other for one, other in zip(some, plain, strict=True))),
        }
        for engine, some in found.items()
    ]


def measure(tokens: int, dtype: str, repeats: int) -> list[dict[str, Any]]:
    """Return the records of one number of tokens and one dtype on the GPU."""
    layers = [Layers(tokens, FEATURES, dtype) for _ in range(_LAYERS)]
    layers[0].check()
    each = max(2, min(12, 12 * 8192 // tokens)) if dtype != "float32" else 2
    sizes, found = {"tokens": tokens, "dtype": dtype, "features": FEATURES}, []
    for task, name in (("forward", "forward"), ("forward + backward", "train")):
        calls = {engine: partial(_call, layers, name, engine) for engine in layers[0].layers}
        found += records_of(task, sizes, gpu_seconds(calls, repeats, each))
    return found


def _call(layers: list[Layers], name: str, engine: str, number: int) -> Any:
    return getattr(layers[number % len(layers)], name)(engine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and store its records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11)
    record.add_options(parser, "abft-linear")
    options = parser.parse_args(arguments)
    from tsapps import abft

    device = record.gpu_name()
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy", "torch": "torch"})
    common = record.of_run("abft-linear", device, versions | record.cuda_versions(), options.commit)
    small, sizes = [Layers(64, 256, "bfloat16")], {"tokens": 64, "dtype": "bfloat16", "features": 256}
    found = []
    for task, name in (("host", "forward"), ("host, both", "train")):
        calls = {engine: partial(_call, small, name, engine) for engine in small[0].layers}
        found += records_of(task, sizes, host_seconds(calls, options.repeats, 200))
    for dtype, numbers in TOKENS.items():
        for tokens in numbers:
            found += measure(tokens, dtype, options.repeats)
    if faults := abft.check_faults():
        raise RuntimeError(f"faults were found while right products were timed: {faults[:3]}")
    for one in found:
        print(
            f"{one['task']:20}{one['dtype']:10}{one['tokens']:7,} tokens  {one['engine']:10}"
            f"{1e6 * one['seconds']:10.1f} µs, ratio {one['ratio']:.3f}"
        )
    path = options.out or record.results_path(device, "abft-linear")
    record.store_sorted(path, [{**common, **one} for one in found], KEY, FIELDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
