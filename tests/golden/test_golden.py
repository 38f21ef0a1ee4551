"""The scripts beside this file: what they compare, and that they tell every case apart."""

import json
import struct

import golden_results
import machine_code
import numpy as np
import pytest

BEFORE = {"fit a: labels": "1", "fit a: centers": "2", "fit b: labels": "3"}


def test_the_same_results_have_no_changes():
    assert golden_results.changes(BEFORE, dict(reversed(BEFORE.items()))) == []


def test_each_result_that_differs_is_missing_or_new_has_a_line():
    after = {"fit a: labels": "1", "fit a: centers": "4", "fit c: labels": "3"}
    assert golden_results.changes(BEFORE, after) == [
        "differs: fit a: centers",
        "missing: fit b: labels",
        "new: fit c: labels",
    ]


def test_other_devices_and_versions_are_not_compared():
    here = {"device": "cpu: A", "versions": {"numpy": "2.4"}}
    assert golden_results.incomparable(here, dict(here)) is None
    for other in ({"device": "cpu: B"}, {"versions": {"numpy": "2.5"}}):
        reason = golden_results.incomparable(here, here | other)
        assert reason.startswith("not compared: ")
        assert "\n" not in reason


def labels():
    return np.arange(12, dtype=np.int32).reshape(3, 4)


@pytest.mark.parametrize(
    "other",
    [
        np.where(labels() == 7, 8, labels()).astype(np.int32),
        labels().astype(np.int64),
        labels().astype(np.float32),
        labels().view(np.uint32),
        labels().reshape(4, 3),
        labels().T,
    ],
    ids=["one label", "int64", "float32", "the same bits", "another shape", "transposed"],
)
def test_digests_tell_values_dtypes_and_shapes_apart(other):
    assert golden_results.digest(other) != golden_results.digest(labels())


def test_digests_are_of_elements_however_they_lie():
    assert golden_results.digest(np.asfortranarray(labels())) == golden_results.digest(labels())
    assert golden_results.digest(0.0) != golden_results.digest(-0.0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_has_a_name_of_its_own(device):
    names = [case.name for case in golden_results.grid(device)]
    assert len(names) > 200
    assert len(set(names)) == len(names)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the script on results that are given; return its exit code and what it printed."""

    def run(cases, *arguments):
        monkeypatch.setattr(golden_results, "whole_grid", lambda device: cases)
        monkeypatch.setattr("sys.argv", ["golden_results.py", "--device", "cpu", *arguments])
        with pytest.raises(SystemExit) as end:
            golden_results.main()
        return end.value.code, capsys.readouterr().out

    return run


def test_one_label_that_changes_makes_the_comparison_fail(run, tmp_path):
    right = {"fit: labels": golden_results.digest(labels())}
    code, printed = run(right)
    assert not code
    earlier = tmp_path / "earlier.json"
    earlier.write_text(printed)
    assert run(right, "--compare", str(earlier)) == (False, "the same results: 1\n")
    wrong = labels()
    wrong[0, 0] += 1
    code, printed = run({"fit: labels": golden_results.digest(wrong)}, "--compare", str(earlier))
    assert (code, printed) == (True, "differs: fit: labels\n")
    of_another = json.loads(earlier.read_text()) | {"device": "cpu: another"}
    earlier.write_text(json.dumps(of_another))
    code, _ = run(right, "--compare", str(earlier))
    assert code.startswith("not compared: device")


def test_a_case_that_fails_is_printed_and_fails_the_run(run, capsys):
    def fails(place):
        raise ValueError("no such thing")

    cases = [
        golden_results.Case("bad", fails),
        golden_results.Case("good", lambda place: {"labels": labels()}),
    ]
    found = golden_results.digests(cases, "cpu")
    assert found == {"bad: error": "ValueError", "good: labels": golden_results.digest(labels())}
    assert capsys.readouterr().err == "bad: ValueError: no such thing\n"
    assert run(found)[0]


# --- Machine code ----------------------------------------------------------------------------------------------------


def elf(sections):
    """Return an ELF file of 64 bits with sections, of which the last has the names of all."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    contents = [*sections.values(), names]
    places = np.cumsum([64, *(len(content) for content in contents)]).tolist()
    headers = [bytes(64)]  # the first is no section
    for name, content, place in zip([*sections, ".shstrtab"], contents, places, strict=False):
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        headers.append(struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, place, len(content), 0, 0, 1, 0))
    start = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF", 2, 190, 1, 0, 0, places[-1], 0, 64, 0, 0, 64, len(headers), 0)
    start = start[:-2] + struct.pack("<H", len(headers) - 1)
    return start + b"".join(contents) + b"".join(headers)


def test_text_sections_of_an_elf_file():
    file = elf({".text.first": b"code one", ".nv.info": b"no code", ".text.second": b"two", ".text.empty": b""})
    assert machine_code.text_sections(file) == {"first": b"code one", "second": b"two", "empty": b""}


def test_digests_of_cubins_are_by_architecture(tmp_path):
    for name, arch, code in (("a", "sm_90", b"one"), ("b", "sm_90", b"two"), ("c", "sm_80", b"one")):
        (tmp_path / f"{name}.cubin").write_bytes(elf({f".text.{name}": code, ".text.same": b"same"}))
        (tmp_path / f"{name}.json").write_text(json.dumps({"flags": ["-std=c++17", f"-arch={arch}"]}))
    found = machine_code.digests(tmp_path)
    assert sorted(found["sm_90"].values()) == [["a"], ["b"], ["same"]]
    assert sorted(found["sm_80"].values()) == [["c"], ["same"]]
    assert machine_code.changes(found, machine_code.digests(tmp_path)) == []


def test_changes_of_machine_code_are_digests_and_not_names():
    before = {"sm_90": {"1": ["old name"], "2": ["gone"]}}
    after = {"sm_90": {"1": ["new name"], "3": ["made"]}, "sm_80": {"1": ["other"]}}
    assert machine_code.changes(before, after) == ["sm_80 new: other", "sm_90 gone: gone", "sm_90 new: made"]
