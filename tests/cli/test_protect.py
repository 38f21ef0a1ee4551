"""`tsapps protect`, `verify` and `repair`: status lines, JSON, exit codes and errors."""

import hashlib
import json
import os

import numpy as np
import pytest

from tsapps.apps.abft.files.manifest import MANIFEST
from tsapps.errors import ExitCode

CORRUPT = ExitCode.CORRUPTION


@pytest.fixture
def model(directory, rng):
    """A directory `model` of three protected files."""
    (directory / "model" / "below").mkdir(parents=True)
    np.save("model/a.npy", np.arange(1000.0))
    (directory / "model" / "config.json").write_bytes(b'{"layers": 12}')
    (directory / "model" / "below" / "b.bin").write_bytes(rng.bytes(10_000))
    return directory / "model"


def flip(path, offset=500):
    """Flip a bit of a file, and keep its time of modification."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def test_by_hand(succeed, run, model):
    out = succeed("protect", "model").splitlines()
    assert [line.split()[:2] for line in out[:-1]] == [
        ["protected", "model/a.npy"],
        ["protected", "model/config.json"],
        ["protected", "model/below/b.bin"],
    ]
    assert out[-1].startswith("3 protected; 18.14 kB in ")
    assert succeed("verify", "model").splitlines()[0].split() == ["ok", "model/a.npy", "8.13", "kB"]
    flip(model / "a.npy")
    result = run("verify", "model")
    assert result.exit_code == CORRUPT
    assert result.stdout.splitlines()[0] == (
        "corrupt      model/a.npy: has other bytes than it had when it was protected, in 1 word (tensors array): "
        "tsapps repair restores it"
    )
    result = run("repair", "model")
    assert result.exit_code == CORRUPT
    assert result.stdout.splitlines()[0].endswith("in 1 word (tensors array): restored from its sidecar")
    np.testing.assert_array_equal(np.load(model / "a.npy"), np.arange(1000.0))
    assert succeed("repair", "model")


def test_json(succeed, run, model):
    *files, summary = lines_of(succeed("protect", "model", "--json"))
    assert [one["state"] for one in files] == ["protected"] * 3
    assert files[0]["path"] == str(model / "a.npy")
    assert (summary["what"], summary["states"], summary["code"]) == ("summary", {"protected": 3}, 0)
    flip(model / "below" / "b.bin")
    lines = lines_of(run("verify", "model", "--json").stdout)
    (wrong,) = (one for one in lines if one.get("state") == "corrupt")
    assert (wrong["what"], wrong["words"], wrong["tensors"]) == ("file", 1, [])
    assert lines[-1]["code"] == CORRUPT


def test_quiet_says_only_what_is_wrong(run, succeed, model):
    assert succeed("protect", "model", "--quiet") == ""
    assert succeed("verify", "model", "-q") == ""
    flip(model / "a.npy")
    result = run("verify", "model", "-q")
    assert (result.exit_code, result.stdout) == (CORRUPT, "")
    assert result.stderr.startswith("tsapps: model/a.npy: corrupt: ")
    assert result.stderr.count("\n") == 1


def test_parity_rebuilds_a_lost_file(run, succeed, model):
    before = (model / "a.npy").read_bytes()
    succeed("protect", "model", "--parity", "1/8")
    (model / "a.npy").unlink()
    result = run("repair", "model")
    assert result.exit_code == CORRUPT
    assert "repaired     model/a.npy: is missing: restored from parity" in result.stdout
    assert (model / "a.npy").read_bytes() == before
    succeed("verify", "model")


def test_sidecars_elsewhere(succeed, run, directory, model):
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    succeed("protect", "model", "--sidecars", "kept")
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before
    succeed("verify", "model", "--sidecars", "kept")
    assert run("verify", "model").exit_code == ExitCode.USAGE


def test_sidecars_of_another_directory_are_skipped(succeed, run, directory, model):
    (directory / "other").mkdir()
    (directory / "other" / "c.bin").write_bytes(b"content")
    succeed("protect", "other", "--sidecars", "model/kept")
    before = {path: path.read_bytes() for path in (model / "kept").rglob("*")}
    line = "skipped      model/kept: holds the sidecars of another directory: is left alone, with all in it"
    for arguments in (("protect", "model"), ("protect", "model", "--update"), ("verify", "model"), ("repair", "model")):
        assert line in succeed(*arguments).splitlines()
    assert succeed("verify", "-q", "model") == ""
    assert {path: path.read_bytes() for path in (model / "kept").rglob("*")} == before
    (directory / "other" / "c.bin").write_bytes(b"Content")
    assert run("verify", "other", "--sidecars", "model/kept").exit_code == CORRUPT


@pytest.mark.parametrize("command", [("verify",), ("repair",), ("protect",), ("protect", "--update")], ids=" ".join)
def test_a_manifest_of_a_later_version_is_an_error(succeed, run, model, command):
    succeed("protect", "model")
    content = json.loads((model / MANIFEST).read_text()) | {"version": 2}
    del content["digest"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (model / MANIFEST).write_text(json.dumps(content | {"digest": hashlib.sha256(text.encode()).hexdigest()}))
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    result = run(*command, "-q", "model")
    assert (result.exit_code, result.stdout) == (ExitCode.FAILURE, "")
    assert result.stderr == (
        "tsapps: model/tsapps-manifest.json: failed: was made by a later version of tsapps: has format version 2, "
        "expected version 1 or lower: upgrade tsapps\n"
    )
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before


def test_a_changed_file_needs_update(run, succeed, model):
    succeed("protect", "model")
    (model / "config.json").write_text('{"layers": 13}')
    os.utime(model / "config.json", ns=(1, 1))
    result = run("protect", "model")
    assert result.exit_code == CORRUPT
    assert "if the change is meant, protect it with --update" in result.stdout
    succeed("protect", "model", "--update")
    succeed("verify", "model")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("protect", "absent"), 2, "absent: no such file or directory"),
        (("verify", "absent"), 2, "nothing here is protected"),
        (("repair", "."), 2, "nothing here is protected"),
        (("protect", "x", "--parity", "one"), 2, "parity 'one': expected parity files per files, such as 1/8"),
        (("protect", "x", "--parity", "200/200"), 2, "at most 256 in all"),
        (("protect", "x", "--hash", "md5"), 2, "'md5' is not one of 'blake3', 'sha256'"),
        (("protect", "x", "--jobs", "0"), 2, "invalid value for '--jobs'"),
        (("protect",), 2, "missing argument 'PATH"),
    ],
)
def test_errors_are_one_line(refuse, directory, arguments, code, message):
    (directory / "x").write_bytes(b"x")
    assert message in refuse(code, *arguments)


def test_a_file_that_cannot_be_read_does_not_stop_the_others(run, model, monkeypatch):
    """Exit code 1: nothing is corrupted, but not everything was protected."""
    from tsapps.apps.abft.files import protect as module

    original = module.scan

    def scan(path, *arguments):
        if path.name == "a.npy":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *arguments)

    monkeypatch.setattr(module, "scan", scan)
    result = run("protect", "model")
    assert result.exit_code == ExitCode.FAILURE
    assert "failed       model/a.npy: Permission denied" in result.stdout
    assert "protected    model/config.json" in result.stdout
