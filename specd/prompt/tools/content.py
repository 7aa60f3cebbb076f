"""The text beside calls, with the white space that belongs to neither side left out."""

from __future__ import annotations


class Content:
    """begun: whether anything but space was said.  ends_in_call: whether that was before a call.

    Space is held until it is known what follows: before and after a call it is dropped, but for
    its first run between two pieces of text, which would run together without it.
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
        """A call stood here."""
        self._space_before_calls = self._space_before_calls or self._space
        self._space = ""
        self.ends_in_call = True

    def end(self) -> None:
        """Nothing follows: space at the end of the text is part of it, behind a call it is not."""
        if not self.ends_in_call:
            self._ready += self._space
        self._space = ""

    def take(self) -> str:
        """What was decided since the last time."""
        ready, self._ready = self._ready, ""
        return ready
