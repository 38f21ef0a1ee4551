"""Stand-in for cublasLt on the CPU, for float64: records the calls and computes the products."""

from ctypes import c_double, sizeof

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tsapps.kernels.blas import cublaslt

__all__ = ["FAILING", "Lt"]

#: An algorithm that fails.
FAILING = 9


class Lt:
    """The functions of cublasLt that `blas/cublaslt.py` calls.

    Attributes
    ----------
    offered : sequence of (int, int, int)
        Algorithms that the heuristics return: number, workspace and state of each.
    made : dict
        By handle: the kind of a descriptor, its arguments, and its attributes.
    destroyed : list of int
        Handles that were destroyed.
    runs : list of tuple
        Arguments of each call of cublasLtMatmul.
    """

    def __init__(self, offered):
        self.offered, self.made, self.destroyed, self.runs = offered, {}, [], []
        for what in ("MatmulDesc", "MatrixLayout", "MatmulPreference"):
            setattr(self, f"cublasLt{what}Create", lambda made, *given, what=what: self._create(made, what, given))
            setattr(self, f"cublasLt{what}SetAttribute", self._set)
            setattr(self, f"cublasLt{what}Destroy", lambda made: self.destroyed.append(made.value) or 0)

    def _create(self, made, what, given):
        made._obj.value = 1000 + len(self.made)
        self.made[made._obj.value] = what, [one.value for one in given], {}
        return 0

    def _set(self, descriptor, attribute, value, size):
        assert size.value == sizeof(value._obj)
        self.made[descriptor.value][2][attribute.value] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, desc, a, b, c, d, preference, most, results, count):  # noqa: N802
        for i, (algo, workspace, state) in enumerate(self.offered):
            results[i].algo[0], results[i].workspace_size, results[i].state = algo, workspace, state
        count._obj.value = len(self.offered)
        return 0

    def cublasLtMatmul(self, *given):  # noqa: N802
        self.runs.append(given)
        _, desc, alpha, a, of_a, b, of_b, beta, c, of_c, _, _, algo = given[:13]
        if algo._obj[0] == FAILING:
            return 13
        C = self._matrix(of_c, c)
        transposed = [self.made[desc.value][2][name] for name in (cublaslt.DESC_TRANSA, cublaslt.DESC_TRANSB)]
        matrices = self._matrix(of_a, a), self._matrix(of_b, b)
        A, B = (X.T if trans else X for X, trans in zip(matrices, transposed, strict=True))
        C[:] = alpha._obj.value * (A @ B) + (beta._obj.value * C if beta._obj.value else 0)
        return 0

    @property
    def ran(self):
        """Return the algorithm, the address and size of the workspace, and the stream of each run."""
        return [(run[12]._obj[0], run[13].value or 0, run[14].value, run[15].value or 0) for run in self.runs]

    def attributes(self, what):
        """Return the attributes of all descriptors of a kind."""
        return [attributes for kind, _, attributes in self.made.values() if kind == what]

    def _matrix(self, layout, pointer):
        """Return the matrix at an address, with exactly its elements."""
        _, (_, rows, cols, ld), attributes = self.made[layout.value]
        by_rows = attributes[cublaslt.LAYOUT_ORDER] == cublaslt.ROW
        length, lines = (cols, rows) if by_rows else (rows, cols)
        flat = np.ctypeslib.as_array((c_double * ((lines - 1) * ld + length)).from_address(pointer.value))
        lined = as_strided(flat, (lines, length), (8 * ld, 8))
        return lined if by_rows else lined.T
