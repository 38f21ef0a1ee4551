"""Escaping of untrusted text (paths, names in files, library messages), so that it cannot control a terminal."""

from unicodedata import category

__all__ = ["OneLineError", "one_line", "shown"]

# Maximum number of characters of a name in a message; longer names are shortened.
_MOST_SHOWN = 120


def one_line(text: object) -> str:
    r"""Return text in one line of printable characters.

    Line ends become spaces. Other characters that are neither printable nor spaces (control characters, BiDi controls,
    lone surrogates) are escaped as in Python: ``\x1b``. Nothing is shortened.
    """
    line = " ".join(str(text).splitlines())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in line)


def shown(name: object) -> str:
    """Return a name for a message, by `one_line`; an ellipsis replaces the middle of a long name."""
    text = one_line(name)
    if len(text) <= _MOST_SHOWN:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]}…{text[1 - half :]}"


class OneLineError(ValueError):
    """An error with a one-line, printable message, even if it quotes arbitrary bytes of a file."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
