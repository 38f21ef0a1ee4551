"""Usage errors of every command: one line on stderr and exit code 2."""

from typing import ClassVar

import numpy as np
import pytest

from tsapps.cli import app
from tsapps.errors import ExitCode

# Arguments of a correct call of each command.
COMMANDS = {
    "kmeans": ["iris.npy", "--k", "3"],
    "predict": ["model", "iris.npy"],
    "report": ["model", "iris.npy"],
    "abft-encode": ["iris.npy"],
    "abft-verify": ["iris.npy"],
    "abft-correct": ["iris.npy", "--in-place"],
    "abft-inject": ["iris.npy", "--in-place"],
    "abft-calibrate": [],
    "protect": ["iris.npy"],
    "verify": ["iris.npy"],
    "repair": ["iris.npy"],
    "sample": ["iris", "out.npy"],
    "info": [],
    "tune": ["--dry-run"],
    "compile": [],
}
WITH_ARGUMENTS = [command for command, arguments in COMMANDS.items() if arguments and command != "tune"]
WITHOUT_JSON = ["sample", "report"]
# An option with a value that it does not accept.
BAD_VALUES = {
    "kmeans": ["--k=many", "--k=0", "--tol=-1", "--metric=cosin", "--max-iter=1.5", "--seed=-1", "--precision="],
    "abft-encode": ["--weights=5", "--code=exactly", "--block=100"],
    "abft-inject": ["--count=0", "--fault=bits"],
    "protect": ["--hash=md5", "--jobs=0"],
    "verify": ["--jobs=none"],
    "abft-calibrate": ["--rows=1", "--dtype=float8", "--p=2", "--p=nan", "--confidence=1"],
    "compile": ["--dtype=int8", "--init=last", "--precision=half"],
    "tune": ["--shape=square", "--m=0", "--most=no"],
}


def test_every_command_is_listed():
    assert set(COMMANDS) == {one.name or one.callback.__name__.replace("_", "-") for one in app.registered_commands}


def refused(refuse, command, arguments, *expected):
    line = refuse(ExitCode.USAGE, command, *arguments)
    assert line.endswith(f" (try tsapps {command} --help)\n")
    assert all(one in line for one in expected), line
    return line


@pytest.mark.parametrize("command", COMMANDS)
class TestEveryCommand:
    def test_an_unknown_option(self, refuse, command):
        refused(refuse, command, [*COMMANDS[command], "--no-such"], "no such option: --no-such")

    def test_a_misspelt_option(self, refuse, command):
        refused(
            refuse,
            command,
            [*COMMANDS[command], "--jsn"],
            "no such option: --jsn",
            "--json" if command not in WITHOUT_JSON else "",
        )

    def test_a_value_for_a_flag(self, refuse, command):
        flag = "--force" if command in WITHOUT_JSON else "--json"
        refused(refuse, command, [*COMMANDS[command], f"{flag}=yes"], flag, "does not take a value")


# These take any number.
@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one not in ("abft-verify", "protect", "verify", "repair")]
)
def test_an_argument_too_many(refuse, command):
    refused(refuse, command, [*COMMANDS[command], "one-too-many"], "unexpected extra argument", "one-too-many")


@pytest.mark.parametrize("command", WITH_ARGUMENTS)
def test_an_argument_is_missing(refuse, command):
    refused(refuse, command, [], "missing argument")


@pytest.mark.parametrize("command", ["kmeans"])
def test_an_option_is_missing(refuse, command):
    refused(refuse, command, ["iris.npy"], "missing option '--k'")


@pytest.mark.parametrize(("command", "option"), [("kmeans", "--k"), ("abft-encode", "--out"), ("tune", "--m")])
def test_a_value_is_missing(refuse, command, option):
    refused(refuse, command, [*COMMANDS[command], option], option, "requires an argument")


@pytest.mark.parametrize(
    ("command", "option"), [(one, option) for one, options in BAD_VALUES.items() for option in options]
)
def test_a_bad_value(refuse, iris, command, option):
    line = refuse(ExitCode.USAGE, command, *COMMANDS[command], option)
    assert option.partition("=")[0] in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["kmean"], ["no such command 'kmean'", "'kmeans'"]),
        (["zzz"], ["no such command 'zzz'"]),
        (["kme\nans"], ["no such command"]),
        (["--no-such"], ["no such option: --no-such"]),
        (["--version=1"], ["--version"]),
        (["--"], ["missing command"]),
    ],
)
def test_before_any_command(refuse, arguments, expected):
    line = refuse(ExitCode.USAGE, *arguments)
    assert line.endswith(" (try tsapps --help)\n")
    assert all(one in line for one in expected), line


def test_no_arguments_print_the_help(run):
    assert run().output == run("--help").output


class TestPathsThatNameNoMatrix:
    """Wrong paths, for every command that reads a matrix."""

    COMMANDS: ClassVar = {
        "kmeans": ["PATH", "--k", "1"],
        "predict": ["model", "PATH"],
        "abft-encode": ["PATH", "--out", "new.abft"],
        "abft-verify": ["PATH"],
        "abft-correct": ["PATH", "--out", "new.npy"],
        "abft-inject": ["PATH", "--out", "new.npy"],
    }

    @pytest.fixture(autouse=True)
    def files(self, directory, succeed):
        X = np.arange(12.0).reshape(4, 3)
        np.save("x.npy", X)
        np.savez("several.npz", A=X, B=X)
        (directory / "x.xyz").write_bytes(b"content")
        (directory / "folder").mkdir()
        (directory / "empty.npz").write_bytes(b"")
        for name in ("x.npy", "x.xyz", "several.npz", "several.npz-C", "folder", "x.npy-X", "no.npy"):
            succeed("abft-encode", "x.npy", "--force", "--out", f"{name}.abft")
        succeed("kmeans", "x.npy", "--k", "1", "--out", "model")

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("no.npy", "no such file"),
            ("folder", "is a directory"),
            ("x.xyz", "unknown extension '.xyz'"),
            ("several.npz", "holds several arrays, A, B: name one, for example several.npz:A"),
            ("several.npz:C", "holds no array 'C'"),
            ("x.npy:X", "a .npy file holds one matrix: omit ':X'"),
        ],
    )
    def test_wrong_use(self, refuse, path, message):
        for command, arguments in self.COMMANDS.items():
            line = refuse(ExitCode.USAGE, command, *(path if one == "PATH" else one for one in arguments))
            assert line.startswith(f"tsapps: {path.removesuffix(':C')}: ")
            assert message in line

    @pytest.mark.parametrize("option", ["--init", "--weights"])
    def test_in_an_option(self, refuse, option):
        assert "unknown extension" in refuse(ExitCode.USAGE, "kmeans", "x.npy", "--k", "1", option, "x.xyz")

    def test_bad_bytes_are_no_wrong_use(self, refuse):
        refuse(ExitCode.FAILURE, "kmeans", "empty.npz", "--k", "1")
