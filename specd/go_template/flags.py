"""The flags of a format directive, between `%` and the verb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Flags:
    """Parsed flags.  minus: pad on the right.  sharp_v, plus_v: `%#v` and `%+v`."""

    sharp: bool = False
    zero: bool = False
    plus: bool = False
    minus: bool = False
    space: bool = False
    width: int | None = None
    precision: int | None = None
    sharp_v: bool = False
    plus_v: bool = False

    def pad(self, text: str, *, zero: bool | None = None) -> str:
        missing = (self.width or 0) - len(text)
        if missing <= 0:
            return text
        if self.minus:
            return text + " " * missing
        return ("0" if (self.zero if zero is None else zero) else " ") * missing + text


NO_FLAGS: Final = Flags()
