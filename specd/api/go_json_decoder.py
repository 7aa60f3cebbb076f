"""JSON decoder like Go's: it reads the first value only, and reports errors with Go's texts.

The standard library decodes; only if it fails, the scanner below finds Go's error text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final, NoReturn

from specd.errors import InvalidRequest
from specd.go_json_encoder import sanitize_json

_SPACE: Final = b" \t\r\n"
_DIGITS: Final = b"0123456789"
_SPACES: Final = re.compile(rb"[ \t\r\n]*")
_HEX: Final = re.compile(rb"[0-9a-fA-F]*")
#: A string up to its end quote, or to its first invalid byte or escape.
_STRING: Final = re.compile(rb'"(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_NUMBER: Final = re.compile(
    rb"(?P<whole>-?(?:0|[1-9][0-9]*)?)(?P<fraction>\.[0-9]*)?(?P<exponent>[eE][+-]?[0-9]*)?"
)
#: Part of a number → the place of an error if the part does not end in a digit.
_NUMBER_PARTS: Final = {
    "whole": "in numeric literal",
    "fraction": "after decimal point in numeric literal",
    "exponent": "in exponent of numeric literal",
}
_LITERALS: Final = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
# Digits below which an integer is a finite float, as every JSON number is one in Go's `any`.
_MAX_DIGITS: Final = 308
#: Levels of arrays and objects.  Go's bound is 10000, where Python's recursion has long ended.
MAX_DEPTH: Final = 200
#: Values of one body: each takes up to 300 bytes of memory, whatever it took on the wire.
MAX_VALUES: Final = 2**21
# Values and escapes up to which a body that cannot be read is read again for Go's sentence: that
# is slow, and says less the longer a body is.
_MAX_EXPLAINED: Final = 2**16


class EmptyBody(InvalidRequest):
    """A body without anything but white space; each dialect has its own text for it."""


class _Unreadable(Exception):
    """A syntax error with Go's text."""


def decode_first(raw: bytes) -> object:
    """Return the first JSON value of `raw`; ignore what follows it.

    Raises EmptyBody, or InvalidRequest with the text of Go's encoding/json.
    """
    return _decode(raw)[0]


def decode_whole(text: str) -> object:
    """Return the value of JSON that was embedded in a JSON string.

    Raises like `decode_first`, and also if more follows the value.
    """
    value, rest = _decode(text.encode(errors="replace"))
    if rest := rest.lstrip():
        raise InvalidRequest(f"invalid character {_quoted(rest.encode()[0])} after top-level value")
    return value


def _decode(raw: bytes) -> tuple[object, str]:
    """Return the first value, and the text that follows it."""
    start = raw.lstrip(_SPACE)
    if not start:
        raise EmptyBody("EOF")
    n_values = sum(map(start.count, (b",", b"[", b"{")))
    if n_values > MAX_VALUES and _n_outside_texts(start) > MAX_VALUES:
        raise InvalidRequest(f"more than {MAX_VALUES} JSON values")
    text = start.decode(errors="replace")
    try:
        value, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise InvalidRequest(_TOO_DEEP) from error
    except json.JSONDecodeError as error:
        if n_values + start.count(b"\\") > _MAX_EXPLAINED:
            raise InvalidRequest(f"invalid JSON: {error.msg} at character {error.pos}") from error
        raise InvalidRequest(explain(start)) from error
    if _is_too_deep(value):
        raise InvalidRequest(_TOO_DEEP)
    return (sanitize_json(value) if "\\u" in text else value), text[end:]


_UNMARKED: Final = bytes(set(range(256)) - set(b'",[{'))


def _n_outside_texts(raw: bytes) -> int:
    """Return how many commas and opening brackets are outside of strings."""
    marks = raw.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _UNMARKED)
    # An object's entry has four quotes at most: what is behind these many is too much anyway.
    return sum(map(len, marks.split(b'"', 4 * MAX_VALUES)[::2]))


_TOO_DEEP: Final = "exceeded max depth"


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        _out_of_range(digits)
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        _out_of_range(digits)
    return value


def _out_of_range(digits: str) -> NoReturn:
    shown = digits if len(digits) <= 40 else digits[:40] + "..."
    raise InvalidRequest(f"json: cannot unmarshal number {shown} into Go value of type float64")


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(name, "", 0)  # NaN and Infinity are Python's own


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_no_constant
)


# --------------------------------------------------------------------------- Go's sentences


def explain(raw: bytes) -> str:
    """Return Go's error text for invalid JSON."""
    try:
        _Scanner(raw).value()
    except _Unreadable as error:
        return str(error)
    return "invalid JSON"


class _Scanner:
    """Recursive descent over one value; raises _Unreadable with Go's text (json/scanner.go)."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.depth = 0

    def value(self) -> None:
        c = self._next()
        if c in b"{[":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise _Unreadable(_TOO_DEEP)
            self._container(is_object=c == ord("{"))
            self.depth -= 1
        elif c == ord('"'):
            self._string()
        elif c == ord("-") or c in _DIGITS:
            self._number()
        elif c in _LITERALS:
            self._literal(_LITERALS[c])
        else:
            self._refuse("looking for beginning of value")

    def _container(self, *, is_object: bool) -> None:
        end, where = (
            (b"}", "after object key:value pair") if is_object else (b"]", "after array element")
        )
        self.at += 1
        if self._next() == end[0]:
            self.at += 1
            return
        while True:
            if is_object:
                if self._next() != ord('"'):
                    self._refuse("looking for beginning of object key string")
                self._string()
                self._expect(b":", "after object key")
            self.value()
            if self._expect(b"," + end, where) == end[0]:
                return

    def _string(self) -> None:
        self._skip(_STRING)
        c = self._peek()
        if c not in b'"\\':
            self._refuse("in string literal")
        self.at += 1
        if c == ord('"'):
            return
        if self._peek() != ord("u"):
            self._refuse("in string escape code")
        self.at += 1
        self._skip(_HEX)
        self._refuse("in \\u hexadecimal character escape")

    def _number(self) -> None:
        number = _NUMBER.match(self.raw, self.at)
        assert number is not None  # every part of the pattern may be empty
        for part, where in _NUMBER_PARTS.items():
            text = number[part]
            if text is not None and text[-1] not in _DIGITS:
                self.at = number.end(part)
                self._refuse(where)
        self.at = number.end()

    def _literal(self, word: bytes) -> None:
        for expected in word:
            if self._peek() != expected:
                self._refuse(f"in literal {word.decode()} (expecting '{chr(expected)}')")
            self.at += 1

    def _expect(self, allowed: bytes, where: str) -> int:
        c = self._next()
        if c not in allowed:
            self._refuse(where)
        self.at += 1
        return c

    def _next(self) -> int:
        """Skip white space and return the next byte, which is not consumed."""
        self._skip(_SPACES)
        return self._peek()

    def _skip(self, pattern: re.Pattern[bytes]) -> None:
        match = pattern.match(self.raw, self.at)
        assert match is not None  # the patterns may be empty, or their first byte is known
        self.at = match.end()

    def _peek(self) -> int:
        if self.at >= len(self.raw):
            raise _Unreadable("unexpected EOF")
        return self.raw[self.at]

    def _refuse(self, where: str) -> NoReturn:
        raise _Unreadable(f"invalid character {_quoted(self._peek())} {where}")


def _quoted(byte: int) -> str:
    """Go's quoteChar: one byte, shown as the character of that number."""
    shown = {0x07: "\\a", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
    shown |= {0x0B: "\\v", ord("'"): "\\'", ord("\\"): "\\\\"}
    if byte in shown:
        return f"'{shown[byte]}'"
    if byte < 0x20 or byte == 0x7F:
        return f"'\\x{byte:02x}'"
    character = chr(byte)
    return f"'{character}'" if character.isprintable() else f"'\\u{byte:04x}'"
