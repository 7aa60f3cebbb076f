"""Reads JSON as Go's decoder does: the first value alone, and Go's own words for what is wrong.

The standard library reads; only where it refuses does the scanner below look for Go's sentence.
"""

from __future__ import annotations

import json
import math
from typing import Final, NoReturn

from specd.errors import InvalidRequest

_SPACE: Final = b" \t\r\n"
_ESCAPES: Final = b'"\\/bfnrt'
_DIGITS: Final = b"0123456789"
_HEX: Final = b"0123456789abcdefABCDEF"
_LITERALS: Final = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
# Digits below which an integer is a finite float, as every JSON number is one in Go's `any`.
_MAX_DIGITS: Final = 308


class EmptyBody(InvalidRequest):
    """Nothing but white space was sent; each dialect has its own text for it."""


class _Unreadable(Exception):
    pass


def decode_first(raw: bytes) -> object:
    """The first JSON value of `raw`; what follows it is not looked at.

    Raises EmptyBody, or InvalidRequest with the sentence of Go's encoding/json.
    """
    start = raw.lstrip(_SPACE)
    if not start:
        raise EmptyBody("EOF")
    text = start.decode(errors="replace")
    try:
        value, _ = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise InvalidRequest("exceeded max depth") from error
    except (json.JSONDecodeError, _Unreadable) as error:
        raise InvalidRequest(explain(start)) from error
    return _without_surrogates(value) if "\\u" in text else value


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
    raise _Unreadable(name)  # NaN and Infinity are Python's own


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_no_constant
)


def _without_surrogates(value: object) -> object:
    """Half a surrogate pair becomes U+FFFD, as in Go; Python would fail when it writes one."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {str(_without_surrogates(k)): _without_surrogates(v) for k, v in value.items()}
    return value


# --------------------------------------------------------------------------- Go's sentences


def explain(raw: bytes) -> str:
    """Why Go's scanner refuses `raw`, in its words."""
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

    def value(self) -> None:
        self._skip_space()
        c = self._peek()
        if c == ord("{"):
            self._object()
        elif c == ord("["):
            self._array()
        elif c == ord('"'):
            self._string()
        elif c == ord("-") or c in _DIGITS:
            self._number()
        elif c in _LITERALS:
            self._literal(_LITERALS[c])
        else:
            self._refuse("looking for beginning of value")

    def _object(self) -> None:
        self.at += 1
        self._skip_space()
        if self._peek() == ord("}"):
            self.at += 1
            return
        while True:
            self._skip_space()
            if self._peek() != ord('"'):
                self._refuse("looking for beginning of object key string")
            self._string()
            self._skip_space()
            self._expect(b":", "after object key")
            self.value()
            self._skip_space()
            if self._expect(b",}", "after object key:value pair") == ord("}"):
                return

    def _array(self) -> None:
        self.at += 1
        self._skip_space()
        if self._peek() == ord("]"):
            self.at += 1
            return
        while True:
            self.value()
            self._skip_space()
            if self._expect(b",]", "after array element") == ord("]"):
                return

    def _string(self) -> None:
        self.at += 1
        while (c := self._peek()) != ord('"'):
            if c < 0x20:
                self._refuse("in string literal")
            self.at += 1
            if c == ord("\\"):
                self._escape()
        self.at += 1

    def _escape(self) -> None:
        if self._peek() == ord("u"):
            self.at += 1
            for _ in range(4):
                self._expect(_HEX, "in \\u hexadecimal character escape")
        else:
            self._expect(_ESCAPES, "in string escape code")

    def _number(self) -> None:
        if self._peek() == ord("-"):
            self.at += 1
        if self._expect(_DIGITS, "in numeric literal") != ord("0"):
            self._digits()
        if self._next_is(b"."):
            self._expect(_DIGITS, "after decimal point in numeric literal")
            self._digits()
        if self._next_is(b"eE"):
            self._next_is(b"+-")
            self._expect(_DIGITS, "in exponent of numeric literal")
            self._digits()

    def _literal(self, word: bytes) -> None:
        for expected in word:
            if self._peek() != expected:
                self._refuse(f"in literal {word.decode()} (expecting '{chr(expected)}')")
            self.at += 1

    def _digits(self) -> None:
        while self._next_is(_DIGITS):
            pass

    def _next_is(self, allowed: bytes) -> bool:
        found = self.at < len(self.raw) and self.raw[self.at] in allowed
        self.at += found
        return found

    def _expect(self, allowed: bytes, where: str) -> int:
        c = self._peek()
        if c not in allowed:
            self._refuse(where)
        self.at += 1
        return c

    def _skip_space(self) -> None:
        while self._next_is(_SPACE):
            pass

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
