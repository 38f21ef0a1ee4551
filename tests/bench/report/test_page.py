"""The page: sections, escaping, well-formed HTML without references, and all records of the repository."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from exhaustive import every
from report_records import RECORDS, record_of

from tsapps.bench.report import page
from tsapps.bench.report.records import KINDS, check, files_of, newest, read

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "bench" / "results"
VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "</title></style></svg><script>alert(1)</script><img src=x onerror=alert(1)> \"'&"


class Parsed(HTMLParser):
    """Tags, attributes and text of a page whose tags must be nested properly."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def published():
    """Return the records of the repository."""
    return read(files_of([RESULTS]))


@pytest.fixture(scope="module")
def whole(published):
    """Return the page of all records of the repository, and its parts."""
    text = page.html(published)
    return text, Parsed(text)


def all_kinds(**fields):
    return [record_of(what, **fields) for what in RECORDS]


def test_a_section_for_each_kind():
    found = [section.subject.anchor for section in page.sections(all_kinds())]
    assert found == ["ladder", "products", "untuned", "kmeans", "kinds", "abft", "campaign", "paper", "other"]


def test_only_sections_with_records():
    assert [section.subject.anchor for section in page.sections([record_of("abft")])] == ["abft"]
    assert page.sections([]) == []


def test_every_known_kind_has_a_section():
    assert {kind for subject in page.SUBJECTS for kind in subject.kinds} == set(KINDS)


def test_the_page_says_how_many_records_machines_and_repetitions():
    records = [record_of("abft"), record_of("abft", date="2026-11-27"), record_of("abft", device="NVIDIA H100")]
    text = page.html(records)
    assert "2 records of 2 machines. 1 older record of the same measurements is not shown." in text
    assert "1 record of 1 machine." in page.html(records[:1])
    assert "NVIDIA H200; commit 0123456; 2026-11-28; 1 record" in text
    assert "tsapps 0.1.0" in text


def test_versions_of_a_machine_are_joined():
    records = [
        record_of("abft", m=m, versions={"cupy": version}) for m, version in ((1, "14.2"), (2, "14.1"), (3, "14.2"))
    ]
    assert "cupy 14.1 / 14.2" in page.html(records)


@pytest.mark.parametrize("name", ["device", "engine", "commit", "versions"])
def test_hostile_text_is_harmless(name):
    text = page.html(all_kinds(**{name: {HOSTILE: HOSTILE} if name == "versions" else HOSTILE}))
    parsed = Parsed(text)
    assert not {"script", "img"} & set(parsed.tags)
    assert parsed.tags.count("style") == 1
    assert "</title></style>" in "".join(parsed.text) or name == "commit"  # of a commit, seven characters are shown


@pytest.mark.parametrize("what", RECORDS)
def test_hostile_text_in_every_field(what):
    record = {name: HOSTILE if isinstance(value, str) and name not in ("what", "date") else value
              for name, value in record_of(what).items()}  # fmt: skip
    check(record)
    assert not {"script", "img"} & set(Parsed(page.html([record])).tags)


@pytest.mark.parametrize("value", [None, -1, "x", [], {"a": None}])
def test_fields_that_a_kind_does_not_have(value):
    names = {name for kind in KINDS.values() for name in kind.fields()}
    for what in RECORDS:
        one = {**dict.fromkeys(names, value), **record_of(what)}
        check(one)
        Parsed(page.html([one]))


def test_hostile_names_of_kinds_and_fields():
    text = page.html([record_of("first-call", what=HOSTILE, **{HOSTILE: 1})])
    parsed = Parsed(text)
    assert not {"script", "img"} & set(parsed.tags)
    assert "".join(parsed.text).count("<script>alert(1)</script>") == 3  # machine, caption, heading


@pytest.mark.parametrize("value", [1e-9, 1e15])
@pytest.mark.parametrize("what", KINDS)
def test_extreme_values(what, value):
    names = f"{KINDS[what].numbers} {KINDS[what].optional}".split()
    sizes = dict.fromkeys(KINDS[what].sizes.split(), 2**63)
    records = [record_of(what, **dict.fromkeys(names, value), **sizes), record_of(what, **dict.fromkeys(names, 1.0))]
    for one in records:
        check(one)
    text = page.html(records)
    assert not re.search(r"\b(nan|inf)\b", text)
    Parsed(text)


def test_a_page_of_all_published_records(whole):
    text, parsed = whole
    assert len(text.encode()) < 2_000_000
    assert parsed.tags.count("svg") > 100
    assert parsed.tags.count("h1") == parsed.tags.count("main") == 1
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == parsed.tags.count("svg")
    for drawing in drawings:
        svg = fromstring(drawing)
        assert (svg.get("role"), svg[0].tag, svg[1].tag) == ("img", "title", "desc")
        assert not re.search(r"\b(nan|inf)\b", " ".join(" ".join(one.attrib.values()) for one in svg.iter()))


def test_every_published_record_is_in_a_section(published):
    shown = {id(one) for section in page.sections(newest(published)) for one in section.records}
    assert [one for one in newest(published) if id(one) not in shown] == []


@pytest.mark.parametrize(
    "path", every(4, sorted(RESULTS.rglob("*.json"))), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_each_published_file(path):
    records = read([path])
    text = page.html(records)
    Parsed(text)
    assert records[0]["device"] in text


def test_nothing_is_loaded_from_elsewhere(whole):
    text, parsed = whole
    assert not {"script", "link", "img", "iframe", "object", "use", "image"} & set(parsed.tags)
    assert not {"src", "srcset", "data"} & {name for name, _ in parsed.attributes}
    assert [value for name, value in parsed.attributes if name.endswith("href") and not value.startswith("#")] == []
    for part in ("http:", "https:", "url(", "@import", "//"):
        assert part not in text, part


def test_tables_have_captions_and_headers():
    text = page.html(all_kinds())
    tables = re.findall(r"<table.*?</table>", text, re.DOTALL)
    assert len(tables) > 8
    for table in tables:
        assert table.count("<caption>") == 1
        assert 'scope="col"' in table
        assert table.count("<tr>") == 1 + table.count('scope="row"')


def test_links_lead_to_sections():
    attributes = Parsed(page.html(all_kinds())).attributes
    targets = {value[1:] for name, value in attributes if name == "href"}
    assert targets == {value for name, value in attributes if name == "id"}
    assert len(targets) == 9


def test_every_class_has_a_style(published):
    text = page.html([*published, *all_kinds()])
    style = re.search(r"<style>(.*)</style>", text, re.DOTALL)[1]
    used = {one for name, value in Parsed(text).attributes if name == "class" for one in value.split()}
    assert len(used) > 20
    assert {one for one in used if not re.search(rf"\.{one}\b", style)} == set()


def test_dark_colors_replace_all_light_ones():
    style = re.search(r"<style>(.*)</style>", page.html(all_kinds()), re.DOTALL)[1]
    light, dark = (set(re.findall(r"(--[\w]+):", part)) for part in re.findall(r":root \{(.*?)\}", style, re.DOTALL))
    assert light == dark
    assert {"--page", "--text", "--own", "--s7"} <= light


@pytest.mark.exhaustive
def test_the_same_records_have_the_same_page():
    """Also under another order of the hashes of strings."""
    code = (
        "import sys; from pathlib import Path; from tsapps.bench.report import page, records;"
        f"found = records.read(records.files_of([Path({str(RESULTS / 'h200')!r})]));"
        "sys.stdout.buffer.write(page.html(found).encode())"
    )
    pages = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(pages) == 1


@pytest.mark.parametrize(
    ("what", "field"),
    [
        (what, field)
        for what, kind in KINDS.items()
        for field in (*kind.optional.split(), *kind.ranges.split())
        if field in RECORDS[what]
    ],
)
def test_every_optional_field_may_be_null(what, field):
    records = [record_of(what, **{field: None}), record_of(what, **{field: None}, device="another")]
    if what == "abft":
        records += [record_of(what, job=job, **{field: None}) for job in ("encode", "verify", "matmul", "kmeans")]
    for one in records:
        check(one)
    assert Parsed(page.html(records)).text
