"""Section of products by plans that are selected without a table of tuned plans: one line for each kind of product."""

from collections.abc import Iterator, Sequence

from tsapps.bench.gemm.summary import UNTUNED, untuned_rows
from tsapps.bench.report.blocks import Block, Table
from tsapps.bench.report.records import Record, by

__all__ = ["blocks"]


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield a table for each device."""
    for device, some in by(records, "device").items():
        yield Table(
            f"Median (lowest) speed of plans without a table, {device}", UNTUNED, untuned_rows(some), some, texts=2
        )
