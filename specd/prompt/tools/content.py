"""The text around calls, without the white space next to them."""

from __future__ import annotations


class Content:
    """Collector of the text around calls.

    White space is held back until its successor is known.  Next to a call it is dropped, except
    one run between two pieces of text, which would otherwise run together.
    begun: there was text other than space.  ends_in_call: a call was the last.
    """

    def __init__(self) -> None:
        self.begun = False
        self._ready = ""
        self._space = ""
        self._space_before_calls = ""
        self.ends_in_call = False

    def say(self, text: str) -> None:
        whole = self._space + text
        spoken = whole.strip()
        if not spoken:
            self._space = whole
            return
        leading = whole[: len(whole) - len(whole.lstrip())]
        self._space = whole[len(leading) + len(spoken) :]
        if self.ends_in_call:
            leading = (self._space_before_calls or leading) if self.begun else ""
            self.ends_in_call, self._space_before_calls = False, ""
        self._ready += leading + spoken
        self.begun = True

    def mark_call(self) -> None:
        """Record a call at this point."""
        self._space_before_calls = self._space_before_calls or self._space
        self._space = ""
        self.ends_in_call = True

    def end(self) -> None:
        """End the text; trailing space belongs to it, except after a call."""
        if not self.ends_in_call:
            self._ready += self._space
        self._space = ""

    def take(self) -> str:
        """Return and clear the text collected since the last call."""
        ready, self._ready = self._ready, ""
        return ready
