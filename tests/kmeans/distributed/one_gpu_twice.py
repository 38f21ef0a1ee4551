"""One GPU in place of two, with all kernels and launches of a fit on two; only NCCL is not called, which refuses it."""

from dataclasses import replace
from functools import cache

import pytest

from tsapps.kernels import devices
from tsapps.kernels.runtime import all_reduce, machine

#: The GPUs of a test on several: one in place of two, and those there are.
PLACES = ["one GPU twice", pytest.param("GPUs", marks=pytest.mark.skipif(len(devices.gpus()) < 2, reason="needs two"))]


class AddedOnOneGpu:
    """The all-reduce of shards on one GPU, whose launches are in the order of one stream."""

    def __init__(self, machines):
        self._count = len(machines)

    def __call__(self, own, total):
        assert len(own) == len(total) == self._count
        found = own[0].copy()
        for array in own[1:]:
            found += array
        for array in total:
            array[...] = found

    def abort(self):
        pass


def use_one_gpu_twice(monkeypatch):
    """Have "cuda:0,1" and "cuda:all" mean the first GPU and the first GPU."""
    gpu = devices.gpus()[0]
    monkeypatch.setattr(devices, "gpus", lambda: (gpu, replace(gpu, index=1)))
    monkeypatch.setattr(machine, "cuda_machine", cache(lambda _: machine.CudaMachine(0)))
    monkeypatch.setattr(all_reduce, "connect", AddedOnOneGpu)
