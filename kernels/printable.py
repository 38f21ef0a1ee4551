"""Foreign text (names in files, paths, words of libraries) as printable text: no terminal acts on what it holds."""

from unicodedata import category

__all__ = ["OneLineError", "escaped", "one_line", "shown"]

# Names of arrays and columns that are longer are shortened.
_MOST_SHOWN = 120


def escaped(text: object) -> str:
    r"""Return text with every character that is neither printable nor a space as Python escapes it: ``\x1b``.

    Line ends, control characters, BiDi controls and lone surrogates are among these. Nothing is shortened.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else ascii(c)[1:-1] for c in text)


def one_line(text: object) -> str:
    """Return a message in one line of printable characters: line ends become spaces, all else is `escaped`."""
    return escaped(" ".join(str(text).splitlines()))


def shown(name: object) -> str:
    """Return a name as messages show it: `escaped`, and without its middle if it is long."""
    text = escaped(name)
    if len(text) <= _MOST_SHOWN:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]}…{text[1 - half :]}"


class OneLineError(ValueError):
    """An error whose message is one line, whatever the bytes of a file are that it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
