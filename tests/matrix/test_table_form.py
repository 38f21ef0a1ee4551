"""Header and index of text tables: inferred, given by the caller, or rejected as ambiguous; never read as data."""

import csv
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps import TSKMeans, open_matrix
from tsapps.errors import MatrixError, MatrixUsageError, UsageError

HEADER = "--header.*--no-header.*header=True.*header=False"
INDEX = "--index.*--no-index.*index=True.*index=False"


@pytest.fixture
def table(tmp_path):
    def table(text, **options):
        path = tmp_path / "x.csv"
        path.write_bytes(text.encode())
        return open_matrix(path, **options)

    return table


def read(table, text, **options):
    """Return the rows, and whether a warning said that an index was skipped."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        matrix = table(text, **options)
    rows = matrix.read().tolist()
    assert [row for _, block in matrix.blocks(2) for row in block.tolist()] == rows
    assert all(one.filename == __file__ for one in said)  # where the matrix is opened
    assert all("first column is skipped" in str(one.message) and "--no-index" in str(one.message) for one in said)
    return rows, len(said) == 1


@pytest.mark.parametrize(
    ("text", "rows", "left_out"),
    [
        ("0,1,2\n0.5,1.5,2.5\n3.5,4.5,5.5\n", [[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]], False),
        ("0,1\r\n0.5,1.5\r\n", [[0.5, 1.5]], False),
        ("\ufeff0,1\n0.5,1.5\n", [[0.5, 1.5]], False),
        ("0\t1\n0.5\t1e3\n", [[0.5, 1000]], False),
        ("0 1\n0.5 1.5\n", [[0.5, 1.5]], False),
        ('"0","1"\n"0.5","1.5"\n', [[0.5, 1.5]], False),
        ("0\n0.5\n1.5\n", [[0.5], [1.5]], False),
        ("0,1\n5,0.5\n7,1.5\n", [[5, 0.5], [7, 1.5]], False),  # a column of integers next to one of decimals
        ('"2019","2020"\n5,7\n', [[5, 7]], False),  # only the names are in quotation marks
        (",a,b\n0,1,2\n1,3,4\n", [[1, 2], [3, 4]], True),
        (",0,1\n0,1,2\n1,3,4\n", [[1, 2], [3, 4]], True),
        (",0\n0,5\n", [[5]], True),
        (",2019,2020\n0,1.5,2\n1,3,4\n", [[1.5, 2], [3, 4]], True),
        (",a,a\n0,1,2\n", [[1, 2]], True),
        ('"","a","b"\n"0","1","2"\n', [[1, 2]], True),
        ("Unnamed: 0,a\n0,5\n1,6\n", [[5], [6]], True),  # what pandas makes of an index that it read as a column
        ("\ufeff,a\r\n0,5\r\n1,6\r\n", [[5], [6]], True),
        ("\ta\n0\t5\n1\t6\n", [[5], [6]], True),
        (" a b\n0 1 2\n1 3 4\n", [[1, 2], [3, 4]], True),
        (" 0 1\n0 1 2\n1 3 4\n", [[1, 2], [3, 4]], True),
        # All numbers.
        ('"5"\n"6"\n', [[5], [6]], False),
        ('"length of it"\n5\n', [[5]], False),
        ('"a" "b c"\n5 6\n', [[5, 6]], False),
        ("5,3\n4.9,3.1\n", [[5, 3], [4.9, 3.1]], False),
        ("0.0,1.0\n0.5,1.5\n", [[0, 1], [0.5, 1.5]], False),
        ("1,2\n3,4\n", [[1, 2], [3, 4]], False),
        ("1\n0.5\n0.25\n", [[1], [0.5], [0.25]], False),
        ("00,01\n0.5,1.5\n", [[0, 1], [0.5, 1.5]], False),
        ("1,0\n0.5,1.5\n", [[1, 0], [0.5, 1.5]], False),
        ("a,b\n0,5\n1,6\n", [[0, 5], [1, 6]], False),  # it has a name
        ("0,5\n1,6\n3,7\n", [[0, 5], [1, 6], [3, 7]], False),
    ],
)
def test_form(table, text, rows, left_out):
    assert read(table, text) == (rows, left_out)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,2\n3,4,5\n", HEADER),
        ("0\n1\n2\n", HEADER),
        ("0,1,2\n", HEADER),
        ("0,1\n0.5,1\n2,1.5\n", HEADER),  # a column in two forms, which pandas does not write
        ("2019,2020\n0.5,1.5\n0.7,1.7\n", HEADER),
        ("0,0.5\n1,0.7\n", INDEX),
        ("0,5,6\n1,7,8\n2,9,9\n", INDEX),
        ("0,0.5\n", INDEX),
        (",a,b\n5,1,2\n7,3,4\n", INDEX),
        (",a,b\nx,1,2\ny,3,4\n", INDEX),
        (",a,b\n0,1,2\n1,3,4\n3,5,6\n", INDEX),
        ('"","a"\n"1",5\n"2",6\n', INDEX),
        (",2,3\n4,5,6\n", INDEX),
    ],
)
def test_ambiguous_tables_are_rejected(table, tmp_path, text, message):
    with pytest.raises(MatrixUsageError, match=message) as error:
        table(text)
    assert str(error.value).startswith(f"{tmp_path}/x.csv: line 1: ")


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("0,1\n3,4\n", {"header": True}, [[3, 4]]),
        ("0,1\n3,4\n", {"header": False}, [[0, 1], [3, 4]]),
        ("0,1\n0.5,1.5\n", {"header": False}, [[0, 1], [0.5, 1.5]]),
        ("id,2019\n3,4\n", {"header": True}, [[3, 4]]),
        ("5,7\n3,4\n", {"header": True}, [[3, 4]]),
        ("0,1\n0,5\n1,6\n", {"header": True}, [[0, 5], [1, 6]]),  # it has the name 0
        ("0,5\n1,6\n", {"index": True}, [[5], [6]]),
        ("0,5\n1,6\n", {"index": False}, [[0, 5], [1, 6]]),
        ("0,5\n1,6\n", {"header": False, "index": True}, [[5], [6]]),
        (",a\n0,5\n1,6\n", {"index": False}, [[0, 5], [1, 6]]),
        (",a\n7,5\n8,6\n", {"index": False}, [[7, 5], [8, 6]]),
        (',a\nx,5\n"y, z",6\n', {"index": True}, [[5], [6]]),
        (",0\nx,5\n,6\n", {"index": True}, [[5], [6]]),
        ("id,a\nx,5\n2020-01-01,6\n", {"index": True}, [[5], [6]]),
        ("x,5\ny,6\n", {"index": True}, [[5], [6]]),
        ("x 5 1\ny 6 2\n", {"index": True}, [[5, 1], [6, 2]]),
        (",0,1\n0,1.5,2\n", {"header": True}, [[1.5, 2]]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*first column is skipped")
def test_header_and_index_options(table, text, options, rows):
    assert read(table, text, **options)[0] == rows
    matrix = table(text, **options)
    assert matrix.rows([len(rows) - 1, 0]).tolist() == [rows[-1], rows[0]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {"header": False}, "line 1, cell 1 is 'a'; expected a number"),
        (",a\nx,5\n", {"index": False}, "line 2, cell 1 is 'x'; expected a number"),
        ("i,a\nx,5,6\n", {"index": True}, "line 2 has 3 cells; expected 2, as in the first line"),
        ("i,a\nx,5\ny,6,7\n", {"index": True}, "line 3 has 3 cells; expected 2"),
        ("i,a\nx,5\ny,z\n", {"index": True}, "line 3, cell 2 is 'z'; expected a number"),
        ("1\n2\n", {"index": True}, "has a single column, which --index skips"),
        ("a,b\n", {"header": True}, "is empty, 0 × 2"),
        (",a\n", {}, "is empty, 0 × 1"),
        (",2.5\n0,1.5\n", {}, "line 1, cell 1 is empty"),
        (",2.5\n0,1.5\n", {"index": True}, HEADER),
        ("id,2019\n1,2\n", {}, "line 1, cell 1 is 'id'; .*detected as a header: give --header"),
    ],
)
def test_options_that_contradict_the_table(table, text, options, message):
    with pytest.raises(MatrixError, match=message):
        table(text, **options).read()


@pytest.mark.parametrize("options", [{"header": True}, {"header": False}, {"index": True}, {"index": False}], ids=str)
def test_options_need_a_text_table(tmp_path, options):
    X = np.ones((2, 2))
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    for source in (X, tmp_path / "x.npy", open_matrix(tmp_path / "x.csv")):
        with pytest.raises(UsageError, match=r"--header and --index apply to \.csv, \.tsv, \.txt: omit them"):
            open_matrix(source, **options)


def test_a_table_without_an_index_is_clustered(table):
    with pytest.warns(UserWarning, match="first column is skipped"):
        matrix = table(pd.DataFrame([[0.0, 1], [0, 2], [9, 1], [9, 2]]).to_csv())
    assert TSKMeans(2, n_init=1, random_state=0, device="cpu").fit(matrix).cluster_centers_.shape == (2, 2)


COLUMNS = st.lists(
    st.one_of(
        st.just(st.integers(0, 3)),
        st.just(st.integers(-9, 10**6)),
        st.just(st.sampled_from([0.0, 1.0, 2.0, 0.5])),
        st.just(st.floats(allow_nan=False, allow_infinity=False)),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def frames(draw):
    n = draw(st.integers(1, 5))
    values = [draw(st.lists(of, min_size=n, max_size=n)) for of in draw(COLUMNS)]
    counting = draw(st.sampled_from([False, False, True]))  # a feature that looks like an index
    values = [list(range(n)), *values] if counting else values
    names = draw(st.sampled_from([range, lambda d: [f"x{j}" for j in range(d)]]))
    return pd.DataFrame(dict(zip(names(len(values)), values, strict=True)))


@property_test(
    60,
    1000,
    frame=frames(),
    header=st.booleans(),
    index=st.booleans(),
    sep=st.sampled_from([",", ";", "\t", " "]),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig"]),
)
def test_pandas_frames_round_trip_or_are_rejected(frame, header, index, sep, end, quoting, encoding):
    text = frame.to_csv(header=header, index=index, sep=sep, lineterminator=end, quoting=quoting)
    expected = frame.to_numpy(np.float64).tolist()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        path = Path(directory, "x.csv")
        path.write_bytes(text.encode(encoding))
        assert open_matrix(path, header=header, index=index).read().tolist() == expected
        try:
            matrix = open_matrix(path)
        except MatrixUsageError:
            return
        assert matrix.read().tolist() == expected


@pytest.mark.parametrize("index", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_named_decimals_of_pandas_are_never_rejected(table, named, index):
    frame = pd.DataFrame(np.random.default_rng(0).standard_normal((30, 3)), columns=list("abc") if named else None)
    assert read(table, frame.to_csv(index=index)) == (frame.to_numpy().tolist(), index)
