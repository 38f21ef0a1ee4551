"""Text tables: header lines, delimiters, and errors that name the line."""

import numpy as np
import pytest

from tsapps.errors import MatrixError
from tsapps.matrix import open_matrix

ONE_TO_FOUR = [[1, 2], [3, 4]]


@pytest.fixture
def table(tmp_path):
    """Write a text file and open it."""

    def table(text, encoding="utf-8"):
        path = tmp_path / "x.csv"
        path.write_bytes(text.encode(encoding))
        return open_matrix(path)

    return table


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4\n",
        "1,2\n3,4",
        "1, 2\n3, 4\n",
        "1;2\n3;4\n",
        "1\t2\n3\t4\n",
        "1 2\n3 4\n",
        "  1   2  \n  3   4\n",
        "1,2\r\n3,4\r\n",
        "a,b\n1,2\n3,4\n",
        '"a","b"\n1,2\n3,4\n',
        '"length, mm",b\n1,2\n3,4\n',
        "length of it,width of it\n1,2\n3,4\n",
        "a;b\n1;2\n3;4\n",
        "a|b\n1|2\n3|4\n",
        '"a; b",c\n1,2\n3,4\n',
        "# a,b\n1,2\n3,4\n",
        '"1","2"\n"3","4"\n',
        "\n\n1,2\n\n3,4\n\n",
        "# written by hand, 2 rows; 2 columns\n1,2\n# between\n3,4\n",
        "\ufeffa,b\n1,2\n3,4\n",
        "\ufeff1,2\n3,4\n",
        "größe,ширина\n1,2\n3,4\n",
        "1.0,+2e0\n30e-1,.4E1\n",
    ],
)
def test_same_table(table, text):
    matrix = table(text)
    assert (matrix.shape, matrix.dtype) == ((2, 2), np.float64)
    for _ in range(2):
        assert [block.tolist() for _, block in matrix.blocks(1)] == [[row] for row in ONE_TO_FOUR]
    assert matrix.read().tolist() == ONE_TO_FOUR
    assert matrix.rows([1, 0]).tolist() == [[3, 4], [1, 2]]


@pytest.mark.parametrize(
    ("text", "rows"), [("5\n6\n", [[5], [6]]), ("a\n5\n6\n", [[5], [6]]), ("5", [[5]]), ("a\n5", [[5]])]
)
def test_one_column(table, text, rows):
    assert table(text).read().tolist() == rows


def test_numbers_come_back_exactly(table):
    X = np.random.default_rng(0).standard_normal((200, 5)) * 10.0 ** np.arange(-200, 200, 80)
    text = "".join(",".join(map(repr, row)) + "\n" for row in X.tolist())
    np.testing.assert_array_equal(np.concatenate([block for _, block in table(text).blocks(33)]), X)


def test_is_streamed(table, monkeypatch):
    matrix = table("".join(f"{number}\n" for number in range(1, 1001)))
    most = []
    parse = np.loadtxt
    monkeypatch.setattr(
        np, "loadtxt", lambda lines, *args, **kwargs: most.append(len(lines)) or parse(lines, *args, **kwargs)
    )
    assert sum(len(block) for _, block in matrix.blocks(64)) == 1000
    assert max(most) == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected lines of numbers: check what wrote it"),
        ("\n\n# only remarks\n", "is empty; expected lines of numbers"),
        ("a,b\n", "is empty, 0 × 2; .*check what wrote it"),
        ("1,2\n3,x\n", "line 2, cell 2 is 'x'; expected a number: keep numeric columns only"),
        ("a,b\n1,2\n\n# remark\n3,x\n", "line 5, cell 2 is 'x'; expected a number"),
        ("1,2\n3,\n", "line 2, cell 2 is empty; expected a number: fill it in, or drop the line"),
        ("1,,3\n4,5,6\n", "line 1, cell 2 is empty; expected a number"),
        ("id,2019,2020\n1,2,3\n", "line 1, cell 1 is 'id'; .*only a line without numbers is detected as a header"),
        ("1,2\n3,4,5\n", "line 2 has 3 cells; expected 2, as in the first line: correct or drop it"),
        ("a,b,c\n1,2\n", "line 2 has 2 cells; expected 3, as in the first line"),
        ("1,2\n3,4\n5\n", "line 3 has 1 cells; expected 2"),
        ("1;2\n1,5;2\n", "line 2, cell 1 is '1,5': write numbers with a decimal point"),
        ("1,2\n1_0,2\n", "line 2, cell 1 is '1_0'; expected a number"),
        ("1,2\n0x10,2\n", "line 2, cell 1 is '0x10'; expected a number"),
        ("1,2\n3 4,5\n", "line 2, cell 1 is '3 4'; expected a number"),
        ("1,2\n" * 50 + "1\n" + "1,2\n", "line 51 has 1 cells; expected 2"),
        ("1,2\n1e400,2\n", "row 1, column 0 is inf "),
    ],
)
def test_bad_table(table, tmp_path, text, message):
    with pytest.raises(MatrixError, match=message) as error:
        list(table(text).blocks(7)), table(text).read()
    assert str(error.value).startswith(f"{tmp_path}/x.csv: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "encoding"), [("1,2\n3,4\n", "utf-16"), ("1,2\n" * 9000 + "ü,4\n", "latin-1")])
def test_encoding(table, text, encoding):
    with pytest.raises(MatrixError, match=r"x.csv: is not UTF-8 text .*: save it as UTF-8"):
        table(text, encoding).read()


@pytest.mark.parametrize("text", ["1,2\n#5,6\n3,4\n#7,8\n", "a,b\n1,2\n3,4\n# 5,6\n#7,8"])
def test_comments_that_look_like_rows_are_told(table, text):
    with pytest.warns(UserWarning, match=r"2 lines begin with # and are left out, the first is line [24]; quote"):
        matrix = table(text)
    assert matrix.read().tolist() == ONE_TO_FOUR
