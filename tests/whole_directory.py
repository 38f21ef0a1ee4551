"""A directory of two files that is written atomically, for tests of replacing directories."""

from tsapps.kernels.system.atomic_write import replacing_directory

NAMES = {"a.npy", "summary.json"}


def write_directory(path, text):
    with replacing_directory(path, NAMES) as directory:
        for name in NAMES:
            (directory / name).write_text(text)


def assert_directory(path, text):
    assert {entry.name: entry.read_text() for entry in path.iterdir()} == dict.fromkeys(NAMES, text)
