"""Shell transcripts of documents: `$ ` lines are run, and what follows them is compared with what they print.

In a transcript `…` stands for any text within a line, and for any lines where it is alone. Numbers of a line that
begins with ``seconds`` match any numbers. A command without lines of output has to succeed.
"""

import re
import subprocess
from pathlib import Path

__all__ = ["commands_of", "matches", "run"]

# Follows the output of each command, with its exit status.
_END = "end-of-command"
_NUMBER = re.compile(r"\d[\d,.]*")


def commands_of(transcript: str) -> list[tuple[str, list[str]]]:
    """Return each command of a transcript, which a backslash at its end continues, with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    continued = False
    for line in transcript.rstrip("\n").split("\n"):
        if continued:
            command, printed = found[-1]
            found[-1] = f"{command}\n{line.removeprefix('> ')}", printed
        elif line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line.rstrip())
        else:
            raise ValueError(f"a transcript begins with a command ('$ …'), not with {line!r}")
        continued = (line.startswith("$ ") or continued) and line.endswith("\\")
    return found


def matches(expected: list[str], printed: list[str]) -> bool:
    """Return whether printed lines are the expected ones."""
    if not expected:
        return not printed
    if expected[0] == "…":
        return any(matches(expected[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and _line_matches(expected[0], printed[0]) and matches(expected[1:], printed[1:])


def _line_matches(expected: str, printed: str) -> bool:
    if expected.startswith("seconds"):
        expected, printed = (_NUMBER.sub("0", line) for line in (expected, printed))
    pattern = ".*".join(re.escape(part) for part in expected.split("…"))
    return re.fullmatch(pattern, printed.rstrip()) is not None


def run(transcript: str, directory: Path, environment: dict[str, str]) -> list[str]:
    """Run a transcript in one shell in a directory; return what differs, a text per command."""
    differences = []
    commands = commands_of(transcript)
    script = "".join(f"{command}\n_status=$?; echo; echo {_END} $_status; (exit $_status)\n" for command, _ in commands)
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    *outputs, rest = re.split(rf"\n{_END} (\d+)\n", done.stdout)
    for (command, expected), output, status in zip(commands, outputs[::2], outputs[1::2], strict=False):
        printed = [line.rstrip() for line in output.rstrip("\n").split("\n")] if output.strip("\n") else []
        expected = "\n".join(expected).rstrip("\n").split("\n") if any(expected) else []
        if not matches(expected, printed) if expected else status != "0":
            differences.append("\n".join([f"$ {command}", "expected:", *expected, "printed:", *printed]))
    if len(outputs) < 2 * len(commands) or rest.strip():
        differences.append(f"the shell ended early:\n{done.stdout}")
    return differences
