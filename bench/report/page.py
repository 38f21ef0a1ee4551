"""The page of a report: its sections, the machines, and the HTML."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from tsapps.bench.report import abft, gemm, kmeans, ladder, other, paper, skinny, untuned
from tsapps.bench.report.blocks import Block
from tsapps.bench.report.records import KINDS, Record, by, measured, newest, provenance

__all__ = ["SUBJECTS", "Section", "Subject", "html", "sections"]


@dataclass(frozen=True)
class Subject:
    """What a section shows: its kinds of records, the function that yields its blocks, and its text."""

    anchor: str
    title: str
    kinds: tuple[str, ...]
    blocks_of: Callable[[Sequence[Record]], Iterator[Block]]
    text: str


#: The sections in their order; records of other kinds have one more.
SUBJECTS = (
    Subject(
        "ladder",
        "Ladder",
        ("ladder",),
        ladder.blocks,
        text="Matrix products from a triple loop to tuned kernels. The speed-up is over the triple loop on one core. "
        "The efficiency is the speed-up per resident warp, on a CPU per thread.",
    ),
    Subject(
        "skinny",
        "Skinny shapes",
        ("ladder", "gemm"),
        skinny.blocks,
        text="The rate of A · B as B becomes narrower. Narrow products are bound by memory bandwidth: the roofline "
        "falls with the number of columns.",
    ),
    Subject(
        "products",
        "Tall-and-skinny products",
        ("gemm",),
        gemm.blocks,
        text="Speed-up of tsapps.matmul over the library, for each size of A and width of B: on a GPU the fastest of "
        "cuBLAS and cublasLt; on a CPU NumPy, by which tsapps.matmul multiplies there. Point at a cell for the range "
        "of its products.",
    ),
    Subject(
        "untuned",
        "Plans without a table",
        ("gemm-untuned",),
        untuned.blocks,
        text="Speed of products by plans that are selected by predicted times, relative to tuned plans and to cuBLAS; "
        "also by the plans that GPUs without wgmma have.",
    ),
    Subject(
        "kmeans",
        "K-means",
        ("kmeans", "kmeans-batched", "kmeans-small"),
        kmeans.blocks,
        text="Lloyd iterations and whole fits by each engine. An iteration is one from given centers, the mean of the "
        "first 20 if later ones are faster, or what one more adds to a fit; on a CPU, a fit divided by its iterations. "
        "The roofline is the time of one read of the data, or of "
        "its arithmetic if that takes longer.",
    ),
    Subject(
        "kinds",
        "K-means on kinds of data",
        ("kmeans-data",),
        kmeans.blocks_of_kinds,
        text="Whole fits from given centers on data of different kinds. Wrong labels are those of sampled rows that an "
        "engine assigns to a center that is not the nearest.",
    ),
    Subject(
        "abft",
        "Cost of checksums",
        ("abft",),
        abft.blocks_of_cost,
        text="Time of encoding and verifying data at rest; overhead of checked products and of protected K-means. The "
        "library is cuBLAS for the float code on a GPU, and SHA-256 on a CPU.",
    ),
    Subject(
        "campaign",
        "Injected faults",
        ("abft-campaign",),
        abft.blocks_of_campaign,
        text="Outcome of injected faults. The codes guarantee the detection of some faults; others, such as a flipped "
        "bit below the rounding error of a product, are harmless. A false positive is an alarm without a fault.",
    ),
    Subject(
        "paper",
        "Experiments of the papers",
        ("paper",),
        paper.blocks,
        text="Speed-ups on this hardware next to the range that the paper reports for its own.",
    ),
)
_OTHER = Subject("other", "Other records", (), other.blocks, text="Records of kinds without a section of their own.")


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    subject: Subject
    blocks: Sequence[Block]

    @property
    def records(self) -> list[Record]:
        """Return the records of all blocks, each once."""
        return list({id(one): one for block in self.blocks for one in block.records}.values())

    @property
    def source(self) -> str:
        """Return the source of the records, with all commits."""
        return provenance(self.records, all_commits=True)


def sections(records: Sequence[Record]) -> list[Section]:
    """Return the sections that have something to show."""
    found = []
    for subject in (*SUBJECTS, _OTHER):
        some = [
            one for one in records if one["what"] in subject.kinds or (subject is _OTHER and one["what"] not in KINDS)
        ]
        blocks = list(subject.blocks_of(some))
        if blocks:
            found.append(Section(subject, blocks))
    return found


def html(records: Sequence[Record]) -> str:
    """Return the page of records that `records.read` returned; the same records have the same page."""
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
        "source": measured(records, all_commits=True),
        "versions": ", ".join(f"{name} {' / '.join(sorted(found))}" for name, found in versions.items()),
    }
