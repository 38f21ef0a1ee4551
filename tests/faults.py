"""Faults that tests put into the source of a kernel, for `HostMachine(edit=…)`."""

import re
from functools import partial

from host_cuda import harness

__all__ = ["fault", "replaced"]


def fault(header, old, new="", occurrence=0):
    """Return what puts a source's headers in place, and in one of them `new` in the place of `old`."""
    return partial(_altered, header=header, old=old, new=new, occurrence=occurrence)


def replaced(text, old, new, occurrence, where):
    """Return a text with `new` in the place of one occurrence of `old`, from 0; `where` names the text in errors."""
    pieces = text.split(old)
    if len(pieces) <= occurrence + 1:  # no AssertionError: tests of faults expect one of what they run
        raise ValueError(f"{old!r} is not in {where}")
    return old.join(pieces[: occurrence + 1]) + new + old.join(pieces[occurrence + 1 :])


def _altered(source, *, header, old, new, occurrence):
    included = set()

    def inlined(match):
        name = match[1]
        if name in included:
            return ""
        included.add(name)
        text = (harness.ROOT / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        if name == header:
            text = replaced(text, old, new, occurrence, header)
        return put_in_place(text)

    def put_in_place(text):
        return re.sub(r'#include "((?:kernels|apps)/.*)"\n', inlined, text)

    text = put_in_place(source)
    if header not in included:
        raise ValueError(f"{header} is no header of the kernel")
    return text
