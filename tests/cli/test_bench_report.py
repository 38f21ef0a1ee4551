"""``tsapps bench report``: input files, the page, and errors."""

import json

import pytest
from ladder_products import needs_a_compiler
from report_records import RECORDS, record_of, write_records

from tsapps.errors import ExitCode


@pytest.fixture
def measured(directory):
    """Write a record of each kind to tsapps-bench.json."""
    return write_records(directory / "tsapps-bench.json", *(record_of(what) for what in RECORDS))


def test_the_records_of_the_current_directory(succeed, directory, measured):
    assert succeed("bench", "report") == f"report.html: {len(RECORDS)} records of 1 file\n"
    text = (directory / "report.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert "register tile" in text


def test_files_and_directories(succeed, directory):
    write_records(directory / "results" / "a" / "ladder.json", record_of("ladder", device="CPU"))
    write_records(directory / "results" / "b" / "abft.json", record_of("abft"))
    write_records(directory / "mine.json", record_of("first-call"))
    assert succeed("bench", "report", "results", "mine.json", "-o", "x.html") == "x.html: 3 records of 3 files\n"
    text = (directory / "x.html").read_text()
    assert "3 records of 2 machines" in text
    assert all(title in text for title in ("Rungs on CPU", "Cost of checksums", "first-call, NVIDIA H200"))


@needs_a_compiler
def test_what_the_other_commands_measure_on_a_cpu(succeed, directory):
    for command, shape in (
        ("gemm", "40-3-100-f32"),
        ("kmeans", "300-4-3-f64"),
        ("abft", "encode-64-64-f32"),
        ("ladder", "20-30-40-f64"),
    ):
        succeed("bench", command, "--device", "cpu", "--shapes", shape, "--quiet")
    n_records = len(json.loads((directory / "tsapps-bench.json").read_text()))
    assert succeed("bench", "report") == f"report.html: {n_records} records of 1 file\n"
    text = (directory / "report.html").read_text()
    assert all(f'<section id="{anchor}">' in text for anchor in ("products", "kmeans", "abft", "ladder"))


def test_json_and_quiet(succeed, measured):
    found = json.loads(succeed("bench", "report", "--json"))
    assert found == {"file": "report.html", "records": len(RECORDS), "inputs": ["tsapps-bench.json"]}
    assert succeed("bench", "report", "--quiet", "--out", "other.html") == ""


def test_an_existing_page_is_replaced_with_force_only(succeed, refuse, directory, measured):
    (directory / "report.html").write_text("mine")
    assert "report.html: already exists" in refuse(ExitCode.USAGE, "bench", "report")
    succeed("bench", "report", "--force")
    page = (directory / "report.html").read_bytes()
    succeed("bench", "report", "--force")
    assert (directory / "report.html").read_bytes() == page
    assert page.startswith(b"<!DOCTYPE")


def test_records_are_never_overwritten(refuse, measured):
    line = refuse(ExitCode.USAGE, "bench", "report", "--out", measured.name, "--force")
    assert "tsapps-bench.json: is a file of records: choose another --out" in line


def test_no_records(refuse, directory):
    assert "tsapps-bench.json: no such file: measure first" in refuse(ExitCode.USAGE, "bench", "report")
    write_records(directory / "tsapps-bench.json")
    assert "the files hold no records: measure first" in refuse(ExitCode.USAGE, "bench", "report")
    (directory / "empty").mkdir()
    assert "empty: has no .json file" in refuse(ExitCode.USAGE, "bench", "report", "empty")


def test_a_record_without_a_field(refuse, directory):
    wrong = record_of("ladder")
    del wrong["ms"]
    write_records(directory / "mine.json", record_of("ladder"), wrong)
    line = refuse(ExitCode.USAGE, "bench", "report", "mine.json")
    assert line.startswith("tsapps: mine.json: record 1: the record lacks the field 'ms'")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{}", "mine.json holds a dict; expected a list of records"),
        ("[7]", "mine.json: record 0 is a int; expected an object"),
        ('[{"what": NaN}]', "mine.json: is not valid JSON"),
        ("\xff\x00", "mine.json: is not valid JSON"),
        (
            json.dumps([record_of("gemm", ms=0)]),
            "mine.json: record 0: 'ms' is 0; expected a number from 1e-09 to 1e+15",
        ),
        (json.dumps([record_of("gemm", date="today")]), "mine.json: record 0: the record cannot be kept"),
    ],
)
def test_a_file_that_holds_no_records(refuse, directory, content, what):
    (directory / "mine.json").write_text(content, encoding="latin-1")
    assert what in refuse(ExitCode.USAGE, "bench", "report", "mine.json")


@pytest.mark.parametrize(
    ("out", "what"), [("absent/x.html", "there is no directory"), (".", "is a directory"), ("", "is a directory")]
)
def test_a_wrong_output(refuse, measured, out, what):
    assert what in refuse(ExitCode.USAGE, "bench", "report", "--out", out)


def test_a_file_that_cannot_be_read(run, directory):
    (directory / "mine.json").symlink_to("/proc/self/mem")
    result = run("bench", "report", "mine.json")
    assert result.exit_code == ExitCode.FAILURE
    assert result.stderr.count("\n") == 1
    assert not (directory / "report.html").exists()
