"""Progress output of commands, and formatting of results."""

import io
import re
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
def test_a_short_run_logs_nothing(monkeypatch, quiet):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with output.live_line(quiet=quiet) as show:
        for text in "abc":
            show(text)
    assert log.getvalue() == ""


def test_a_long_run_logs_sparse_lines(monkeypatch):
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


def test_a_terminal_sees_a_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with output.byte_bar(quiet=False) as show:
        show("verifying [x]", 0, 4_000_000)
        show("copying [x]", 3_000_000, 4_000_000)
    assert "copying [x]" in terminal.getvalue()
    assert "3.0/4.0 MB" in terminal.getvalue()


def test_a_log_shows_the_bytes_done(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    now = iter(range(0, 1000, 6))
    monkeypatch.setattr(output.time, "monotonic", lambda: next(now))
    with output.byte_bar(quiet=False) as show:
        for number in range(1, 5):
            show("copying", number * 10**9, 4 * 10**9)
    assert log.getvalue().splitlines() == ["tsapps: copying: 2.00 GB of 4.00 GB", "tsapps: copying: 4.00 GB of 4.00 GB"]


def test_a_quiet_bar_shows_nothing(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with output.byte_bar(quiet=True) as show:
        show("copying", 1, 2)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (20_480_000_000, "20.48 GB")]
)
def test_formatting_of_bytes(count, text):
    assert output.gigabytes(count) == text


def test_json_rejects_infinity():
    with pytest.raises(ValueError, match="JSON"):
        output.print_json({"inertia": float("inf")})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (236, "3 min 56 s"),
        (7500, "2 h 5 min"),
        (3.6e6, "1,000 h 0 min"),
    ],
)
def test_durations(seconds, text):
    assert output.duration(seconds) == text


@pytest.fixture
def logged(monkeypatch):
    """Return a function that returns all lines that commands have logged on stderr."""
    log = io.StringIO()
    monkeypatch.setattr(output, "_LOG_SECONDS", 0)
    monkeypatch.setattr(output, "print", lambda text, **_: log.write(f"{text}\n"), raising=False)
    return lambda: log.getvalue().splitlines()


def test_iterations_say_how_long_they_can_still_take(logged, succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 3, "--init", "random", "--n-init", 2, "--max-iter", 200)
    lines = [line for line in logged() if "iteration" in line]
    assert re.fullmatch(r"tsapps: iteration 1 of at most 200: inertia [\d.]+, 150 labels changed", lines[0])
    assert re.fullmatch(r".* iteration 2 of .* changed, [\de.-]+ s each, at most \d+ s left", lines[1])
    (again,) = [line for line in lines if "run 2, iteration 1 of" in line]
    assert again.endswith("labels changed")


def test_centers_say_how_many_are_chosen(logged, succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 5, "--n-init", 2)
    lines = [line for line in logged() if "chosen" in line]
    assert [re.sub(r", [\d.e-]+ s each, about 1 s left", " …", line) for line in lines] == [
        f"tsapps: {run}k-means++: centers chosen ({done} of 5){rate}"
        for run in ("", "run 2, ")
        for done, rate in ((2, ""), (3, " …"), (4, " …"), (5, ""))
    ]


def test_passes_of_k_means_parallel(logged, succeed, iris):
    succeed("kmeans", "iris.npy", "-k", "2:3", "--init", "k-means||")
    lines = [line for line in logged() if "passes" in line]
    assert [line.partition(" s each")[0].rpartition(", ")[0] or line for line in lines[:3]] == [
        "tsapps: k = 3: k-means||: passes (1 of 5)",
        "tsapps: k = 3: k-means||: passes (2 of 5)",
        "tsapps: k = 3: k-means||: passes (3 of 5)",
    ]


def test_fits_of_reference_data_sets(logged, succeed, iris):
    succeed("kmeans", "iris.npy", "-k", "2:3", "--gap", 2)
    fits = [
        line.removeprefix("tsapps: ").partition(": k-means++: initial")[0] for line in logged() if "initial" in line
    ]
    references = [f"reference {number} of 2, k = {k}" for number in (1, 2) for k in (3, 2)]
    assert fits == ["k = 3", "k = 2", *references]


def test_a_quiet_command_chooses_in_silence(logged, succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 5, "--quiet")
    assert logged() == []
