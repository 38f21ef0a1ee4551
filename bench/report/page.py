"""The page of a report: its sections, the machines, and the HTML."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tsapps.bench.report import abft, gemm, kmeans, ladder, other, paper, skinny
from tsapps.bench.report.blocks import Block
from tsapps.bench.report.records import KINDS, Record, by, newest, provenance

__all__ = ["Section", "html", "sections"]

#: Identifier, title, text, kinds of records, and the function that yields the blocks.
_SECTIONS: tuple[tuple[str, str, str, tuple[str, ...], Callable[[Sequence[Record]], Iterator[Block]]], ...] = (
    (
        "ladder",
        "Ladder",
        "Matrix products from a triple loop to tuned kernels. The speed-up is over the triple loop on one core; the "
        "efficiency is the speed-up per resident warp, on a CPU per thread.",
        ("ladder",),
        ladder.blocks,
    ),
    (
        "skinny",
        "Skinny shapes",
        "The rate of A · B as B becomes narrower. Narrow products are bound by memory bandwidth: the roofline falls "
        "with the number of columns.",
        ("ladder", "gemm"),
        skinny.blocks,
    ),
    (
        "products",
        "Tall-and-skinny products",
        "Speed-up of tsapps.matmul over the fastest of cuBLAS and cublasLt, for each size of A and width of B. Point at "
        "a cell for the range of its products.",
        ("gemm",),
        gemm.blocks,
    ),
    (
        "kmeans",
        "K-means",
        "Lloyd iterations and whole fits by each engine. The roofline is the time of one read of the data, or of its "
        "arithmetic if that takes longer.",
        ("kmeans", "kmeans-batched", "kmeans-small"),
        kmeans.blocks,
    ),
    (
        "kinds",
        "K-means on kinds of data",
        "Whole fits from given centers on data of different kinds. Wrong labels are those of sampled rows that an "
        "engine assigns to a center that is not the nearest.",
        ("kmeans-data",),
        kmeans.blocks_of_kinds,
    ),
    (
        "abft",
        "Cost of checksums",
        "Time of encoding and verifying data at rest, and the overhead of checked products and of protected K-means.",
        ("abft",),
        abft.blocks_of_cost,
    ),
    (
        "campaign",
        "Injected faults",
        "Faults that the checksums detect, locate and repair. Guaranteed faults are those that the code must repair. A "
        "false positive is an alarm without a fault.",
        ("abft-campaign",),
        abft.blocks_of_campaign,
    ),
    (
        "paper",
        "Experiments of the papers",
        "Speed-ups on this hardware next to the range that the paper reports for its own.",
        ("paper",),
        paper.blocks,
    ),
)


@dataclass(frozen=True)
class Section:
    """A section of the page: its anchor, title, text, blocks, and the source of its records."""

    anchor: str
    title: str
    text: str
    blocks: Sequence[Block]
    source: str


def sections(records: Sequence[Record]) -> list[Section]:
    """Return the sections that have something to show; records of an unknown kind have the last one."""
    found = []
    for anchor, title, text, whats, blocks_of in _SECTIONS:
        some = [one for one in records if one["what"] in whats]
        blocks = list(blocks_of(some))
        if blocks:
            found.append(Section(anchor, title, text, blocks, provenance(some, most_commits=len(some))))
    others = [one for one in records if one["what"] not in KINDS]
    if others:
        source = provenance(others, most_commits=len(others))
        found.append(Section("other", "Other records", "", list(other.blocks(others)), source))
    return found


def html(records: Sequence[Record]) -> str:
    """Return the page of records that `records.read` returned; the same records have the same page.

    Raises
    ------
    ValueError
        If there is no record.
    """
    if not records:
        raise ValueError("there are no records: measure first (tsapps bench ladder)")
    kept = newest(records)
    environment = Environment(
        loader=PackageLoader("tsapps.bench.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        machines=[_machine(device, some) for device, some in by(kept, "device").items()],
        count=len(kept),
        repeated=len(records) - len(kept),
        sections=sections(kept),
    )


def _machine(device: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return the row of a device in the table of machines."""
    versions: dict[str, set[str]] = {}
    for one in records:
        for name, version in one["versions"].items():
            versions.setdefault(name, set()).add(str(version))
    return {
        "device": device,
        "kinds": ", ".join(f"{what} {len(some):,}" for what, some in by(records, "what").items()),
        "source": provenance(records),
        "versions": ", ".join(f"{name} {' / '.join(sorted(found))}" for name, found in versions.items()),
    }
