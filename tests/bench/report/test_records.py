"""Files of records: what is read, what is refused, and which records count."""

import pytest
from report_records import RECORDS, record_of, write_records

from tsapps.bench.report.records import KINDS, by, check, files_of, measured, newest, provenance, read


def test_files_of_directories_and_files(tmp_path):
    a, b = write_records(tmp_path / "x" / "a.json"), write_records(tmp_path / "x" / "deep" / "b.json")
    write_records(tmp_path / "x" / "notes.txt")
    c = write_records(tmp_path / "c.json")
    assert files_of([c, tmp_path / "x", a]) == [c, a, b]  # each once


def test_a_directory_without_records(tmp_path):
    with pytest.raises(ValueError, match=r"has no \.json file"):
        files_of([tmp_path])


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match=r"absent\.json: no such file: measure first"):
        files_of([tmp_path / "absent.json"])


def test_records_of_several_files_in_order(tmp_path):
    a = write_records(tmp_path / "a.json", record_of("ladder"), record_of("gemm"))
    b = write_records(tmp_path / "b.json", record_of("first-call"))
    assert [one["what"] for one in read([a, b])] == ["ladder", "gemm", "first-call"]


def test_no_records(tmp_path):
    with pytest.raises(ValueError, match="hold no records"):
        read([write_records(tmp_path / "a.json")])


def test_text_becomes_printable(tmp_path):
    path = write_records(tmp_path / "a.json", record_of("first-call", device="a\x1b[31m\u202eb\nc", nested=["\ud800"]))
    (one,) = read([path])
    assert one["device"] == "a\\x1b[31m\\u202eb c"
    assert one["nested"] == ["\\ud800"]


@pytest.mark.parametrize("what", RECORDS)
def test_examples_are_records(what):
    check(record_of(what))


@pytest.mark.parametrize(("what", "name"), [(what, name) for what in KINDS for name in KINDS[what].fields()])
def test_a_missing_field_names_file_record_and_field(tmp_path, what, name):
    wrong = record_of(what)
    del wrong[name]
    path = write_records(tmp_path / "mine.json", record_of(what), wrong)
    with pytest.raises(ValueError, match=rf"mine\.json: record 1: the record lacks the field '{name}'"):
        read([path])


@pytest.mark.parametrize("what", KINDS)
def test_kinds_list_their_key(what):
    assert set(KINDS[what].key.split()) <= set(KINDS[what].fields())


@pytest.mark.parametrize(
    ("what", "name", "value"),
    [
        *(("ladder", "ms", value) for value in (0, -1.0, 1e-300, 1e300, "fast", None, True, [])),
        *(("ladder", "m", value) for value in (0, -5, 2.5, None)),
        *(("ladder", "floor_ms", value) for value in (0, "x")),
        *(("ladder", "title", value) for value in (None, 3)),
        *(("kmeans-data", "wrong", value) for value in (-0.1, 1.5)),
        *(("abft-campaign", "trials", value) for value in (-1, 0.5)),
        *(
            ("paper", "paper_speedup", value)
            for value in ([], [1, 2], [2, None, 1], [1, 5, 2], ["a", 1, 2], "x", [1e99] * 3)
        ),
        *(("paper", "paper_points", value) for value in ([True, None, 2], [1, 2, None], {})),
    ],
)
def test_a_wrong_value_names_the_field(what, name, value):
    with pytest.raises(ValueError, match=f"'{name}' is "):
        check(record_of(what, **{name: value}))


def test_null_where_it_is_allowed():
    check(record_of("ladder", floor_ms=None, speedup_serial=None, efficiency=None))
    check(record_of("paper", paper_speedup=None, paper_points=None, peak_gbs=None))
    check(record_of("paper", paper_speedup=[1, None, 2]))


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"what": "ladder"}]', '[{"a": NaN}]'])
def test_files_that_hold_no_records(tmp_path, text):
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(ValueError, match=r"mine\.json"):
        read([tmp_path / "mine.json"])


def test_the_newest_record_of_a_measurement_counts():
    old, new = record_of("ladder", date="2026-01-02", ms=3.0), record_of("ladder", date="2026-01-03", ms=4.0)
    other = record_of("ladder", device="CPU", date="2026-01-01")
    assert newest([new, other, old]) == [new, other]
    again = record_of("ladder", date="2026-01-03", ms=5.0)
    assert newest([new, again]) == [again]  # of a day, the last


@pytest.mark.parametrize("what", KINDS)
def test_each_field_of_the_key_tells_measurements_apart(what):
    one = record_of(what)
    for name in KINDS[what].key.split():
        other = {**one, name: one[name] + 1 if isinstance(one[name], int) else f"{one[name]}'"}
        assert newest([one, other]) == [one, other], name


def test_tsm2_as_published_is_no_repetition_of_ours():
    records = [record_of("gemm", kernel=name) for name in ("tall_skinny", "tsm2_v0", "tsm2_v3")]
    assert newest(records) == records
    assert newest([record_of("gemm", kernel=name) for name in ("tall_skinny", "cublaslt")])[0]["kernel"] == "cublaslt"


def test_unknown_kinds_are_never_repetitions():
    assert len(newest([record_of("first-call")] * 3)) == 3


def test_groups():
    records = [{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 2, "b": 2}]
    assert by(records, "a") == {1: records[:2], 2: records[2:]}
    assert list(by(records, "a b")) == [(1, 2), (1, 3), (2, 2)]
    assert list(by(records, lambda one: one["a"] + one["b"])) == [3, 4]


def test_provenance():
    assert provenance([record_of("ladder")]) == "NVIDIA H200; commit 0123456; 2026-11-28; 1 record"
    some = [record_of("ladder", device="CPU", commit=f"{c * 40}-dirty", date=f"2026-11-0{c}") for c in "12345"]
    assert (
        measured(some)
        == "commits 1111111-dirty, 2222222-dirty, 3333333-dirty and 2 more; 2026-11-01 to 2026-11-05; 5 records"
    )
    assert "4444444-dirty, 5555555-dirty;" in measured(some, all_commits=True)
    assert provenance([*some, record_of("ladder")]).startswith("CPU, NVIDIA H200; ")
