"""Write the README's table of figures from the records: ``python bench/readme.py``. A test keeps the two the same."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from bench.kmeans_data import GPU_SHAPES

__all__ = ["kmeans_table", "with_tables"]

README = record.ROOT / "README.md"
RECORDS = record.ROOT / "bench" / "results" / "h200" / "kmeans.json"
_BEGIN, _END = "<!-- figures: bench/results/h200/kmeans.json -->", "<!-- end of figures -->"


def kmeans_table(records: Sequence[dict[str, Any]]) -> str:
    """Return milliseconds an iteration as a Markdown table: a row a shape, a column an engine."""
    engines = list(dict.fromkeys(one["engine"] for one in records))
    lines = [
        f"| n | d | k | dtype | floor | {' | '.join(engines)} |",
        f"|---:|---:|---:|---|---:|{'---:|' * len(engines)}",
    ]
    found = {(one["n"], one["d"], one["k"], one["dtype"], one["engine"]): one for one in records}
    for shape in GPU_SHAPES:
        key = (shape.n, shape.d, shape.k, shape.dtype)
        row = [found.get((*key, engine)) for engine in engines]
        floors = [one["floor_ms"] for one in row if one]
        if floors:
            times = " | ".join(f"{one['iter_ms']:.2f}" if one else "–" for one in row)
            lines.append(f"| {shape.n:,} | {shape.d:,} | {shape.k:,} | {shape.dtype} | {min(floors):.2f} | {times} |")
    return "\n".join(lines)


def with_tables(text: str) -> str:
    """Return a README's text with its table made anew."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{kmeans_table(record.load(RECORDS))}\n{_END}{after}"


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
