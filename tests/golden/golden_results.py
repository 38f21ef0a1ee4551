"""Golden results: ``python tests/golden/golden_results.py --device cpu`` prints digests of what public names return.

A change that must not change any result by a bit has the same digests as the commit before: ``--compare FILE`` tells
which of FILE, an earlier output, differ, are missing or are new. CPU results follow NumPy's BLAS and its choice of
kernels, and GPU results cuBLAS, so that outputs of another processor or of other versions are not compared.

Data is random with fixed seeds. Sizes are small; each reaches a regime of its own (apps/kmeans/*/plan.py). All runs on
one thread, as scikit-learn adds up the sums of threads in the order in which they end.
"""

import argparse
import hashlib
import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from golden_cases import Case, Place, host
from golden_kmeans import batches, fits, gpu_fits
from golden_products import product_cases
from threadpoolctl import threadpool_info, threadpool_limits


def grid(device: str) -> list[Case]:
    """Return all cases for a device, "cpu" or "cuda"; none of bfloat16 without ml_dtypes."""
    of_kmeans = (*fits(), *(gpu_fits() if device == "cuda" else ()), *batches())
    cases = [*(Case(one.name, one.run) for one in of_kmeans), *product_cases()]
    return [case for case in cases if find_spec("ml_dtypes") or "bfloat16" not in case.name]


def digest(value: Any) -> str:
    """Return a digest of the dtype, the shape and the bytes of a result."""
    array = host(value)
    hashed = hashlib.sha256(f"{array.dtype.name} {array.shape} ".encode())
    hashed.update(array.tobytes())
    return hashed.hexdigest()[:32]


def digests(cases: Iterable[Case], device: str) -> dict[str, str]:
    """Return {case: result: digest} of cases; one that fails has its error for a digest."""
    found = {}
    with TemporaryDirectory() as folder:
        place = Place(device, Path(folder))
        for case in cases:
            try:
                results = {name: digest(value) for name, value in case.run(place).items()}
            except failures(device) as error:
                print(f"{case.name}: {type(error).__name__}: {error}", file=sys.stderr)
                results = {"error": type(error).__name__}
            found |= {f"{case.name}: {name}": value for name, value in results.items()}
    return found


def failures(device: str) -> tuple[type[Exception], ...]:
    """Return the errors that are a case's own: the others are run all the same."""
    errors = ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
    if device == "cpu":
        return errors
    from cupy.cuda.compiler import CompileException

    return *errors, CompileException


def whole_grid(device: str) -> dict[str, str]:
    """Return the digests of all cases, computed by one thread."""
    from sklearn.cluster import KMeans  # noqa: F401 (threads of libraries that are not loaded are not limited)

    warnings.simplefilter("ignore")
    with threadpool_limits(1), np.errstate(all="ignore"):
        found = digests(grid(device), device)
    if find_spec("ml_dtypes") is None:
        print("no results of bfloat16: ml_dtypes is not installed", file=sys.stderr)
    return found


def where(device: str) -> dict[str, Any]:
    """Return the name of the processor, and the versions that results follow."""
    # NumPy's: nothing else that has one is loaded yet.
    found = [one for one in threadpool_info() if one["user_api"] == "blas"]
    blas = [f"{one['internal_api']} {one['version']} {one.get('architecture')}" for one in found]
    versions = {"numpy": np.__version__, "scikit-learn": version("scikit-learn"), "blas": ", ".join(blas)}
    if device == "cuda":
        import cupy

        runtime = cupy.cuda.runtime
        name = runtime.getDeviceProperties(0)["name"].decode()
        versions |= {"cupy": cupy.__version__, "cuda": str(runtime.runtimeGetVersion())}
        return {"device": name, "versions": versions}
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"device": f"cpu: {model}", "versions": versions}


def incomparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return why two outputs are not to be compared, in a line; None where they are."""
    for what in ("device", "versions"):
        if before[what] != after[what]:
            return f"not compared: {what} {before[what]} before, {after[what]} now"
    return None


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return a line for each result that differs, is missing or is new."""
    lines = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            lines.append(f"missing: {name}")
        elif name not in before:
            lines.append(f"new: {name}")
        elif before[name] != after[name]:
            lines.append(f"differs: {name}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier output")
    given = parser.parse_args()
    before = None if given.compare is None else json.loads(given.compare.read_bytes())
    found = where(given.device)
    if before is not None and (reason := incomparable(before, found)):
        sys.exit(reason)
    found["cases"] = whole_grid(given.device)
    if before is None:
        print(json.dumps(found, indent=1))
        sys.exit(any(name.endswith(": error") for name in found["cases"]))
    lines = changes(before["cases"], found["cases"])
    print("\n".join(lines) or f"the same results: {len(found['cases'])}")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
