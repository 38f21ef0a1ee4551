"""Matrices in memory: arrays of every library with any strides, and properties of every matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tsapps.errors import MatrixError, UsageError
from tsapps.matrix import check_finite, open_matrix

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_by_hand():
    matrix = open_matrix([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]] @ np.eye(2))
    assert (matrix.shape, matrix.dtype, matrix.nbytes, matrix.device) == ((3, 2), np.float64, 48, None)
    assert [(start, block.tolist()) for start, block in matrix.blocks(2)] == [(0, [[1, 2], [3, 4]]), (2, [[5, 6]])]
    assert matrix.rows([2, 0, 2]).tolist() == [[5, 6], [1, 2], [5, 6]]
    assert matrix.read().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert repr(matrix) == "<Matrix the array in memory: 3 × 2 float64>"


def test_a_matrix_opens_as_itself():
    matrix = open_matrix(X)
    assert open_matrix(matrix) is matrix


def test_no_copy():
    matrix = open_matrix(X)
    assert matrix.read() is X
    assert all(np.shares_memory(block, X) for _, block in matrix.blocks(2))
    assert not np.shares_memory(matrix.rows([0]), X)


def arrays():
    dtypes = st.sampled_from(["f2", "f4", "f8", ">f4", ">f8", "i1", "u1", "i4", "u8", ">i2"])
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40)
    return dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes, elements=st.integers(0, 100), fill=st.just(7)))


@st.composite
def views(draw):
    """Draw an array in C or Fortran order, possibly reversed or with gaps between rows and columns."""
    array = np.asarray(draw(arrays()), order=draw(st.sampled_from("CF")))
    steps = st.sampled_from([1, 2, -1, -3])
    view = array[:: draw(steps), :: draw(steps)]
    return view.T if draw(st.booleans()) else view


@settings(max_examples=150, deadline=None)
@given(views(), st.integers(1, 50), st.data())
def test_blocks_rows_and_the_whole_agree_with_the_array(array, rows, data):
    matrix = open_matrix(array)
    blocks = list(matrix.blocks(rows))
    assert [start for start, _ in blocks] == list(range(0, len(array), rows))
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), array)
    numbers = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=10))
    np.testing.assert_array_equal(matrix.rows(numbers), array[np.array(numbers, np.intp)])
    np.testing.assert_array_equal(matrix.read(), array)
    for block in [*(block for _, block in blocks), matrix.rows(numbers), matrix.read()]:
        assert block.flags.c_contiguous
        assert block.flags.aligned
        assert block.dtype == matrix.dtype == array.dtype.newbyteorder("=")


@settings(max_examples=60, deadline=None)
@given(views(), st.integers(1, 50), st.sampled_from(["npy", "npz", "parquet", "h5"]), st.data())
def test_the_same_through_files(tmp_path_factory, array, rows, kind, data):
    path = tmp_path_factory.mktemp("matrix") / f"x.{kind}"
    if kind == "npy":
        np.save(path, array)
    elif kind == "npz":
        np.savez_compressed(path, array)
    elif kind == "h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("X", data=array, chunks=True)
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = [arrow.array(np.ascontiguousarray(column, column.dtype.newbyteorder("="))) for column in array.T]
        table = arrow.Table.from_arrays(columns, names=[f"c{j}" for j in range(len(columns))])
        parquet.write_table(table, path, row_group_size=data.draw(st.integers(1, 50)))
    matrix = open_matrix(path)
    blocks = list(matrix.blocks(rows))
    assert all(len(block) <= rows for _, block in blocks)
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), array)
    numbers = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=10))
    np.testing.assert_array_equal(matrix.rows(numbers), array[np.array(numbers, np.intp)])
    np.testing.assert_array_equal(matrix.read(), array)


class TestOtherLibraries:
    def test_pandas(self):
        pandas = pytest.importorskip("pandas")
        matrix = open_matrix(pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=["x", "y"]))
        assert matrix.read().tolist() == [[1, 3], [2, 4]]
        assert matrix.name == "the data frame in memory"

    def test_polars(self):
        polars = pytest.importorskip("polars")
        matrix = open_matrix(polars.DataFrame({"a": [1, 2], "b": [3, 4]}))
        assert matrix.dtype == np.int64
        assert next(matrix.blocks(2))[1].tolist() == [[1, 3], [2, 4]]

    def test_dlpack(self):
        class Foreign:
            """An array of a library that only supports DLPack."""

            def __dlpack__(self, **options):
                return X.__dlpack__(**options)

            def __dlpack_device__(self):
                return X.__dlpack_device__()

        matrix = open_matrix(Foreign())
        assert np.shares_memory(matrix.read(), X)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "int8"])
    def test_torch(self, dtype):
        torch = pytest.importorskip("torch")
        tensor = torch.arange(12).reshape(4, 3).to(getattr(torch, dtype))
        matrix = open_matrix(tensor)
        assert str(matrix.dtype) == dtype
        assert np.float32(matrix.read()).tolist() == X.tolist()
        assert np.float32(matrix.rows([3, 1])).tolist() == X[[3, 1]].tolist()

    def test_torch_with_gradient(self):
        torch = pytest.importorskip("torch")
        assert open_matrix(torch.ones(2, 2, requires_grad=True)).read().tolist() == [[1, 1], [1, 1]]

    @pytest.mark.parametrize("frame", ["pandas", "polars"])
    def test_text_in_a_frame(self, frame):
        library = pytest.importorskip(frame)
        with pytest.raises(MatrixError, match=r"the data frame in memory: .*keep numeric columns only"):
            open_matrix(library.DataFrame({"a": [1, 2], "city": ["Oslo", "Rome"]}))

    @pytest.mark.parametrize("frame", ["pandas", "polars"])
    def test_a_gap_in_a_frame(self, frame):
        library = pytest.importorskip(frame)
        matrix = open_matrix(library.DataFrame({"a": [1.0, 2.0], "b": [3.0, None]}))
        with pytest.raises(MatrixError, match="the data frame in memory: row 1, column 1 is nan"):
            matrix.read()

    @pytest.mark.parametrize("thing", [[[1.0, 2.0]], 5, None, {"a": [1]}])
    def test_what_is_no_array(self, thing):
        with pytest.raises(TypeError, match="expected an array"):
            open_matrix(thing)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), "1-dimensional array of shape .3,.*reshape"),
        (np.ones((2, 3, 4)), "3-dimensional array of shape .2, 3, 4.*reshape"),
        (np.ones((0, 3)), "is empty, 0 × 3.*check"),
        (np.ones((3, 0)), "is empty, 3 × 0.*check"),
        (np.array([["a", "b"]]), "type <U1.*keep numeric columns"),
        (np.array([[1, None]]), "type object.*never unpickled.*astype"),
        (np.ones((2, 2), complex), "type complex128.*real and the imaginary parts"),
        (np.ones((2, 2), bool), "type bool.*astype.'uint8'"),
        (np.zeros((2, 2), "datetime64[s]"), "type datetime64.*keep numeric columns"),
        (np.zeros((2, 2), [("x", "f4"), ("y", "f4")]), "fields x, y.*columns"),
        (np.ma.masked_equal(np.ones((2, 2)), 1), "is masked.*filled"),
    ],
)
def test_rejected_arrays(array, message):
    with pytest.raises(MatrixError, match=f"^the array in memory: .*{message}") as error:
        open_matrix(array)
    assert "\n" not in str(error.value)


class TestFinite:
    @pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
    @pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
    def test_named_by_row_and_column(self, dtype, value):
        array = np.ones((50, 7), dtype)
        array[17, 3] = array[40, 1] = float(value)
        matrix = open_matrix(array)
        assert sum(len(block) for _, block in matrix.blocks(8)) == 50  # blocks are not checked
        with pytest.raises(MatrixError, match=rf"^the array in memory: row 17, column 3 is {value} .*drop such rows"):
            matrix.read()

    def test_bfloat16(self):
        array = np.ones((2, 2), pytest.importorskip("ml_dtypes").bfloat16)
        check_finite(array, 0, "x")
        array[1, 0] = np.nan
        with pytest.raises(MatrixError, match=r"^x: row 101, column 0 is nan"):
            check_finite(array, 100, "x")

    def test_integers_pass(self):
        check_finite(np.full((2, 2), np.iinfo(np.int64).max), 0, "x")

    def test_a_later_block(self, monkeypatch):
        monkeypatch.setattr("tsapps.matrix.base._BLOCK_BYTES", 64)
        array = np.ones((50, 2))
        array[49, 1] = np.nan
        with pytest.raises(MatrixError, match="row 49, column 1 is nan"):
            open_matrix(array).read()


class TestAnotherDtype:
    @pytest.mark.parametrize("source", ["f2", "f4", "f8", "i4", "u1", ">f8"])
    @pytest.mark.parametrize("target", ["f2", "f4", "f8"])
    def test_floating_point(self, source, target):
        array = np.arange(12).reshape(4, 3).astype(source)
        matrix = open_matrix(array, dtype=target)
        expected = array.astype(target)
        assert (matrix.dtype, matrix.nbytes) == (np.dtype(target), expected.nbytes)
        for got in (
            matrix.read(),
            np.concatenate([block for _, block in matrix.blocks(3)]),
            open_matrix(array).read(target),
        ):
            assert got.dtype == target
            np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(matrix.rows([3, 0]), expected[[3, 0]])

    def test_wider_integers(self):
        assert open_matrix(np.ones((2, 2), "u1"), dtype="i4").read().dtype == "i4"

    @pytest.mark.parametrize(
        ("source", "target"), [("f4", "i4"), ("i8", "i4"), ("i4", "u4"), ("f4", bool), ("f4", complex)]
    )
    def test_with_loss(self, source, target):
        with pytest.raises(UsageError, match=r"^the array in memory: .*ask for a floating-point type"):
            open_matrix(np.ones((2, 2), source), dtype=target)

    def test_too_large(self):
        array = np.ones((5, 2))
        array[3, 1] = 1e300
        matrix = open_matrix(array, dtype="f4")
        message = r"row 3, column 1 is 1e\+300 .*too large for float32: ask for a wider"
        with pytest.raises(MatrixError, match=message):
            matrix.read()
        with pytest.raises(MatrixError, match=message):
            matrix.rows([0, 3])
        with pytest.raises(MatrixError, match=message):
            list(matrix.blocks(2))

    def test_nan_stays_nan(self):
        array = np.full((2, 2), np.nan)
        matrix = open_matrix(array, dtype="f4")
        assert np.isnan(matrix.rows([0])).all()
        with pytest.raises(MatrixError, match="row 0, column 0 is nan"):
            matrix.read()


class TestRowNumbers:
    @pytest.mark.parametrize("indices", [[], np.array([], int), np.array([1, 2], "u1"), [3, 3, 3], (0,), range(4)])
    def test_accepted(self, indices):
        np.testing.assert_array_equal(open_matrix(X).rows(indices), X[np.array(list(indices), int)])

    @pytest.mark.parametrize("indices", [[4], [-1], [0, 10**12]])
    def test_no_such_row(self, indices):
        with pytest.raises(IndexError, match=r"the array in memory: row -?[0-9]+ is out of range: expected 0 to 3"):
            open_matrix(X).rows(indices)

    @pytest.mark.parametrize("indices", [2, [[1, 2]], [True, False], [0.5], ["a"]])
    def test_no_row_numbers(self, indices):
        with pytest.raises(IndexError, match="one-dimensional array of integers"):
            open_matrix(X).rows(indices)

    @pytest.mark.parametrize("rows", [0, -1])
    def test_blocks_of_no_rows(self, rows):
        with pytest.raises(ValueError, match="rows must be at least 1"):
            open_matrix(X).blocks(rows)
