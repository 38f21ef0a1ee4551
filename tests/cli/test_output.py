"""What is shown while a command works."""

import io
import sys

import pytest

from tsapps.cli import output


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_one_live_line(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with output.live_line(quiet=False) as show:
        show("[first] :smile:")
        show("second, which is too long for a line of only sixty characters")
    shown = terminal.getvalue()
    assert "second, which" in shown
    assert "sixty characters" not in shown
    assert "tsapps" not in shown


@pytest.mark.parametrize("quiet", [True, False])
def test_a_log_sees_nothing_of_a_short_run(monkeypatch, quiet):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with output.live_line(quiet=quiet) as show:
        for text in "abc":
            show(text)
    assert log.getvalue() == ""


def test_a_log_sees_sparse_lines_of_a_long_run(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    with output.live_line(quiet=False) as show:
        for number in range(8):
            show(f"iteration {number}")
    lines = log.getvalue().splitlines()
    assert 1 < len(lines) < 8
    assert all(line.startswith("tsapps: iteration ") for line in lines)


def test_json_refuses_what_json_has_not():
    with pytest.raises(ValueError, match="JSON"):
        output.print_json({"inertia": float("inf")})
