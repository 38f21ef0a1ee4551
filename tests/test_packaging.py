"""What pyproject.toml states of a version and of extras is what the code says."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    p
    for top in ("tsapps", "kernels", "apps")
    for p in (ROOT / top).rglob("*.py")
    if "tsapps/kernels" not in str(p) and "tsapps/apps" not in str(p)
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


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
