"""Protected products by the launchers of apps/abft/product on a `HostMachine`, with faults in their sums."""

from unittest.mock import patch

import ml_dtypes
import numpy as np
from host_cuda.machine import HostMachine, build_together

from tsapps.apps.abft.product import gpu as product_gpu
from tsapps.apps.abft.product.gpu_sums import emulate
from tsapps.apps.abft.product.plan import COUNTS, FLAGGED_ROW, detect_epilogue, padded_depth, summed
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gemm import source_of
from tsapps.kernels.plan.accumulation_order import UNKNOWN
from tsapps.kernels.plan.mma import ELEMENT, SUM
from tsapps.kernels.problem import ITEMSIZE

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: Of the machine of a product: its tiles are split over as many blocks.
MULTIPROCESSORS = 3
#: Capacity of the list of wrong elements.
LISTED = 64
#: `faulty::Fault` of abft/product/faulty.cuh.
FAULT = np.dtype([("row", "i8"), ("column", "i8"), ("by", "f8")])


def _kernels_of(file, *names):
    """Return the source and all kernels of a file that tests launch."""
    types = [(ELEMENT[dtype], SUM[dtype], 16 // ITEMSIZE[dtype]) for dtype in DTYPES]
    given = (product_gpu._FOLDER / file).read_text(encoding="utf-8")
    return given, [f"abft::{name.format(*of)}" for of in types for name in names]


_ROW_KERNELS = "row_checksums<{0}, {1}, 1, 1>", "row_checksums<{0}, {1}, 8, 1>", "row_checksums<{0}, {1}, 8, {2}>"
_ROW_KERNELS += "check_rows<{0}, {1}, 1>", "check_rows<{0}, {1}, 8>"
build_together([_kernels_of("row_checksums.cuh", *_ROW_KERNELS)])
build_together([_kernels_of("locate.cuh", "locate<{0}, {1}>", "emulate<{0}>")])


def faulty_epilogue(dtype, w, c):
    """Return the epilogue of a protected product that adds faults to the sums; see faulty.cuh."""
    one = detect_epilogue(dtype, w, c)
    fields = [(name, one.arguments[name]) for name in one.arguments.names]
    arguments = np.dtype([*fields, ("faults", "u8"), ("n_faults", "i8")], align=True)
    return Epilogue("tests/abft/product/faulty.cuh", f"faulty::Faulty<{SUM[dtype]}, {one.name}>", arguments)


def build_products(wanted):
    """Have products of (plan, columns, layout of C) built together; see `build_together`."""
    sources = (source_of(plan, faulty_epilogue(plan.dtype, w, c)) for plan, w, c in wanted)
    build_together((source, [name]) for source, name in sources)


def emulated(A, B, order):
    """Return A · B by emulated_gemm.cuh in this accumulation order."""
    machine, a, b, _ = machine_and_matrices(A, B, B)
    return emulate(machine, np.asarray(order)[()], a, b)


def machine_and_matrices(A, B, C, multiprocessors=1):
    """Return a machine, and A, B and C on it in place."""
    machine = HostMachine(multiprocessors)
    return machine, *(product_gpu.matrix_on(machine, X, X.dtype.name) for X in (A, B, C))


class Check:
    """A row check of product/gpu.py, stage by stage, whose buffer can be read and changed.

    With a plan, its protected product computes C, with `faults` in the sums. Otherwise C is a finished product.
    """

    def __init__(self, A, B, C, bounds, plan=None, faults=(), *, padded=None, capacity=None, order=UNKNOWN):
        self.A, self.B, self.C, self.dtype = A, B, C, A.dtype.name
        machine, *self._matrices = given = machine_and_matrices(A, B, C, MULTIPROCESSORS if plan else 1)
        with (
            patch.object(product_gpu, "_LEAST_CAPACITY", len(A) if capacity is None else capacity),
            patch.object(product_gpu, "MOST_LISTED", LISTED),
            patch.object(product_gpu, "detect_epilogue", faulty_epilogue),
        ):
            if plan is None:
                self._check = product_gpu.RowCheck(*given, bounds, padded or len(B), order)
            else:
                product = product_gpu.ProtectedProduct(machine, plan, *self._matrices, bounds)
                self._check = product.check
            _ = self._check._locate_launch  # which has the capacity of the list
        self.memory = self._check.begin(self._matrices[1])
        self.counts = self._part("counts", COUNTS, 1)
        assert self.counts.tolist() == [(0, 0, 0)]
        self.x = self._part("x", summed(self.dtype), padded_depth(len(B), plan) if plan else padded or len(B))
        self.y = self._part("y", summed(self.dtype), len(B))
        if plan is not None:
            listed = np.array(list(faults), FAULT)
            product.epilogue["faults"], product.epilogue["n_faults"] = listed.ctypes.data, len(listed)
            product.multiply(self.memory, *self._matrices)
            assert not machine.counts.any()

    def _part(self, name, dtype, n):
        at = self._check.address(self.memory, name) - self.memory.ctypes.data
        return self.memory[at : at + n * dtype.itemsize].view(dtype)

    def check_rows(self):
        """Flag the rows of C, with checksums of A's rows by NumPy: their accumulation order does not matter."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = (self.A.astype(np.float64) @ self.x[: len(self.B)].astype(np.float64)).astype(summed(self.dtype))
        self._check.check_rows(self.memory, self._matrices[2], sums)

    def flag_all(self):
        """Flag all rows with a residual of NaN, which the re-check confirms."""
        n = len(self.A)
        rows = self._part("rows", FLAGGED_ROW, n)
        rows["row"], rows["residual"] = np.arange(n), np.nan
        self.counts[0] = n, 0, 0

    @property
    def n_flagged(self):
        return int(self.counts["flagged"][0])

    @property
    def flagged(self):
        return sorted(self._part("rows", FLAGGED_ROW, self.n_flagged)["row"].tolist())

    @property
    def confirmed(self):
        return int(self.counts["confirmed"][0])

    def locate(self, *, correct=True):
        """Re-check flagged rows, and return their wrong elements and how many there are."""
        with patch.object(product_gpu, "MOST_LISTED", LISTED):
            _, n_wrong, found = self._check.locate(self.memory, *self._matrices, correct=correct)()
        return sorted(found), n_wrong
