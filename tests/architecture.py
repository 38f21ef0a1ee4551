"""Checkers of the architecture: imports, sizes, names and packaging, all from the source text.

Every checker takes the root of a repository, so that tests can pass a small one made by hand. Paths are relative to
that root, with forward slashes. A package is a folder with modules or kernel files. Links to folders are not followed.
"""

import ast
import os
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CODE = ("kernels", "apps", "tsapps", "bench")
INSTALLED = ("kernels", "apps", "tsapps", "bench")
# Packages of tsapps whose sources are at the top level.
AT_TOP = (["kernels"], ["apps"], ["bench"])
DATA = (".cuh", ".j2", ".json", ".typed")
NAMESPACES = ("kernels", "apps/kmeans", "apps/abft", "tsapps")
DOCUMENTS = ("pyproject.toml", "CONTRIBUTING.md", "README.md")
KERNEL_LINES, MODULE_LINES, FUNCTION_LINES, LINE_LENGTH = 300, 400, 60, 120

_IMPORTERS = ("import_module", "optional_module")
_COMMENT_OR_STRING = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# A literal: text in double backquotes, or an indented block after a line that ends in two colons.
_LITERAL = re.compile(r"``(?:.|\n)+?``|(?<=::\n\n)( +)\S.*(?:\n+\1.*)*")
# A bar that may start a substitution: reStructuredText checks the characters on both sides.
_BAR = re.compile(r"(?<![\w|)\]])\|(?=[^\s|])")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+\.cuh)[">]', re.MULTILINE)
_KERNEL_PATH = re.compile(r"(?:kernels|apps)/[\w/]+\.cuh")
# The docstring of a Python class that stands for a C++ class of the same name.
_MIRROR = re.compile(r"C\+\+ (?:class|enum) of ([\w/]+\.cuh)")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SCOPE_OR_CLASS = re.compile(
    r"(?P<namespace>\bnamespace\b[^{;=]*\{|\bextern\s*\{)|(?P<open>\{)|(?P<close>\})"
    r"|\b(?:struct|class)\s+(?:alignas\s*\([^)]*\)\s*|__align__\s*\([^)]*\)\s*)?(?P<name>\w+)\s*(?:final\s*)?(?=\{|:[^:])"
)


def files(root: Path, *suffixes: str, tops: tuple[str, ...] = CODE) -> list[str]:
    """Return the sorted files in the folders `tops`, but for hidden and generated ones, with one of the suffixes."""
    found = []
    for top in tops:
        for folder, subfolders, names in os.walk(root / top):
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "_"))]
            found += [Path(folder, name).relative_to(root).as_posix() for name in names if name.endswith(suffixes)]
    return sorted(found)


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def stripped(source: str) -> str:
    """Return C++ without comments and string literals."""
    return _COMMENT_OR_STRING.sub(" ", source)


def folder(path: str) -> str:
    return path.rpartition("/")[0]


# Imports and includes


def module_name(path: str) -> str:
    """Return the dotted name of a module: kernels/plan.py is tsapps.kernels.plan."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "tsapps" else ["tsapps", *parts])


def imported_names(root: Path, path: str) -> Iterator[str]:
    """Yield the absolute dotted names that a module imports, at the top level or inside functions."""
    package = module_name(path).split(".")
    if not path.endswith("/__init__.py"):
        package.pop()
    for node in nodes(root / path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in _IMPORTERS:
            yield from (argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant))


def import_graph(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports. TYPE_CHECKING and imports inside functions count."""
    modules = {module_name(path): path for path in files(root, ".py")}
    graph = {}
    for path in modules.values():
        graph[path] = set()
        for name in imported_names(root, path):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and modules[name] != path:
                graph[path].add(modules[name])
    return graph


def include_graph(root: Path) -> dict[str, set[str]]:
    """Return the .cuh files that each .cuh file includes, by paths from the root or from its own folder."""
    graph = {}
    for path in files(root, ".cuh"):
        beside = {name: f"{folder(path)}/{name}" for name in _INCLUDE.findall(text(root / path))}
        graph[path] = {near if (root / near).is_file() else name for name, near in beside.items()}
    return graph


def named_kernels(root: Path) -> dict[str, set[str]]:
    """Return the .cuh files that each module names in a string outside docstrings, as launchers do."""
    graph = {}
    for path in files(root, ".py"):
        docstrings = {id(node.value) for node in nodes(root / path) if isinstance(node, ast.Expr)}
        constants = [
            node for node in nodes(root / path) if isinstance(node, ast.Constant) and id(node) not in docstrings
        ]
        strings = [node.value for node in constants if isinstance(node.value, str)]
        graph[path] = {name for string in strings for name in _KERNEL_PATH.findall(string)}
    return graph


def forbidden_arrows(root: Path, arrows: dict[str, set[str]]) -> list[str]:
    """Return uses between packages that the table `arrows` does not allow, and packages without a line in it."""
    graphs = [import_graph(root), include_graph(root), named_kernels(root)]
    packages = sorted({folder(path) for graph in graphs for path in graph})
    wrong = [f"{package} has no line in the table of arrows" for package in packages if package not in arrows]
    for graph in graphs:
        for path, used in sorted(graph.items()):
            allowed = {folder(path), *arrows.get(folder(path), ())}
            wrong += [f"{path} must not use {other}" for other in sorted(used) if folder(other) not in allowed]
    return wrong


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one node."""

    def reachable(start: str) -> set[str]:
        seen, stack = set(), [start]
        while stack:
            for node in graph.get(stack.pop(), ()):
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
        return seen

    reach = {node: reachable(node) for node in graph}
    return {
        frozenset(other for other in reach[node] if node in reach.get(other, ()))
        for node in graph
        if node in reach[node]
    }


# Sizes


def long_files(root: Path) -> dict[str, int]:
    """Return the length of every kernel file of more than 300 lines and of every module of more than 400."""
    sizes = {path: len(text(root / path).splitlines()) for path in files(root, ".cuh", ".py")}
    return {
        path: size for path, size in sizes.items() if size > (KERNEL_LINES if path.endswith(".cuh") else MODULE_LINES)
    }


def long_functions(root: Path) -> dict[str, int]:
    """Return the length, without the docstring, of every Python function of more than 60 lines."""
    found: dict[str, int] = {}

    def visit(node: ast.AST, path: str, scope: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path}::{'.'.join([*scope, child.name])}"
                if (size := function_lines(child)) > FUNCTION_LINES:
                    found[name] = max(size, found.get(name, 0))
                visit(child, path, (*scope, child.name))
            elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                visit(child, path, scope)

    for path in files(root, ".py"):
        visit(tree(root / path), path, ())
    return found


def function_lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines of a function without decorators and docstring; 0 for a class."""
    if isinstance(node, ast.ClassDef):
        return 0
    size = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        size -= node.body[0].end_lineno - node.body[0].lineno + 1
    return size


def long_lines(root: Path) -> dict[str, int]:
    """Return the number of lines over 120 characters in each file; tables and links in Markdown are exempt."""
    markdown = sorted(path.name for path in root.glob("*.md"))
    found = {}
    for path in [*files(root, ".cuh", ".py", ".md", tops=(*CODE, "tests", "docs")), *markdown]:
        long = [line for line in text(root / path).splitlines() if len(line) > LINE_LENGTH]
        if path.endswith(".md"):
            long = [line for line in long if not line.startswith("|") and "://" not in line]
        if long:
            found[path] = len(long)
    return found


# Names


def python_identifiers(path: Path) -> set[str]:
    names = set()
    for node in nodes(path):
        fields = [getattr(node, field, None) for field in ("name", "asname", "arg", "attr", "id")]
        names |= {part for field in fields if isinstance(field, str) for part in field.split(".")}
    return names


def identifiers(root: Path, path: str) -> set[str]:
    """Return the distinct identifiers of a file, including its own name."""
    source = root / path
    found = (
        python_identifiers(source)
        if path.endswith(".py")
        else set(re.findall(r"[A-Za-z_]\w*", stripped(_INCLUDE.sub(" ", text(source)))))
    )
    return {*found, source.stem}


def words(identifier: str) -> str:
    """Split an identifier into words with underscores between: kFewCentres becomes _k_few_centres_."""
    return f"_{'_'.join(part.lower() for part in _PART.findall(identifier))}_"


def old_words(root: Path, glossary: dict[str, str]) -> dict[str, list[str]]:
    """Return `path:identifier` for each identifier that contains an old word of the glossary, by word."""
    found = defaultdict(list)
    for path in files(root, ".py", ".cuh"):
        for identifier in sorted(identifiers(root, path)):
            spelled = words(identifier)
            for old in glossary:
                if f"_{old}_" in spelled:
                    found[old].append(f"{path}:{identifier}")
    return dict(found)


def old_file_names(root: Path, forbidden: dict[str, str]) -> dict[str, int]:
    """Return the files whose name without its ending is forbidden."""
    return {path: 1 for path in files(root, ".py", ".cuh") if Path(path).stem in forbidden}


def classes(root: Path, path: str) -> list[str]:
    """Return the classes of a file that are not inside another class or function."""
    if path.endswith(".py"):
        return [node.name for node in tree(root / path).body if isinstance(node, ast.ClassDef)]
    found, depth = [], []
    for match in _SCOPE_OR_CLASS.finditer(stripped(text(root / path))):
        if match["namespace"] or match["open"]:
            depth.append(bool(match["open"]))
        elif match["close"] and depth:
            depth.pop()
        elif match["name"] and not any(depth):
            found.append(match["name"])
    return found


def is_mirror(root: Path, path: str, name: str, others: list[str]) -> bool:
    """Tell whether a Python class says that it is the C++ class of one of the other files that have its name."""
    if not path.endswith(".py"):
        return False
    of_name = [node for node in tree(root / path).body if isinstance(node, ast.ClassDef) and node.name == name]
    headers = [header for node in of_name for header in _MIRROR.findall(ast.get_docstring(node) or "")]
    return any(f"/{other}".endswith(f"/{header}") for other in others for header in headers)


def repeated_classes(root: Path) -> dict[str, int]:
    """Return the class names that occur more than once in a package, Python and C++ together, with their counts.

    A Python class does not count if its docstring says ``C++ class of update/sums.cuh``, or ``C++ enum of …``, and that
    file has a class of its name.
    """
    places = defaultdict(list)
    for package in NAMESPACES:
        for path in files(root, ".py", ".cuh", tops=(package,)):
            for name in classes(root, path):
                places[f"{package} {name}"].append(path)
    counts = {
        name: sum(not is_mirror(root, path, name.split()[1], paths) for path in paths)
        for name, paths in sorted(places.items())
    }
    return {name: count for name, count in counts.items() if count > 1}


# Packaging and documents


def unpackaged(root: Path) -> list[str]:
    """Return folders and files that pyproject.toml does not install, and its entries that match nothing."""
    setup = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    homes = {package: root / package.removeprefix("tsapps.").replace(".", "/") for package in setup["packages"]}
    homes |= {name: root / name.replace(".", "/") for name in homes if name.split(".")[1:2] not in AT_TOP}
    folders = {root / folder(path) for path in files(root, ".py", tops=INSTALLED)}
    wrong = [f"{home.relative_to(root)} has modules and is no package" for home in folders - set(homes.values())]
    wrong += [f"{home.relative_to(root)} is a package without modules" for home in set(homes.values()) - folders]
    wrong += [
        f"{home.relative_to(root)} has no __init__.py" for home in folders if not (home / "__init__.py").is_file()
    ]
    installed = set()
    for package, patterns in setup["package-data"].items():
        if package not in homes:
            wrong.append(f"{package} has package data and is no package")
            continue
        for pattern in patterns:
            matched = set(homes[package].glob(pattern))
            wrong += [] if matched else [f"{package}: no file is {pattern}"]
            installed |= matched
    return sorted(
        wrong
        + [
            f"{path} is not installed"
            for path in files(root, *DATA, tops=INSTALLED)
            if root / path not in installed and not path.startswith("bench/results/")  # records stay in the repository
        ]
    )


def third_party(root: Path, *tops: str) -> set[str]:
    """Return the top-level modules imported under `tops` that belong neither to Python nor to this repository."""
    paths = files(root, ".py", tops=tops)
    imported = {name.partition(".")[0] for path in paths for name in imported_names(root, path)}
    beside = {part for path in paths for part in path.removesuffix(".py").split("/")}
    return imported - sys.stdlib_module_names - beside - {"tsapps"}


def substitutions(root: Path) -> list[str]:
    """Return the docstring lines in which reStructuredText would parse ``|…|`` as a substitution."""
    found = []
    for path in files(root, ".py"):
        source = text(root / path).splitlines()
        owners = [node for node in nodes(root / path) if isinstance(node, _DOCUMENTED) and ast.get_docstring(node)]
        for docstring in (node.body[0] for node in owners):
            lines = _LITERAL.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), docstring.value.value).split("\n")
            found += [
                f"{path}:{i}: {source[i - 1]}" for i, line in enumerate(lines, docstring.lineno) if _BAR.search(line)
            ]
    return found


def missing_paths(root: Path, document: str, generated: tuple[str, ...] = ()) -> list[str]:
    """Return the paths that a document names and the repository lacks.

    A path is a word that begins with a top folder of the repository, or has the ending of a folder, source or document.
    Words with a slash inside are paths from the root; other words may name any file or folder. Skipped are words with
    pattern characters, and words that begin with one of `generated`.
    """
    tops = (*CODE, "tests", "docs")
    known = {path.name for path in root.iterdir()}
    for top in tops:
        for _, subfolders, names in os.walk(root / top):
            known |= {*subfolders, *names}
    missing = []
    for word in re.split(r"[\s`'\"()\[\],;|=]+|:(?=\s)|\w+://\S+", text(root / document)):
        path = word.rstrip(".:").removeprefix("./")
        if path.startswith(generated or "\0") or not re.fullmatch(r"[\w./-]+", path):
            continue
        is_source = path.endswith((".py", ".cuh", ".hpp", ".md", ".toml")) and not path.startswith(".")
        bare = re.fullmatch(r"[\w-]+/?", path) or (is_source and "/" not in path)
        if bare and (is_source or path.endswith("/")):
            missing += [] if path.rstrip("/") in known else [path]
        elif "/" in path and not path.startswith("/") and (is_source or path.split("/")[0] in tops):
            missing += [] if (root / path).exists() else [path]
    return missing
