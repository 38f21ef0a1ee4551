"""Durability of atomic writes: every writer flushes files and directories to the disk."""

import json
import os

import numpy as np
import pytest

from tsapps.apps.abft.at_rest.sidecar import write_sidecar
from tsapps.apps.abft.at_rest.verify import encode
from tsapps.bench.common import record
from tsapps.cli import result
from tsapps.kernels.plan import user_table
from tsapps.kernels.system import atomic_write
from tsapps.matrix import save_npy


# Every atomic writer as `write(path, value)`.
def write_record(path, value):
    common = {name: "2026-11-26" if name == "date" else types[0]() for name, types in record.COMMON.items()}
    record.store(path, common | {"value": value}, ["value"], {})


def write_result(path, value):
    with result.new_directory(path, force=True) as directory:
        save_npy(directory / "labels.npy", np.full(3, value))
        (directory / "summary.json").write_text(json.dumps({"kind": result.KIND}))


WRITERS = {
    "save_npy": lambda path, value: save_npy(path, np.full(3, value)),
    "write_sidecar": lambda path, value: write_sidecar(path, encode(np.full((2, 2), value))),
    "write_table": lambda path, value: user_table.write_table(path, [{"value": value}]),
    "record": write_record,
    "new_directory": write_result,
}


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_is_durable(tmp_path, monkeypatch, writer, old):
    """The content is flushed to the disk, then renamed, and then the directory is flushed."""
    path, events = tmp_path / "x", []
    if old:
        WRITERS[writer](path, 1.0)

    def watch(module, name, event_of):
        call = getattr(module, name)

        def watched(*args, **options):
            events.append(event_of(*args))
            return call(*args, **options)

        monkeypatch.setattr(module, name, watched)

    watch(os, "fsync", lambda descriptor: ("fsync", os.path.realpath(f"/proc/self/fd/{descriptor}")))
    for name in ("link", "replace", "rename"):
        watch(os, name, lambda source, target: ("name", os.fspath(target)))
    watch(atomic_write, "_swap", lambda source, target: ("name", os.fspath(target)))
    WRITERS[writer](path, 2.0)
    named = events.index(("name", str(path)))
    assert events[-1] == ("fsync", str(tmp_path))
    assert any(what == "fsync" and where != str(tmp_path) for what, where in events[:named])
    if writer == "new_directory":
        synced = {os.path.basename(where) for what, where in events[:named] if what == "fsync"}
        assert {"labels.npy", "summary.json"} <= synced
