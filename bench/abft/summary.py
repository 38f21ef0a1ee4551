"""Table of the campaign's records: one row per target, code and fault, over all dtypes and distributions.

python -m tsapps.bench.abft.summary bench/results/<device>/abft-campaign.json
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tsapps.bench.abft.campaign import DISTRIBUTIONS, interval
from tsapps.bench.common import record

__all__ = ["text"]

_COUNTS = ("trials", "detected", "repaired", "miscorrected", "certain", "certain_repaired", "clean", "false_alarms")


def text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return Markdown tables: faults, clean units, and thresholds relative to rounding errors."""
    faults: dict[tuple[str, ...], dict[str, int]] = {}
    clean: dict[tuple[str, ...], dict[str, int]] = {}
    for one in records:
        names = (one["target"], one["code"], one["fault"])
        if one["fault"] != "none":
            _add(faults.setdefault(names, dict.fromkeys(_COUNTS, 0)), one)
        if one["clean"]:
            beside = "clean" if one["fault"] == "none" else "next to faults"
            _add(clean.setdefault((*names[:2], beside), dict.fromkeys(_COUNTS, 0)), one)
    lines = ["| target | code | fault | trials | detected | repaired | certain | of them repaired | miscorrected | ≤ |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for names, sums in faults.items():
        rates = [f"{100 * sums[name] / sums['trials']:.4g} %" for name in ("detected", "repaired")]
        if names[0] == "sidecar":
            rates[1] = "–"
        certain = f"{100 * sums['certain_repaired'] / sums['certain']:.4g} %" if sums["certain"] else "–"
        counts = f"{sums['certain']:,} | {certain} | {sums['miscorrected']}"
        most = interval(sums["miscorrected"], sums["trials"])[1]
        lines.append(f"| {' | '.join(names)} | {sums['trials']:,} | {' | '.join(rates)} | {counts} | {most:.1e} |")
    lines += ["", "| target | code | | checked | false positives | ≤ |", "|---|---|---|--:|--:|--:|"]
    for names, sums in clean.items():
        most = interval(sums["false_alarms"], sums["clean"])[1]
        lines.append(f"| {' | '.join(names)} | {sums['clean']:,} | {sums['false_alarms']} | {most:.1e} |")
    return "\n".join([*lines, *_ratios(records)])


def _ratios(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of thresholds over rounding errors, the larger of both targets; empty without records."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for one in records:
        if one["threshold_ratio"] is not None:
            row = found.setdefault((one["code"], one["dtype"]), {})
            row[one["distribution"]] = max(row.get(one["distribution"], 0.0), one["threshold_ratio"])
    if not found:
        return []
    lines = ["", f"| threshold | over rounding errors of | {' | '.join(DISTRIBUTIONS)} |"]
    lines.append("|---|---|" + "--:|" * len(DISTRIBUTIONS))
    for names, row in found.items():
        # Distributions without rounding errors have no ratio.
        ratios = (f"{row[name]:.1f}" if name in row else "–" for name in DISTRIBUTIONS)
        lines.append(f"| {' | '.join(names)} | {' | '.join(ratios)} |")
    return lines


def _add(sums: dict[str, int], one: Mapping[str, Any]) -> None:
    for name in _COUNTS:
        sums[name] += one[name]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path)
    print(text(record.load(parser.parse_args().records)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
