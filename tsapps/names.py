"""Names of files: extensions; arguments ``FILE:NAME``, which select the array NAME of a file; quoting for a shell."""

import os
import shlex

__all__ = ["COMPRESSED_TEXT", "TEXT", "extension_of", "shell_spelling", "split_name"]

#: Extensions of text tables, and of compressed ones.
TEXT = (".csv", ".tsv", ".txt")
COMPRESSED_TEXT = tuple(text + compressed for text in TEXT for compressed in (".gz", ".bz2", ".xz"))


def extension_of(file: str) -> str:
    """Return the extension of a file in lower case; that of a compressed text table has two parts."""
    name, extension = os.path.splitext(file.lower())
    both = os.path.splitext(name)[1] + extension
    return both if both in COMPRESSED_TEXT else extension


def split_name(path: str) -> tuple[str, str | None]:
    """Split ``FILE:NAME`` at the last colon whose left side is the path of an existing file.

    Names and paths may both contain colons and slashes; a path that exists as a whole has no name.

    Parameters
    ----------
    path : str

    Returns
    -------
    file : str
        The whole `path` if it exists, or if no part of it that ends before a colon exists.
    name : str or None
        None if `path` has no name; empty for ``FILE:``.

    Examples
    --------
    >>> split_name("/dev/null:dense/kernel:0")
    ('/dev/null', 'dense/kernel:0')
    """
    if not os.path.exists(path):
        place = path.rfind(":")
        while place > 0:
            if os.path.exists(path[:place]):
                return path[:place], path[place + 1 :]
            place = path.rfind(":", 0, place)
    return path, None


def shell_spelling(argument: str) -> str | None:
    r"""Return an argument quoted for a shell in printable characters; None if that is impossible.

    Quotes are used only if needed. Control characters and bytes that are not UTF-8 become ``$'\x1b'``, which bash,
    zsh and ksh support.
    """
    if "\0" in argument:
        return None
    argument = f"./{argument}" if argument.startswith("-") else argument
    if argument.isprintable():
        return shlex.quote(argument)
    try:
        argument.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    return "$'" + "".join(map(_ansi_c, argument)) + "'"


def _ansi_c(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))
