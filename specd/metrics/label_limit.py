"""Names as labels: only so many of them, for each is a time series in somebody's database."""

from __future__ import annotations

from typing import Final

#: Models, and as many pairs; a household has a dozen.  Whoever may create models could make names
#: for ever.
MAX_NAMES: Final = 64


class BoundedLabels:
    """The first MAX_NAMES models and pairs that were used go by their names, all later ones as
    `other`.  For the thread of the event loop.
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
        """drafter: "" and None where there is none."""
        pair = self.model(model), drafter or ""
        if pair not in self._pairs:
            if len(self._pairs) >= self._max_names:
                return pair[0], self.OTHER
            self._pairs.add(pair)
        return pair
