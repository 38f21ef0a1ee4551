"""Tables of protected files, by hand."""

from tsapps.bench import file_figures as tables


def test_loads_by_hand():
    case, whole = {"n_tensors": 32, "tensor_bytes": 1 << 26}, {"n_tensors": 1, "tensor_bytes": 1 << 30}
    records = [
        {"task": "load", "engine": "tsapps", **case, "gbs": 19.23},
        {"task": "load", "engine": "safetensors", **case, "gbs": 4.1},
        {"task": "sums", "engine": "tsapps", **whole, "gbs": 4000.0, "read_gbs": 4500.0},
        {"task": "check", "engine": "tsapps", **whole, "gbs": 4050.0, "read_gbs": 4500.0},
        {"task": "verify", "engine": "tsapps", **whole, "seconds": 0.0006},
    ]
    assert tables.load_table(records).splitlines() == [
        "| task | file | safetensors.torch | without verification | tsapps |",
        "|---|---|---:|---:|---:|",
        "| `load_file` | 32 tensors of 64 MiB | 4.1 GB/s | – | 19.2 GB/s |",
        "",
        "| in GPU memory | a read | the sums | sums, compared | `verify`, wall time |",
        "|---|---:|---:|---:|---:|",
        "| 1 GiB | 4,500 GB/s | 4,000 GB/s (89 %) | 4,050 GB/s (90 %) | 0.60 ms |",
    ]


def test_tools_by_hand():
    common = {"engine": "b3sum", "options": "", "job": "hash", "where": "file", "width": None, "bytes": 3_000_000_000}
    records = [
        {**common, "cores": 1, "gb_per_second": 1.5, "cpu_seconds": 1.5},
        {**common, "cores": 2, "gb_per_second": 2.75, "cpu_seconds": 2.0},
        {**common, "cores": 1, "gb_per_second": 9.0, "cpu_seconds": 1.0, "width": 512},
    ]
    assert tables.tools_table(records).splitlines() == [
        "| | bytes in | 1 core | per second of its time | all cores |",
        "|---|---|---:|---:|---:|",
        "| b3sum: hash | file | 1.50 | 2.00 | 2.75 |",
    ]


def test_a_campaign_by_hand():
    counts = {"trials": 10, "missed": 0, "miscorrected": 0, "broken": 1, "promised": 8, "repaired": 9}
    assert tables.campaign_text([{"fault": "bit", **counts}, {"fault": "page", **counts}]) == (
        "20 faults of 2 kinds: 0 missed, 0 repaired wrongly. A repair is promised for 16, of which 14 were repaired "
        "bit by bit, and of the others 4."
    )


def test_layers_by_hand():
    common = {"engine": "protected", "task": "forward", "tokens": 2048}
    records = [
        {**common, "dtype": "bfloat16", "ratio": 1.096},
        {**common, "dtype": "float32", "ratio": 1.0},
        {**common, "dtype": "bfloat16", "ratio": 1.0, "engine": "nn.Linear"},
        {**common, "dtype": "bfloat16", "ratio": 1.75, "task": "host"},
        {**common, "dtype": "bfloat16", "ratio": 1.5, "engine": "library"},
    ]
    assert tables.layers_table(records).splitlines() == [
        "| tokens | | bfloat16 | bfloat16, library | float32 |",
        "|---:|---|---:|---:|---:|",
        "| 2,048 | forward | +9.6 % | +50.0 % | +0.0 % |",
    ]
