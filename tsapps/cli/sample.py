"""``tsapps sample``: write a sample data set of scikit-learn, without a download."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsapps import signals
from tsapps.cli.options import check_output_file
from tsapps.cli.output import print_text
from tsapps.errors import MatrixError, UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["sample"]


@dataclass(frozen=True)
class _Sample:
    """A data set: a description of its source, and a function that returns the array."""

    source: str
    make: Callable[[], "np.ndarray"]


def _china() -> "np.ndarray":
    if importlib.util.find_spec("PIL") is None:
        raise MatrixError("china: needs Pillow, which is not installed: pip install pillow")
    from sklearn.datasets import load_sample_image

    return load_sample_image("china.jpg").reshape(-1, 3)


def _digits() -> "np.ndarray":
    from sklearn.datasets import load_digits

    return load_digits().data


def _iris() -> "np.ndarray":
    from sklearn.datasets import load_iris

    return load_iris().data


def _blobs() -> "np.ndarray":
    import numpy as np
    from sklearn.datasets import make_blobs

    return make_blobs(n_samples=100_000, n_features=16, centers=32, random_state=0)[0].astype(np.float32)


_SAMPLES = {
    "china": _Sample("the pixels of scikit-learn's photograph china.jpg, 427 × 640, as red, green, blue", _china),
    "digits": _Sample("scikit-learn's handwritten digits, 8 × 8 pixels each", _digits),
    "iris": _Sample("scikit-learn's iris flowers, four lengths in cm each", _iris),
    "blobs": _Sample("synthetic: points around 32 centers, by scikit-learn's make_blobs with seed 0", _blobs),
}


def _print_list(wanted: bool) -> None:
    if wanted:
        for name, found in _SAMPLES.items():
            print(f"{name:8} {found.source}")
        raise typer.Exit


def sample(
    name: Annotated[str, typer.Argument(metavar="|".join(_SAMPLES), show_default=False, help="Name of the data set.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.npy", show_default=False, help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.npy if it exists.")] = False,
    _list: Annotated[
        bool, typer.Option("--list", callback=_print_list, is_eager=True, help="Print the data sets and exit.")
    ] = False,
) -> None:
    """Write a sample data set.

    china: pixels of a photograph, 273,280 × 3 uint8. digits: 1,797 × 64 float64. iris: 150 × 4 float64. blobs:
    synthetic, 100,000 × 16 float32.
    """
    if name not in _SAMPLES:
        raise UsageError(f"{name}: no such data set: expected one of {', '.join(_SAMPLES)}")
    if out.suffix.lower() != ".npy":
        raise UsageError(f"{out}: expected a name that ends in .npy, the output format")
    check_output_file(out, force=force)

    from tsapps.matrix import save_npy

    array = _SAMPLES[name].make()
    save_npy(out, array, commit=signals.placing)
    rows, columns = array.shape
    print_text(f"{out}: {rows:,} × {columns} {array.dtype}, {array.nbytes:,} bytes: {_SAMPLES[name].source}")
