"""Runs `BatchedLloyd` by its kernels' own source on the CPU."""

from functools import cache, partial

import numpy as np

from host_cuda import harness
from tsapps.apps.kmeans.batched.plan import KERNELS
from tsapps.kernels.plan.mma import ELEMENT

OPTIONS = {"assign": [", 16", ", 32", ", 64"], "update": [", true", ", false"]}
ARGUMENTS = {
    "column_moments": ["double* moments"],
    "sample_candidates": ["const batched::PlusPlusArgs* plusplus", "long long step"],
    "candidate_distances": ["const batched::PlusPlusArgs* plusplus", "long long step"],
    "inertias": ["double* parts"],
}
GIVEN = {"moments": "moments", "plusplus": "*plusplus", "step": "(int)step", "parts": "parts"}


def entry_name(kernel, template):
    return "run_" + f"{kernel}_{template}".translate(str.maketrans({":": "_", ",": "_", " ": None}))


def source(element):
    """Every kernel for one dtype."""
    text = "".join(f'#include "apps/kmeans/{file}"\n' for file in sorted({file for file, _ in KERNELS.values()}))
    for kernel, (_, threads) in KERNELS.items():
        further = ARGUMENTS.get(kernel, [])
        given = ", ".join(["of", *(GIVEN[one.split()[-1]] for one in further)])
        for option in OPTIONS.get(kernel, [""]):
            template = element + option
            head = ", ".join([f"const batched::Batch<{element}>* batch", *further])
            text += f"""
extern "C" void {entry_name(kernel, template)}(long long x, long long y, long long shared, {head}) {{
  const auto of = *batch;
  cuda_host::launch(dim3(x, y), {threads}, shared, [=] {{ batched::{kernel}<{template}>({given}); }});
}}"""
    return text


@cache
def libraries():
    return harness.Libraries(
        {ELEMENT[name]: partial(source, ELEMENT[name]) for name in ("float32", "float16", "bfloat16")}
    )


class HostMachine:
    """The CPU, as `BatchedLloyd` asks for a machine. `multiprocessors` decides grids alone."""

    xp = np

    def __init__(self, multiprocessors=2):
        self.multiprocessors = multiprocessors

    def address(self, array):
        assert array.flags.c_contiguous
        return array.ctypes.data

    def launch(self, kernel, template, grid, shared, *arguments):
        given = [one if isinstance(one, np.ndarray) else int(one) for one in arguments]
        libraries()[template.split(",")[0]].call(entry_name(kernel, template), *grid, shared, *given)
