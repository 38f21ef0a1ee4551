"""The shape of the house: what installs where, which room may know which, and how long a room may be."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parent.parent
SOURCES = [
    p
    for top in ("tsapps", "kernels", "apps")
    for p in (ROOT / top).rglob("*.py")
    if "tsapps/kernels" not in str(p) and "tsapps/apps" not in str(p)
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_packages_lists_every_package():
    # find_packages follows the two links, tsapps/kernels and tsapps/apps.
    found = {"tsapps", *(f"tsapps.{name}" for name in find_packages(str(ROOT / "tsapps")))}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == found


def test_every_kernel_file_installs():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for source in [*(ROOT / "kernels").rglob("*.cuh"), *(ROOT / "apps").rglob("*.cuh")]:
        home = next(
            (ROOT / package.removeprefix("tsapps.").replace(".", "/"), patterns)
            for package, patterns in data.items()
            if source.is_relative_to(ROOT / package.removeprefix("tsapps.").replace(".", "/"))
        )
        assert any(source in home[0].glob(pattern) for pattern in home[1]), source


def test_one_version():
    from tsapps import __version__

    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_install_advice_names_projects_that_an_index_has(path):
    """The dependencies themselves, with one command: tsapps is on no index, so that none has its extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    known = {re.match(r"[\w-]+(\[\w+\])?", one)[0] for extra in optional.values() for one in extra}
    for advice in re.findall(r"pip install ('[^']*'|[^\s\"')]+)", path.read_text()):
        name = advice.strip("'")
        assert name == "{library}" or name in known - {"tsapps"}, advice
        assert advice.startswith("'") == ("[" in name), f"{advice}: shells take [ for a pattern"
    assert "tsapps[" not in path.read_text()


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_run_one_way(path):
    room = path.relative_to(ROOT).parts[0]
    allowed = {"kernels": ("tsapps.kernels",), "apps": ("tsapps.apps", "tsapps.kernels"), "tsapps": ("tsapps",)}[room]
    for name in imported(path):
        if name.split(".")[0] == "tsapps":
            assert name.startswith(allowed), f"{room}/ must not know {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_is_at_most_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400
