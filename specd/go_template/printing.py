"""Go's fmt.Print, Println and Printf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from specd.go_template.formatting import (
    NO_FLAGS,
    Flags,
    format_typed,
    format_value,
    join_texts,
)
from specd.go_template.values import NO_VALUE

#: Limit of a width or a precision.
_MAX_WIDTH: Final = 1_000_000
_FLAGS: Final = {"#": "sharp", "0": "zero", "+": "plus", "-": "minus", " ": "space"}


def format_action(value: object) -> str:
    """Return what an action prints: `%v`, or `<no value>` without a value."""
    if type(value) is str:
        return value
    return "<no value>" if value is NO_VALUE else format_value(value, "v", NO_FLAGS)


def print_values(values: Sequence[object]) -> str:
    """Return the values joined, with a space between two that are not texts."""
    parts: list[str] = []
    for i, value in enumerate(values):
        if i and not isinstance(value, str) and not isinstance(values[i - 1], str):
            parts.append(" ")
        parts.append(format_value(value, "v", NO_FLAGS))
    return join_texts(parts)


def println_values(values: Sequence[object]) -> str:
    return join_texts((format_value(value, "v", NO_FLAGS) for value in values), " ") + "\n"


def printf(form: str, values: Sequence[object]) -> str:
    """Format like Go: a mismatch prints as `%!d(string=x)`.

    Raises GoTemplateError only if the text is too long.
    """
    return join_texts(_Printf(form, values).run())


class _Printf:
    """One run over a format.  `_n`: number of arguments used."""

    def __init__(self, form: str, values: Sequence[object]) -> None:
        self._form = form
        self._values = values
        self._i = 0
        self._n = 0
        self._out: list[str] = []
        self._reordered = False
        self._is_valid = True  # every argument index in this verb is valid
        self._indexed = False  # an argument index came just before

    def run(self) -> Iterator[str]:
        """Return the formatted pieces."""
        form = self._form
        while self._i < len(form):
            percent = form.find("%", self._i)
            if percent < 0:
                yield form[self._i :]
                break
            yield form[self._i : percent]
            self._i = percent + 1
            self._verb()
            yield from self._take_output()
        rest = self._values[self._n :]
        if rest and not self._reordered:
            yield f"%!(EXTRA {join_texts(map(format_typed, rest), ', ')})"

    def _take_output(self) -> list[str]:
        pieces, self._out = self._out, []
        return pieces

    def _verb(self) -> None:
        self._is_valid, self._indexed = True, False
        flags = self._flags()
        self._argument_number()
        flags = self._precision(self._width(flags))
        if not self._indexed:
            self._argument_number()
        if self._i >= len(self._form):
            self._out.append("%!(NOVERB)")
            return
        verb = self._form[self._i]
        self._i += 1
        if verb == "%":
            self._out.append("%")
        elif not self._is_valid:
            self._out.append(f"%!{verb}(BADINDEX)")
        elif self._n >= len(self._values):
            self._out.append(f"%!{verb}(MISSING)")
        else:
            if verb == "v":
                flags = replace(
                    flags, sharp_v=flags.sharp, plus_v=flags.plus, sharp=False, plus=False
                )
            self._out.append(format_value(self._values[self._n], verb, flags))
            self._n += 1

    def _flags(self) -> Flags:
        found: dict[str, bool] = {}
        while self._i < len(self._form) and (name := _FLAGS.get(self._form[self._i])):
            found[name] = True
            self._i += 1
        return Flags(**found)

    def _width(self, flags: Flags) -> Flags:
        if self._accept("*"):
            width = self._argument("%!(BADWIDTH)")
            if width is None:
                return flags
            if width < 0:
                return replace(flags, width=-width, minus=True, zero=False)
            return replace(flags, width=width)
        number = self._number()
        if number is not None and self._indexed:
            self._is_valid = False
        return replace(flags, width=number)

    def _precision(self, flags: Flags) -> Flags:
        # In Go, a point at the end of the format is a verb.
        if self._form[self._i : self._i + 1] != "." or self._i + 1 >= len(self._form):
            return flags
        self._i += 1
        if self._indexed:
            self._is_valid = False
        self._argument_number()
        if self._accept("*"):
            precision = self._argument("%!(BADPREC)", least=0)
            return replace(flags, precision=precision)
        return replace(flags, precision=self._number() or 0)

    def _accept(self, character: str) -> bool:
        if not self._form.startswith(character, self._i):
            return False
        self._i += 1
        return True

    def _argument(self, error: str, least: int = -_MAX_WIDTH) -> int | None:
        """Return a width or precision from an argument."""
        value = self._values[self._n] if self._n < len(self._values) else None
        self._n = min(self._n + 1, len(self._values))
        self._indexed = False
        if type(value) is int and least <= value <= _MAX_WIDTH:
            return value
        self._out.append(error)
        return None

    def _number(self) -> int | None:
        start = self._i
        while self._i < len(self._form) and self._form[self._i] in "0123456789":
            self._i += 1
        digits = self._form[start : self._i]
        if len(digits.lstrip("0")) > 8 or int(digits or "0") > 10 * _MAX_WIDTH:
            self._i = len(self._form)  # as Go does, ignore the rest
            return None
        return int(digits) if digits else None

    def _argument_number(self) -> None:
        """Parse `[n]`: the n-th argument is next."""
        self._indexed = False
        if not self._form.startswith("[", self._i):
            return
        self._reordered = True
        end = self._form.find("]", self._i)
        if end < 0:
            self._i += 1
            self._is_valid = False
            return
        digits = self._form[self._i + 1 : end]
        self._i = end + 1
        is_number = digits.isascii() and digits.isdecimal() and len(digits) < 8
        self._indexed = is_number
        if is_number and 1 <= int(digits) <= len(self._values):
            self._n = int(digits) - 1
        else:
            self._is_valid = False
