"""Columns of tables: choice by name, what they hold, missing values, decimal commas, quotes, compression."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.errors import EmptyMatrixError, MatrixError, MatrixUsageError
from tsapps.matrix import open_matrix, text_block
from tsapps.matrix.columns import Column, ColumnChoice, choose_columns, names_in, phrase
from tsapps.matrix.registry import Opening, open_columns

TABLE = "id,age,species,weight\na1,3,cat,4.5\nb2,,dog,20\nc3,7,cat,5\n"
LEAVES_OUT = ColumnChoice(leaves_out=True)


@pytest.fixture(params=["arrow", "numpy"])
def parser(request, monkeypatch):
    """Parse by pyarrow, and as if it were not installed."""
    if request.param == "numpy":
        monkeypatch.setattr(text_block, "_arrow", lambda: None)
    return request.param


@pytest.fixture
def opened(tmp_path):
    """Write a text table and open chosen columns of it."""

    def opened(text, choice=LEAVES_OUT, name="x.csv", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return open_columns(str(path), Opening(choice=choice, **options))

    return opened


def names(columns):
    return [column.name for column in columns]


# --- Choice -----------------------------------------------------------------------------------------------------------

COLUMNS = [
    Column("id", "text", "line 2 is 'a1'"),
    Column("x", "numbers"),
    Column("y", "numbers"),
    Column("on", "booleans"),
]


@pytest.mark.parametrize(
    ("choice", "features", "identifier", "left_out"),
    [
        (ColumnChoice(leaves_out=True), [1, 2], None, ["id", "on"]),
        (ColumnChoice(leaves_out=True, identifier="id"), [1, 2], 0, ["on"]),
        (ColumnChoice(("y", "x")), [2, 1], None, []),
        (ColumnChoice(("y", "x", "y")), [2, 1], None, []),
        (ColumnChoice(("2", "on")), [2, 3], None, []),
        (ColumnChoice(("x", "y"), exclude=("x",)), [2], None, []),
        (ColumnChoice(exclude=("id", "on")), [1, 2], None, []),
        (ColumnChoice(exclude=("y", "on"), identifier="id"), [1], 0, []),
    ],
)
def test_choice_by_hand(choice, features, identifier, left_out):
    found = choose_columns(COLUMNS, choice, "t")
    assert (found.features, found.identifier, names(found.left_out)) == (features, identifier, left_out)


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (
            ColumnChoice(("z",)),
            MatrixUsageError,
            r"t: has no column z, which --columns names; its columns are id, x, y, on",
        ),
        (ColumnChoice(("oxn",)), MatrixUsageError, r"did you mean on\?"),
        (ColumnChoice(exclude=("9",)), MatrixUsageError, r"has no column 9, which --exclude names"),
        (ColumnChoice(("id",)), MatrixError, r"column id holds text \(line 2 is 'a1'\); expected numbers"),
        (ColumnChoice(), MatrixError, r"column id holds text"),
        (
            ColumnChoice(("x",), exclude=("x",)),
            MatrixUsageError,
            r"no column of numbers is left; expected at least one",
        ),
        (ColumnChoice(leaves_out=True, exclude=("x", "y")), MatrixUsageError, r"is left: id \(text\); on \(booleans\)"),
        (ColumnChoice(("x",), identifier="x"), MatrixUsageError, r"column x identifies rows and is a feature"),
    ],
)
def test_refused_choices(choice, error, message):
    with pytest.raises(error, match=message):
        choose_columns(COLUMNS, choice, "t")


def test_two_columns_of_one_name():
    columns = [Column("x", "numbers"), Column("x", "numbers")]
    with pytest.raises(MatrixUsageError, match="2 columns are named x"):
        choose_columns(columns, ColumnChoice(("x",)), "t")
    assert choose_columns(columns, LEAVES_OUT, "t").features == [0, 1]


def test_lists_of_names():
    assert names_in('a, b ,"c, d",') == ("a", "b", "c, d")
    assert names_in("") == names_in(" , ") == ()
    for text in ('"a', "a\nb", '"a"b'):
        with pytest.raises(ValueError, match=r"."):
            names_in(text)
    assert phrase(COLUMNS) == "id (text); x, y (numbers); on (booleans)"


# --- Text tables ------------------------------------------------------------------------------------------------------


def test_numbers_of_a_table_with_text(parser, opened):
    matrix, left_out, identifiers = opened(TABLE, ColumnChoice(leaves_out=True, identifier="id"), missing=True)
    assert matrix.column_names == ("age", "weight")
    found = np.concatenate([block for _, block in matrix.blocks(2)])
    np.testing.assert_array_equal(found, [[3, 4.5], [np.nan, 20], [7, 5]])
    assert [(one.name, one.kind, one.example) for one in left_out] == [("species", "text", "line 2 is 'cat'")]
    assert [cell for block in identifiers.blocks() for cell in block] == ["a1", "b2", "c3"]


def test_a_missing_value_names_its_cell(parser, opened):
    matrix, _, _ = opened(TABLE)
    message = r"line 3, cell 2 \(age\) is empty; expected a number: fill it in, or drop the line \(tsapps kmeans has"
    with pytest.raises(MatrixError, match=message):
        matrix.read()


@pytest.mark.parametrize("cell", ["x", "1_0", "1O", "true", "0x10", "1.2.3", "٣"])
def test_a_bad_cell_of_a_column_of_numbers(parser, opened, cell):
    text = "a,b,c\n1,u,2\n3,v,4\n" + f"5,w,{cell}\n"
    matrix, left_out, _ = opened(text, missing=True)
    assert names(left_out) == ["b"]
    with pytest.raises(
        MatrixError, match=r"line 4, cell 3 \(c\) is .*; expected a number: correct it, or leave the column"
    ):
        list(matrix.blocks(9))


@pytest.mark.parametrize("cell", sorted(text_block.MISSING - {""}))
def test_every_missing_value_of_pandas(parser, opened, cell):
    text = f"a,b\n{cell},1\n2,3\n"
    matrix, _, _ = opened(text, missing=True)
    found = np.concatenate([block for _, block in matrix.blocks(9)])
    np.testing.assert_array_equal(found, pd.read_csv(io.StringIO(text)).to_numpy())
    assert np.isnan(found[0, 0])


def test_booleans_are_features_if_they_are_named(parser, opened):
    text = "a,on\n1,True\n2,false\n3,\n"
    assert names(opened(text)[1]) == ["on"]
    matrix, _, _ = opened(text, ColumnChoice(("on", "a")), missing=True)
    np.testing.assert_array_equal(next(matrix.blocks(9))[1], [[1, 1], [0, 2], [np.nan, 3]])
    with pytest.raises(MatrixError, match=r"line 3, cell 2 \(on\) is 'maybe'"):
        opened("a,on\n1,True\n2,maybe\n", ColumnChoice(("on",)))[0].read()


def test_a_column_without_values(opened):
    matrix, left_out, _ = opened("a,b\n1,\n2,NA\n", missing=True)
    assert [(one.name, one.kind) for one in left_out] == [("b", "no values")]
    assert matrix.column_names == ("a",)


def test_decimal_commas(parser, opened):
    text = "a;b;c\n1,5;x;2\n-,25;y;1e2\n"
    matrix, _, _ = opened(text, decimal=",")
    assert matrix.read().tolist() == [[1.5, 2], [-0.25, 100]]
    assert opened("1,5;2\n3;4,5\n", decimal=",")[0].read().tolist() == [[1.5, 2], [3, 4.5]]
    with pytest.raises(MatrixError, match=r"line 3, cell 1 \(a\) is '1.5'"):
        opened("a;b\n1,5;2\n1.5;2\n", ColumnChoice(("a",)), decimal=",")[0].read()
    with pytest.raises(MatrixUsageError, match="commas separate its cells: omit --decimal"):
        opened("a,b\n1,2\n", decimal=",")
    matrix, _, _ = opened("a;b\n1;2\n3;2\n1,5;2\n")
    with pytest.raises(
        MatrixError, match=r"line 4.* is '1,5': write numbers with a decimal point, or give --decimal ,"
    ):
        matrix.read()


def test_quoted_cells_of_several_lines(parser, opened):
    text = 'name,x\n"one, \n\n# two",1\n"he said ""no""",2\n5" screen,3\n'
    matrix, _, identifiers = opened(text, ColumnChoice(leaves_out=True, identifier="name"))
    assert matrix.read().tolist() == [[1], [2], [3]]
    assert [cell for block in identifiers.blocks() for cell in block] == ["one, \n\n# two", 'he said "no"', '5" screen']
    with pytest.raises(MatrixError, match="line 3 opens a quoted cell that does not end"):
        opened('name,x\na,1\n"b,2\nc,3\n')


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_compressed_tables(opened, tmp_path, suffix, compress):
    packed = compress(TABLE.encode())
    matrix, _, _ = opened(packed, name=f"x.csv{suffix}", missing=True)
    assert matrix.shape == (3, 2)
    (tmp_path / "d").mkdir()
    for part in ("1", "2"):
        (tmp_path / "d" / f"{part}.csv{suffix}").write_bytes(compress(b"1,2\n3,4\n"))
    assert open_matrix(tmp_path / "d").read().tolist() == [[1, 2], [3, 4]] * 2
    with pytest.raises(MatrixError, match="is truncated or damaged"):
        opened(packed[:-9], name=f"y.csv{suffix}")
    with pytest.raises(MatrixError, match="is truncated or damaged"):
        opened(TABLE, name=f"z.csv{suffix}")


def test_tables_without_names(opened):
    matrix, left_out, _ = opened("1.5,a,2\n3,b,4\n")
    assert (matrix.read().tolist(), names(left_out), matrix.numbers) == ([[1.5, 2], [3, 4]], ["1"], (0, 2))
    matrix, _, _ = opened("1.5,a,2\n3,b,4\n", ColumnChoice(("2", "0")))
    assert (matrix.read().tolist(), matrix.numbers) == ([[2, 1.5], [4, 3]], (2, 0))


@pytest.mark.parametrize(
    "text",
    ["country,2019,2020\nFR,1,2\n", "country,gdp,2020\nFR,3,2\n", "year,2019.5,x\n1,2,3\n", "nan,x,y\n1,2,3\n"],
)
def test_a_first_line_that_may_be_names(opened, text):
    with pytest.raises(MatrixUsageError, match="line 1: it may be names of columns or a row: give --header for names"):
        opened(text)
    assert opened(text, header=True)[0].shape[0] == 1


def test_tables_without_rows(opened):
    with pytest.raises(EmptyMatrixError, match="is empty, 0 × 3"):
        opened("tag,x,y\n")


def test_long_quoted_cells_take_linear_time(opened):
    cell = "\n".join(["word"] * 200_000)
    matrix, _, identifiers = opened(f'name,x\n"{cell}",1\nb,2\n', ColumnChoice(leaves_out=True, identifier="name"))
    assert matrix.read().tolist() == [[1], [2]]
    assert [one for block in identifiers.blocks() for one in block] == [cell, "b"]


def test_arrays_have_columns_by_number(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12.0).reshape(3, 4))
    choice = ColumnChoice(("3", "1"), identifier="0")
    matrix, left_out, identifiers = open_columns(str(tmp_path / "x.npy"), Opening(choice=choice))
    assert matrix.read().tolist() == [[3, 1], [7, 5], [11, 9]]
    assert np.concatenate(list(identifiers.blocks())).tolist() == [0, 4, 8]
    assert left_out == []


def test_parquet_has_types(tmp_path):
    frame = pd.DataFrame(
        {
            "name": ["a", "b", "c"],
            "n": pd.array([1, None, 3], "Int64"),
            "x": np.float32([0.5, 1, 2]),
            "on": [True, False, True],
            "when": pd.date_range("2020", periods=3),
            "kind": pd.Categorical(["u", "v", "u"]),
        }
    )
    path = tmp_path / "x.parquet"
    frame.to_parquet(path)
    how = Opening(choice=ColumnChoice(leaves_out=True, identifier="name"), missing=True)
    matrix, left_out, identifiers = open_columns(str(path), how)
    assert {one.name: one.kind for one in left_out} == {"on": "booleans", "when": "dates or times", "kind": "text"}
    np.testing.assert_array_equal(next(matrix.blocks(9))[1], [[1, 0.5], [np.nan, 1], [3, 2]])
    assert [one for block in identifiers.blocks() for one in block.to_pylist()] == ["a", "b", "c"]
    matrix, _, _ = open_columns(str(path), Opening(choice=ColumnChoice(("on", "x"))))
    assert next(matrix.blocks(9))[1].tolist() == [[1, 0.5], [0, 1], [1, 2]]
    with pytest.raises(MatrixError, match=r"row 1, column 0 \('n'\) is null"):
        open_columns(str(path), Opening(choice=ColumnChoice(("n",))))[0].read()
    with pytest.raises(MatrixError, match=r"column when holds dates or times; expected numbers"):
        open_columns(str(path), Opening(choice=ColumnChoice(("when",))))


# --- Beside pandas ----------------------------------------------------------------------------------------------------

_TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\0\x1a\x1c\x1d\x1e\x85\u2028\u2029\x0b\x0c"), max_size=8
)
_NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53))


@st.composite
def frames(draw):
    """Draw a frame with columns of numbers, some missing, and of texts whose first cell is no number."""
    rows = draw(st.integers(2, 6))
    frame = {}
    for number in range(draw(st.integers(1, 4))):
        name = f"{number}{draw(_TEXTS).strip()}c"
        if draw(st.booleans()) or number == 0:
            values = draw(st.lists(st.one_of(st.none(), _NUMBERS), min_size=rows, max_size=rows))
            frame[name] = pd.Series([None if one is None else float(one) for one in values], dtype=float)
        else:
            frame[name] = ["first", *draw(st.lists(_TEXTS, min_size=rows - 1, max_size=rows - 1))]
    return pd.DataFrame(frame)


@settings(max_examples=120, deadline=None)
@given(frame=frames(), mark=st.sampled_from(",;\t"), index=st.booleans())
def test_drawn_frames_beside_pandas(tmp_path_factory, frame, mark, index):
    """What pandas writes is read with pandas' numbers, or refused with the place and the reason."""
    path = tmp_path_factory.mktemp("drawn") / "x.csv"
    frame.to_csv(path, sep=mark, index=index)
    expected = pd.read_csv(path, sep=mark, index_col=0 if index else None)
    try:
        matrix, left_out, _ = open_columns(str(path), Opening(choice=LEAVES_OUT, missing=True, index=index or None))
    except MatrixError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert refusal.startswith(str(path))
        return
    numeric = [name for name in expected.columns if name not in names(left_out)]
    found = np.concatenate([block for _, block in matrix.blocks(2)])
    np.testing.assert_array_equal(found, expected[numeric].to_numpy(float))
    assert [name.strip() for name in numeric] == list(matrix.column_names)
