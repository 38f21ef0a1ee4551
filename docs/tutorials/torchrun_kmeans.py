"""
K-means over the processes of torchrun
======================================

Each process reads its rows of a file, and `tsapps.apps.kmeans.fit_rank` clusters the rows of all of them::

    torchrun --nproc-per-node 4 torchrun_kmeans.py points.npy --k 64

It needs torch, for the exchange between the processes, and no GPU. Every process finds the same centers, those that one
process finds for the whole file.
"""

import argparse
from typing import Any

import numpy as np
import torch.distributed as dist

from tsapps import open_matrix
from tsapps.apps.kmeans import fit_rank


class TorchCommunicator:
    """The exchange that `fit_rank` needs, by the process group of torch.distributed."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks."""
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values


def main() -> None:
    """Read the rows of this process, cluster, and print the result in the first process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("points", help="a file that tsapps.open_matrix opens")
    parser.add_argument("--k", type=int, default=8)
    options = parser.parse_args()
    communicator = TorchCommunicator()
    points = open_matrix(options.points)
    n = points.shape[0]
    first, end = (n * rank // communicator.size for rank in (communicator.rank, communicator.rank + 1))
    rows = np.concatenate([block for _, block in points.blocks_between(first, end, 1 << 16)])
    found = fit_rank(rows, communicator, options.k)
    if communicator.rank == 0:
        sizes = np.bincount(found.labels, minlength=options.k)
        print(f"{n} rows on {communicator.size} processes: inertia {found.inertia!r} after {found.n_iter} iterations")
        print(f"sizes of the clusters on the first: {sizes.tolist()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
