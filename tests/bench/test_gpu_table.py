"""The table of what each GPU computes."""

from tsapps.bench.kmeans.gpu_table import gpu_table
from tsapps.kernels.gpu_specs import KNOWN


def test_rows_by_hand():
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in gpu_table().splitlines()}
    assert rows["T4"] == (
        "| T4 | 7.5 | 320 | cuBLAS | cuBLAS | one after the other | small ones; else cuBLAS | – | – |"
    )
    assert rows["L4"] == "| L4 | 8.9 | 300 | yes | `mma` | yes | yes | compiled | predicted |"
    assert rows["H100 PCIe"] == "| H100 PCIe | 9.0 | 2039 | yes | `wgmma` | yes | yes | compiled | as on an H200 |"
    assert rows["H200"] == "| H200 | 9.0 | 4800 | yes | `wgmma` | yes | yes | measured | measured |"


def test_every_gpu_with_kernels_has_a_row():
    lines = gpu_table().splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        name for name, gpu in KNOWN.items() if float(gpu.compute_capability) >= 7.0
    ]
