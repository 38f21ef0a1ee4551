"""Errors that name the columns of a data frame."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tsapps.kernels.arrays import columns_without_numbers, kind_of

__all__ = ["columns_named"]


@contextmanager
def columns_named(X: Any) -> Iterator[None]:
    """Name the columns of a frame that scikit-learn cannot convert to numbers; it converts some texts."""
    try:
        yield
    except (ValueError, TypeError) as error:
        wrong = columns_without_numbers(X) if kind_of(X) == "frame" else []
        if not wrong:
            raise
        raise ValueError(
            f"the data frame has columns without numbers: {', '.join(wrong)}; expected numbers: leave them out, for "
            f"example by X.drop(columns=[…]), or encode them"
        ) from error
