"""When each model loads, or last did: what of a wait was its load, and what a queue."""

from __future__ import annotations

import math
from typing import Final

_MAX_MODELS: Final = 256


class LoadTimes:
    """By a target's weights; seconds of one clock.  Only the latest are kept."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[float, float]] = {}

    def load_started(self, weights: str, now: float) -> None:
        self._spans.pop(weights, None)  # it becomes the latest
        self._spans[weights] = now, math.inf
        if len(self._spans) > _MAX_MODELS:
            del self._spans[next(iter(self._spans))]

    def load_ended(self, weights: str, now: float) -> float:
        """How long it took, well or badly."""
        began, _ = self._spans.get(weights, (now, now))
        self._spans[weights] = began, now
        return now - began

    def load_time_between(self, weights: str, since: float, now: float) -> float:
        """Of the time from `since` to `now` what the model's last load took."""
        began, ended = self._spans.get(weights, (now, now))
        return max(min(ended, now) - max(began, since), 0.0)
