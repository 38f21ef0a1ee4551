"""Tasks of tsapps.bench.abft: what is encoded, verified, multiplied and clustered."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tsapps.bench.common.dtypes import DTYPE_OF, ITEMSIZE, SHORT_OF
from tsapps.bench.gemm.grid import Cell
from tsapps.bench.kmeans.problems import Shape, read_bytes

__all__ = ["CPU_TASKS", "FITS", "JOBS", "QUICK_GPU_TASKS", "SIDES", "Task", "task_named", "tasks"]

#: Sides of squares, of more than 1 GB each; products, m × k · w, in addition to squares; K-means.
SIDES = {"float64": 20_480, "float32": 20_480, "float16": 30_720, "bfloat16": 30_720}
PRODUCTS, WIDTHS = ((10_000_000, 64, 16), (10_000_000, 64, 64)), (2, 16, 32, 64)
FITS = (
    *("100M-4-16-f32", "50M-16-16-f32", "20M-32-64-f32", "10M-128-16-f32", "10M-128-64-f32", "262144-4096-16-f32"),
    *("262144-4096-16-f64", "262144-4096-16-f16", "1M-64-64-bf16"),
)
#: Codes of the records of each job.
JOBS = {
    "encode": ("both", "exact", "float"),
    "verify": ("exact",),
    "matmul": ("proven",),
    "kmeans": ("protect",),
}


@dataclass(frozen=True)
class Task:
    """One benchmark, named for example encode-20480-20480-f32, matmul-10000000-16-64-f32 or kmeans-1M-64-64-f32.

    Attributes
    ----------
    job, dtype : str
    m, n, k : int
        encode: rows and columns of a matrix. matmul: the product (m × k) · (k × n). kmeans: samples, features and
        clusters.
    codes : tuple of str
        Codes of its records.
    """

    job: str
    dtype: str
    m: int
    n: int
    k: int | None
    codes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name used on the command line: the job, the sizes m, n and k, and the dtype."""
        if self.job == "kmeans":
            return f"kmeans-{self.fit.name}"
        if self.job == "matmul":
            return f"matmul-{self.product.name}"
        return f"{self.job}-{self.m}-{self.n}-{SHORT_OF[self.dtype]}"

    @property
    def fit(self) -> Shape:
        """Return the problem of a K-means."""
        return Shape(self.m, self.n, self.k or 0, self.dtype)

    @property
    def product(self) -> Cell:
        """Return the product of a matmul."""
        k = self.k or 0
        return Cell("tsm2r" if self.m == k else "tsm2l", self.dtype, "row", self.m, k, self.n)

    @property
    def matrix(self) -> Cell:
        """Return a product whose A is the matrix to encode or verify."""
        return Cell("tsm2r", self.dtype, "row", self.m, self.n, 1)

    @property
    def needed_bytes(self) -> int:
        """Return the bytes of memory that a task other than "kmeans" needs."""
        cell = self.product if self.job == "matmul" else self.matrix
        return cell.read + 2 * cell.written + cell.temporary_bytes

    @property
    def n_bytes(self) -> int:
        """Return the bytes that are read and written once."""
        if self.job == "kmeans":
            return read_bytes(self.fit)
        if self.job == "matmul":
            return self.product.read + self.product.written
        return self.m * self.n * ITEMSIZE[self.dtype]


def task_named(name: str) -> Task:
    """Return the task of a name, with a job of `JOBS`; raise ValueError for any other text."""
    job, _, rest = name.partition("-")
    try:
        if job == "kmeans":
            fit = Shape.parse(rest)
            return Task(job, fit.dtype, fit.n, fit.d, fit.k, JOBS[job])
        *sizes, short = rest.split("-")
        m, n, *k = map(int, sizes)
        is_known = min(m, n, *k) >= 1 and len(k) == (job == "matmul")
        task = Task(job, DTYPE_OF[short], m, n, k[0] if k else None, JOBS[job])
    except (KeyError, ValueError):
        is_known = False
    if not is_known:
        raise ValueError(
            f"shape {name!r}: expected encode-m-n-dtype, verify-m-n-dtype, matmul-m-n-k-dtype or kmeans-n-d-k-dtype, "
            "such as encode-20480-20480-f32, with f64, f32, f16 or bf16"
        )
    return task


def _named(names: str) -> tuple[Task, ...]:
    return tuple(map(task_named, names.split()))


#: Tasks for a run of a minute, on a GPU and on a CPU.
QUICK_GPU_TASKS = _named(
    """
    encode-20480-20480-f64 encode-20480-20480-f32 encode-30720-30720-f16
    verify-20480-20480-f64 verify-20480-20480-f32 verify-30720-30720-f16
    matmul-10000000-16-64-f64 matmul-20480-16-20480-f32 matmul-10000000-16-64-f32 matmul-10000000-16-64-f16
    kmeans-50M-16-16-f32 kmeans-10M-128-64-f32
    """
)
CPU_TASKS = _named("encode-4096-4096-f64 encode-8192-4096-f32 verify-4096-4096-f64 verify-8192-4096-f32")


def tasks(jobs: Any = None, dtypes: Any = None) -> Iterator[Task]:
    """Yield the requested benchmarks; those of one dtype are consecutive."""
    for dtype in ITEMSIZE:
        n = SIDES[dtype]
        every = [Task(job, dtype, n, n, None, JOBS[job]) for job in ("encode", "verify")]
        products = *PRODUCTS, *((n, n, w) for w in WIDTHS)
        if dtype != "bfloat16":
            every += [Task("matmul", dtype, m, w, k, JOBS["matmul"]) for m, k, w in products]
        shapes = (Shape.parse(name) for name in FITS)
        every += [Task("kmeans", dtype, one.n, one.d, one.k, JOBS["kmeans"]) for one in shapes if one.dtype == dtype]
        for task in every:
            if task.job in (jobs or [task.job]) and dtype in (dtypes or [dtype]):
                yield task
