"""``tsapps kmeans --workers``: fits whose rows are on the workers of a Dask cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tsapps.cli.kmeans_request import Inputs, Request
from tsapps.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tsapps.apps.kmeans.engines.engine import Engine

__all__ = ["check_workers", "engine_on_workers", "labels_on_host"]

_LOCAL = ("localhost", "127.0.0.1", "::1")
# Seconds until a scheduler must have answered.
_SECONDS = 30


def check_workers(request: Request) -> None:
    """Raise `UsageError` for options that cannot be used together; needs no connection."""
    if request.workers is None:
        if request.insecure:
            raise UsageError("--insecure belongs to --workers, which is not given")
        return
    try:
        address = urlsplit(request.workers)
        port = address.port
    except ValueError:
        address, port = urlsplit(""), None
    if address.scheme not in ("tcp", "tls") or not address.hostname or port is None:
        raise UsageError(f"--workers {request.workers}: expected an address such as tls://scheduler:8786")
    if request.device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"--device {request.device}: workers compute on their CPUs, or with --device cuda on their GPUs"
        )
    if request.protect:
        raise UsageError("--protect: fits on workers are not checked; leave out --workers or --protect")
    if address.scheme == "tcp" and address.hostname not in _LOCAL and not request.insecure:
        raise UsageError(
            f"--workers {request.workers}: is not encrypted, and whoever reaches the scheduler can run code there; use "
            "a tls:// address and certificates in Dask's configuration, or --insecure in a private network"
        )


@contextmanager
def engine_on_workers(request: Request, inputs: Inputs, dtype: "np.dtype") -> Iterator["Engine"]:
    """Connect to a scheduler, and yield an engine; the workers open the data for themselves, and read their rows."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--workers needs Dask: pip install dask distributed") from None
    from tsapps.apps.kmeans.distributed.crew import cut_rows, specs_of
    from tsapps.apps.kmeans.distributed.dask_crew import DaskCrew, check_versions, shares_of
    from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, source_of
    from tsapps.matrix.reopened import Reopened, read_rows

    matrix, weights = inputs.matrix, inputs.sample_weight
    if not matrix.files:
        raise UsageError(f"--workers: {request.data} is not a file, which workers could open")
    weights = None if weights is None else weights.astype(dtype)
    spherical = str(request.metric) == "cosine"
    data = inputs.data
    source = Reopened.of(matrix, request.data, data.opening, data.learned, data.kept)
    try:
        client = Client(request.workers, timeout=_SECONDS)
    except (OSError, TypeError, ValueError) as error:  # Dask's errors of certificates are of the last two types
        raise UsageError(f"--workers {request.workers}: cannot connect ({error})") from error
    with client:
        check_versions(client)
        device = "cuda" if request.device == "cuda" else "cpu"
        parts = cut_rows(*matrix.shape, dtype, shares_of(client, device))
        blocks = [client.submit(read_rows, source, part.start, part.stop, pure=False) for part in parts]
        specs = specs_of(parts, dtype, spherical=spherical, name=matrix.name, devices=[device])
        crew = DaskCrew(client, blocks, [len(part) for part in parts], parts, specs, weights)
        del blocks  # the parts have the rows
        held = source_of(matrix.shape, matrix.dtype, dtype, spherical=spherical, name=matrix.name)
        yield PartitionedEngine(held, dtype, weights, crew)


def labels_on_host(labels: Any) -> "np.ndarray":
    """Return labels, which may be on a GPU or on workers, in host memory."""
    from tsapps.apps.kmeans.distributed.partitioned_engine import PartLabels
    from tsapps.kernels.arrays import to_host

    return labels.gathered() if isinstance(labels, PartLabels) else to_host(labels)
