"""Launches whose arguments are packed once, and that run in every iteration."""

from collections.abc import Callable, Hashable, Iterable, Iterator

__all__ = ["BoundLaunches"]


class BoundLaunches:
    """Bound launches, by key: what distinguishes them from the launches of other iterations."""

    def __init__(self) -> None:
        self._launches: dict[Hashable, list[Callable[[], None]]] = {}

    def clear(self) -> None:
        """Forget all launches, which are bound to a stream."""
        self._launches.clear()

    def of(self, key: Hashable, bind: Callable[[], Iterable[Callable[[], None]]]) -> Iterable[Callable[[], None]]:
        """Return the launches that `bind` returns. `bind` is called once per key; later calls return its launches."""
        launches = self._launches.get(key)
        return self._one_by_one(key, bind) if launches is None else launches

    def _one_by_one(
        self, key: Hashable, bind: Callable[[], Iterable[Callable[[], None]]]
    ) -> Iterator[Callable[[], None]]:
        """Yield the launches that `bind` returns: the GPU runs each while the host binds the next."""
        launches = []
        for launch in bind():
            launches.append(launch)
            yield launch
        self._launches[key] = launches
