"""Imports: test modules need only the extra ``test``, and commands import only what they use."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent

# Imports every test module like pytest, with CuPy, torch and matplotlib hidden.
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


# Packages with slow imports.
LARGE = {"numpy", "scipy", "sklearn", "joblib", "pandas", "polars", "pyarrow", "h5py", "rich", "cupy", "torch"}
COMMAND = "import sys; sys.argv[0] = 'tsapps'; from tsapps.__main__ import main; main()"
KMEANS = ["kmeans", "X.npy", "--k", "3", "--out", "model", "--device", "cpu"]


def imported(code, *arguments, cwd):
    """Run code in a new Python process; return the modules that it imported."""
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    command = [sys.executable, "-c", tell + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import tsapps", set()),
        ("import tsapps.errors", set()),
        ("import tsapps.apps.kmeans", set()),
        ("import tsapps.abft", {"numpy"}),
        ("from tsapps import abft, gram, matmul, open_matrix", {"numpy"}),
        ("from tsapps.apps.kmeans import lloyd, open_engine", {"numpy"}),
    ],
)
def test_imports_of_the_package(code, allowed, tmp_path):
    assert imported(code, cwd=tmp_path) & LARGE <= allowed


@pytest.mark.parametrize(
    "code",
    [
        "import tsapps.abft; assert tsapps.abft.encode",
        "from tsapps.abft import Sidecar, encode",
        "import tsapps.abft as one; from tsapps import abft; assert one is abft",
        "from tsapps import abft; import tsapps.abft as one; assert one is abft",
        "from tsapps import abft, apps; assert set(dir(apps.abft)) >= set(abft.__all__) == set(apps.abft.__all__)",
        "from tsapps import abft; assert abft.__doc__.startswith('Checksums')",
    ],
)
def test_abft_is_a_module_and_an_attribute(code, tmp_path):
    imported(code, cwd=tmp_path)


@pytest.mark.parametrize("arguments", ["--help", "--version", "kmeans --help", "info"])
def test_commands_without_data_have_fast_imports(arguments, tmp_path):
    # info finds GPUs through CuPy, which imports NumPy.
    allowed = {"numpy", "cupy"} if arguments == "info" and importlib.util.find_spec("cupy") else set()
    assert imported(COMMAND, *arguments.split(), cwd=tmp_path) & LARGE <= allowed


def test_commands_on_small_data_import_no_scikit_learn(tmp_path):
    np.save(tmp_path / "X.npy", np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32))
    found = imported(COMMAND, *KMEANS, cwd=tmp_path)
    assert found & LARGE == {"numpy", "scipy"}
    found = imported(COMMAND, "predict", "model", "X.npy", "--device", "cpu", cwd=tmp_path)
    assert found & LARGE == {"numpy", "scipy"}
    assert "scipy.sparse" not in found
    assert imported(COMMAND, "abft-encode", "X.npy", "--device", "cpu", cwd=tmp_path) & LARGE == {"numpy"}
