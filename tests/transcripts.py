"""Shell transcripts of documents: `$ ` lines are run, and what follows them is compared with what they print.

In a transcript `…` stands for any text within a line, and for any lines where it is alone. Numbers of a line that begins
with ``seconds`` match any numbers.
"""

import re
import subprocess
from pathlib import Path

__all__ = ["commands_of", "matches", "run"]

_NUMBER = re.compile(r"\d[\d,.]*")


def commands_of(transcript: str) -> list[tuple[str, list[str]]]:
    """Return each command of a transcript with the lines that it is said to print; a trailing backslash continues it."""
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
    marker = "end-of-command"
    script = "".join(f"{command}\n_status=$?; echo; echo {marker}; (exit $_status)\n" for command, _ in commands)
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
    outputs = done.stdout.split(f"\n{marker}\n")
    for (command, expected), output in zip(commands, outputs, strict=False):
        printed = [line.rstrip() for line in output.rstrip("\n").split("\n")] if output.strip("\n") else []
        expected = "\n".join(expected).rstrip("\n").split("\n") if any(expected) else []
        # A command whose output a document leaves out is only run.
        if expected and not matches(expected, printed):
            differences.append("\n".join([f"$ {command}", "expected:", *expected, "printed:", *printed]))
    if len(outputs) <= len(commands):
        differences.append(f"the shell ended early:\n{done.stdout}")
    return differences
