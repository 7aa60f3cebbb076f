"""The time of each model's latest load, to tell waiting for a load from waiting in the queue."""

from __future__ import annotations

import math
from typing import Final

_MAX_MODELS: Final = 256


class LoadTimes:
    """The latest load of each model, by the model's key, in seconds of one clock.

    At most _MAX_MODELS are kept.
    """

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}

    def load_started(self, key: str, now: float) -> None:
        self._spans.pop(key, None)  # it becomes the latest
        self._spans[key] = now, math.inf
        if len(self._spans) > _MAX_MODELS:
            del self._spans[next(iter(self._spans))]

    def load_ended(self, key: str, now: float) -> float:
        """Record the end of a load, failed or not; return its duration in seconds."""
        began, _ = self._spans.get(key, (now, now))
        self._spans[key] = began, now
        return now - began

    def load_time_between(self, key: str, since: float, now: float) -> float:
        """Return the seconds between `since` and `now` in which the model's last load ran."""
        began, ended = self._spans.get(key, (now, now))
        return max(min(ended, now) - max(began, since), 0.0)
