"""Fuzzing: a file with any bytes is rejected by one line with its name, or read as its bytes say. See campaign.py."""

import sys

import numpy as np
import pytest

from damage.campaign import FORMATS, missing_library, run
from damage.matrices import MATRICES
from damage.mutations import mutate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory limits need Linux")

LIBRARIES = sorted({one.library for one in MATRICES.values()})
# Formats that one process reads: their libraries are imported once.
GROUPS = {
    **{library or "numpy": [name for name, one in MATRICES.items() if one.library == library] for library in LIBRARIES},
    "records": [name for name in FORMATS if name not in MATRICES],
}


def assert_no_faults(names, count):
    names = [name for name in names if not missing_library(name)]
    if not names:
        pytest.skip("the format's library is not installed")
    found = run(names, count)
    assert {name: one["faults"] for name, one in found.items() if one["faults"]} == {}
    for one in found.values():
        assert one["refused"] + one["accepted"] == count
        # Most damage hits the header. The cache is an exception: it recompiles instead of rejecting.
        assert one["refused"] > count / 4 or one["format"].startswith("cache-")
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_hundreds_of_files(group):
    assert_no_faults(GROUPS[group], 50)


# Variants of a format with the same reader.
ALIKE = {"u8bin": "fbin", "bvecs": "fvecs", "tsv": "csv", "txt": "csv"}
READERS: dict[str, list[str]] = {}
for _name in FORMATS:
    READERS.setdefault(ALIKE.get(_name, _name.partition("-")[0]), []).append(_name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reader", READERS)
def test_thousands_of_files(reader):
    """As campaign.py does with ten thousand and more."""
    assert_no_faults(READERS[reader], -(-3_000 // len(READERS[reader])))


def test_mutations_cover_every_kind_and_are_reproducible():
    valid = bytes(range(256)) * 8
    found = [mutate(np.random.default_rng(seed), valid) for seed in range(300)]
    assert found == [mutate(np.random.default_rng(seed), valid) for seed in range(300)]
    assert len(set(found)) > 250
    lengths = np.array([len(one) for one in found])
    assert (lengths < len(valid)).any()
    assert (lengths == len(valid)).any()
    assert (lengths > len(valid)).any()


class TestTheCampaignItself:
    """The campaign reports faults of a reader: each stand-in has one."""

    @pytest.fixture
    def outcome(self, tmp_path, monkeypatch):
        from damage import campaign

        def outcome(examine):
            class Format:
                refusals = (ValueError,)
                place = staticmethod(lambda directory, content: directory / "x")

            Format.examine = staticmethod(examine)
            monkeypatch.setitem(campaign.FORMATS, "stand-in", Format)
            return campaign._outcome("stand-in", tmp_path, b"", b"")

        return outcome

    @pytest.mark.parametrize(
        ("error", "found"),
        [
            (ValueError("nothing"), "without the name"),
            (KeyError("x"), "builtins.KeyError: 'x'"),
            (RecursionError("deep"), "builtins.RecursionError: deep"),
            (MemoryError(), "MemoryError without the name"),
        ],
    )
    def test_another_error(self, outcome, error, found):
        def examine(path, valid, content):
            raise error

        assert found in outcome(examine)

    def test_a_message_of_two_lines(self, outcome):
        def examine(path, valid, content):
            raise ValueError(f"{path}:\nno")

        assert "of several lines" in outcome(examine)

    def test_a_right_refusal(self, outcome):
        def examine(path, valid, content):
            raise ValueError(f"{path}: no")

        assert outcome(examine) == "refused"

    def test_what_is_delivered(self, outcome):
        assert outcome(lambda *_: "a row is missing") == "accepted wrongly: a row is missing"
        assert outcome(lambda *_: "") == "accepted"
