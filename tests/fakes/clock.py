"""A clock that only a test advances."""

from __future__ import annotations


class Clock:
    """Returns `now`, in seconds, when it is called."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
