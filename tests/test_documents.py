"""README.md and the pages of docs/ are true: Python blocks and shell transcripts run."""

import os
import sys
from pathlib import Path

import pytest
import transcripts
from sybil.document import Document
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.myst import CodeBlockParser, SkipParser

import tsapps
from tsapps import abft, errors
from tsapps.bench.figures import pages

ROOT = Path(__file__).parents[1]


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Return a directory for a document's files and the environment of its commands: this tsapps, no GPU."""
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    environment["COLUMNS"] = "120"
    return tmp_path, environment


def run_document(page, directory, environment):
    """Run the blocks of a page in their order."""

    def console(example):
        differences = transcripts.run(example.parsed, directory, environment)
        return "\n\n".join(differences) or None

    parsers = [CodeBlockParser("python", PythonEvaluator()), CodeBlockParser("console", console), SkipParser()]
    document = Document.parse(str(page), *parsers)
    for example in document.examples():
        example.evaluate()


def takes_long(page):
    """Whether a page is of the guide, or the README, which clusters a photograph."""
    return "guide" in page.parts or page == ROOT / "README.md"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.exhaustive if takes_long(page) else ()) for page in pages()],
    ids=name_of,
)
def test_blocks_run(page, shell):
    run_document(page, *shell)


def words(text):
    """Return the number of words of a page outside tables."""
    return sum(len(line.split()) for line in text.splitlines() if not line.startswith("|"))


@pytest.mark.parametrize(
    "page",
    # References and the lab book are looked up, not read through.
    [
        page
        for page in (*pages(), *sorted((ROOT / "docs/tutorials").glob("*.py")))
        if not {"reference", "notes"} & set(page.relative_to(ROOT).parts)
    ],
    ids=name_of,
)
def test_pages_are_short(page):
    assert words(page.read_text(encoding="utf-8")) <= 1500


def test_the_page_of_errors_is_complete():
    text = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    objects = [getattr(errors, name) for name in errors.__all__]
    exceptions = [one for one in objects if isinstance(one, type) and issubclass(one, Exception)]
    assert len(exceptions) >= 5
    assert not [one.__name__ for one in exceptions if f"| `{one.__name__}` |" not in text]
    assert not [code for code in errors.ExitCode if f"| {code.value} | `{code.name}` |" not in text]


def test_the_page_of_the_python_api_is_complete():
    listed = set((ROOT / "docs/reference/api.md").read_text(encoding="utf-8").split())
    assert not {name for name in tsapps.__all__ if name != "abft"} - listed
    assert "`tsapps.abft`" in listed
    assert not {f"abft.{name}" for name in abft.__all__} - listed
    assert not {f"errors.{name}" for name in errors.__all__} - listed


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("console\n$ echo 1\n2", "expected"),
        ("console\n$ echo 1\n1\n$ false", "expected"),
        ("console\n$ exit 0\n$ echo 1\n1", "ended early"),
        ("python\nraise OSError(2, 'lost')", "lost"),
    ],
)
def test_a_page_that_is_wrong_is_found(shell, block, message):
    directory, environment = shell
    page = directory / "page.md"
    page.write_text(f"```{block}\n```\n", encoding="utf-8")
    with pytest.raises(Exception, match=message):
        run_document(page, directory, environment)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a"], ["a", "b"], False),
        (["a", "…"], ["a", "b", "c"], True),
        (["…", "c"], ["a", "b", "c"], True),
        (["…", "d"], ["a", "b", "c"], False),
        (["took … s"], ["took 1.5 s"], True),
        (["took … s"], ["took 1.5 ms"], False),
        (["seconds  0.90 (568.32 MB a second)"], ["seconds  12.1 (3.1 MB a second)"], True),
        (["rows  12"], ["rows  13"], False),
    ],
)
def test_transcripts_match(expected, printed, same):
    assert transcripts.matches(expected, printed) == same
