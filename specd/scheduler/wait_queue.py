"""The queue of requests that wait for a model, in order of arrival.

Thousands may wait and leave at once, so no method here searches the whole queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from specd.scheduler.runner_ref import Waiter


class WaitQueue:
    """Waiters in order of arrival, indexed by id and by model."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiter] = {}  # by id, in order of arrival
        self._local: dict[int, Waiter] = {}  # the waiters of `_waiting` that need memory here
        self._upstream_keys: set[str] = set()  # the models of the others
        self._by_key: dict[str, dict[int, Waiter]] = {}

    def n_competing(self, waiter: Waiter) -> int:
        """Return how many wait in the same queue as this waiter: the local one, or the other."""
        return len(self._local) if waiter.is_local else len(self._waiting) - len(self._local)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting.values())

    @property
    def head(self) -> Waiter | None:
        """The first waiter for a model that needs memory on this machine."""
        return next(iter(self._local.values()), None)

    def upstream_heads(self) -> list[Waiter]:
        """Return the first waiter for each model on another server; they wait for no memory."""
        return [next(self.of(key)) for key in self._upstream_keys]

    def get(self, waiter_id: int) -> Waiter | None:
        return self._waiting.get(waiter_id)

    def of(self, key: str) -> Iterator[Waiter]:
        """Return the waiters for that model, in order."""
        return iter(self._by_key.get(key, {}).values())

    def has_waiter_for(self, key: str) -> bool:
        return key in self._by_key

    def append(self, waiter: Waiter) -> None:
        self._waiting[waiter.id] = waiter
        if waiter.is_local:
            self._local[waiter.id] = waiter
        else:
            self._upstream_keys.add(waiter.key)
        self._by_key.setdefault(waiter.key, {})[waiter.id] = waiter

    def remove(self, waiter_id: int) -> None:
        """Remove a waiter; do nothing if there is none with that id."""
        waiter = self._waiting.pop(waiter_id, None)
        if waiter is None:
            return
        self._local.pop(waiter_id, None)
        same = self._by_key[waiter.key]
        del same[waiter_id]
        if not same:
            del self._by_key[waiter.key]
            self._upstream_keys.discard(waiter.key)

    def take(self, key: str, is_selected: Callable[[Waiter], bool]) -> list[Waiter]:
        """Remove and return the selected waiters for that model, in order."""
        taken = [waiter for waiter in self.of(key) if is_selected(waiter)]
        for waiter in taken:
            self.remove(waiter.id)
        return taken

    def clear(self) -> None:
        self._waiting.clear()
        self._local.clear()
        self._upstream_keys.clear()
        self._by_key.clear()
