"""What pyproject.toml states of a version and of extras is what the code says."""

import re
import tomllib
from pathlib import Path

import architecture
import pytest

ROOT = Path(__file__).parent.parent
SOURCES = architecture.files(ROOT, ".py", tops=architecture.INSTALLED)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version():
    from tsapps import __version__

    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


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
