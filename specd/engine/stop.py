"""Stop strings that may begin in one token and end in another."""

from __future__ import annotations


class StopFilter:
    """A filter that holds back the longest suffix that could still become a stop string.

    After a stop string, `stopped` is True and no more text is returned.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._undecided = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """Add text; return what is safe to show now.  It ends before a stop string."""
        if self.stopped:
            return ""
        undecided = self._undecided + text
        if not self._stop:
            return undecided
        at = min((i for s in self._stop if (i := undecided.find(s)) >= 0), default=-1)
        if at >= 0:
            self._undecided, self.stopped = "", True
            return undecided[:at]
        n = self._n_undecided(undecided)
        self._undecided = undecided[len(undecided) - n :]
        return undecided[: len(undecided) - n]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer."""
        undecided, self._undecided = self._undecided, ""
        return undecided

    def _n_undecided(self, text: str) -> int:
        longest = max(map(len, self._stop)) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[len(text) - n :]) for s in self._stop):
                return n
        return 0
