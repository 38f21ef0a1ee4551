"""Matrices on a GPU: blocks are CuPy arrays on the same GPU, and are copied only if necessary."""

import numpy as np
import pytest

from tsapps.errors import MatrixError
from tsapps.kernels.devices import gpus, why_no_gpu
from tsapps.matrix import check_finite, open_matrix, save_npy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason=why_no_gpu())]


@pytest.fixture(params=[gpu.index for gpu in gpus()])
def index(request):
    return request.param


@pytest.fixture(params=["C", "F", "strided"])
def array(request, index):
    import cupy

    with cupy.cuda.Device(index):
        if request.param == "strided":
            return cupy.arange(66, dtype=cupy.float32).reshape(22, 3)[::-2]
        return cupy.asarray(np.arange(33, dtype=np.float32).reshape(11, 3), order=request.param)


def test_blocks_rows_and_the_whole_agree_with_the_array(array, index):
    import cupy

    expected = array.get()
    matrix = open_matrix(array)
    assert (matrix.shape, matrix.dtype, matrix.device) == ((11, 3), np.float32, index)
    assert repr(matrix).endswith(f"on GPU {index}>")
    parts = []
    for start, block in matrix.blocks(4):
        assert isinstance(block, cupy.ndarray)
        assert block.flags.c_contiguous
        assert block.device.id == index
        np.testing.assert_array_equal(block.get(), expected[start : start + 4])
        parts.append(block.get())
    np.testing.assert_array_equal(np.concatenate(parts), expected)
    numbers = [10, 0, 10]
    for indices in (numbers, np.array(numbers), cupy.array(numbers)):
        np.testing.assert_array_equal(matrix.rows(indices).get(), expected[numbers])
    assert matrix.rows(numbers).device.id == index
    for dtype in (None, "f8"):
        whole = matrix.read(dtype)
        assert whole.device.id == index
        assert whole.flags.c_contiguous
        np.testing.assert_array_equal(whole.get(), expected)


def test_no_copy(index):
    import cupy

    with cupy.cuda.Device(index):
        array = cupy.ones((4, 3))
    matrix = open_matrix(array)
    assert matrix.read() is array
    assert next(matrix.blocks(2))[1].data.ptr == array.data.ptr


def test_not_finite(array, index):
    import cupy

    with cupy.cuda.Device(index):
        array[7, 2] = cupy.nan
    with pytest.raises(MatrixError, match="row 7, column 2 is nan"):
        open_matrix(array).read()
    with pytest.raises(MatrixError, match=r"^x: row 107, column 2 is nan"):
        check_finite(array, 100, "x")


def test_too_large_for_another_dtype(array, index):
    import cupy

    with cupy.cuda.Device(index):
        array[7, 2] = 1e30
    with pytest.raises(MatrixError, match=r"row 7, column 2 is 1e\+30 .*too large for float16"):
        open_matrix(array, dtype="f2").read()


def test_torch(index):
    torch = pytest.importorskip("torch")
    matrix = open_matrix(torch.arange(6.0, device=f"cuda:{index}").reshape(3, 2))
    assert matrix.device == index
    assert matrix.read().get().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_cuda_array_interface(index):
    import cupy

    with cupy.cuda.Device(index):
        array = cupy.arange(6.0).reshape(3, 2)

    class Foreign:
        __cuda_array_interface__ = array.__cuda_array_interface__

    matrix = open_matrix(Foreign())
    assert matrix.device == index
    assert matrix.read().get().tolist() == array.get().tolist()


def test_save(array, tmp_path):
    save_npy(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), array.get())


def test_rows_of_a_file_by_numbers_on_the_gpu(tmp_path, index):
    import cupy

    np.save(tmp_path / "x.npy", np.eye(3))
    with cupy.cuda.Device(index):
        numbers = cupy.array([2, 0])
    assert open_matrix(tmp_path / "x.npy").rows(numbers).tolist() == [[0, 0, 1], [1, 0, 0]]
