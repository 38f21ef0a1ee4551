"""Lines on measurements without a record."""

import pytest

from tsapps.bench.common.outcome import LEFT_OUT, WRONG, LeftOutError, NotRightError, check_memory, missing


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (NotRightError("off by 2"), "a: wrong, not recorded: off by 2"),
        (LeftOutError("only on a GPU"), "a: left out, only on a GPU"),
        (MemoryError("8 GiB asked for"), "a: not measured: MemoryError: 8 GiB asked for"),
        (MemoryError(), "a: not measured: MemoryError: out of memory"),
        (ValueError("no kernel\nat all"), "a: not measured: ValueError: no kernel"),
        (RuntimeError("x" * 500), "a: not measured: RuntimeError: " + "x" * 160),
    ],
)
def test_lines(error, line):
    assert missing("a", error) == line
    assert (WRONG in line) == isinstance(error, NotRightError)
    assert (LEFT_OUT in line) == isinstance(error, LeftOutError)


def test_memory():
    check_memory(5 << 30, 5 << 30)
    with pytest.raises(LeftOutError, match=r"needs about 5\.0 GiB of memory, 4\.5 are free"):
        check_memory(5 << 30, 9 << 29)
