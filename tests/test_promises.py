"""Every promise of docs/promises.md names existing tests."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROMISES = [line for line in (ROOT / "docs/promises.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
NAMES = [name for line in PROMISES for name in re.findall(r"tests/[\w/]+\.py::\w+", line)]


def test_every_promise_names_a_test():
    promised = [line for line in PROMISES if not line.startswith("| Promise")]
    assert len(promised) > 20
    assert not [line for line in promised if "::" not in line]


@pytest.mark.parametrize("name", NAMES)
def test_named_tests_exist(name):
    path, function = name.split("::")
    assert re.search(rf"^(    )?def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
