"""Digests of machine code: ``python tests/golden/machine_code.py CACHE`` prints those of every kernel compiled there.

CACHE is a cache directory of this project after ``XDG_CACHE_HOME=… pytest -m compile``: it holds cubins, ELF files with
a section ``.text.NAME`` for each kernel. A change that only moves or renames has the same digests as the commit before:
``--compare FILE`` tells which of FILE, an earlier output, are gone and which are new. Names are for the reader: the
digests alone are compared.
"""

import argparse
import hashlib
import json
import struct
import sys
from collections import Counter
from pathlib import Path

_TEXT = ".text."


def text_sections(elf: bytes) -> dict[str, bytes]:
    """Return the machine code in a cubin by the kernels' mangled names."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", elf, headers + size * number) for number in range(count)]
    names = sections[of_names][4]
    found = {}
    for name, _, _, _, offset, length in sections:
        text = elf[names + name : elf.index(b"\0", names + name)].decode()
        if text.startswith(_TEXT):
            found[text.removeprefix(_TEXT)] = elf[offset : offset + length]
    return found


def digests(cache: Path) -> dict[str, dict[str, list[str]]]:
    """Return {architecture: {digest: names of the kernels that have it}} of all cubins in a directory."""
    found: dict[str, dict[str, set[str]]] = {}
    for cubin in sorted(cache.rglob("*.cubin")):
        flags = json.loads(cubin.with_suffix(".json").read_bytes())["flags"]
        arch = next(flag.removeprefix("-arch=") for flag in flags if flag.startswith("-arch="))
        for name, code in text_sections(cubin.read_bytes()).items():
            of_arch = found.setdefault(arch, {})
            of_arch.setdefault(hashlib.sha256(code).hexdigest()[:32], set()).add(name)
    return {arch: {digest: sorted(names) for digest, names in sorted(all_of.items())} for arch, all_of in found.items()}


def changes(before: dict, after: dict) -> list[str]:
    """Return a line for each digest that is gone or new."""
    lines = []
    for arch in sorted(before.keys() | after.keys()):
        old, new = before.get(arch, {}), after.get(arch, {})
        lines += [f"{arch} gone: {', '.join(old[digest])}" for digest in sorted(old.keys() - new.keys())]
        lines += [f"{arch} new: {', '.join(new[digest])}" for digest in sorted(new.keys() - old.keys())]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cache", type=Path)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier output")
    given = parser.parse_args()
    found = digests(given.cache)
    if given.compare is None:
        print(json.dumps(found, indent=1))
        return
    lines = changes(json.loads(given.compare.read_bytes()), found)
    print("\n".join(lines) or "the same machine code:", Counter({arch: len(all_of) for arch, all_of in found.items()}))
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
