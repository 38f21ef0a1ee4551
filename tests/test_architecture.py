"""Architecture rules: allowed uses between packages, sizes of files and functions, and forbidden names.

Known violations are in architecture_known.json; their numbers may only decrease. After renaming or fixing something,

    python tests/test_architecture.py --write

rewrites that file and prints the totals before and after. Reviews reject any number that increased, unless a new word
was added to the tables below.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import architecture
import pytest

ROOT = Path(__file__).parent.parent
KNOWN = Path(__file__).with_name("architecture_known.json")

# Packages that each package may use besides itself. A package is one folder; its subfolders have separate lines.
_CORE = {
    "kernels",
    *(f"kernels/{name}" for name in ("blas", "device", "jit", "plan", "ptx", "runtime", "system", "tsm2", "tsm2/simt")),
}
_ABFT = {"apps/abft", *(f"apps/abft/{name}" for name in ("at_rest", "at_rest/gpu", "files", "modules", "product"))}


def _stages(*names: str) -> set[str]:
    return {f"apps/kmeans/{name}" for name in names}


ARROWS = {
    "kernels": {f"kernels/{name}" for name in ("blas", "jit", "plan", "runtime", "square", "system")},
    "kernels/blas": {"kernels", "kernels/plan", "kernels/runtime"},
    "kernels/device": {"kernels/ptx"},
    "kernels/jit": {"kernels/system"},
    "kernels/ladder": {"kernels", "kernels/device", "kernels/runtime", "kernels/system"},
    "kernels/plan": {"kernels", "kernels/system", "kernels/tsm2", "kernels/tsm2/simt"},
    "kernels/ptx": set(),
    "kernels/runtime": {"kernels", "kernels/jit"},
    "kernels/system": set(),
    "kernels/square": {"kernels/device", "kernels/ptx"},
    "kernels/tsm2": {"kernels/device", "kernels/ptx"},
    "kernels/tsm2/simt": {"kernels/device"},
    "apps": set(),
    "apps/abft": _CORE | _ABFT,
    "apps/abft/at_rest": {*_CORE, "apps/abft/at_rest/gpu"},
    "apps/abft/at_rest/gpu": {*_CORE, "apps/abft/at_rest"},
    "apps/abft/files": {*_CORE, "apps/abft/at_rest", "apps/abft/at_rest/gpu"},
    "apps/abft/modules": {*_CORE, "apps/abft/product", "kernels/square"},
    "apps/abft/product": _CORE,
    "apps/kmeans": {
        "kernels",
        "kernels/blas",
        "kernels/runtime",
        "kernels/system",
        *_stages("balanced", "batched", "data", "distributed", "engines", "init"),
        *_stages("minibatch", "protect", "report", "scores", "sweep", "update"),
    },
    "apps/kmeans/report": {*_CORE, "kernels/system", "apps/kmeans", *_stages("data", "scores")},
    # Stages, each of which may use those before it; assign has the plans of data, and inertia a pass over it.
    "apps/kmeans/data": _CORE | _stages("assign", "inertia"),
    "apps/kmeans/assign": _CORE | _stages("data"),
    "apps/kmeans/bounds": _CORE | _stages("data", "assign"),
    "apps/kmeans/update": {*_CORE, "apps/kmeans", *_stages("data", "assign", "bounds")},
    "apps/kmeans/init": _CORE | _stages("data", "assign"),
    "apps/kmeans/protect": {*_CORE, "apps/kmeans", *_stages("data", "assign", "update", "inertia")},
    "apps/kmeans/inertia": _CORE | _stages("data", "protect", "update"),
    "apps/kmeans/small_d": _CORE | _stages("data", "assign", "bounds", "update"),
    "apps/kmeans/engines": {
        *_CORE,
        "apps/kmeans",
        *_stages("data", "assign", "bounds", "update", "init", "protect", "inertia", "small_d"),
    },
    "apps/kmeans/distributed": {
        *_CORE,
        "apps/kmeans",
        *_stages("data", "engines", "inertia", "init", "protect", "update"),
    },
    "apps/kmeans/scores": _CORE | _stages("data"),
    "apps/kmeans/balanced": {"kernels", "kernels/blas", "apps/kmeans", *_stages("data", "distributed")},
    "apps/kmeans/batched": {*_CORE, "apps/kmeans", *_stages("data", "assign", "update")},
    "apps/kmeans/sweep": {
        *_CORE,
        "apps/kmeans",
        *_stages("data", "assign", "update", "init", "inertia", "engines"),
    },
    "apps/kmeans/minibatch": {*_CORE, "apps/kmeans", *_stages("data", "distributed", "engines")},
    "tsapps/matrix": {"kernels", "kernels/system", "tsapps"},
    "tsapps/cli": {
        *("kernels", "kernels/plan", "kernels/system", "tsapps", "tsapps/matrix"),
        *("apps/abft", "apps/abft/at_rest", "apps/abft/files", "apps/abft/product"),
        *("apps/kmeans", *_stages("data", "distributed", "engines", "report", "sweep")),
        *("bench/abft", "bench/common", "bench/gemm", "bench/kmeans", "bench/ladder", "bench/paper", "bench/report"),
        "kernels/ladder",
    },
    "tsapps": {"kernels", "kernels/system", "apps/abft", "apps/kmeans", "tsapps/matrix", "tsapps/cli"},
    "bench/common": {"kernels/system"},
    "bench/gemm": {*_CORE, "kernels/ladder", "tsapps", "bench/common"},
    "bench/ladder": {*_CORE, "kernels/ladder", "tsapps", "bench/common", "bench/gemm"},
    "bench/paper": {*_CORE, "kernels/ladder", "tsapps", "bench/common", "bench/gemm", "bench/abft"},
    "bench/scale": {*_CORE, "apps/kmeans", *_stages("init"), "tsapps", "bench/common", "bench/kmeans", "bench/paper"},
    "bench/kmeans": {
        *_CORE,
        "apps/kmeans",
        *_stages("batched", "data", "engines", "protect"),
        "tsapps",
        "bench/common",
    },
    "bench/abft": {*_CORE, *_ABFT, *_stages("data", "engines"), "tsapps", "bench/common", "bench/gemm", "bench/kmeans"},
    "bench/report": {"kernels/system", "bench/common", "bench/gemm", "bench/kmeans"},
    "bench": {"bench/common", "bench/gemm", "bench/kmeans", "bench/scale"},
}

# Words forbidden in identifiers, as whole words between underscores or capitals, and their replacements.
GLOSSARY = {
    "centre": "center",
    "centres": "centers",
    "shadow": "half_copy",
    "halves": "half, or HALF_TYPES",
    "few": "small_d, small_k or small",
    "of_many": "large_k",
    "of_long": "large_d",
    "short_rows": "d4",
    "long_rows": "large_d",
    "in_doubt": "ambiguous",
    "undecided": "ambiguous",
    "decided": "certified",
    "decide": "rescore",
    "extremes": "center_stats",
    "margin": "error coefficient",
    "margins": "error coefficients",
    "reach": "norm limit",
    "moved": "n_reassigned or reassigned",
    "moves": "reassigned or scatter_update",
    "count_changes": "count_reassigned",
    "sort_changes": "sort_reassigned",
    "add_segments": "segmented_sum",
    "kept_sums": "running sums, or freivalds",
    "advance": "update_centers",
    "place_centers": "prepare_centers",
    "until": "bounded, or with_bounds",
    "expiry": "row_bound",
    "expiries": "row_bounds",
    "screen": "select_active_rows, or pruned",
    "examine": "assign_active_rows",
    "hopeless": "failed_drift",
    "motion": "drift",
    "seeding": "init",
    "try_candidates": "evaluate_candidates",
    "draw_candidates": "sample_candidates",
    "proves": "certifies",
    "proved": "certified",
    "ring": "pipeline",
    "rings": "pipeline",
    "loaders": "producers",
    "multipliers": "consumers",
    "cursor": "work_iterator",
    "block_sums": "stream_k_fixup",
    "hand_over": "epilogue_staging",
    "slab": "core_matrix",
    "slabs": "core_matrix_layout",
    "streamed_columns": "gemm_wgmma_streamed",
    "stretch": "accumulation interval",
    "stretches": "accumulation intervals",
    "take_apart": "split_tf32",
    "overlapping_launch": "DependentLaunch",
    "after_previous": "griddepcontrol_wait",
    "next_may_begin": "griddepcontrol_launch_dependents",
    "pick": "tuned configuration",
    "picks": "tuned configurations",
    "published": "tsm2_paper",
    "suspect": "flagged row",
    "suspected": "flagged",
    "judge": "locate",
    "false_alarm": "false_positive",
    "false_alarms": "false_positives",
    "differing": "syndrome, or mismatch",
    "dealt": "interleaved",
}

# Words that are too common to forbid in identifiers, but meaningless as the whole name of a file.
FILE_NAMES = {
    "ahead": "precompile",
    "banks": "bank_conflicts",
    "bulk": "bulk_copy",
    "ceilings": "roofline",
    "changes": "sort_reassigned",
    "checked": "detect",
    "choose": "select, or open_engine",
    "common": "what the file holds",
    "fused": "the step's own name",
    "helpers": "what the file holds",
    "integers": "fixed_point",
    "library": "cublas",
    "misc": "what the file holds",
    "move": "scatter_add",
    "nearest": "small_k",
    "order": "accumulation_order, or emulated_gemm",
    "packed": "vector_load, or launch",
    "rest": "verify",
    "segments": "segmented_sum",
    "simple": "simt",
    "tables": "user_table",
    "units": "tile_scheduler",
    "utils": "what the file holds",
    "walk": "rounding_model",
    "weighted": "float_code",
}

GENERATED = ("data-kmeans",)  # output of the README's commands


def circles(root: Path) -> dict[frozenset[str], int]:
    found = architecture.circles(architecture.import_graph(root)) | architecture.circles(
        architecture.include_graph(root)
    )
    return {circle: len(circle) for circle in found}


@cache
def places_of_old_words() -> dict[str, list[str]]:
    return architecture.old_words(ROOT, GLOSSARY)


TABLES: dict[str, Callable[[Path], dict]] = {
    "circles": circles,
    "long_files": architecture.long_files,
    "long_functions": architecture.long_functions,
    "long_lines": architecture.long_lines,
    "old_words": lambda root: {word: len(places) for word, places in places_of_old_words().items()},
    "old_file_names": lambda root: architecture.old_file_names(root, FILE_NAMES),
    "repeated_classes": architecture.repeated_classes,
}
ADVICE = {
    "circles": "let one of them take what it needs as an argument",
    "long_files": f"at most {architecture.KERNEL_LINES} lines a .cuh file, {architecture.MODULE_LINES} a module",
    "long_functions": f"at most {architecture.FUNCTION_LINES} lines without the docstring",
    "long_lines": f"at most {architecture.LINE_LENGTH} characters; counted are the lines that are longer",
    "old_words": "identifiers use the new word of GLOSSARY; counted are distinct identifiers a file",
    "old_file_names": "FILE_NAMES says how to call the file",
    "repeated_classes": "one class name has one meaning in a package; a Python class that mirrors a C++ class "
    "says in its docstring `C++ class of`, or `C++ enum of`, and the file; counted are the other classes of that name",
}


def read_known() -> dict[str, dict]:
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {name: {} for name in TABLES}
    return known | {"circles": {frozenset(circle): len(circle) for circle in known["circles"]}}


def differences(known: dict, now: dict) -> list[str]:
    """Return new, increased and obsolete entries; a decreased number is not a difference."""

    def say(key: str | frozenset) -> str:
        return key if isinstance(key, str) else " ↔ ".join(sorted(key))

    return sorted(
        [f"new: {say(key)} ({now[key]})" for key in now.keys() - known.keys()]
        + [
            f"grew: {say(key)} ({known[key]} → {now[key]})"
            for key in now.keys() & known.keys()
            if now[key] > known[key]
        ]
        + [f"gone, so remove it from the list (--write): {say(key)}" for key in known.keys() - now.keys()]
    )


def write() -> None:
    """Write the present violations, and print the totals before and after."""
    before, now = read_known(), {name: measure(ROOT) for name, measure in TABLES.items()}
    for name, table in now.items():
        print(f"{name}: {len(before.get(name, {}))} → {len(table)} entries, sum {sum(before.get(name, {}).values())} → "
              f"{sum(table.values())}")  # fmt: skip
    sorted_tables = {name: dict(sorted(table.items())) for name, table in now.items() if name != "circles"}
    listed = sorted(sorted(circle) for circle in now["circles"])
    KNOWN.write_text(json.dumps({"circles": listed, **sorted_tables}, indent=1) + "\n")


@pytest.mark.parametrize("table", TABLES)
def test_known_violations_only_decrease(table):
    found = differences(read_known()[table], TABLES[table](ROOT))
    if table == "old_words":
        found = [f"{one}: {places_of_old_words().get(one.split()[1], '')}" for one in found]
    assert not found, f"{ADVICE[table]}:\n" + "\n".join(found)


def test_packages_use_only_allowed_packages():
    assert architecture.forbidden_arrows(ROOT, ARROWS) == []


def test_allowed_packages_exist():
    folders = {architecture.folder(path) for path in architecture.files(ROOT, ".py", ".cuh")}
    assert ARROWS.keys() | set().union(*ARROWS.values()) == folders


def test_every_package_and_kernel_file_installs():
    assert architecture.unpackaged(ROOT) == []


def test_docstrings_have_no_substitutions():
    assert architecture.substitutions(ROOT) == [], "write ``|x|``, between double backquotes"


@pytest.mark.parametrize("document", architecture.DOCUMENTS)
def test_documents_name_existing_files(document):
    assert architecture.missing_paths(ROOT, document, GENERATED) == []


@pytest.mark.parametrize(
    "document", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
)
def test_links_between_documents_and_files(document):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_architecture.py --write")
    write()
