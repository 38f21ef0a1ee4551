"""Tables of the records of protected files: loading on a GPU, tools on a CPU, and the campaign of faults."""

from collections.abc import Sequence
from typing import Any

__all__ = ["campaign_text", "load_table", "tools_table"]


def load_table(records: Sequence[dict[str, Any]]) -> str:
    """Return Markdown tables of loads and saves in GB/s, and of the sums of buffers in GPU memory."""
    engines = ("safetensors", "unverified", "tsapps")
    lines = ["| task | file | safetensors.torch | without verification | tsapps |", "|---|---|---:|---:|---:|"]
    cases = dict.fromkeys((one["task"], one["n_tensors"], one["tensor_bytes"]) for one in records)
    found = {(one["task"], one["n_tensors"], one["tensor_bytes"], one["engine"]): one for one in records}
    for task, count, size in cases:
        if task in ("load", "save"):
            some = [found.get((task, count, size, engine)) for engine in engines]
            cells = ("–" if one is None else f"{one['gbs']:.1f} GB/s" for one in some)
            lines.append(f"| `{task}_file` | {count:,} tensors of {_size(size)} | {' | '.join(cells)} |")
    lines += ["", "| in GPU memory | a read | the sums | `verify`, wall time |", "|---|---:|---:|---:|"]
    for task, count, size in cases:
        if task == "sums":
            sums, whole = (found[name, count, size, "tsapps"] for name in ("sums", "verify"))
            share = 100 * sums["gbs"] / sums["read_gbs"]
            rate = f"{sums['gbs']:,.0f} GB/s ({share:.0f} %)"
            lines.append(f"| {_size(size)} | {sums['read_gbs']:,.0f} GB/s | {rate} | {1e3 * whole['seconds']:.2f} ms |")
    return "\n".join(lines)


def _size(n_bytes: int) -> str:
    """Return a power of two of bytes in its largest binary unit."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes} bytes"


def tools_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of GB/s of checksums and hashes of the same bytes on a CPU, by the number of cores."""
    cores = sorted({one["cores"] for one in records})
    heads = ["1 core" if n == 1 else f"{n} cores" for n in cores]
    lines = [f"| | bytes in | {' | '.join(heads)} |", f"|---|---|{'---:|' * len(cores)}"]
    rows: dict[tuple[str, ...], dict[int, float]] = {}
    for one in records:
        width = "" if one["width"] is None else f", {one['width']:,} columns"
        tool = " ".join(filter(None, (one["engine"], one["options"])))
        rows.setdefault((f"{tool}: {one['job']}", f"{one['where']}{width}"), {})[one["cores"]] = one["gb_per_second"]
    for (tool, where), rates in rows.items():
        cells = (f"{rates[n]:.2f}" if n in rates else "–" for n in cores)
        lines.append(f"| {tool} | {where} | {' | '.join(cells)} |")
    return "\n".join(lines)


def campaign_text(records: Sequence[dict[str, Any]]) -> str:
    """Return what a campaign of faults in protected directories found, in a sentence."""
    names = ("trials", "missed", "miscorrected", "broken", "promised", "repaired")
    total = {name: sum(one[name] for one in records) for name in names}
    kinds = len({one["fault"] for one in records})
    kept = total["promised"] - total["broken"]
    return (
        f"{total['trials']:,} faults of {kinds} kinds: {total['missed']} missed, {total['miscorrected']} repaired "
        f"wrongly. A repair is promised for {total['promised']:,}, of which {kept:,} were repaired bit by bit, and of "
        f"the others {total['repaired'] - kept:,}."
    )
