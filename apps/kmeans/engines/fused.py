"""The fused engine: Lloyd on a float16 copy of X, or on few features themselves, with exact labels and exact sums.

An iteration is one product of the core, of X's copy in float16 (`half_copy.cuh`) and the centers. Its epilogue finds
the nearest center of every row and, by a rigorous bound on what float16 rounds away, the few rows for which it is not
sure. Those are decided in float64 from X itself, and rows whose label changes move from one cluster's sum to another's.
So an iteration reads half of float32's bytes and a quarter of float64's; labels are the float64 arg-min; and sums are
integers, the same bits on every run. `device_step.py` has the kernels of few centers, `large_k_step.py` those of many.
Few features and few centers are multiplied from X itself, in the time of reading it (`small_d_step.py`): in float32
(`iteration_fma_d4.cuh`, `iteration_fma.cuh`), or by tensor cores, with the same kind of bound (`iteration_mma.cuh`): as
float16, or 16 bits as they lie.

What it cannot do it leaves to `CublasEngine`: many centers on GPUs other than Hopper's, X that does not fit the GPU,
small data in float64, where scikit-learn's own rounding decides, and single passes over small data, which are over
before a copy of X would be made.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan, stream_plan
from tsapps.apps.kmeans.assign.plan import MOST_CLUSTERS, MOST_LARGE_K, MOST_PLACED, NARROW, assign_plan
from tsapps.apps.kmeans.data.half_copy import HalfCopy
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.apps.kmeans.engines.cublas import CublasEngine
from tsapps.apps.kmeans.engines.device_step import SmallKStep, Step, integers_of
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.small_d_step import norms_of, small_d_step
from tsapps.apps.kmeans.inertia.plan import inertia_from_sums
from tsapps.apps.kmeans.init.plusplus import is_small
from tsapps.apps.kmeans.init.plusplus_launch import draw_plus_plus
from tsapps.apps.kmeans.protect.launch import SumsCheck
from tsapps.apps.kmeans.results import Assignment, Iterated, Report
from tsapps.apps.kmeans.small_d.plan import ALIGNMENT, FmaPlan, ProductsPlan, fma_plan
from tsapps.kernels.arrays import to_host
from tsapps.kernels.plan.mma import MmaPlan

__all__ = ["FusedEngine"]

T = TypeVar("T")

# What 32 bits number, with a warpgroup's tiles past the end; what a row's norm is summed over in float32
# (half_copy.cuh).
_MOST_SAMPLES, _MOST_FEATURES = 2**32 - 128, 2**18
_LEAST_CAPABILITY = 8.0
# By default, the features of rows that have bounds, and the elements of X: of less, launches cost what is saved.
_MOST_BOUNDED, _LEAST_BOUNDED = 256, 1 << 26
_HALF_TYPES = ("float16", "bfloat16")
# The square of the mean beside that of the spread, up to which halves are not centered.
_NEARLY_CENTERED = 0.25
# The least weight beside the largest: sums have 46 bits for it (assign/plan.py).
_LEAST_WEIGHT = 2.0**-16
# The inertia of sums: how many times their bytes X is to have, as they are worked on by the host; what part of it may
# be in error, about that of adding up differences in float32; and what part of a sum of squares in float64.
_ROWS_OVER_SUMS, _INERTIA_ERROR, _SQUARES_ERROR = 1024, 2.0**-20, 2.0**-40


class FusedEngine(CublasEngine):
    """Passes over X on a GPU by the kernels of this package; see `Engine`.

    Parameters
    ----------
    source, dtype, sample_weight, index
        As for `CublasEngine`.
    always : bool
        Whether small data is served too, in float64 and in single passes.
    precision : {"exact", "tf32"}
        Whether labels of float32 data that is copied to float16 are proved; see `HalfCopy`.
    bounds : bool, optional
        Whether iterations leave out rows whose labels stand, where that pays; see `bounds.Bounds`. Labels and sums
        are the same. Few features that are hardly more than their bound, more clusters than `MOST_CLUSTERS`, and labels
        that are not proved have none, nor where they do not fit the GPU. By default rows of up to `_MOST_BOUNDED`
        features have them, as the product of longer ones is faster without (`assign_plan`), and X of `_LEAST_BOUNDED`
        elements.
    """

    _step: Step | None = None

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        index: int,
        *,
        always: bool = False,
        precision: str = "exact",
        bounds: bool | None = None,
    ) -> None:
        super().__init__(source, dtype, sample_weight, index)
        self.precision = precision
        pays = self.n_features <= _MOST_BOUNDED and self.n_samples * self.n_features >= _LEAST_BOUNDED
        self.bounds = pays if bounds is None else bounds
        self._small = not always and is_small(self)
        tensor_cores = float(self.gpu.compute_capability) >= _LEAST_CAPABILITY
        room = self.rows_on_gpu is not None and self.n_samples < _MOST_SAMPLES and self.n_features <= _MOST_FEATURES
        served = self.dtype == np.float32 or not self._small
        self._applies = served and tensor_cores and room and self._weights_are_alike()
        # Whether kernels subtract the mean; whether it is subtracted before, from what they read.
        self._shifts = self._centered = False
        # The mean, the mean variance, and the largest |x − origin| of each feature; and what is subtracted of the mean.
        self._found: tuple[np.ndarray, float, np.ndarray] | None = None
        self._subtracted = np.zeros(self.n_features)
        self._half_copy: HalfCopy | None = None
        if not self._applies and self.held is None and super().copies():
            self._hold()

    @property
    def labels(self) -> Any:
        """The label of every sample, int32; a step for few features has them as bytes until they are asked for."""
        if self._step is not None:
            self._step.give_labels(self._labels)
        return self._labels

    @labels.setter
    def labels(self, labels: Any) -> None:
        self._labels = labels

    def _drop_step(self) -> None:
        self._labels, self._step = self.labels, None

    @property
    def rows_on_gpu(self) -> Any:
        """X on the GPU, row-major and not centered, as kernels read it: of any dtype; None where there is no such."""
        return self.held if self.held is not None else self._half_x()

    @property
    def certifies(self) -> bool:  # type: ignore[override]
        """Whether labels are proved: all but those of float32 data with precision="tf32"."""
        X = self.rows_on_gpu
        return self.precision == "exact" or X is None or bool(X.dtype != np.float32)

    @property
    def keeps_sums(self) -> bool:  # type: ignore[override]
        """Whether sums are kept from one assignment to the next: those of kernels of this package."""
        return self._step is not None

    @property
    def sums_units(self) -> np.ndarray:  # type: ignore[override]
        """What one stands for in each column of the sums, (d + 1,), and elements of them are rounded to."""
        return np.zeros(1) if self._step is None else 1 / np.array(self._step.integers.scales)

    def _half_x(self) -> Any | None:
        """Return the source's own array, if it is one of halves that lies on the GPU row by row."""
        if not isinstance(self.source, ArrayRows) or self.source.device is None or self.dtype != np.float32:
            return None
        array = self.source.array
        here = self.source.device == self._gpu.id and array.flags.c_contiguous
        return array if here and array.dtype.name in _HALF_TYPES else None

    def copies(self) -> bool:
        """Tell whether to hold a copy of X where it cannot be borrowed; see `Engine.copies`."""
        return self._half_x() is None and super().copies()

    def prepared(self, block: Any) -> Any:
        """Return a block of `blocks` in `dtype`, from which kernels subtract `shift`; see `Engine.prepared`."""
        if self.held is None and self._shifts:
            return block.astype(self.dtype, order="C")
        return super().prepared(block)

    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block; see `Engine.each_block`.

        Where `work` makes no temporaries it is a kernel's, which takes halves as they are.
        """
        half_x = self._half_x() if n_columns == 0 and self.held is None and not self._centered else None
        if half_x is None:
            yield from super().each_block(work, n_columns)
        else:
            yield work(0, half_x)

    def _weights_are_alike(self) -> bool:
        """Tell whether integers of one scale hold every weight well."""
        if self.sample_weight is None:
            return True
        with self._gpu:
            weights = abs(self.sample_weight[self.sample_weight != 0])
            return not weights.size or float(weights.min()) >= _LEAST_WEIGHT * float(weights.max())

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X and the mean variance of its features; see `Engine.moments`."""
        mean, variance = super().moments()
        self._found = mean, variance, to_host(self.largest)
        return mean, variance

    def center(self, mean: np.ndarray) -> None:
        """Subtract `mean` from every row read from here on, as it is read."""
        if not self._applies:
            self._centered = True
            super().center(mean)
            return
        if self.held is None and self._found is not None:
            # Halves that are nearly centered are better left as they are: their copy is exact.
            variance = self._found[1]
            if float(mean @ mean) <= _NEARLY_CENTERED * self.n_features * variance:
                mean = np.zeros_like(mean)
        self._drop_step()
        self._shifts, self._centered, self._half_copy = True, False, None
        self.mean = self.shift = cupy.asarray(mean, dtype=self.dtype)
        self._subtracted = mean.astype(self.dtype).astype(np.float64)

    def _center_held(self) -> None:
        """Subtract the mean once for all, for passes that expect centered rows."""
        if self._shifts:
            self._shifts, self._centered = False, True
            self.shift = cupy.zeros_like(self.shift)
            if self.held is None and super().copies():
                self._hold()
            super().center(self.mean)
            # What was made of X with the mean subtracted as it is read is of no more use.
            self._drop_step()
            self._half_copy = None
            self._applies = self._applies and (self.held is not None or not bool(self.mean.any()))

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the (centered) samples, in float64."""
        if self._applies and self._found is not None and self.sample_weight is None:
            return self.n_samples * self.n_features * self.spread()[1] ** 2
        self._center_held()
        return super().square_norm()

    def centered(self) -> Any:
        """Return the whole of X, centered, as an array of `xp`; shape (n, d)."""
        self._center_held()
        return super().centered()

    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows, from which the mean is still to be subtracted; see `Engine.assign_block`."""
        block = self._shifted(block)
        return super().assign_block(block, weights, minus_2_centers, norms, update=update, potential=potential)

    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the sums and weights of a block's rows by label; see `Engine.sum_block`."""
        return super().sum_block(self._shifted(block), weights, labels, k)

    def _shifted(self, block: Any) -> Any:
        return block - self.shift if bool(self.shift.any()) else block

    def draw_plus_plus(self, first: int, draws: np.ndarray) -> np.ndarray | None:
        """Draw samples by greedy k-means++ on the GPU, without the host; see `Engine.draw_plus_plus`."""
        return draw_plus_plus(self, first, draws)

    def place(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return centers as passes want them; see `Engine.place`. Far from the middle, few labels could be proved."""
        if self._small:  # a single pass
            self._applies = False
        if not self._applies or self.spherical:
            return super().place(centers, mean)
        self.moments()
        return self._about(centers, mean)

    def forget_labels(self) -> None:
        """Set every label to −1, so that the next assignment moves every sample."""
        if self._step is None or not self._step.keeps_labels:
            super().forget_labels()
        if self._step is not None:
            self._step.forget()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest center; see `Engine.assign`."""
        step = self._step_for(len(centers))
        if step is None:
            return super().assign(centers, update=update, potential=potential)
        n_reassigned = step.assign(centers)
        if not (update or potential):
            return Assignment(n_reassigned, np.zeros((0, 0)), np.zeros(0), float("nan"))
        found, wide = step.assignment(n_reassigned, float("nan")), centers.astype(np.float64)
        found.potential = float(found.weights @ (wide * wide).sum(axis=1) - 2 * (found.sums * wide).sum())
        return found

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Iterate on the GPU, without the host; see `Engine.iterate`."""
        step = self._step_for(len(centers))
        if step is None or self.spherical:  # `update_centers` has means, of which none has norm 1
            return super().iterate(centers, before, last, tol, report)
        return step.iterate(centers, before, last, tol, report)

    def result_inertia(self, centers: np.ndarray) -> float:
        """Return `inertia` of a run's result, of the sums that are kept where they will do."""
        found = self._inertia_of_sums(centers)
        return self.inertia(centers) if found is None else found

    def _inertia_of_sums(self, centers: np.ndarray) -> float | None:
        """Return `inertia` from the sums that are kept; None where X is read sooner, or float32 is more exact."""
        step, found = self._step, self._found
        if step is None or found is None or self.dtype != np.float32 or self.sample_weight is not None:
            return None
        if self.rows_on_gpu.nbytes < _ROWS_OVER_SUMS * step.device_sums.nbytes:
            return None
        squares = self.n_samples * self.n_features * self.spread()[1] ** 2
        inertia, error = inertia_from_sums(squares, *step.sums(), self.sums_units[:-1], centers)
        # `squares` came of such about the origin, by a difference.
        about_origin = squares + self.n_samples * float(np.square(found[0] - self.origin).sum())
        exact = error + _SQUARES_ERROR * about_origin <= _INERTIA_ERROR * inertia
        return inertia / (2 if self.spherical else 1) if exact else None

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return what `result_inertia` does, and what is wrong with sums or with it; see `Engine.checked_inertia`."""
        step = self._step
        if step is None:
            return super().checked_inertia(centers)
        check, device_centers = SumsCheck(step), cupy.asarray(centers, dtype=self.dtype)
        # X itself, as `each_block` has it too.
        total = self._block_inertia(self.rows_on_gpu, device_centers, self.labels, self.sample_weight, check.kept)
        of_rows, fault = float(total.item()) / (2 if self.spherical else 1), check.fault()
        of_sums = self._inertia_of_sums(centers)
        if fault is None and of_sums is not None and abs(of_sums - of_rows) > 2 * _INERTIA_ERROR * of_rows:
            fault = "its inertia was not that of its rows"
        return of_rows if of_sums is None else of_sums, fault

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return how many samples have each label; see `Engine.cluster_sizes`. The step has counted those it gave."""
        step = self._step
        if step is None or step.k != k or labels is not self.labels or self.sample_weight is not None:
            return super().cluster_sizes(labels, k)
        return step.counts()

    def serves(self, k: int) -> bool:
        """Tell whether iterations for k clusters are by the kernels of this package, rather than by `CublasEngine`."""
        return self._step_for(k) is not None

    def examined(self) -> tuple[int, int]:
        """Return in how many iterations for this k bounds left out rows, and the rows that were scored in them."""
        bounds = None if self._step is None else self._step.bounds
        state = None if bounds is None else bounds.read_state()
        return (0, 0) if state is None else (int(state["screened"]), int(state["examined"]))

    def _step_for(self, k: int) -> Step | None:
        """Return what makes iterations for k clusters; None where `CublasEngine` is to."""
        if self._applies and self._step is not None and self._step.k == k:
            return self._step
        self._drop_step()
        self._step = made = self._made_for(k) if self._applies else None
        if made is None:
            self._center_held()
            return None
        self.forget_labels()
        return made

    def _made_for(self, k: int) -> Step | None:
        small_d = self._small_d_plan(k)
        if small_d is not None:
            return small_d_step(self, small_d, k)
        plan = self._plan_for(k)
        half_copy = self._half_copy_for(plan, k) if plan is not None else None
        if plan is None or half_copy is None:
            return None
        return (
            SmallKStep(self, half_copy, plan, k) if isinstance(plan, MmaPlan) else LargeKStep(self, half_copy, plan, k)
        )

    def _small_d_plan(self, k: int) -> FmaPlan | ProductsPlan | None:
        """Return how iterations read few features from X itself; None where they do not."""
        if self.sample_weight is not None or self.dtype != np.float32:
            return None
        if self._found is None:
            self.moments()
        X = self.rows_on_gpu
        plan = fma_plan(self.n_features, k, X.dtype.name, *norms_of(self), self.gpu)
        served = plan is not None and integers_of(self).digits == NARROW and X.data.ptr % ALIGNMENT == 0
        return plan if served else None

    def _plan_for(self, k: int) -> MmaPlan | StreamPlan | None:
        n, d = self.source.shape
        if k <= MOST_CLUSTERS:
            return assign_plan(n, d, k, self.gpu, bounds=self.bounds)
        return stream_plan(d, k, self.gpu, certifies=self.certifies) if n <= MOST_PLACED and k <= MOST_LARGE_K else None

    def _half_copy_for(self, plan: MmaPlan | StreamPlan, k: int) -> HalfCopy | None:
        """Return the copy that iterations read; None where there is none to be."""
        panels = plan.row_panels if isinstance(plan, StreamPlan) else 0
        if self._half_copy is None or self._half_copy.panels != panels:
            self._half_copy = None
            if self._found is None:
                self.moments()
            self._applies = self.fits(HalfCopy.size(*self.source.shape, k, panels))
            self._half_copy = HalfCopy(self, panels) if self._applies else None
        return self._half_copy

    def copy_for(self, k: int) -> HalfCopy | None:
        """Return X's copy that iterations for k clusters read, proved; None where they read none. X may be centered."""
        return self._half_copy if self.certifies and self.serves(k) else None

    def spread(self) -> tuple[np.ndarray, float]:
        """Return no less than the largest ``|x − mean|`` of each feature, and the root mean square over all."""
        if self._found is None:
            raise RuntimeError("the moments of X have not been taken")
        mean, variance, largest = self._found
        with np.errstate(over="ignore"):  # infinite, nothing is proved by it
            square = variance + float(np.mean((mean - self._subtracted) ** 2))
        return largest + np.abs(self.origin - self._subtracted), square**0.5

    @property
    def gpu_index(self) -> int:
        """CUDA's number for the engine's GPU."""
        return int(self._gpu.id)
