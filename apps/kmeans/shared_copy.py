"""One copy of X for fits of several numbers of clusters, each of which has the bits of a fit alone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.lloyd import Clustering
from tsapps.kernels.arrays import to_host
from tsapps.kernels.system.logs import logger_of

__all__ = ["SharedCopy", "fit_each"]

_log = logger_of(__name__)


class SharedCopy:
    """The engine that consecutive fits of the same X use.

    A fit that centers the copy of X on its GPU, or finds none there, leaves no engine for the next: then X is opened
    again, after the memory of the last engine has been freed.

    Parameters
    ----------
    opened : callable
        Returns a new engine for X.
    """

    def __init__(self, opened: Callable[[], Engine]) -> None:
        self._opened = opened
        self._engine: Engine | None = None

    def engine(self) -> Engine:
        """Return the engine for the next fit, to which the caller keeps no reference."""
        if self._engine is not None and not self._engine.is_reusable:
            _log.info("%s is opened again: the last fit left no copy for the next", self._engine.data.source.name)
            self._engine = None
        if self._engine is None:
            self._engine = self._opened()
        return self._engine

    @contextmanager
    def rows(self) -> Iterator[Rows]:
        """Yield X, not centered, from where it is read fastest after the last fit; its GPU is the current one."""
        with self._engine or self._opened() as engine:
            yield engine.data.rows_here()


def fit_each(
    shared: SharedCopy,
    numbers: Iterable[int],
    fit: Callable[[Engine, int], Clustering],
    together: Callable[[Engine, Sequence[int]], dict[int, Clustering]] | None = None,
) -> dict[int, Clustering]:
    """Fit X for every number of clusters.

    Fits begin with the largest number, since k-means++ for fewer clusters then finds its samples drawn. No fit begins
    with the centers of another: its clustering would not be that of a fit alone.

    Parameters
    ----------
    shared : SharedCopy
    numbers : iterable of int
    fit : callable
        Takes an engine and a number of clusters, and returns the clustering.
    together : callable, optional
        Takes an engine and several numbers, the largest first, and returns those clusterings that it can make at the
        same time, with the bits of `fit`; see `sweep.fit_together`.

    Returns
    -------
    dict of int to Clustering
        By number of clusters, ascending, with labels of NumPy; those made together may have labels of CuPy.
    """
    descending = sorted(numbers, reverse=True)
    found = {} if together is None else together(shared.engine(), descending)
    for k in descending:
        if k not in found:
            found[k] = fit(shared.engine(), k)
            labels = to_host(found[k].labels)
            # An engine may write the labels of the next fit to the same array.
            found[k].labels = labels.copy() if labels is found[k].labels else labels
    return dict(sorted(found.items()))
