"""Benchmark of batched K-means on a GPU: `kmeans_batched` and other libraries.

    python -m tsapps.bench.kmeans.batched --engine tsapps --engine flash-kmeans --engine flashlib

The labels of every problem are first compared with the float64 arg-min, and the new centers of the first and the last
problem with float64 means; wrong results are neither timed nor recorded. Then, as in `python -m tsapps.bench.kmeans`:

iter_ms   time of one iteration of all problems. Ours: the mean of the first 20, starting without labels, with the final
          assignment ("mean of 20"); problems that converge early make fewer iterations, and the time is divided by the
          mean of these numbers. Others, which make a given number: the time that one more iteration adds ("slope")
fit_ms    wall time of a whole fit of 20 iterations from given centers with tol=0
floor_ms  roofline time of one iteration, equal to that of one problem with the same number of samples
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from secrets import randbelow
from typing import Any, NamedTuple

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.precompile import call_ahead
from tsapps.bench.common.roofline import Ceilings, measure
from tsapps.bench.common.timing import GpuClock
from tsapps.bench.kmeans import problems as data
from tsapps.bench.kmeans.measure import LEAST_EQUAL, MOST_CENTERS_ERROR, NotRightError, Timing, time_peer
from tsapps.bench.kmeans.peers import FlashKmeans, Flashlib, ForSm80, ForSm90, Peer
from tsapps.bench.kmeans.problems import Shape
from tsapps.bench.kmeans.run import FIELDS as FIELDS_OF_ONE
from tsapps.bench.kmeans.run import free_memory, versions_of
from tsapps.kernels.arrays import as_array, to_host
from tsapps.kernels.devices import gpus, why_no_gpu

FIELDS: dict[str, tuple[type, ...]] = {**FIELDS_OF_ONE, "b": (int,)}
KEY = ("what", "engine", "b", "n", "d", "k", "dtype")
# Maximum number of samples whose labels are compared, over all problems.
_MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class BatchShape:
    """Shape of b problems; its name is, for example, 32x65536-128-1000-f32."""

    b: int
    each: Shape

    @property
    def name(self) -> str:
        """Return the name used on the command line."""
        return f"{self.b}x{self.each.name}"

    @classmethod
    def parse(cls, name: str) -> "BatchShape":
        """Parse a name."""
        problems, times, each = name.partition("x")
        if not times or not problems.isdecimal() or int(problems) < 1:
            raise ValueError(f"shape {name!r}: expected bxn-d-k-dtype, such as 32x65536-128-1000-f32")
        return cls(int(problems), Shape.parse(each))

    @property
    def together(self) -> Shape:
        """Return the shape of one problem with as many samples: an iteration has the same bytes and flops."""
        return Shape(self.b * self.each.n, self.each.d, self.each.k, self.each.dtype)


#: The shapes with published records: a grid, video tokens, middle-sized problems, many small ones, and long rows.
SHAPES = (
    *(
        BatchShape.parse(f"{shape}-{dtype}")
        for dtype in ("f32", "f16", "bf16")
        for shape in ("32x65536-128-1000", "256x8192-64-256", "1024x2048-64-32", "32x16384-128-64")
    ),
    *map(BatchShape.parse, ("64x37440-128-293-bf16", "16x100000-64-50-bf16", "2000x500-16-8-bf16")),
    *map(BatchShape.parse, ("16x16384-768-200-f16", "16x16384-768-1000-f32")),
)


class Step(NamedTuple):
    """Result of one iteration: labels (b, n), the centers they refer to, and the new centers, both (b, k, d)."""

    labels: Any
    of: Any
    new: Any


class Batched(Peer):
    """Lloyd iterations on X (b, n, d) from given centers (b, k, d)."""

    def step(self) -> Step:
        """Run one iteration."""
        raise NotImplementedError


class BatchedTsapps(Batched):
    """Kernels of tsapps; raises an error for shapes that they do not support."""

    name, module = "tsapps", "tsapps"
    dtypes = ("float32", "float16", "bfloat16")
    steps = settles = True
    device = "cuda"
    max_arch = ""

    def __init__(self, X: Any, centers: Any) -> None:
        super().__init__(X, centers)
        self.given = centers.astype(np.float32)  # on the same device, as for the other libraries
        self._open: dict[int, Any] = {}

    def _machine(self) -> Any:
        """Return the machine that runs kernels."""
        from tsapps.kernels.runtime.machine import cuda_machine

        return cuda_machine(int(self.X.device.id))

    def _batch(self, iterations: int) -> Any:
        """Return a batch that holds X for a fit of `iterations`, without labels."""
        from tsapps.apps.kmeans.batched.lloyd import BatchedLloyd
        from tsapps.apps.kmeans.batched.plan import STATUS, batch_plan

        if iterations not in self._open:
            machine = self._machine()
            plan = batch_plan(*self.X.shape[1:], self.k, machine.gpu)
            if plan is None:
                raise ValueError("no batched kernel supports this shape: TSKMeans would fit the problems one by one")
            self._open = {iterations: BatchedLloyd(machine, self.X, self.k, plan, max_iter=iterations, tol=0)}
        batch = self._open[iterations]
        batch.labels.fill(-1)
        batch.status.fill(STATUS["place"])
        for name in ("sums", "counts", "n_reassigned", "iterations"):
            batch.arrays[name].fill(0)
        return batch

    def iterate(self, iterations: int) -> float:
        """Run iterations, starting without labels; return the number of iterations, averaged over the problems."""
        batch = self._batch(iterations)
        batch.start_at(self.given)
        batch.iterate()
        return float(to_host(batch.arrays["iterations"]).mean())

    def _fitted(self, iterations: int) -> Any:
        from tsapps import kmeans_batched

        return kmeans_batched(self.X, self.k, init=self.given, max_iter=iterations, tol=0, device=self.device)

    def step(self) -> Step:
        """Fit one iteration; its labels refer to the new centers."""
        found = self._fitted(1)
        return Step(found.labels, found.centers, found.centers)

    def fit(self, iterations: int) -> int:
        """Fit; return the largest number of iterations of a problem."""
        self._open = {}
        return int(self._fitted(iterations).n_iter.max())


class BatchedTsappsSm80(ForSm80, BatchedTsapps):
    """Kernels of tsapps as on GPUs of compute capability 8.0."""


class BatchedTsappsSm90(ForSm90, BatchedTsapps):
    """Kernels of tsapps as on GPUs from compute capability 9.0 on that have no wgmma."""


class _BatchedFlash(FlashKmeans):
    """Common part of the adapters of flash-kmeans and flashlib, which also serve single problems."""

    def __init__(self, X: Any, centers: Any) -> None:
        super().__init__(X, centers)
        self.X, self.centers = self.X[0], self.centers[0]

    def step(self) -> Step:
        """Fit one iteration; the labels are those found by the iteration."""
        labels, new_centers, _ = self._fitted(1)
        return Step(labels, self.centers, new_centers)


class BatchedFlashKmeans(_BatchedFlash):
    """flash-kmeans: `batch_kmeans_Euclid`."""


class BatchedFlashlib(_BatchedFlash, Flashlib):
    """flashlib: `flash_kmeans`, with the kernels that it selects."""

    name, module = Flashlib.name, Flashlib.module


#: All adapters by name.
PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (BatchedTsapps, BatchedTsappsSm80, BatchedTsappsSm90, BatchedFlashKmeans, BatchedFlashlib)
}
# Engines that are timed by default: those for which TSAPPS_MAX_ARCH need not be set.
_DEFAULT = [name for name, peer in PEERS.items() if not peer.max_arch]


def draw(shape: BatchShape, seed: int, xp: Any) -> tuple[Any, Any]:
    """Draw X (b, n, d) and initial centers (b, k, d), each problem by `problems.draw`."""
    rng, each = xp.random.default_rng(seed), shape.each
    dtype = data.numpy_dtype(each.dtype)
    X, centers = (xp.empty((shape.b, rows, each.d), dtype) for rows in (each.n, each.k))
    for i in range(shape.b):
        X[i], centers[i] = data.draw_from(rng, each, xp)
    return X, centers


def check(step: Step, X: Any, centers: Any, shape: BatchShape, seed: int, xp: Any) -> dict[str, Any]:
    """Compare an iteration with the float64 reference; return the fields of the record.

    Raises
    ------
    NotRightError
        If too few labels equal the float64 arg-min, or a new center is too far from the mean of its samples.
    """
    each = shape.each
    labels, of, new = (xp.asarray(as_array(one)) for one in step)
    rows = data.compared_rows(each.n, max(1, _MOST_ROWS // shape.b), seed, xp)
    fractions = []
    for i in range(shape.b):
        expected = data.nearest_f64(X[i], of[i], rows, xp)
        try:
            fractions.append(data.share_equal(labels[i], rows, expected, each.k))
        except ValueError as error:
            raise NotRightError(f"problem {i}: {error}") from error
    share, least, worst = float(np.mean(fractions)), LEAST_EQUAL[each.dtype], int(np.argmin(fractions))
    if share < least or fractions[worst] < least - 0.01:
        raise NotRightError(
            f"{share:.4%} of the labels are the float64 arg-min, of problem {worst} {fractions[worst]:.4%}; expected "
            f"{least:.2%}"
        )
    errors = []
    for i in {0, shape.b - 1}:
        # Labels to which the new centers are the means.
        mine = labels[i] if step.of is not step.new else data.nearest_f64(X[i], centers[i], xp.arange(each.n), xp)
        errors.append(data.centers_error(X[i], mine, new[i]))
    error = float(np.max(errors))
    if not error <= MOST_CENTERS_ERROR[each.dtype]:
        raise NotRightError(f"a new center is off by {error:.1e}, more than {MOST_CENTERS_ERROR[each.dtype]:.0e}")
    return {"labels_equal_f64": share, "rows_compared": shape.b * len(rows), "centers_error": error}


def measured(engine: str, shape: BatchShape, timing: Timing, ceilings: Ceilings) -> dict[str, Any]:
    """Return the timing fields of a record."""
    floor, set_by = data.floor_ms(shape.together, ceilings)
    return {
        "what": "kmeans-batched",
        "engine": engine,
        "b": shape.b,
        **asdict(shape.each),
        **asdict(timing),
        "floor_ms": floor,
        "floor_set_by": set_by,
        "read_ceiling_gbs": ceilings.read_gbs,
        "matmul_ceiling_tflops": ceilings.matmul_tflops,
        "read_gbs": data.read_bytes(shape.together) / timing.iter_ms / 1e6,
    }


def one_step(name: str, shape: BatchShape) -> None:
    """Run one iteration on some data, to compile its kernels."""
    import cupy

    sizes = shape.b, shape.each.n, shape.each.d
    X = cupy.random.default_rng(0).standard_normal(sizes, dtype=cupy.float32)
    X = X.astype(data.numpy_dtype(shape.each.dtype), copy=False)
    PEERS[name](X, X[:, : shape.each.k].copy()).step()
    cupy.cuda.Device().synchronize()


def run(options: argparse.Namespace) -> int:
    """Time the requested engines on the requested shapes on the current GPU; return the exit code."""
    import cupy

    engines = [name for name in options.engine if PEERS[name].installed()]
    for name in options.engine:
        if name not in engines:
            print(f"{name}: not installed")
    device = record.gpu_name()
    path = options.out or record.results_path(device, "kmeans-batched")
    clock = GpuClock()
    ceilings = measure(clock)
    common = {"device": device, "commit": options.commit or record.commit_of(), "seed": options.seed}
    failures = 0
    steps = [(name, shape) for shape in options.shapes for name in engines if PEERS[name].compiles]
    free_memory(cupy)
    call_ahead(one_step, steps, options.ahead)
    for shape in options.shapes:
        free_memory(cupy)
        X, centers = draw(shape, options.seed, cupy)
        for name in engines:
            if shape.each.dtype not in PEERS[name].dtypes:
                print(f"{shape.name:<24} {name:<13} does not support {shape.each.dtype}", flush=True)
                continue
            free_memory(cupy)
            try:
                peer = PEERS[name](X, centers)
                checked = check(peer.step(), X, centers, shape, options.seed, cupy)
                timing = time_peer(peer, clock, options.repeats, options.seconds_budget)
            except Exception as error:  # noqa: BLE001 (a peer may raise anything; nothing is recorded)
                print(
                    f"{shape.name:<24} {name:<13} NOT RECORDED: {type(error).__name__}: {str(error)[:160]}", flush=True
                )
                failures += 1
                continue
            one = {**measured(name, shape, timing, ceilings), **checked, **common}
            one |= {"versions": versions_of(name, cupy), "date": record.today()}
            record.store(path, one, KEY, FIELDS)
            floor = f" ({timing.iter_ms / one['floor_ms']:.1f}× the floor)" if one["floor_ms"] else ""
            fit = f"fit {timing.fit_ms:.1f} ms" if timing.fit_ms else "no time for a fit"
            right = f"labels {checked['labels_equal_f64']:.4%} of {checked['rows_compared']}"
            print(f"{shape.name:<24} {name:<13} iteration {timing.iter_ms:.3f} ms{floor}; {fit}; {right}", flush=True)
        del X, centers
    return 1 if failures or not engines else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--engine",
        action="append",
        choices=list(PEERS),
        help=f"engine to time; may be repeated (default: {', '.join(_DEFAULT)})",
    )
    parser.add_argument(
        "--shapes", help="comma-separated names such as 32x65536-128-1000-f32 (default: the recorded shapes)"
    )
    record.add_options(parser, "kmeans-batched")
    parser.add_argument("--repeats", type=int, default=9, help="maximum number of timings (default 9)")
    parser.add_argument("--seconds-budget", type=float, default=4, help="time limit per engine and shape (default 4)")
    parser.add_argument("--ahead", type=int, default=0, help="number of precompiling processes")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args(arguments)
    options.engine = list(dict.fromkeys(options.engine or _DEFAULT))
    try:
        options.shapes = [BatchShape.parse(name) for name in options.shapes.split(",")] if options.shapes else SHAPES
    except ValueError as error:
        parser.error(str(error))
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
