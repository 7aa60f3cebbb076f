"""The queue of requests that wait for a model, in order of arrival.

Thousands may wait and leave at once, so no method here searches the whole queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from specd.scheduler.runner_ref import Waiter


class WaitQueue:
    """Waiters in order of arrival, indexed by id and by model."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiter] = {}  # by id, in order of arrival
        self._by_weights: dict[str, dict[int, Waiter]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiting.values())

    @property
    def head(self) -> Waiter | None:
        return next(iter(self._waiting.values()), None)

    def of(self, weights: str) -> Iterator[Waiter]:
        """Return the waiters for that model, in order."""
        return iter(self._by_weights.get(weights, {}).values())

    def has_waiter_for(self, weights: str) -> bool:
        return weights in self._by_weights

    def append(self, waiter: Waiter) -> None:
        self._waiting[waiter.id] = waiter
        self._by_weights.setdefault(waiter.weights, {})[waiter.id] = waiter

    def remove(self, waiter_id: int) -> None:
        """Remove a waiter; do nothing if there is none with that id."""
        waiter = self._waiting.pop(waiter_id, None)
        if waiter is None:
            return
        same = self._by_weights[waiter.weights]
        del same[waiter_id]
        if not same:
            del self._by_weights[waiter.weights]

    def clear(self) -> None:
        self._waiting.clear()
        self._by_weights.clear()
