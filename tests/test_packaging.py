"""What pyproject.toml states of a version and of extras is what the code says."""

import re
import tomllib
from pathlib import Path

import architecture
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = architecture.files(ROOT, ".py", tops=architecture.INSTALLED)
# What is imported by another name than its project has.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"} | dict.fromkeys(
    ("cupy", "cupyx", "cupy_backends"), "cupy-cuda13x"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version():
    from tsapps import __version__

    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def projects(*extras):
    """The projects that tsapps depends on, with these extras and those that they name."""
    optional = PROJECT["project"]["optional-dependencies"]
    names = set()
    for one in [*PROJECT["project"]["dependencies"], *(one for extra in extras for one in optional[extra])]:
        name, _, inner = re.match(r"([\w-]+)(\[([\w,]+)\])?", one).groups()
        names |= projects(*inner.split(",")) if name == "tsapps" else {name}
    return names


def imported_projects(*tops):
    return {DISTRIBUTIONS.get(name, name) for name in architecture.third_party(ROOT, *tops)}


@pytest.mark.parametrize(
    ("tops", "extras", "others"),
    [
        # Whoever passes an array of polars or torch has it.
        (architecture.INSTALLED, ("cuda13", "io"), {"polars", "torch"}),
        (("docs",), ("demo",), set()),
        (("tests",), ("test", "cuda13"), set()),
        # What is measured beside tsapps, where it is installed.
        (("bench",), ("cuda13", "plot", "io"), {"torch", "cuvs", "flash_kmeans", "flashlib"}),
    ],
)
def test_every_import_is_of_a_declared_project(tops, extras, others):
    assert imported_projects(*tops) - projects(*extras) == others


def test_every_dependency_is_imported():
    assert projects() - imported_projects(*architecture.INSTALLED) == set()


@pytest.mark.parametrize("path", SOURCES)
def test_install_advice_names_projects_that_an_index_has(path):
    """The dependencies themselves, with one command: tsapps is on no index, so that none has its extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    source = (ROOT / path).read_text()
    known = {re.match(r"[\w-]+(\[\w+\])?", one)[0] for extra in optional.values() for one in extra}
    for advice in re.findall(r"pip install ('[^']*'|[^\s\"')]+)", source):
        name = advice.strip("'")
        assert name == "{library}" or name in known - {"tsapps"}, advice
        assert advice.startswith("'") == ("[" in name), f"{advice}: shells take [ for a pattern"
    assert "tsapps[" not in source
