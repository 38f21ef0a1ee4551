"""Every tutorial runs as a script of its own: without a display, a GPU or files that it finds beside it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parents[1] / "docs/tutorials").glob("plot_*.py"))


@pytest.mark.exhaustive
@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra plot: matplotlib is not installed")
@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_runs(script, tmp_path):
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    environment = {**os.environ, "MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "Warning" not in ended.stderr
    assert list(work.iterdir()) == []
    assert list(temporary.iterdir()) == []


def test_there_are_tutorials():
    assert TUTORIALS


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_says_what_changes_on_a_gpu(script):
    assert "# On a GPU\n# --------\n" in script.read_text(encoding="utf-8")
