"""Tables of the records of protected files and layers: on a GPU, beside other tools on a CPU, and of a campaign."""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["FILE_FIGURES", "campaign_text", "layers_table", "load_table", "tools_table"]

# Words per row of words of files of 8 MiB or more.
_FILE_WIDTH = 4096


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
    lines += ["", "| in GPU memory | a read | the sums | sums, compared | `verify`, wall time |"]
    lines.append("|---|---:|---:|---:|---:|")
    for task, count, size in cases:
        if task == "sums":
            sums, check, whole = (found[name, count, size, "tsapps"] for name in ("sums", "check", "verify"))
            rates = (f"{one['gbs']:,.0f} GB/s ({100 * one['gbs'] / one['read_gbs']:.0f} %)" for one in (sums, check))
            cells = f"{sums['read_gbs']:,.0f} GB/s", *rates, f"{1e3 * whole['seconds']:.2f} ms"
            lines.append(f"| {_size(size)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _size(n_bytes: int) -> str:
    """Return a power of two of bytes in its largest binary unit."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes} bytes"


def tools_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of GB/s of checksums and hashes of the same bytes on a CPU.

    Of matrices, only those whose rows of words are as long as those of large files are shown.
    """
    lines = [
        "| | bytes in | 1 core | per second of its time | all cores |",
        "|---|---|---:|---:|---:|",
    ]
    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    for one in records:
        if one["width"] in (None, _FILE_WIDTH):
            tool = " ".join(filter(None, (one["engine"], one["options"])))
            rows.setdefault((f"{tool}: {one['job']}", one["where"]), {})[one["cores"]] = one
    for (tool, where), found in rows.items():
        one, most = found.get(1), max(found)
        alone = ["–", "–"]
        if one is not None:
            alone = [f"{one['gb_per_second']:.2f}", f"{one['bytes'] / one['cpu_seconds'] / 1e9:.2f}"]
        every = f"{found[most]['gb_per_second']:.2f}" if most > 1 else "–"
        lines.append(f"| {tool} | {where} | {' | '.join(alone)} | {every} |")
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


def layers_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of what checks add to the time of a linear layer, in per cent."""
    found = {
        (one["tokens"], one["task"], one["dtype"] + {"library": ", library"}.get(one["engine"], "")): one
        for one in records
        if one["engine"] != "nn.Linear" and not one["task"].startswith("host")
    }
    kinds = sorted({key[2] for key in found})
    lines = [f"| tokens | | {' | '.join(kinds)} |", f"|---:|---|{'---:|' * len(kinds)}"]
    for tokens, task in dict.fromkeys(key[:2] for key in sorted(found)):
        some = (found.get((tokens, task, kind)) for kind in kinds)
        cells = ("–" if one is None else f"{100 * (one['ratio'] - 1):+.1f} %" for one in some)
        lines.append(f"| {tokens:,} | {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


#: The records and the text of each block of figures, by its name.
FILE_FIGURES: dict[str, tuple[str, Callable[[Sequence[dict[str, Any]]], str]]] = {
    "loading on a GPU": ("h200/abft-load-save.json", load_table),
    "layers": ("h200/abft-linear.json", layers_table),
    "checksums of a file on a CPU": ("amd-epyc/abft-files.json", tools_table),
    "faults in files": ("intel-xeon/abft-files-campaign.json", campaign_text),
}
