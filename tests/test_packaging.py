"""Packaging: versions and dependencies in pyproject.toml match the code."""

import re
import tomllib
from pathlib import Path

import architecture
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = architecture.files(ROOT, ".py", tops=architecture.INSTALLED)
# Import names that differ from the project's name.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"} | dict.fromkeys(
    ("cupy", "cupyx", "cupy_backends"), "cupy-cuda13x"
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version():
    from tsapps import __version__

    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tsapps.__version__"}
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def projects(*extras):
    """Return the projects that tsapps depends on, with these extras and the extras that they name."""
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
        # Callers who pass arrays of polars or torch have these installed.
        (("kernels", "apps", "tsapps"), ("cuda13", "fast", "io", "dask", "parity"), {"polars", "torch"}),
        # Whoever launches an example by Ray has it.
        (("docs",), ("docs",), {"ray"}),
        (("tests",), ("test", "cuda13"), set()),
        # Libraries measured for comparison, if installed.
        (("bench",), ("cuda13", "plot", "io", "dask"), {"torch", "cuvs", "flash_kmeans", "flashlib"}),
    ],
)
def test_every_import_is_declared(tops, extras, others):
    assert imported_projects(*tops) - projects(*extras) == others


def test_every_dependency_is_imported():
    assert projects() - imported_projects(*architecture.INSTALLED) == set()


@pytest.mark.parametrize("path", SOURCES)
def test_install_advice_names_projects_that_an_index_has(path):
    """Advice installs the dependencies themselves: tsapps is not on an index, so its extras are not either."""
    optional = PROJECT["project"]["optional-dependencies"]
    source = (ROOT / path).read_text()
    known = {re.match(r"[\w-]+(\[\w+\])?", one)[0] for extra in optional.values() for one in extra}
    for advice in re.findall(r"pip install ('[^']*'|[^\s\"')]+)", source):
        name = advice.strip("'")
        assert name == "{library}" or name in known - {"tsapps"}, advice
        assert advice.startswith("'") == ("[" in name), f"{advice}: shells take [ for a pattern"
    assert "tsapps[" not in source
