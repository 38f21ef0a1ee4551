"""Arrays of every kind at every entry point: a GPU accepts what scikit-learn accepts on the CPU, with equal results.

The device "stand-in" needs no GPU: its engines compute on the CPU and reject arrays that CuPy cannot copy to a GPU.
"""

import re
import sys
from contextlib import nullcontext
from functools import cache, partial
from types import SimpleNamespace

import numpy as np
import oracle
import pandas as pd
import pytest
from sklearn.cluster import KMeans, MiniBatchKMeans

from tsapps import TSKMeans, TSMiniBatchKMeans, abft, gram, kmeans_batched, matmul, open_matrix
from tsapps.apps.abft.at_rest.gpu import encode as checksums_gpu
from tsapps.apps.kmeans import open_engine
from tsapps.apps.kmeans.batched import api as batched
from tsapps.apps.kmeans.data.rows import UnitRows
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.kernels.arrays import as_array
from tsapps.kernels.devices import Choice
from tsapps.kernels.runtime import machine

K = 3
RNG = np.random.default_rng(40)
# Integers, which every dtype represents, in three separate clusters; the first three rows belong to different ones.
CENTERS = np.array([[1, 2, 3, 4], [40, 2, 50, 3], [9, 90, 1, 60]])
X = np.float64(CENTERS[np.arange(60) % K] + RNG.integers(0, 5, (60, 4)))
WEIGHTS = np.float64(RNG.integers(1, 6, 60))
PROBLEMS = np.stack([X, X[::-1]])


def polars():
    return pytest.importorskip("polars")


class Shared:
    """An array of a library that only supports DLPack."""

    def __init__(self, array):
        self._array, self.shape = array, array.shape

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def read_only(array):
    array = array.copy()
    array.setflags(write=False)
    return array


def nullable(array):
    columns = {f"c{j}": pd.array(column.astype(int), dtype=f"Int{8 << j}") for j, column in enumerate(array.T)}
    return pd.DataFrame(columns | {"c0": pd.array(array[:, 0], dtype="Float64")})


def mixed(array):
    return pd.DataFrame({f"c{j}": array[:, j].astype(dtype) for j, dtype in enumerate(["f8", "f4", "i4", "u1"])})


DTYPES = ["f8", "f4", "f2", "i8", "u1", ">f8", ">f4", ">f2", ">i4"]
# Arrays of any shape.
ARRAYS = {
    **{dtype: lambda array, dtype=dtype: array.astype(dtype) for dtype in DTYPES},
    "reversed": lambda array: array[::-1].copy()[::-1],
    "strided": lambda array: np.repeat(array, 2, axis=0)[::2],
    "swapped and reversed": lambda array: array.astype(">f4")[::-1].copy()[::-1],
    "fortran": np.asfortranarray,
    "read-only": read_only,
    "swapped and read-only": lambda array: read_only(array.astype(">f8")),
    "unaligned": lambda array: np.frombuffer(b" " + array.tobytes(), "f8", offset=1).reshape(array.shape),
    "DLPack": Shared,
}
KINDS = {
    **ARRAYS,
    "list": np.ndarray.tolist,
    "objects": lambda array: array.astype(object),
    "text": lambda array: array.astype(str),
    "bytes": lambda array: array.astype("S"),
}
FRAMES = {
    "pandas": pd.DataFrame,
    "pandas float32": lambda array: pd.DataFrame(array.astype("f4")),
    "pandas mixed": mixed,
    "pandas nullable": nullable,
    "polars": lambda array: polars().DataFrame(array),
    "polars mixed": lambda array: polars().from_pandas(mixed(array)),
}
SERIES = {
    "pandas series": pd.Series,
    "nullable series": lambda array: pd.Series(pd.array(array.astype(int), dtype="Int16")),
    "polars series": lambda array: polars().Series(array),
}
# ValueErrors with the same message everywhere.
MASKED = r"is masked; expected a number everywhere: fill the gaps with X\.filled\(value\)"
REFUSED = {
    "masked": (lambda array: np.ma.masked_equal(array, array.flat[0]), MASKED),
    "nothing masked": (np.ma.array, MASKED),
    "float128": (lambda array: array.astype(np.longdouble), r"dtype float\d+; .*astype\('float64'\)"),
    "complex": (lambda array: array + 0j, "dtype complex128; expected real numbers "),
    "complex64": (lambda array: array.astype("c8"), "dtype complex64; expected real numbers "),
}


def copied(array):
    """Reject arrays that CuPy cannot copy to a GPU, with its message."""
    if array.dtype.name != "bfloat16" and (not array.dtype.isnative or array.dtype.char not in "?bhilqBHILQefdFD"):
        raise ValueError(f"Unsupported dtype {array.dtype}")
    return array


class StandInEngine(HostEngine):
    def __init__(self, source, dtype, sample_weight, machine, options):
        for _, block in (source.source if isinstance(source, UnitRows) else source).blocks(10):
            copied(block)
        if sample_weight is not None:
            copied(sample_weight)
        super().__init__(source, dtype, sample_weight)
        self.data.device = f"cuda:{machine.index}"


def stand_in_batches(array, k, first, *_):
    """Decline batched problems, so that each goes to an engine."""
    copied(array)
    if not isinstance(first, str):
        copied(first)


@pytest.fixture(params=["cpu", "stand-in", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param != "stand-in":
        return request.param
    for module in (open_engine, batched):
        monkeypatch.setattr(
            module, "choose_device", lambda request, resident=None, several=False: Choice("cuda:0", "it stands in")
        )
    stand_ins = {
        "engines.device_engine": SimpleNamespace(DeviceEngine=StandInEngine),
        "batched.gpu": SimpleNamespace(fit_on_gpu=stand_in_batches),
    }
    monkeypatch.setattr(machine, "cuda_machine", lambda index: SimpleNamespace(index=index))
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, f"tsapps.apps.kmeans.{name}", module)
    return "cuda"


def engines(device):
    """Return options that reach all code: on the CPU, scikit-learn fits unless `protect` selects an engine of ours."""
    return [{}, {"protect": True}] if device == "cpu" else [{}]


@cache
def expected(metric="euclidean", init="k-means++", seed=0, weighted=False, halved=False):
    """Return scikit-learn's result for a plain array; for other metrics, that of an engine on the CPU."""
    of = KMeans if metric == "euclidean" else partial(TSKMeans, metric=metric, device="cpu")
    first = X[:K] if init == "rows" else init
    weights = {"sample_weight": WEIGHTS} if weighted else {}
    return of(K, init=first, n_init=1, random_state=seed).fit(np.float64(X > 8) if halved else X, **weights)


def assert_same(found, plain, rtol=1e-9):
    np.testing.assert_array_equal(oracle.host(found.labels_), plain.labels_)
    np.testing.assert_allclose(oracle.host(found.cluster_centers_), plain.cluster_centers_, rtol=rtol)
    assert found.inertia_ == pytest.approx(plain.inertia_, rel=rtol, abs=1e-9)


class TestTSKMeans:
    @pytest.mark.parametrize("kind", [*KINDS, *FRAMES])
    def test_data(self, device, kind):
        given = (KINDS | FRAMES)[kind](X)
        # As in scikit-learn, float32 in another byte order is computed in float64.
        narrow = kind in ("f4", "pandas float32") or (kind == "f2" and device == "cuda")
        for options in engines(device):
            kmeans = TSKMeans(K, n_init=1, random_state=0, device=device, **options).fit(given)
            assert_same(kmeans, expected(), 1e-5 if narrow else 1e-9)
            assert kmeans.device_ == ("cpu" if device == "cpu" else "cuda:0")
            assert kmeans.cluster_centers_.dtype == (np.float32 if narrow else np.float64)
            np.testing.assert_array_equal(kmeans.predict(given), expected().labels_)
            np.testing.assert_allclose(kmeans.transform(given), expected().transform(X), rtol=1e-5, atol=1e-5)
            assert kmeans.score(given) == pytest.approx(-expected().inertia_, rel=1e-5)

    @pytest.mark.parametrize("kind", ["f4", ">f4", ">i4", "swapped and reversed", "objects", "text", "pandas mixed"])
    def test_spherical(self, device, kind):
        kmeans = TSKMeans(K, n_init=1, random_state=0, device=device, metric="cosine").fit((KINDS | FRAMES)[kind](X))
        assert_same(kmeans, expected("cosine"), 1e-5)

    @pytest.mark.parametrize("kind", [">f4", ">i4", "reversed", "list", "objects", "text"])
    def test_predict_after_fitting_plain_arrays(self, device, kind):
        kmeans = TSKMeans(K, n_init=1, random_state=0, device=device).fit(X)
        np.testing.assert_array_equal(kmeans.predict(KINDS[kind](X)), expected().labels_)

    @pytest.mark.parametrize("kind", [*KINDS, *SERIES])
    def test_sample_weight(self, device, kind):
        given = (KINDS | SERIES)[kind](WEIGHTS)
        for options in engines(device):
            kmeans = TSKMeans(K, n_init=1, random_state=0, device=device, **options).fit(X, sample_weight=given)
            assert_same(kmeans, expected(weighted=True))
            assert kmeans.score(X, sample_weight=given) == pytest.approx(-expected(weighted=True).inertia_)

    @pytest.mark.parametrize("kind", [*KINDS, "pandas", "polars"])
    def test_init(self, device, kind):
        given = (KINDS | FRAMES)[kind](X[:K])
        for options in engines(device):
            kmeans = TSKMeans(K, init=given, n_init=1, device=device, **options).fit(X)
            assert kmeans.init is given
            assert_same(kmeans, expected(init="rows"))

    @pytest.mark.parametrize("kind", ["f4", ">f4", ">f8", "list", "objects", "reversed"])
    def test_callable_init(self, device, kind):
        def init(given, k, random_state):
            return KINDS[kind](np.float64(oracle.host(given)[:k]))

        for options in engines(device):
            assert_same(TSKMeans(K, init=init, n_init=1, device=device, **options).fit(X), expected(init="rows"), 1e-5)

    def test_bool(self, device):
        for options in engines(device):
            kmeans = TSKMeans(K, n_init=1, random_state=0, device=device, **options)
            assert_same(kmeans.fit(X > 8), expected(halved=True))
            kmeans.fit(X, sample_weight=WEIGHTS > 2)
            inertia = KMeans(K, n_init=1, random_state=0).fit(X, None, np.float64(WEIGHTS > 2)).inertia_
            # A sum of N · D squares in any order.
            assert kmeans.inertia_ == pytest.approx(inertia, rel=X.size * 2.0**-52)

    @pytest.mark.parametrize("options", [{}, {"protect": True}, {"metric": "cosine"}], ids=str)
    @pytest.mark.parametrize("kind", REFUSED)
    def test_rejected(self, device, kind, options):
        make, message = REFUSED[kind]
        fitted = TSKMeans(K, n_init=1, random_state=0, device=device, **options).fit(X)
        attempts = [
            lambda: TSKMeans(K, device=device, **options).fit(make(X)),
            lambda: TSKMeans(K, device=device, **options).fit(X, sample_weight=make(WEIGHTS)),
            lambda: TSKMeans(K, init=make(X[:K]), n_init=1, device=device, **options).fit(X),
            lambda: fitted.predict(make(X)),
            lambda: fitted.transform(make(X)),
            lambda: fitted.score(make(X)),
            lambda: fitted.score(X, sample_weight=make(WEIGHTS)),
        ]
        for attempt in attempts:
            with pytest.raises(ValueError, match=message):
                attempt()

    @pytest.mark.filterwarnings("ignore:the matrix subclass")
    @pytest.mark.parametrize(
        "given",
        [np.matrix(X), [["a", "b"]] * 5, np.zeros(9, "f4,f4"), [[1j], [2]], [[{}]]],
        ids=["matrix", "text", "records", "complex list", "objects"],
    )
    def test_messages_of_scikit_learn(self, device, given):
        with pytest.raises((TypeError, ValueError)) as theirs:
            KMeans(1).fit(given)
        for options in engines(device):
            with pytest.raises(theirs.type, match=re.escape(str(theirs.value)[:40])):
                TSKMeans(1, device=device, **options).fit(given)


class TestMiniBatches:
    @pytest.mark.parametrize("kind", [*KINDS, *FRAMES])
    def test_data(self, device, kind):
        given = (KINDS | FRAMES)[kind](X)
        rtol = 1e-5 if kind in ("f4", "pandas float32") or (kind == "f2" and device == "cuda") else 1e-9
        plain, found = MiniBatchKMeans(K, random_state=0), TSMiniBatchKMeans(K, random_state=0, device=device)
        assert_same(found.fit(given), plain.fit(X), rtol)
        assert_same(found.partial_fit(given), plain.partial_fit(X), rtol)
        np.testing.assert_array_equal(found.predict(given), plain.labels_)

    @pytest.mark.parametrize("kind", [*KINDS, *SERIES])
    def test_sample_weight(self, device, kind):
        given = (KINDS | SERIES)[kind](WEIGHTS)
        plain, found = MiniBatchKMeans(K, random_state=0), TSMiniBatchKMeans(K, random_state=0, device=device)
        assert_same(found.fit(X, sample_weight=given), plain.fit(X, sample_weight=WEIGHTS))
        assert_same(found.partial_fit(X, sample_weight=given), plain.partial_fit(X, sample_weight=WEIGHTS))

    @pytest.mark.parametrize("kind", [*KINDS, "pandas", "polars"])
    def test_init(self, device, kind):
        given = (KINDS | FRAMES)[kind](X[:K])
        plain = MiniBatchKMeans(K, init=X[:K], n_init=1, random_state=0).fit(X)
        kmeans = TSMiniBatchKMeans(K, init=given, n_init=1, random_state=0, device=device)
        assert_same(kmeans.fit(X), plain, 1e-5)
        assert kmeans.init is given

    @pytest.mark.parametrize("kind", ["f4", ">f4", ">f8", "list", "objects", "reversed"])
    def test_callable_init(self, device, kind):
        plain = MiniBatchKMeans(K, init=X[:K], n_init=1, random_state=0).fit(X)
        init = lambda rows, k, random_state: KINDS[kind](X[:K])  # noqa: E731
        kmeans = TSMiniBatchKMeans(K, init=init, n_init=1, random_state=0, device=device)
        assert_same(kmeans.fit(X), plain, 1e-5)

    @pytest.mark.parametrize("kind", REFUSED)
    def test_rejected(self, device, kind):
        make, message = REFUSED[kind]
        cases = [("random", make(X), None), ("random", X, make(WEIGHTS)), (make(X[:K]), X, None)]
        for method in ("fit", "partial_fit"):
            for init, given, weights in cases:
                kmeans = TSMiniBatchKMeans(K, init=init, n_init=1, device=device)
                with pytest.raises(ValueError, match=message):
                    getattr(kmeans, method)(given, sample_weight=weights)


class TestBatched:
    @pytest.mark.parametrize("kind", KINDS)
    def test_data(self, device, kind):
        found = kmeans_batched(KINDS[kind](PROBLEMS), K, random_state=0, device=device)
        for labels, problem, seed in zip(found.labels, PROBLEMS, (0, 1), strict=True):
            np.testing.assert_array_equal(labels, KMeans(K, n_init=1, random_state=seed).fit(problem).labels_)
        np.testing.assert_allclose(found.centers[0], expected().cluster_centers_, rtol=1e-5)
        narrow = kind == "f4" or (kind == "f2" and device == "cuda")
        assert found.centers.dtype == (np.float32 if narrow else np.float64)

    def test_bool(self, device):
        found = kmeans_batched(PROBLEMS[:1] > 8, K, random_state=0, device=device)
        np.testing.assert_array_equal(found.labels[0], expected(halved=True).labels_)

    @pytest.mark.parametrize("dtype", ["f4", "f8"])
    @pytest.mark.parametrize("kind", ["f4", ">f4", ">i4", "list", "objects", "reversed"])
    def test_init(self, device, kind, dtype):
        given = KINDS[kind](X[np.newaxis, :K])
        found = kmeans_batched(PROBLEMS[:1].astype(dtype), K, init=given, device=device)
        np.testing.assert_array_equal(found.labels[0], expected(init="rows").labels_)

    @pytest.mark.parametrize("kind", REFUSED)
    def test_rejected(self, device, kind):
        make, message = REFUSED[kind]
        with pytest.raises(ValueError, match=message):
            kmeans_batched(make(PROBLEMS), K, device=device)
        with pytest.raises(ValueError, match=message):
            kmeans_batched(PROBLEMS, K, init=make(np.stack([X[:K], X[:K]])), device=device)


class TestChecksums:
    """Checksums cover the bytes of elements in the machine's byte order."""

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    @pytest.mark.parametrize("kind", [*ARRAYS, "float128", "bfloat16"])
    def test_encode_verify_and_correct(self, device, kind):
        dtypes = {"float128": np.longdouble, "bfloat16": pytest.importorskip("ml_dtypes").bfloat16}
        given = X.astype(dtypes[kind]) if kind in dtypes else ARRAYS[kind](X)
        array, code = as_array(given), "exact" if kind == "float128" else "both"
        sidecar = abft.encode(given, code=code, device=device)
        plain = abft.encode(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))), code=code)
        np.testing.assert_array_equal(sidecar.exact, plain.exact)
        assert abft.verify(given, plain, device=device).clean
        damaged = array.copy()
        damaged.view(np.uint8).reshape(-1)[100] ^= 4
        assert not abft.verify(damaged, sidecar, device=device).clean
        np.testing.assert_array_equal(abft.correct(damaged, sidecar), array)

    @pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "bfloat16", "longdouble", "i1", "u2", "i4", "u8"])
    @pytest.mark.parametrize("columns", [1, 4])
    def test_encoded_arrays_can_be_copied_to_a_gpu(self, dtype, columns):
        machine = SimpleNamespace(xp=SimpleNamespace(asarray=copied), current=nullcontext)
        dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
        part = np.ascontiguousarray(X[:, :columns].astype(dtype))
        there = checksums_gpu._on_gpu(machine, part)
        assert (len(there), there.tobytes()) == (len(part), part.tobytes())

    @pytest.mark.parametrize("kind", ["masked", "nothing masked"])
    def test_rejected(self, kind):
        make, message = REFUSED[kind]
        sidecar = abft.encode(X)
        for function in (abft.encode, lambda X: abft.verify(X, sidecar), lambda X: abft.correct(X, sidecar)):
            with pytest.raises(ValueError, match=message):
                function(make(X))

    @pytest.mark.filterwarnings("ignore:the matrix subclass")
    def test_a_matrix_of_numpy(self):
        assert abft.verify(X, abft.encode(np.matrix(X))).clean


@pytest.mark.parametrize(
    "function",
    [
        lambda A: matmul(A, A.T),
        lambda A: matmul(X, A.T[:4]),
        lambda A: matmul(X, X.T, out=A),
        gram,
        lambda A: abft.matmul(A, A.T),
        lambda A: abft.matmul(X, A.T[:4]),
        lambda A: abft.check_product(X, X.T, A),
        open_matrix,
    ],
)
@pytest.mark.parametrize("kind", ["masked", "nothing masked"])
def test_masked_arrays_are_rejected_everywhere(function, kind):
    make, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        function(make(X @ X.T))


@pytest.mark.parametrize("kind", [">f8", ">f4", ">f2", "reversed", "strided", "fortran", "read-only", "unaligned"])
def test_products_of_any_byte_order_and_strides(kind):
    A = ARRAYS[kind](X / 64)
    plain, rtol = np.float64(A), 2e-3 if kind == ">f2" else 1e-5
    np.testing.assert_allclose(matmul(A, A.T[:, :5]), plain @ plain.T[:, :5], rtol=rtol)
    np.testing.assert_allclose(gram(A), plain.T @ plain, rtol=rtol)


def test_big_endian_numbers_on_a_gpu(monkeypatch):
    interface = {"typestr": ">f4", "shape": (2, 2), "data": (0, False), "version": 3}
    foreign = type("Foreign", (), {"__cuda_array_interface__": interface})()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    with pytest.raises(TypeError, match="Foreign holds >f4 on a GPU; expected little-endian numbers"):
        as_array(foreign)


# Containers of masked numbers, made from a masked matrix.
HOLDING = {
    "list of rows": list,
    "tuple of rows": tuple,
    "list of lists": lambda masked: [list(row) for row in masked],
    "masked among numbers": lambda masked: [[1.0, np.ma.masked, *row.tolist()[2:]] for row in masked],
    "objects": lambda masked: np.array([[1.0, np.ma.masked, 2.0, 3.0]] * len(masked), dtype=object),
    "itself": lambda masked: masked,
}


@pytest.mark.parametrize("options", [{}, {"protect": True}, {"metric": "cosine"}], ids=str)
@pytest.mark.parametrize("holding", HOLDING)
def test_masked_numbers_in_lists_and_objects(holding, options):
    masked = HOLDING[holding](np.ma.masked_greater(X, 50))
    first = masked[:K]
    fitted = TSKMeans(K, n_init=1, random_state=0, device="cpu", **options).fit(X)
    attempts = [
        lambda: TSKMeans(K, device="cpu", **options).fit(masked),
        lambda: TSKMeans(K, init=first, n_init=1, device="cpu", **options).fit(X),
        lambda: TSKMeans(K, init=lambda X, k, random_state: first, n_init=1, device="cpu", **options).fit(X),
        lambda: fitted.predict(masked),
        lambda: fitted.transform(masked),
        lambda: fitted.score(masked),
        lambda: open_matrix(masked),
        lambda: kmeans_batched([masked, masked], K, device="cpu"),
        lambda: kmeans_batched(PROBLEMS[:1], K, init=[first], device="cpu"),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=MASKED):
            attempt()


def test_masked_weights_in_a_list():
    weights = list(np.ma.masked_equal(WEIGHTS, 1))
    for options in engines("cpu"):
        with pytest.raises(ValueError, match=MASKED):
            TSKMeans(K, device="cpu", **options).fit(X, sample_weight=weights)


@pytest.mark.parametrize("kind", ["masked", "nothing masked"])
def test_masked_arrays_are_not_damaged(kind):
    masked = REFUSED[kind][0](X.copy())
    with pytest.raises(ValueError, match=MASKED):
        abft.inject(masked, "bit", np.random.default_rng(0))
    np.testing.assert_array_equal(masked.data, X)


@pytest.mark.parametrize("function", [abft.locate, lambda X, sidecar: abft.correct(X, sidecar, in_place=True)])
def test_masked_arrays_are_not_repaired(function):
    with pytest.raises(ValueError, match=MASKED):
        function(np.ma.array(X), abft.encode(X))
