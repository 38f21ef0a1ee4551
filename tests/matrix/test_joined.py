"""Several files as one matrix."""

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.errors import MatrixError, MatrixUsageError, UsageError
from tsapps.matrix import open_matrix
from tsapps.matrix.joined import JoinedMatrix

X = np.arange(60, dtype=np.float32).reshape(20, 3)


def write(directory, cuts, save, array=X):
    """Write the rows of an array to files a, b, c, … that begin at rows 0 and `cuts`; return the directory."""
    directory.mkdir()
    bounds = [0, *cuts, len(array)]
    for letter, first, end in zip("abcdefgh", bounds, bounds[1:], strict=False):
        save(directory / letter, array[first:end])
    return directory


def npy(path, rows):
    np.save(f"{path}.npy", rows)


def fortran(path, rows):
    np.save(f"{path}.npy", np.asfortranarray(rows.astype(">f4")))


def csv(path, rows):
    header = ",".join("xyzuvwt"[: rows.shape[1]])
    np.savetxt(f"{path}.csv", rows, delimiter=",", header=header, comments="")


def parquet(path, rows):
    table = pytest.importorskip("pyarrow").table({name: rows[:, i] for i, name in enumerate("xyz")})
    pytest.importorskip("pyarrow.parquet").write_table(table, f"{path}.parquet", row_group_size=3)


def blocks_of(matrix, rows):
    starts, blocks = zip(*matrix.blocks(rows), strict=True)
    return list(starts), np.concatenate(blocks)


@pytest.mark.parametrize("save", [npy, fortran, csv, parquet])
def test_the_rows_of_one_file_after_those_of_the_other(tmp_path, save):
    matrix = open_matrix(write(tmp_path / "points", [1, 2, 15], save))
    assert (matrix.shape, matrix.device, matrix.stored) == ((20, 3), None, None)
    assert [rows for _, rows in matrix.files] == [1, 1, 13, 5]
    assert [os.path.basename(path)[0] for path, _ in matrix.files] == ["a", "b", "c", "d"]
    assert matrix.name == f"{tmp_path}/points"
    np.testing.assert_array_equal(matrix.read(), X)
    indices = [19, 0, 1, 1, 14, 15, 2]
    np.testing.assert_array_equal(matrix.rows(indices), X[indices])
    assert matrix.rows([]).shape == (0, 3)
    pieces = [(row, column, piece.tolist()) for row, column, piece in matrix.pieces(2)]
    assert pieces == [(row, column, [X[row, column : column + 2].tolist()]) for row in range(20) for column in (0, 2)]


# The blocks are those of one file, so that sums over blocks have the same bits.
@pytest.mark.parametrize("save", [npy, csv])
@pytest.mark.parametrize("rows", [1, 2, 7, 13, 20, 1000])
def test_blocks_do_not_depend_on_the_files(tmp_path, save, rows):
    matrix = open_matrix(write(tmp_path / "points", [1, 2, 15], save))
    starts, found = blocks_of(matrix, rows)
    assert starts == list(range(0, 20, rows))
    np.testing.assert_array_equal(found, X)
    assert all(block.flags.c_contiguous for _, block in matrix.blocks(rows))


@property_test(
    30,
    300,
    cuts=st.lists(st.integers(1, 19), max_size=6, unique=True).map(sorted),
    rows=st.integers(1, 25),
    indices=st.lists(st.integers(0, 19), max_size=9),
    save=st.sampled_from([npy, csv]),
)
def test_any_cuts(cuts, rows, indices, save):
    with TemporaryDirectory() as directory:
        matrix = open_matrix(write(Path(directory) / "points", cuts, save), dtype=np.float32)
        starts, found = blocks_of(matrix, rows)
        assert starts == list(range(0, 20, rows))
        np.testing.assert_array_equal(found, X)
        np.testing.assert_array_equal(matrix.rows(indices), X[indices])


def test_reading_into_an_array_across_files(tmp_path):
    matrix = open_matrix(write(tmp_path / "points", [1, 2, 15], npy))
    for start in range(20):
        for end in range(start + 1, 21):
            out = np.full((end - start, 3), np.nan, np.float32)
            matrix.read_into(start, out)
            np.testing.assert_array_equal(out, X[start:end])
    assert not hasattr(open_matrix(write(tmp_path / "text", [4], csv)), "read_into")


def test_blocks_that_a_thread_reads_ahead(tmp_path):
    array = np.arange(3 << 19, dtype=np.float64).reshape(-1, 8)
    matrix = open_matrix(write(tmp_path / "points", [1000, 5000, 90_001], npy, array))
    starts, found = blocks_of(matrix, 40_000)
    assert starts == list(range(0, len(array), 40_000))
    np.testing.assert_array_equal(found, array)


def test_patterns_lists_and_order(tmp_path):
    directory = write(tmp_path / "points", [5, 10], npy)
    (directory / "inner").mkdir()
    np.save(directory / "inner" / "d.npy", X[:1])
    np.save(directory / ".hidden.npy", X)
    (directory / "readme.md").write_text("no matrix")

    def names(source):
        return [os.path.relpath(path, directory) for path, _ in open_matrix(source).files]

    assert names(directory) == names(f"{directory}/*.npy") == ["a.npy", "b.npy", "c.npy"]
    assert names(f"{directory}/[ac].npy") == ["a.npy", "c.npy"]
    assert names(f"{directory}/**/*.npy") == ["a.npy", "b.npy", "c.npy", "inner/d.npy"]
    assert names([directory / "c.npy", f"{directory}/a.npy"]) == ["c.npy", "a.npy"]
    assert names((f"{directory}/[bc].npy", directory / "a.npy")) == ["b.npy", "c.npy", "a.npy"]
    assert open_matrix([directory / "c.npy", directory / "a.npy"]).name == f"{directory}/c.npy and others (2 files)"
    np.testing.assert_array_equal(
        open_matrix([directory / "c.npy", directory / "a.npy"]).read(), X[[*range(10, 20), *range(5)]]
    )


def test_a_single_file_is_that_file(tmp_path):
    directory = write(tmp_path / "points", [], npy)
    for source in (directory, f"{directory}/*.npy", [directory / "a.npy"]):
        assert not isinstance(open_matrix(source), JoinedMatrix)
        assert open_matrix(source).stored.path == str(directory / "a.npy")


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    for name, rows in (("[a].npy", X[:2]), ("a.npy", X[2:5])):
        np.save(tmp_path / name, rows)
    assert open_matrix(tmp_path / "[a].npy").shape == (2, 3)


def test_an_array_of_every_file(tmp_path):
    for name, rows in (("1.npz", X[:4]), ("2.npz", X[4:])):
        np.savez(tmp_path / name, train=rows, other=rows[:1])
    np.testing.assert_array_equal(open_matrix(f"{tmp_path}/*.npz:train").read(), X)
    with pytest.raises(MatrixUsageError, match=r"1.npz.*several"):
        open_matrix(f"{tmp_path}/*.npz")


def test_one_dtype_for_all(tmp_path):
    np.save(tmp_path / "a.npy", X[:5])
    np.save(tmp_path / "b.npy", X[5:].astype(np.float64))
    with pytest.raises(MatrixError, match=r"b.npy: has 3 columns of float64, but .*a.npy has 3 of float32"):
        open_matrix(tmp_path)
    matrix = open_matrix(tmp_path, dtype=np.float64)
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix.read(), X)


def test_other_columns(tmp_path):
    np.save(tmp_path / "a.npy", X)
    np.save(tmp_path / "b.npy", X[:, :2])
    with pytest.raises(MatrixError, match=r"b.npy: has 2 columns of float32, but .*a.npy has 3"):
        open_matrix(tmp_path)


def test_text_options_reach_every_file(tmp_path):
    for name, rows in (("a.csv", "0,1\n1,2\n"), ("b.csv", "0,1\n1,4\n")):
        (tmp_path / name).write_text(rows)
    np.testing.assert_array_equal(open_matrix(tmp_path, header=False, index=True).read(), [[1], [2], [1], [4]])
    np.testing.assert_array_equal(open_matrix(tmp_path, header=True, index=False).read(), [[1, 2], [1, 4]])
    directory = write(tmp_path / "points", [5], npy)
    with pytest.raises(UsageError, match=r"a.npy: is not a text table"):
        open_matrix(directory, header=False)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x*.npy", "x[*].npy: no such file, and none matches this pattern: check it"),
        ("empty", "empty: is a directory without a matrix: name a file"),
        (
            "mixed",
            r"mixed: has files of several formats \(.csv, .npy\): name those of one matrix by a pattern, such as",
        ),
        (["a.npy", "absent.npy"], "absent.npy: no such file"),
        ("mixed:x", "mixed:x: is a directory: name a file in it"),
        (Path("m[1]"), r"pattern, such as 'm\[\[\]1\]/\*.csv'"),
    ],
)
def test_what_is_no_matrix(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    for directory in ("empty", "mixed", "m[1]"):
        (tmp_path / directory).mkdir()
    np.save("a.npy", X)
    for directory in ("mixed", "m[1]"):
        np.save(f"{directory}/a.npy", X)
        csv(f"{directory}/b", X)
    (tmp_path / "empty" / "readme.md").write_text("")
    with pytest.raises(MatrixUsageError, match=message):
        open_matrix(source)


def test_elements_that_are_not_finite_are_found_in_their_file(tmp_path):
    rows = X.copy()
    rows[12, 1] = np.nan
    matrix = open_matrix(write(tmp_path / "points", [5, 10], npy, rows))
    with pytest.raises(MatrixError, match=r"points/c.npy: row 2, column 1 is nan"):
        matrix.read()
    with pytest.raises(MatrixError, match=r"points: row 12 \(row 2 of .*c.npy\), column 1 is nan"):
        matrix.read(np.float64)
    assert open_matrix(matrix, dtype=np.float64).row_name(12) == matrix.row_name(12)
    assert matrix.row_name(12) == f"row 12 (row 2 of {tmp_path}/points/c.npy)"
    assert matrix.row_name(5) == f"row 5 (row 0 of {tmp_path}/points/b.npy)"


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_kmeans_names_the_file_of_a_row(tmp_path, metric):
    from tsapps import TSKMeans

    rows = X + 1
    rows[12, 1] = np.inf
    matrix = open_matrix(write(tmp_path / "points", [5, 10], npy, rows))
    with pytest.raises(ValueError, match=r"points: row 12 \(row 2 of .*c.npy\), column 1 is inf"):
        TSKMeans(2, device="cpu", metric=metric).fit(matrix)


@pytest.mark.parametrize("change", ["rewritten", "removed"])
def test_a_file_that_changes(tmp_path, change):
    directory = write(tmp_path / "points", [5, 10], npy)
    matrix = open_matrix(directory)
    os.remove(directory / "c.npy")
    if change == "rewritten":
        np.save(directory / "c.npy", X[10:] + 1)
    for same in (matrix, open_matrix(matrix, dtype=np.float64)):
        for attempt in (same.read, same.check_unchanged, partial(same.rows, [12]), lambda m=same: list(m.blocks(4))):
            with pytest.raises(MatrixError, match=r"c.npy: has changed since it was opened"):
                attempt()
    np.testing.assert_array_equal(matrix.rows([3]), X[[3]])  # of another file


# Sums over blocks of a stream depend on where the blocks begin.
@pytest.mark.parametrize("save", [npy, csv])
@pytest.mark.parametrize("streams", [False, True])
def test_fits_have_the_bits_of_one_file(tmp_path, save, streams, rng, monkeypatch):
    from tsapps import TSKMeans
    from tsapps.apps.kmeans.data.host_data import HostData

    if streams:
        monkeypatch.setattr(HostData, "fits", lambda *_: False)
    array = rng.standard_normal((1500, 7)).astype(np.float32)
    options = {"device": "cpu", "random_state": 3, "n_init": 2, "max_iter": 5}
    whole = TSKMeans(4, **options).fit(open_matrix(write(tmp_path / "whole", [], save, array)))
    for number, cuts in enumerate(([1], [100, 101, 900])):
        found = TSKMeans(4, **options).fit(open_matrix(write(tmp_path / f"cut{number}", cuts, save, array)))
        np.testing.assert_array_equal(found.labels_, whole.labels_)
        np.testing.assert_array_equal(found.cluster_centers_, whole.cluster_centers_)
        assert found.inertia_ == whole.inertia_


def test_row_groups_of_parquet(tmp_path, monkeypatch):
    parquet(tmp_path / "x", X)  # row groups of three rows
    matrix = open_matrix(tmp_path / "x.parquet")
    read = []
    batches = type(matrix)._read_batches

    def counted(self, file, start, rows, groups):
        read.append(groups)
        return batches(self, file, start, rows, groups)

    monkeypatch.setattr(type(matrix), "_read_batches", counted)
    np.testing.assert_array_equal(matrix.rows([19, 4, 4, 3, 0]), X[[19, 4, 4, 3, 0]])
    assert read == [[0], [1], [6]]
    read.clear()
    np.testing.assert_array_equal(matrix.rows(range(0, 20, 3)), X[::3])  # of all groups: a pass
    assert read == [None]


@pytest.mark.parametrize("save", [csv, parquet])
def test_columns_in_another_order(tmp_path, save):
    directory = write(tmp_path / "points", [5], save)
    if save is csv:
        np.savetxt(directory / "c.csv", X, delimiter=",", header="y,x,z", comments="")
    else:
        columns = {name: X[:, i] for i, name in enumerate("yxz")}
        pytest.importorskip("pyarrow.parquet").write_table(
            pytest.importorskip("pyarrow").table(columns), directory / "c.parquet"
        )
    for dtype in (None, np.float32):
        with pytest.raises(MatrixError, match=r"/c.*: its columns .* y, x, z, but those of .*/a.* are x, y, z"):
            open_matrix(directory, dtype=dtype)


def test_a_first_line_of_numbers_that_only_one_table_has(tmp_path):
    (tmp_path / "a.csv").write_text("1.5,2.5\n3.5,4.5\n")
    (tmp_path / "b.csv").write_text("0,1\n3.5,4.5\n")
    with pytest.raises(
        MatrixUsageError, match=r"b.csv: its first line may be names or numbers, and .*a.csv has no names"
    ):
        open_matrix(tmp_path)
    assert open_matrix(tmp_path, header=False).shape == (4, 2)
    # Parts of a table that was split have names in the first one only.
    (tmp_path / "b.csv").unlink()
    (tmp_path / "0.csv").write_text("x,y\n0.5,1.5\n")
    np.testing.assert_array_equal(open_matrix(tmp_path).read(), [[0.5, 1.5], [1.5, 2.5], [3.5, 4.5]])


# Engines that write one file per partition write some without rows.
@pytest.mark.parametrize("save", [npy, fortran, csv, parquet])
@pytest.mark.parametrize("cuts", [[0, 5], [5, 5, 10, 10], [20]])
def test_files_without_rows_are_left_out(tmp_path, save, cuts):
    matrix = open_matrix(write(tmp_path / "points", cuts, save))
    np.testing.assert_array_equal(matrix.read(), X)
    assert all(rows for _, rows in matrix.files)


@pytest.mark.parametrize("count", [1, 2])
def test_files_that_all_have_no_rows(tmp_path, count):
    directory = write(tmp_path / "points", [0] * (count - 1), npy, X[:0])
    with pytest.raises(MatrixError, match=r"[.]npy: is empty, 0 × 3"):
        open_matrix(directory)


@pytest.mark.parametrize(
    ("save", "message"),
    [
        (lambda path: npy(path, X[:4, :0]), r"c.npy: is empty, 4 × 0"),
        (lambda path: Path(f"{path}.npy").touch(), r"c.npy: "),
        (lambda path: Path(f"{path}.csv").touch(), r"c.csv: is empty; expected lines"),
    ],
)
def test_files_without_columns_or_bytes_are_errors(tmp_path, save, message):
    points = write(tmp_path / "points", [5], csv if "csv" in message else npy)
    save(points / "c")
    with pytest.raises(MatrixError, match=message):
        open_matrix(points)


def test_one_warning_of_all_indices(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(",x,y\n0,1.5,2.5\n1,3.5,4.5\n")
    with pytest.warns(UserWarning, match=r"a.csv and 2 more: the first column is skipped as an index") as warned:
        assert open_matrix(tmp_path).shape == (6, 2)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    (tmp_path / "d.csv").write_text("x,y\n1.5,2.5\n")
    with pytest.raises(
        MatrixUsageError, match=r"a.csv: its first column looks like an index .*, but not that of .*d.csv"
    ):
        open_matrix(tmp_path)


@pytest.mark.parametrize("source", ["points", "points/*.npy"])
def test_broken_links_are_errors(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (write(Path("points"), [5], npy) / "c.npy").symlink_to("nowhere")
    with pytest.raises(MatrixUsageError, match=r"points/c.npy: no such file"):
        open_matrix(source)


def test_no_file_counts_twice(tmp_path):
    directory = write(tmp_path / "points", [5], npy)
    (directory / "inner").mkdir()
    np.save(directory / "inner" / "c.npy", X)
    assert len(open_matrix(f"{directory}/**/**/*.npy").files) == 3
    (directory / "again").symlink_to(".")
    with pytest.raises(MatrixUsageError, match=r"matches .*a.npy and .*a.npy, which are one file"):
        open_matrix(f"{directory}/**/a.npy")
    assert open_matrix([directory / "a.npy", directory / "a.npy"]).shape == (10, 3)  # as asked for


def test_names_of_arrays_with_colons(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    for name, rows in (("1", X[:4]), ("2", X[4:])):
        safetensors.save_file({"dense:0": rows, "other": rows}, tmp_path / f"{name}.safetensors")
    np.testing.assert_array_equal(open_matrix(f"{tmp_path}/*.safetensors:dense:0").read(), X)


def test_extensions_of_one_format(tmp_path):
    h5py = pytest.importorskip("h5py")
    for name, rows in (("1.h5", X[:4]), ("2.hdf5", X[4:])):
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = rows
    np.testing.assert_array_equal(open_matrix(tmp_path).read(), X)
