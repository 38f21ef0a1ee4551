"""The help of commands: groups of options, examples that run, the width, and completion in shells."""

import os
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command

from tsapps.cli import app
from tsapps.cli.help import EXAMPLES

GROUPS = ["Arguments", "Options", "Reading of DATA", "Computation", "Output", "Examples"]
# Examples that take long, or need a GPU or the CUDA compiler: only their options are parsed.
PARSED = ("tune", "compile", "abft-calibrate")


def sections(text):
    """Return the sections of a help text by their headlines."""
    found, name = {}, None
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            name = line[:-1]
            found[name] = []
        elif name is not None:
            found[name].append(line)
    return found


def test_options_are_in_groups(succeed):
    found = sections(succeed("kmeans", "--help"))
    assert list(found) == GROUPS
    for option, group in {
        "--init": "Options",
        "--help": "Options",
        "--scale": "Reading of DATA",
        "--header": "Reading of DATA",
        "--device": "Computation",
        "--protect": "Computation",
        "--labels": "Output",
        "--json": "Output",
    }.items():
        assert [
            name
            for name in found
            if any(
                option in line.split() or f"{option}," in line.split() for line in found[name] if line.startswith("  -")
            )
        ] == [group], option


@pytest.mark.parametrize(("columns", "width"), [(70, 70), (100, 100), (400, 120)])
def test_lines_are_as_wide_as_the_terminal(columns, width):
    environment = {**os.environ, "COLUMNS": str(columns)}
    done = subprocess.run(
        [sys.executable, "-m", "tsapps", "kmeans", "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    text = done.stdout.partition("Examples:")[0]  # examples are lines to copy
    assert width - 20 < max(map(len, text.splitlines())) <= width


def test_every_command_has_an_example(succeed):
    group = get_command(app)
    assert {*EXAMPLES, "bench"} == set(group.commands)
    for name, examples in EXAMPLES.items():
        assert all(f"  {example}\n" in succeed(name, "--help") for example in examples)


def test_examples_run(run, directory):
    random = np.random.default_rng(0)
    for file in ("points.npy", "more.npy"):
        np.save(directory / file, random.normal(size=(200, 3)))
    table = pd.DataFrame(random.normal(size=(50, 2)), columns=["spend", "visits"])
    table.insert(0, "customer", [f"c{number}" for number in range(50)])
    table.loc[4, "spend"] = np.nan
    table.to_csv(directory / "customers.csv", index=False)
    (directory / "checkpoints").mkdir()
    for number in range(3):
        np.save(directory / f"checkpoints/{number}.npy", random.normal(size=500))
    corrupted = None
    for command, examples in EXAMPLES.items():
        for example in examples:
            _, *arguments = shlex.split(example)
            if command in PARSED:
                get_command(app).commands[command].make_context(command, arguments[1:])
                continue
            result = run(*arguments)
            assert result.exit_code == 0, (example, result.output)
            corrupted = command
    assert corrupted == "info"
    assert (directory / "damaged.npy").read_bytes() == (directory / "points.npy").read_bytes()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tsapps km", "kmeans"),
        ("tsapps abft-e", "abft-encode"),
        ("tsapps kmeans --metr", "--metric"),
        ("tsapps kmeans x.npy --metric cos", "cosine"),
    ],
)
def test_completion(typed, completed):
    environment = {
        **os.environ,
        "_TSAPPS_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    program = "from tsapps.cli import app; app(prog_name='tsapps')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [completed]
