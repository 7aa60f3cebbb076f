"""Limits the number of model names used as labels: each name is a time series in Prometheus."""

from __future__ import annotations

from typing import Final

#: Most models, and most pairs; a home has about a dozen.  Clients could create names without end.
MAX_NAMES: Final = 64


class BoundedLabels:
    """Label values for models and pairs: the first `max_names` by name, later ones as `other`.

    Use it in the event loop's thread only.
    """

    OTHER: Final = "other"

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_names = max_names
        self._models: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()

    def model(self, name: str) -> str:
        if name not in self._models:
            if len(self._models) >= self._max_names:
                return self.OTHER
            self._models.add(name)
        return name

    def pair(self, model: str, drafter: str | None) -> tuple[str, str]:
        """Return the labels of model and drafter.  drafter: "" or None without one."""
        pair = self.model(model), drafter or ""
        if pair not in self._pairs:
            if len(self._pairs) >= self._max_names:
                return pair[0], self.OTHER
            self._pairs.add(pair)
        return pair
