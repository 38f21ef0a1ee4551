"""The SIMT kernels compile for AMD's GPUs by HIP: a compile check, no more."""

import os
import re
import shutil
import subprocess
from math import gcd
from pathlib import Path

import pytest

from tsapps.kernels.jit.compiler import INCLUDE_ROOT
from tsapps.kernels.ladder.launch import PAPER_KERNELS
from tsapps.kernels.ladder.rungs import RUNGS
from tsapps.kernels.plan.simt import SPLIT_INSTANCES, ColumnsPlan, RowsPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import ITEMSIZE

pytestmark = pytest.mark.skipif(shutil.which("hipcc") is None, reason="hipcc is not installed (apt-get install hipcc)")
ARCHITECTURES = (pytest.param("gfx906", marks=pytest.mark.exhaustive), "gfx90a")
SCALARS = {"float32": "float", "float64": "double"}
# What the compiler says of each kernel, in the metadata at the end of its assembly.
_USED = re.compile(r"\.(name|private_segment_fixed_size|vgpr_spill_count|wavefront_size): +(\S+)")


def published():
    for variant in PAPER_KERNELS:
        for scalar in SCALARS.values():
            yield from (f"tsm2::{variant}<{scalar}, 128, {t2}, 4>" for t2 in (1, 4, 16))


def rungs_of(file):
    def names():
        mine = (rung for rung in RUNGS if rung.file == file)
        yield from (f"ladder::{rung.kernel.format(scalar)}" for rung in mine for scalar in SCALARS.values())

    return names


def splits():
    for (itemsize, width), (unroll, threads, blocks) in SPLIT_INSTANCES.items():
        if itemsize > 2:
            dtype = {4: "float32", 8: "float64"}[itemsize]
            for vector in (True, False):
                yield SplitPlan(dtype, width, unroll, threads, blocks, vector, 2, 64).kernel()


def columns():
    for dtype in SCALARS:
        yield from (ColumnsPlan(dtype, k, w).kernel() for k, w in ((1, 1), (2, 2), (3, 5), (8, 3), (16, 16), (4, 33)))


def rows():
    for dtype in SCALARS:
        for k, w in ((1, 1), (2, 2), (3, 5), (4, 4), (8, 3), (16, 1)):
            whole = 16 // gcd(16, k * ITEMSIZE[dtype])  # the fewest rows that are whole vectors
            yield from (RowsPlan(dtype, k, w, rows).kernel() for rows in (whole, 2 * whole))


def wide():
    for dtype in SCALARS:
        yield from (WidePlan(dtype, k, w, 4).kernel() for k, w in ((1, 64), (2, 33), (3, 40), (4, 64)))


def few():
    for dtype, depth in (("float32", 4), ("float64", 2)):
        yield from (SmallTsmttsmPlan(dtype, m, w, True, depth).kernel() for m, w in ((1, 1), (2, 2), (5, 3), (8, 4)))
        yield from (SmallTsmttsmPlan(dtype, m, w, False, 4).kernel() for m, w in ((1, 1), (2, 2), (5, 3), (8, 4)))


def compiled(header, kernels, arch, directory):
    """Compile kernels by their name expressions, and return what each of them takes."""
    source = directory / "kernels.hip"
    pointers = "".join(f"  reinterpret_cast<const void*>(&{kernel}),\n" for kernel in kernels)
    source.write_text(f'#include "kernels/{header}"\nconst void* const kernels[] = {{\n{pointers}}};\n')
    command = ["hipcc", "-x", "hip", f"--offload-arch={arch}", "--cuda-device-only", "-S", "-O3", "-std=c++17"]
    done = subprocess.run(
        [*command, "-I", INCLUDE_ROOT, source, "-o", directory / "kernels.s"],
        env={**os.environ, "HIP_PLATFORM": "amd"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metadata = (directory / "kernels.s").read_text().rpartition("amdhsa.kernels:")[2]
    entries = re.split(r"^  - ", metadata.partition("amdhsa.target:")[0], flags=re.MULTILINE)[1:]
    return [dict(_USED.findall(entry)) for entry in entries]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(
    ("header", "instances"),
    [
        ("ladder/tsm2_paper.cuh", published),
        ("tsm2/simt/tsm2r_columns.cuh", splits),
        ("tsm2/simt/tsm2l_columns.cuh", columns),
        ("tsm2/simt/tsm2l_rows.cuh", rows),
        ("tsm2/simt/tsm2l_wide.cuh", wide),
        ("tsm2/simt/tsmttsm_small.cuh", few),
        *((f"ladder/{file}", rungs_of(file)) for file in dict.fromkeys(rung.file for rung in RUNGS)),
    ],
    ids=lambda one: Path(one).stem if isinstance(one, str) else "",
)
def test_compiles_for_wavefronts_of_64_without_spills(tmp_path, header, instances, arch):
    names = list(dict.fromkeys(instances()))
    used = compiled(header, names, arch, tmp_path)
    assert len(used) == len(names)
    for one in used:
        assert one["wavefront_size"] == "64", one
        assert (one["vgpr_spill_count"], one["private_segment_fixed_size"]) == ("0", "0"), one
