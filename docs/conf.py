"""Configuration of the documentation site: ``make docs`` builds it into build/docs."""

import logging
import sys
from pathlib import Path

import typer
from typer.cli import get_docs_for_click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs")]  # source_pages

from tsapps import __version__  # noqa: E402
from tsapps.cli import app  # noqa: E402
from tsapps.cli.help import EXAMPLES  # noqa: E402

project, author, copyright = "tsapps", "the tsapps developers", "2026, the tsapps developers"  # noqa: A001
release = version = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "source_pages",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_templates", "tutorials/*"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_heading_anchors = 4
highlight_language = "none"
smartquotes_action = "qe"  # two hyphens begin an option

autosummary_generate = True
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
autodoc_typehints = "none"
default_role = "literal"

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "_generated/tutorials",
    "filename_pattern": r"plot_",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
}

# A checkout may lie in a folder with a space; names of examples have none.
logging.getLogger("sphinx.sphinx-gallery").addFilter(lambda record: "Having spaces" not in record.getMessage())

html_theme = "pydata_sphinx_theme"
html_title = "tsapps"
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
}
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# Pages without a section of their own.
html_sidebars = {page: [] for page in ("install", "quickstart", "performance/index")}


def write_command_line(folder: Path) -> list[tuple[str, str, str, str, int]]:
    """Write a page for each command from its help, and their index; return what Sphinx needs for manual pages."""
    folder.mkdir(parents=True, exist_ok=True)
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="tsapps")
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    for name, command in commands.items():
        text = get_docs_for_click(obj=command, ctx=context, call_prefix="tsapps")
        examples = "\n".join(f"$ {example}" for example in EXAMPLES.get(name, ()))
        if examples:
            text += f"\n**Examples**:\n\n```console\n{examples}\n```\n"
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    index = "\n".join(["```{toctree}", ":maxdepth: 1", "", *commands, "```", ""])
    (folder / "index.md").write_text(f"# Commands\n\n{index}", encoding="utf-8")
    return [
        (f"_generated/commands/{name}", f"tsapps-{name}", command.get_short_help_str(200).rstrip("."), author, 1)
        for name, command in commands.items()
    ]


man_pages = write_command_line(Path(__file__).parent / "_generated" / "commands")
