"""Test modules import in an environment that has nothing but what ``make test`` installs."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent

# Imports every test module as pytest does, where CuPy, torch and matplotlib cannot be imported.
SCRIPT = """
import importlib.util, sys, traceback
from pathlib import Path
from _pytest.outcomes import Skipped

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, *where):
        hidden = name.split(".")[0] in ("cupy", "cupyx", "torch", "matplotlib")
        return None if hidden else self.finder.find_spec(name, *where)

tests = Path(sys.argv[1])
sys.path[:0] = [str(tests.parent), str(tests), str(tests / "golden")]  # as pyproject.toml has pytest's
sys.meta_path[:] = map(Without, sys.meta_path)
for path in sorted(tests.rglob("test_*.py")):
    name = "imported." + ".".join(path.relative_to(tests).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, path)
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Skipped:
        pass  # it says what it needs
    except Exception:
        print(path.relative_to(tests), traceback.format_exc().splitlines()[-1], sep=": ")
"""


def test_every_test_module_imports_without_cupy_torch_and_matplotlib():
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(TESTS)], capture_output=True, text=True, cwd=TESTS.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
