"""Tables of fits of data that one GPU does not hold, on several GPUs, and on workers of Dask, from their records."""

from collections.abc import Sequence
from typing import Any

__all__ = ["gpus_table", "scale_table", "workers_table"]


def scale_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of fits of data that the GPUs do not hold."""
    lines = [
        "| X, float32 | in | copy | k | GPUs | first iteration, s | later, ms | held, ms | pass, GB/s | link, GB/s |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]

    def place(one: dict[str, Any]) -> tuple[Any, ...]:
        return not one["copied"], one["n"] * one["d"], -one["k"], one["source"], one["parts"]

    for one in sorted(records, key=place):
        held = "–" if one["held_iter_ms"] is None else f"{one['held_iter_ms']:.1f}"
        numbers = f"{one['first_ms'] / 1e3:.1f} | {one['iter_ms']:.1f} | {held}"
        rates = f"{one['pass_gbs']:.1f} | {one['link_gbs']:.1f}"
        size = f"{one['n']:,} × {one['d']}, {4 * one['n'] * one['d'] / 1e9:.0f} GB"
        copy = "yes" if one["copied"] else "no"
        lines.append(f"| {size} | {one['source']} | {copy} | {one['k']} | {one['parts']} | {numbers} | {rates} |")
    return "\n".join(lines)


def gpus_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of iterations and k-means++ on several GPUs."""
    lines = [
        "| X, float32 | k | GPUs | iteration on 1, ms | on all | ratio | exchange, µs | k-means++ on 1, ms | on all |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sorted(records, key=lambda one: (one["n"] * one["d"], one["k"], one["d"], one["parts"])):
        size = f"{one['n']:,} × {one['d']}, {4 * one['n'] * one['d'] / 1e9:.0f} GB"
        times = f"{one['single_ms']:.2f} | {one['iter_ms']:.2f} | {one['single_ms'] / one['iter_ms']:.2f}"
        seeds = f"{one['single_seed_ms']:.0f} | {one['seed_ms']:.0f}"
        lines.append(f"| {size} | {one['k']:,} | {one['parts']} | {times} | {1e3 * one['exchange_ms']:.0f} | {seeds} |")
    return "\n".join(lines)


def workers_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of fits on workers of Dask that share the cores of one machine."""
    lines = [
        "| X, float32 | k | workers | iteration in one process, ms | on them | k-means++, s | on them | fit, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in sorted(records, key=lambda one: (one["n"] * one["d"], one["k"], one["parts"])):
        size = f"{one['n']:,} × {one['d']}, {4 * one['n'] * one['d'] / 1e9:.0f} GB"
        times = f"{one['single_ms']:.0f} | {one['iter_ms']:.0f}"
        seeds = f"{one['single_seed_ms'] / 1e3:.1f} | {one['seed_ms'] / 1e3:.1f} | {one['fit_ms'] / 1e3:.1f}"
        lines.append(f"| {size} | {one['k']:,} | {one['parts']} | {times} | {seeds} |")
    return "\n".join(lines)
