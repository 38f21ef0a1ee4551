"""
K-means over the actors of Ray
==============================

Each actor reads its rows of a file, and `tsapps.apps.kmeans.fit_rank` clusters the rows of all of them::

    python ray_kmeans.py points.npy --k 64 --actors 4

It needs Ray, whose workers must see the file. With ``--gpus``, each actor gets a GPU. Every actor finds the same
centers, those that one process finds for the whole file.
"""

import argparse
import asyncio
from typing import Any

import numpy as np
import ray

from tsapps import open_matrix
from tsapps.apps.kmeans import RankClustering, fit_rank


@ray.remote(num_cpus=0)
class Meeting:
    """Where the actors exchange values: each call of `all_gather` waits until all actors have called it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turns: list[tuple[dict[int, Any], asyncio.Event]] = []

    async def all_gather(self, rank: int, turn: int, value: Any) -> list[Any]:
        """Return the values of all actors for this turn, in the order of their ranks."""
        while len(self.turns) <= turn:
            self.turns.append(({}, asyncio.Event()))
        values, complete = self.turns[turn]
        values[rank] = value
        if len(values) == self.size:
            complete.set()
            if turn > 0:
                self.turns[turn - 1] = ({}, asyncio.Event())  # nobody waits for it
        await complete.wait()
        return [values[other] for other in range(self.size)]


class RayCommunicator:
    """The exchange that `fit_rank` needs, by a `Meeting`."""

    def __init__(self, meeting: Any, rank: int, size: int) -> None:
        self.rank, self.size, self._meeting, self._turn = rank, size, meeting, 0

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all actors, in the order of their ranks."""
        turn, self._turn = self._turn, self._turn + 1
        found: list[Any] = ray.get(self._meeting.all_gather.remote(self.rank, turn, value))
        return found


@ray.remote
class Rows:
    """An actor with some rows of a file."""

    def __init__(self, path: str, rank: int, size: int) -> None:
        points = open_matrix(path)
        n = points.shape[0]
        first, end = n * rank // size, n * (rank + 1) // size
        self.rows = np.concatenate([block for _, block in points.blocks_between(first, end, 1 << 16)])
        self.rank, self.size = rank, size

    def cluster(self, meeting: Any, k: int, device: str) -> RankClustering:
        """Return the clustering; the labels are those of this actor's rows."""
        return fit_rank(self.rows, RayCommunicator(meeting, self.rank, self.size), k, device=device)


def main() -> None:
    """Start the actors, cluster, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("points", help="a file that tsapps.open_matrix opens")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--gpus", action="store_true", help="one GPU for each actor")
    options = parser.parse_args()
    ray.init()
    kind_of_device = "GPU" if options.gpus else "CPU"
    found_devices = ray.cluster_resources().get(kind_of_device, 0)
    if found_devices < options.actors:  # the others would wait for an actor that is never started
        parser.error(f"--actors {options.actors}: the cluster has {found_devices:g} of the resource {kind_of_device}")
    meeting, kind = Meeting.remote(options.actors), Rows.options(num_gpus=1 if options.gpus else 0)
    actors = [kind.remote(options.points, rank, options.actors) for rank in range(options.actors)]
    device = "cuda" if options.gpus else "cpu"
    found = ray.get([actor.cluster.remote(meeting, options.k, device) for actor in actors])
    sizes = np.bincount(np.concatenate([one.labels for one in found]), minlength=options.k)
    print(f"{options.actors} actors: inertia {found[0].inertia!r} after {found[0].n_iter} iterations")
    print(f"sizes of the clusters: {sizes.tolist()}")


if __name__ == "__main__":
    main()
