"""``tsapps kmeans --workers``: the engine of a fit whose rows are on the workers of a Dask cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tsapps.cli.kmeans_request import Inputs, Request
from tsapps.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine

__all__ = ["check_workers", "engine_on_workers"]

_LOCAL = ("localhost", "127.0.0.1", "::1")
# Seconds until a scheduler must have answered.
_SECONDS = 30


def check_workers(request: Request) -> None:
    """Raise `UsageError` for options that cannot be used together; needs no connection."""
    certificates = request.tls_ca, request.tls_cert, request.tls_key
    if request.workers is None:
        if any(certificates) or request.insecure:
            raise UsageError("--tls-ca, --tls-cert, --tls-key and --insecure belong to --workers, which is not given")
        return
    try:
        address = urlsplit(request.workers)
        port = address.port
    except ValueError:
        port, address = None, urlsplit("")
    if address.scheme not in ("tcp", "tls") or not address.hostname or port is None:
        raise UsageError(f"--workers {request.workers}: expected an address such as tls://scheduler:8786")
    if request.device not in ("auto", "cpu"):
        raise UsageError(f"--device {request.device}: workers of Dask compute on CPUs; leave it out")
    if request.protect:
        raise UsageError("--protect: fits on workers are not checked; leave out --workers or --protect")
    if address.scheme == "tls":
        for option, path in zip(("--tls-ca", "--tls-cert", "--tls-key"), certificates, strict=True):
            if path is not None and not path.is_file():
                raise UsageError(f"{option} {path}: no such file")
    elif any(certificates):
        raise UsageError(f"--workers {request.workers}: certificates need an address that begins with tls://")
    elif address.hostname not in _LOCAL and not request.insecure:
        raise UsageError(
            f"--workers {request.workers}: is not encrypted, and whoever reaches the scheduler can run code there; use "
            "a tls:// address with --tls-ca, --tls-cert and --tls-key, or --insecure in a private network"
        )


@contextmanager
def engine_on_workers(request: Request, inputs: Inputs, dtype: "np.dtype") -> Iterator["PartitionedEngine"]:
    """Connect to a scheduler, and yield an engine; the workers open the data for themselves, and read their rows."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--workers needs Dask: pip install 'tsapps[dask]'") from None
    import numpy as np

    from tsapps.apps.kmeans.distributed.crew import cut_rows, specs_of
    from tsapps.apps.kmeans.distributed.dask_crew import DaskCrew, check_versions, threads_of
    from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, source_of
    from tsapps.matrix.reopened import Reopened, read_rows

    matrix, weights = inputs.matrix, inputs.sample_weight
    weights = None if weights is None else weights.astype(dtype)
    spherical = str(request.metric) == "cosine"
    options = {"header": request.header, "index": request.index, "allow_external": request.allow_external}
    source = Reopened.of(matrix, request.data, **options)
    try:
        client = Client(request.workers, timeout=_SECONDS, **_security(request))
    except OSError as error:
        raise UsageError(f"--workers {request.workers}: no scheduler answers there ({error})") from error
    with client:
        check_versions(client)
        parts = cut_rows(*matrix.shape, dtype, [1.0] * threads_of(client))
        blocks = [client.submit(read_rows, source, part.start, part.stop, pure=False) for part in parts]
        specs = specs_of(parts, dtype, spherical=spherical, name=matrix.name)
        crew = DaskCrew(client, blocks, [len(part) for part in parts], parts, specs, weights)
        del blocks  # parts have the rows
        held = source_of(matrix.shape, np.dtype(matrix.dtype), dtype, spherical=spherical, name=matrix.name)
        yield PartitionedEngine(held, dtype, weights, crew)


def _security(request: Request) -> dict[str, Any]:
    """Return the argument of a client that holds the certificates; without them, Dask's configuration decides."""
    if not str(request.workers).startswith("tls"):
        return {}
    from distributed import Security

    names = {"tls_ca_file": request.tls_ca, "tls_client_cert": request.tls_cert, "tls_client_key": request.tls_key}
    given = {name: str(Path(path).resolve()) for name, path in names.items() if path is not None}
    return {"security": Security(require_encryption=True, **given)}
