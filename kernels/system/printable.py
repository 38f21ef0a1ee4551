"""Foreign text (names in files, paths, words of libraries) as printable text: no terminal acts on what it holds."""

from unicodedata import category

__all__ = ["OneLineError", "one_line", "shown"]

# Names of arrays and columns that are longer are shortened.
_MOST_SHOWN = 120


def one_line(text: object) -> str:
    r"""Return text in one line of printable characters.

    Line ends become spaces; every other character that is neither printable nor a space, control characters, BiDi
    controls and lone surrogates among them, is escaped as Python does: ``\x1b``. Nothing is shortened.
    """
    line = " ".join(str(text).splitlines())
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in line)


def shown(name: object) -> str:
    """Return a name as messages show it: in `one_line`, and without its middle if it is long."""
    text = one_line(name)
    if len(text) <= _MOST_SHOWN:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]}…{text[1 - half :]}"


class OneLineError(ValueError):
    """An error whose message is one line, whatever the bytes of a file are that it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
