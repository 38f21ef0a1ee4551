import numpy as np
import pytest

from tsapps.bench.common.roofline import Ceilings
from tsapps.bench.kmeans import problems as data
from tsapps.bench.kmeans.problems import CPU_SHAPES, GPU_SHAPES, GRIDS, Shape

# Measured on an H200 on 2026-11-21.
H200 = Ceilings(4640, {"float64": 62.8, "tf32": 409, "float16": 754, "bfloat16": 784})


@pytest.mark.parametrize("shape", [*GPU_SHAPES, *CPU_SHAPES, Shape(7, 1, 7, "bfloat16")], ids=lambda s: s.name)
def test_names_round_trip(shape):
    assert Shape.parse(shape.name) == shape


def test_names_are_short():
    assert Shape(10_000_000, 128, 64, "float32").name == "10M-128-64-f32"
    assert Shape(262_144, 4096, 16, "float64").name == "262144-4096-16-f64"
    assert Shape(20_000, 784, 10, "float16").name == "20k-784-10-f16"


@pytest.mark.parametrize(
    "name", ["", "10M-128-64", "10M-128-64-f8", "x-1-1-f32", "10M-0-1-f32", "5-2-6-f32", "5-2-0-f32"]
)
def test_invalid_names_are_rejected(name):
    with pytest.raises(ValueError, match="expected"):
        Shape.parse(name)


def test_the_tables():
    assert len(set(GPU_SHAPES)) == 20
    assert {shape.dtype for shape in GPU_SHAPES} == {"float64", "float32", "float16", "bfloat16"}
    assert len(set(CPU_SHAPES)) == 6


def test_the_grid():
    assert len(set(GRIDS["grid"])) == 75
    assert GRIDS["grid"] == GRIDS["grid-1M"] + GRIDS["grid-3M"] + GRIDS["grid-10M"]
    for name, n in (("grid-1M", 10**6), ("grid-3M", 3 * 10**6), ("grid-10M", 10**7)):
        assert {(shape.n, shape.dtype) for shape in GRIDS[name]} == {(n, "float32")}
        assert {(shape.d, shape.k) for shape in GRIDS[name]} == {
            (d, k) for d in (16, 32, 64, 128, 256) for k in (16, 64, 256, 1000, 16384)
        }


def test_shapes_by_name():
    assert data.shapes_named("5-2-1-f32,grid-3M,3M-16-16-f32") == [Shape(5, 2, 1, "float32"), *GRIDS["grid-3M"]]
    with pytest.raises(ValueError, match=r"'grid-2M': expected n-d-k-dtype, .* or one of grid, grid-1M, "):
        data.shapes_named("grid-2M")


@pytest.mark.parametrize(
    ("name", "expected", "set_by"),
    [
        ("1M-64-64-bf16", 0.028, "read"),
        ("10M-128-16-f16", 0.560, "read"),
        ("10M-128-256-f16", 0.869, "math"),
        ("100M-4-16-f32", 0.431, "read"),
        ("10M-128-64-f32", 1.112, "read"),
        ("10M-128-256-f32", 1.602, "math"),
        ("10M-128-1024-f32", 6.409, "math"),
        ("262144-4096-16-f64", 1.852, "read"),
    ],
)
def test_floors(name, expected, set_by):
    floor, by = data.floor_ms(Shape.parse(name), H200)
    assert (round(floor, 3), by) == (expected, set_by)


def test_no_floor_without_matmul_throughput():
    assert data.floor_ms(Shape.parse("10M-128-64-f32"), Ceilings(4640)) == (None, None)


def test_minimum_traffic_of_an_iteration():
    assert data.read_bytes(Shape(10, 3, 2, "float16")) == 10 * 3 * 2 + 10 * 4


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_draw(dtype, monkeypatch):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    monkeypatch.setattr(data, "_BLOCK_BYTES", 1 << 12)  # several blocks
    shape = Shape(1000, 5, 4, dtype)
    X, centers = data.draw(shape, 0, np)
    assert (X.shape, X.dtype.name) == ((1000, 5), dtype)
    np.testing.assert_array_equal(centers, X[:4])
    assert len(np.unique(X.astype(np.float64), axis=0)) > 900  # blocks differ
    again, _ = data.draw(shape, 0, np)
    np.testing.assert_array_equal(again, X)
    other, _ = data.draw(shape, 1, np)
    assert (other != X).mean() > 0.9
    # The total variance is several times the variance within clusters.
    assert X.astype(np.float64).var(axis=0).sum() > 2 * shape.d


def test_nearest_f64_by_hand():
    X = np.array([[0.0, 0], [3, 4], [2.9, 0], [3.1, 0], [3, 0]])
    centers = np.array([[0.0, 0], [6, 0], [3, 5]])
    rows = np.array([4, 3, 2, 1, 0])
    # A point halfway between two centers belongs to the first.
    np.testing.assert_array_equal(data.nearest_f64(X, centers, rows, np), [0, 1, 0, 2, 0])


def test_nearest_f64_in_blocks(monkeypatch):
    monkeypatch.setattr(data, "_BLOCK_BYTES", 1 << 12)
    X, centers = data.draw(Shape(500, 3, 7, "float32"), 0, np)
    rows = np.arange(0, 500, 3)
    distances = ((X[rows, np.newaxis].astype(np.float64) - centers) ** 2).sum(axis=2)
    np.testing.assert_array_equal(data.nearest_f64(X, centers, rows, np), distances.argmin(axis=1))


def test_share_equal():
    labels = np.array([0, 1, 2, 0], np.int32)
    assert data.share_equal(labels, np.array([0, 1, 3]), np.array([0, 1, 1]), 3) == pytest.approx(2 / 3)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_labels_out_of_range(wrong):
    with pytest.raises(ValueError, match="labels run from"):
        data.share_equal(np.array([0, 1, wrong], np.int32), np.array([0]), np.array([0]), 3)


def test_compared_rows():
    np.testing.assert_array_equal(data.compared_rows(10, 10, 0, np), np.arange(10))
    rows = data.compared_rows(100_000, 1000, 0, np)
    assert 1000 <= len(rows) <= 1000 + 4096
    assert len(np.unique(rows)) == len(rows)
    np.testing.assert_array_equal(rows[-4096:], np.arange(100_000 - 4096, 100_000))


def test_centers_error():
    X = np.array([[1.0, 0], [3, 0], [5, 5], [0, 2]])
    labels = np.array([0, 0, 1, 2])
    means = np.array([[2.0, 0], [5, 5], [0, 2]])
    assert data.centers_error(X, labels, means) == 0
    assert data.centers_error(X, labels, means + np.array([[0, 0], [0, 0], [0, 0.2]])) == pytest.approx(0.1)
    for wrong in (0, 2):
        assert np.isnan(data.centers_error(X, labels, np.where(np.arange(3)[:, np.newaxis] == wrong, np.nan, means)))
