"""Architecture checkers on small repositories made by hand: each finds the violation and nothing else."""

import architecture
import pytest
from test_architecture import differences


@pytest.fixture
def make(tmp_path):
    def write(sources):
        for name, source in sources.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return tmp_path

    return write


def test_names_of_modules():
    names = ["kernels/plan.py", "apps/kmeans/data/__init__.py", "tsapps/__init__.py", "bench/gemm/grid.py"]
    found = [architecture.module_name(name) for name in names]
    assert found == ["tsapps.kernels.plan", "tsapps.apps.kmeans.data", "tsapps", "tsapps.bench.gemm.grid"]


@pytest.mark.parametrize(
    "line",
    [
        "import tsapps.apps.kmeans.data.rows",
        "from tsapps.apps.kmeans.data import rows",
        "from tsapps.apps.kmeans.data.rows import Rows",
        "from ..data import rows",
        "from ..data.rows import Rows as Other",
        "from ...kmeans.data.rows import *",
        "def f():\n    from ..data.rows import Rows",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..data.rows import Rows",
        "import importlib\nimportlib.import_module('tsapps.apps.kmeans.data.rows')",
    ],
)
def test_every_form_of_import_is_found(make, line):
    root = make(
        {
            "apps/kmeans/data/__init__.py": "",
            "apps/kmeans/data/rows.py": "import numpy",
            "apps/kmeans/init/sampling.py": line,
        }
    )
    assert architecture.import_graph(root)["apps/kmeans/init/sampling.py"] == {"apps/kmeans/data/rows.py"}
    arrows = {"apps/kmeans/data": set(), "apps/kmeans/init": {"apps/kmeans/data"}}
    assert architecture.forbidden_arrows(root, arrows) == []
    assert architecture.forbidden_arrows(root, arrows | {"apps/kmeans/init": set()}) == [
        "apps/kmeans/init/sampling.py must not use apps/kmeans/data/rows.py"
    ]


def test_an_unknown_module_belongs_to_its_parent_package(make):
    root = make({"tsapps/__init__.py": "", "kernels/plan.py": "from tsapps.missing import name"})
    assert architecture.forbidden_arrows(root, {"tsapps": set(), "kernels": set()}) == [
        "kernels/plan.py must not use tsapps/__init__.py"
    ]


def test_a_package_itself_is_used_by_its_own_modules(make):
    root = make(
        {"kernels/__init__.py": "", "kernels/a.py": "from . import b, name", "kernels/b.py": "from .a import b"}
    )
    assert architecture.import_graph(root)["kernels/a.py"] == {"kernels/__init__.py", "kernels/b.py"}


def test_includes_and_named_kernel_files_are_found(make):
    root = make(
        {
            "kernels/ptx/mma.cuh": '// #include "apps/no.cuh"\n#  include "kernels/device/simt.cuh"\n',
            "kernels/device/simt.cuh": '#include <cuda_fp16.h>\n#include "element.cuh"\n',
            "kernels/device/element.cuh": "",
            "kernels/launch.py": '"""Launches apps/kmeans/old.cuh."""\nKERNEL = "#include <apps/kmeans/update.cuh>"\n',
        }
    )
    assert architecture.include_graph(root)["kernels/device/simt.cuh"] == {"kernels/device/element.cuh"}
    arrows = {"kernels/ptx": set(), "kernels/device": set(), "kernels": set()}
    assert architecture.forbidden_arrows(root, arrows) == [
        "kernels/ptx/mma.cuh must not use kernels/device/simt.cuh",
        "kernels/launch.py must not use apps/kmeans/update.cuh",
    ]


def test_a_package_missing_from_the_table(make):
    root = make({"kernels/plan/mma.py": ""})
    assert architecture.forbidden_arrows(root, {}) == ["kernels/plan has no line in the table of arrows"]


def test_links_to_folders_are_not_followed(make):
    root = make({"kernels/plan.py": "", "tsapps/__init__.py": ""})
    (root / "tsapps/kernels").symlink_to("../kernels")
    assert architecture.files(root, ".py") == ["kernels/plan.py", "tsapps/__init__.py"]


def test_circles_among_modules(make):
    root = make(
        {
            "kernels/a.py": "from tsapps.kernels.b import x",
            "kernels/b.py": "def f():\n    import tsapps.kernels.c",
            "kernels/c.py": "if TYPE_CHECKING:\n    from . import a",
            "kernels/d.py": "from . import a, e",
            "kernels/e.py": "",
        }
    )
    found = architecture.circles(architecture.import_graph(root))
    assert found == {frozenset({"kernels/a.py", "kernels/b.py", "kernels/c.py"})}


def test_circles_among_includes(make):
    root = make(
        {
            "kernels/a.cuh": '#include "kernels/b.cuh"',
            "kernels/b.cuh": '#include "a.cuh"',
            "kernels/c.cuh": '#include "kernels/a.cuh"',
        }
    )
    assert architecture.circles(architecture.include_graph(root)) == {frozenset({"kernels/a.cuh", "kernels/b.cuh"})}


def test_long_files(make):
    sizes = {"kernels/a.cuh": 300, "kernels/b.cuh": 301, "apps/a.py": 400, "apps/b.py": 401}
    root = make({path: "\n" * size for path, size in sizes.items()})
    assert architecture.long_files(root) == {"kernels/b.cuh": 301, "apps/b.py": 401}


def test_long_functions(make):
    def function(name, lines, head=""):
        return f"def {name}():\n{head}" + "    x = 1\n" * (lines - 1)

    docstring = '    """One.\n\n    Two.\n    """\n'
    method = "".join(f"    {line}\n" for line in function("method", 61).splitlines())
    sources = [
        function("short", 60),
        "@decorated\n" + function("documented", 60, docstring),
        function("long", 61, docstring),
        f"class Step:\n{method}",
        "if True:\n" + method.replace("method", "inside"),
    ]
    root = make({"bench/a.py": "\n".join(sources)})
    assert architecture.long_functions(root) == {
        "bench/a.py::long": 61,
        "bench/a.py::Step.method": 61,
        "bench/a.py::inside": 61,
    }


def test_long_lines(make):
    long = "é" * 121
    markdown = f"{long}\n| {long} |\n[{long}](https://example.org)\n{'é' * 120}\n"
    root = make({"kernels/a.cuh": f"//\n{long}\n{long}\n", "README.md": markdown, "tests/test_a.py": f"# {long}\n"})
    assert architecture.long_lines(root) == {"kernels/a.cuh": 2, "README.md": 1, "tests/test_a.py": 1}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def centre(): pass", "centre"),
        ("class FewCentres: pass", "FewCentres"),
        ("def f(centres=1): pass", "centres"),
        ("x.centres_", "centres_"),
        ("_CENTRE = 1", "_CENTRE"),
        ("import numpy as centre", "centre"),
        ("f(centre=1)", "centre"),
        ("epicentre = concentre_d = 'centre'  # centre", None),
    ],
)
def test_old_words_of_python(make, source, found):
    root = make({"apps/a.py": source})
    expected = {} if found is None else {found.lower().strip("_").removeprefix("few"): [f"apps/a.py:{found}"]}
    assert architecture.old_words(root, {"centre": "center", "centres": "centers"}) == expected


def test_old_words_of_cuda(make):
    source = """#include "apps/kmeans/few_centres.cuh"
// centre /* centre
constexpr int kFewCentres = 'c'; /* centre
centre */ asm("centre"); int fewcentres; struct TileCentres {}; float tile_of_centres_;
"""
    root = make({"apps/centres_a.cuh": source})
    assert architecture.old_words(root, {"centre": "", "centres": "", "few_centres": ""}) == {
        "centres": [
            f"apps/centres_a.cuh:{name}" for name in ("TileCentres", "centres_a", "kFewCentres", "tile_of_centres_")
        ],
        "few_centres": ["apps/centres_a.cuh:kFewCentres"],
    }


def test_old_file_names(make):
    root = make(
        {"apps/kmeans/move.cuh": "", "apps/kmeans/remove.py": "", "kernels/utils.py": "", "kernels/common/a.py": ""}
    )
    found = architecture.old_file_names(root, {"move": "", "utils": "", "common": ""})
    assert found == {"apps/kmeans/move.cuh": 1, "kernels/utils.py": 1}


def test_repeated_classes(make):
    cuda = """namespace a::b {
struct Rows;  // struct Rows {
template <class Rows> struct alignas(16) Sums : Base<Rows> { struct Inner {}; };
template <> struct Sums<int> {};
class Last final { enum class Inner : int { kOne }; };
void f() { struct Last {}; }
}
"""
    root = make(
        {
            "apps/kmeans/data/rows.py": "class Rows:\n    class Inner: pass\n",
            "apps/kmeans/assign/rows.cuh": cuda,
            "apps/kmeans/update/sums.cuh": 'extern "C" { namespace { struct Sums {}; } }',
            "apps/abft/rows.py": "class Rows: pass\nclass Last: pass\n",
        }
    )
    assert architecture.repeated_classes(root) == {"apps/kmeans Sums": 2}
    root = make({"apps/kmeans/assign/more.cuh": "struct Rows {};"})
    assert architecture.repeated_classes(root) == {"apps/kmeans Rows": 2, "apps/kmeans Sums": 2}


@pytest.mark.parametrize(
    ("docstring", "counted"),
    [
        ("The C++ class of assign/rows.cuh, packed.", False),
        ("The C++ enum of rows.cuh.", False),
        ("Rows; see the\n    C++ class of apps/kmeans/assign/rows.cuh.", False),
        ("The C++ class of sign/rows.cuh.", True),
        ("The C++ class of assign/other.cuh.", True),
        ("Reads rows; see assign/rows.cuh.", True),
    ],
)
def test_mirrors_are_no_repeated_classes(make, docstring, counted):
    rows = f'class Rows:\n    """{docstring}"""\n'
    files = {"apps/kmeans/assign/rows.cuh": "struct Rows {};", "apps/kmeans/assign/other.cuh": "struct Other {};"}
    root = make(files | {"apps/kmeans/data/rows.py": rows})
    assert architecture.repeated_classes(root) == ({"apps/kmeans Rows": 2} if counted else {})
    root = make({"apps/kmeans/update/rows.cuh": "struct Rows {};"})
    assert architecture.repeated_classes(root) == {"apps/kmeans Rows": 3 if counted else 2}


def test_packages_and_their_data(make):
    project = """[tool.setuptools]
packages = ["tsapps", "tsapps.kernels", "tsapps.kernels.plan"]
[tool.setuptools.package-data]
"tsapps.kernels" = ["ptx/*.cuh"]
"tsapps.kernels.plan" = ["tuned/*.json"]
"""
    whole = [
        "tsapps/__init__.py", "kernels/__init__.py", "kernels/plan/__init__.py", "kernels/plan/tuned/h200.json",
        "kernels/ptx/mma.cuh",
    ]  # fmt: skip
    root = make({"pyproject.toml": project, **dict.fromkeys(whole, "")})
    assert architecture.unpackaged(root) == []
    make(dict.fromkeys(["kernels/jit/cache.py", "kernels/tsm2/a.cuh", "tsapps/py.typed"], ""))
    (root / "kernels/plan/tuned/h200.json").unlink()
    (root / "kernels/plan/__init__.py").unlink()
    assert architecture.unpackaged(root) == [
        "kernels/jit has modules and is no package",
        "kernels/jit has no __init__.py",
        "kernels/plan is a package without modules",
        "kernels/tsm2/a.cuh is not installed",
        "tsapps.kernels.plan: no file is tuned/*.json",
        "tsapps/py.typed is not installed",
    ]


@pytest.mark.parametrize(
    ("docstring", "lines"),
    [
        ("At most |x|.", [1]),
        ("At most γ·|A||B|, or 2|x|,\n    and so (|x|).", [1, 2]),
        ("Return x.\n\n    |C − AB| is small.\n", [3]),
        ("Two literals, ``|x|`` and ``|a +\n    b|``: none; |y|: one.", [2]),
        ("A block::\n\n        |x| > 1\n\n        |y| > 1\n\n    and |z|.", [7]),
        ("No bar begins a name: Σ|x|, a | b, k-means||.", []),
    ],
)
def test_substitutions(make, docstring, lines):
    source = f'def f():\n    """{docstring}"""\n    return "|x|"  # |x|\n'
    expected = [f"apps/a.py:{i + 1}: {source.splitlines()[i]}" for i in lines]
    assert architecture.substitutions(make({"apps/a.py": source})) == expected


def test_third_party(make):
    root = make(
        {
            "tsapps/a.py": "import os, numpy as np\nfrom . import b\nfrom .b import c\nfrom tsapps import b",
            "tsapps/b.py": "def f(path):\n    from rich.console import Console\n    optional_module('h5py.x', path)",
            "tests/helper.py": "import pytest",
            "tests/test_a.py": "import helper, scipy.linalg",
        }
    )
    assert architecture.third_party(root, "tsapps") == {"numpy", "rich", "h5py"}
    assert architecture.third_party(root, "tests") == {"pytest", "scipy"}


def test_missing_paths(make):
    document = """`kernels/plan.py` and `kernels/gone.py`; plan.py, gone.py. [a link](docs/gone.png), (bench/*.json)
  plan/   tuned   gone/   out/   1/2   and/or   `python -m tsapps.bench.gemm`   https://example.org/gone.py   kernels/
`docs/<name>.md` and `a/b.cuh`: tests/gone
"""
    root = make({"kernels/plan.py": "", "kernels/plan/a.py": "", "README.md": document})
    assert architecture.missing_paths(root, "README.md", ("out",)) == [
        "kernels/gone.py", "gone.py", "docs/gone.png", "gone/", "a/b.cuh", "tests/gone",
    ]  # fmt: skip


def test_differences_from_known_numbers():
    known = {"a": 3, "b": 2, "c": 1}
    assert differences(known, {"a": 3, "b": 1, "c": 1}) == []
    assert differences(known, {"a": 4, "b": 2, "d": 1}) == [
        "gone, so remove it from the list (--write): c",
        "grew: a (3 → 4)",
        "new: d (1)",
    ]
    assert differences({frozenset("ab"): 2}, {frozenset("abc"): 3}) == [
        "gone, so remove it from the list (--write): a ↔ b",
        "new: a ↔ b ↔ c (3)",
    ]
