"""Sphinx extension: links to source files of the repository open a page of the site, not a download."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
LANGUAGES = {".py": "python", ".cuh": "cuda", ".hpp": "cpp"}


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Replace the downloads of source files by links to their pages, before Sphinx collects downloads."""
    page = app.env.docname
    for node in list(doctree.findall(download_reference)):
        path = Path(app.env.relfn2path(node["reftarget"], page)[1]).resolve()
        if path.suffix in LANGUAGES and path.is_file() and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT).as_posix()
            uri = app.builder.get_relative_uri(page, f"source/{name}")
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))
            app.env.metadata[page][f"source:{name}"] = ""


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the page of each source file that a page links to."""
    linked = {key for page in app.env.metadata.values() for key in page if key.startswith("source:")}
    for name in sorted(key.removeprefix("source:") for key in linked):
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        body = app.builder.highlighter.highlight_block(text, LANGUAGES[path.suffix], linenos=False)
        yield f"source/{name}", {"title": name, "body": f"<h1>{name}</h1>{body}"}, "page.html"


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension."""
    app.connect("doctree-read", link_sources, priority=100)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True}
