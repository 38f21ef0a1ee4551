"""--verbose: lines on stderr about what the package logs; all else is as without it."""

import io
import json
import logging
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tsapps.cli import verbose
from tsapps.errors import ExitCode
from tsapps.kernels.system.logs import PACKAGE

LINE = re.compile(r"tsapps: \[\d+\.\d\d s\] (.+)")


def lines(result):
    """Return what follows the seconds of each line on stderr; every line has them."""
    found = [LINE.fullmatch(line) for line in result.stderr.splitlines()]
    assert all(found), result.stderr
    return [one[1] for one in found]


def without_seconds(text):
    return [line for line in text.splitlines() if "seconds" not in line]


def test_what_a_fit_says(run, iris):
    result = run("kmeans", "iris.npy", "-k", 3, "-v")
    said = lines(result)
    assert said[0].startswith("opened iris.npy: 150 × 4 float64 in 0.")
    assert said[1] == "iris.npy: 150 × 4 float64, computed in float64, metric euclidean"
    assert said[2].startswith("iris.npy: device cpu: CuPy is not installed")
    assert "k = 3: step host: small data follows scikit-learn's rounding" in said
    assert any(re.fullmatch(r"k = 3: \d+ iterations, converged, inertia 78\.85\d+; prepare .*", one) for one in said)
    assert said[-1] == f"wrote {Path('iris-kmeans').resolve()}"
    assert not [one for one in said if ".tmp" in one]
    quiet = run("kmeans", "iris.npy", "-k", 3, "--force")
    assert quiet.stderr == ""
    assert without_seconds(result.stdout) == without_seconds(quiet.stdout)


@pytest.mark.parametrize("args", [("kmeans", "-vv"), ("-v", "kmeans", "-v"), ("-vv", "kmeans"), ("kmeans", "-v", "-v")])
def test_twice_is_with_details(run, iris, args):
    result = run(*args, "iris.npy", "-k", 3)
    said = lines(result)
    assert any(re.fullmatch(r"apps\.kmeans\.run: after iteration \d+: squared center shift .*", one) for one in said)
    assert any(one.startswith("matrix.registry: opened iris.npy: ") for one in said)


@pytest.mark.parametrize("args", [("-v", "kmeans"), ("kmeans", "--verbose")])
def test_once_is_without(run, iris, args):
    said = lines(run(*args, "iris.npy", "-k", 3))
    assert len(said) > 4
    assert not [one for one in said if "center shift" in one]


def test_a_sweep_says_what_it_scores(run, iris):
    said = lines(run("kmeans", "iris.npy", "-k", "2:4", "-v"))
    assert [one.partition(":")[0] for one in said if "iterations" in one] == ["k = 4", "k = 3", "k = 2"]
    assert any(one.startswith("scored k = 2, 3, 4 in ") for one in said)
    assert sum(one.startswith("copied iris.npy to cpu") for one in said) == 1


def test_json_is_unchanged(run, iris):
    result = run("kmeans", "iris.npy", "-k", 3, "--json", "-vv")
    plain = run("kmeans", "iris.npy", "-k", 3, "--json", "--force")
    shown, expected = json.loads(result.stdout), json.loads(plain.stdout)
    for one in (shown, expected):
        del one["seconds"], one["command"]
    assert shown == expected


def test_quiet_turns_progress_off_alone(run, iris):
    result = run("kmeans", "iris.npy", "-k", 3, "-qv")
    assert result.stdout == ""
    assert lines(result)


def test_predict(run, iris):
    run("kmeans", "iris.npy", "-k", 3)
    said = lines(run("predict", "iris-kmeans", "iris.npy", "-v"))
    assert "k = 3: one pass, step host: small data follows scikit-learn's rounding" in said
    assert any(one.startswith("labeled 150 rows in ") for one in said)
    assert said[-1] == f"wrote {Path('iris-labels.npy').resolve()}"


def test_files(run, iris, flip):
    place = Path.cwd()
    said = lines(run("protect", "iris.npy", "-vv"))
    assert "apps.abft.files.scan: read iris.npy: 4,928 bytes, blake3" in said
    assert f"kernels.system.atomic_write: wrote {place / 'iris.npy.sidecar'}" in said
    assert any(one.startswith("finished . in 0.") for one in lines(run("verify", "iris.npy", "-v")))
    flip("iris.npy", 1000)
    result = run("repair", "iris.npy", "-v")
    assert result.exit_code == ExitCode.CORRUPTION
    assert f"wrote {place / 'iris.npy'}" in lines(result)


def test_checksums(run, iris):
    said = lines(run("abft-encode", "iris.npy", "--device", "cpu", "-v"))
    assert "device cpu: the CPU was asked for" in said
    assert any(one.startswith("computed the checksums (exact) of iris.npy in ") for one in said)
    said = lines(run("abft-verify", "iris.npy", "-v"))
    assert any(one.startswith("compared iris.npy with its checksums in ") for one in said)


def test_an_error_is_said_as_ever(run):
    result = run("kmeans", "missing.npy", "-k", 3, "-v")
    assert result.exit_code == ExitCode.USAGE
    assert result.stderr == "tsapps: missing.npy: no such file: check the path\n"


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_remains_after_a_command(run, iris, fails):
    package, root = logging.getLogger(PACKAGE), logging.getLogger()
    before = list(package.handlers), package.level, list(root.handlers)
    run("kmeans", "iris.npy", "-k", 1000 if fails else 3, "-vv")
    assert (list(package.handlers), package.level, list(root.handlers)) == before


def test_names_of_others_stay_on_one_line(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with verbose.showing_logs():
        verbose.show_logs(1)
        logging.getLogger("tsapps.a.test").info("wrote %s", "a\nb\x1b[31m")
        logging.getLogger("tsapps.a.test").warning("a fault")
        logging.getLogger("other").warning("not of the package")
    first, second = log.getvalue().splitlines()
    assert LINE.fullmatch(first)[1] == r"wrote a b\x1b[31m"
    assert LINE.fullmatch(second)[1] == "warning: a fault"


def test_every_command_with_quiet_has_it(succeed):
    from typer.main import get_command

    from tsapps.cli import app

    for name, command in get_command(app).commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--verbose" in options) == ("--quiet" in options), name
    assert "-v, --verbose" in succeed("--help")


def test_a_large_table_of_labels_is_a_file_that_was_written(run, iris):
    said = lines(run("kmeans", "iris.npy", "-k", 3, "--labels", "labels.csv", "-v"))
    assert f"wrote {Path('labels.csv').resolve()}" in said
    assert np.load("iris-kmeans/labels.npy").shape == (150,)
