"""Go's literals: parsing of quoted texts and numbers, and quoting of texts."""

from __future__ import annotations

import re
from typing import Final

_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))",
    re.DOTALL,
)
_SIMPLE: Final = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    "'": "'",
    '"': '"',
}
_NAMED: Final = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INTEGER: Final = re.compile(
    r"(?P<sign>[+-]?)(?:0[xX](?P<hex>[0-9a-fA-F_]+)|0[oO](?P<octal>[0-7_]+)|0[bB](?P<binary>[01_]+)"
    r"|0(?P<old>[0-7_]+)|(?P<decimal>0|[1-9][0-9_]*))"
)
_BASES: Final = {"hex": 16, "octal": 8, "binary": 2, "old": 8, "decimal": 10}
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_HEX_FLOAT: Final = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP].+")


def unquote(literal: str) -> str:
    """Return the text of a quoted literal of any of Go's three kinds.  Raises ValueError."""
    sign, body = literal[0], literal[1:-1]
    if sign == "`":
        return body.replace("\r", "")
    if "\\" not in body:
        return body
    parts: list[bytes] = []
    end = 0
    for found in _ESCAPE.finditer(body):
        parts += [body[end : found.start()].encode("utf-8", "replace"), _escaped(found, sign)]
        end = found.end()
    parts.append(body[end:].encode("utf-8", "replace"))
    return b"".join(parts).decode("utf-8", "replace")


def _escaped(found: re.Match[str], sign: str) -> bytes:
    simple, byte, octal, short, long, _ = found.groups()
    if simple and (simple not in "'\"" or simple == sign):
        return _SIMPLE[simple].encode()
    if byte or octal:
        value = int(byte, 16) if byte else int(octal, 8)
        if value < 256:
            # An escape is a code point in a character constant, and a byte in a string.
            return chr(value).encode() if sign == "'" else bytes([value])
    if short or long:
        value = int(short or long, 16)
        if value < 0x110000 and not 0xD800 <= value < 0xE000:
            return chr(value).encode()
    raise ValueError("invalid syntax")


def character(literal: str) -> int:
    """Return the code point of a character constant.  Raises ValueError."""
    text = unquote(literal)
    if not text:
        raise ValueError("invalid syntax")
    if len(text) > 1:
        raise ValueError(f"malformed character constant: {literal}")
    return ord(text)


def number(literal: str) -> int | float | None:
    """Return an int or float; None for an integer that fits only uint64.  Raises ValueError."""
    value = _integer(literal)
    if value is not None:
        if -(2**63) <= value < 2**63:
            return value
        if 0 <= value < 2**64:
            return None
    elif _FLOAT.fullmatch(literal) and re.search("[.eE]", literal):
        return _finite(float(literal), literal)
    elif _HEX_FLOAT.fullmatch(literal):
        return _finite(float.fromhex(literal), literal)
    if value is not None or _FLOAT.fullmatch(literal):
        raise ValueError(f'integer overflow: "{literal}"')
    raise ValueError(f'illegal number syntax: "{literal}"')


def _finite(value: float, literal: str) -> float:
    if value in {float("inf"), float("-inf")}:
        raise ValueError(f'illegal number syntax: "{literal}"')
    return value


def _integer(literal: str) -> int | None:
    found = _INTEGER.fullmatch(literal)
    if found is None:
        return None
    (kind, digits), *_ = [(k, v) for k, v in found.groupdict().items() if v and k != "sign"]
    # Underscores are allowed between digits and after the prefix.
    if not re.fullmatch(r"_?[^_]+(?:_[^_]+)*", digits) or (kind == "decimal" and digits[0] == "_"):
        return None
    value = int(digits.replace("_", ""), _BASES[kind])
    return -value if found["sign"] == "-" else value


def quote(text: str, sign: str = '"', *, ascii_only: bool = False) -> str:
    """Quote a text like Go's `strconv.Quote`; with `sign` `'` as a character constant."""
    return sign + "".join(_quoted(char, sign, ascii_only=ascii_only) for char in text) + sign


def _quoted(char: str, sign: str, *, ascii_only: bool) -> str:
    if char in {sign, "\\"}:
        return f"\\{char}"
    code = ord(char)
    if char.isprintable() and (code < 0x80 or not ascii_only):
        return char
    if named := _NAMED.get(char):
        return named
    if char == "\v":
        return "\\v"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xD800 <= code < 0xE000:
        return "\ufffd"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
