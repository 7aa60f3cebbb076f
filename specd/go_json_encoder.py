"""JSON encoder that matches Go's encoding/json, for responses, digests and templates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

#: Go escapes these characters in every string (HTML-safe by default).
_ESCAPES: Final = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


#: Made once: `json.dumps` makes an encoder for each call, and a stream has a line per token.
_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def go_escape(text: str) -> str:
    """Return JSON text with the escapes that Go adds."""
    # str.translate would hold the GIL for 0.1 µs per character: 7 s for 60 MB.
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return text


def dump_json(value: object) -> bytes:
    """Return compact JSON for an answer, keys in their order; floats have Python's digits.

    It is written in C, unlike `go_json`.  Raises ValueError for NaN and infinity.
    """
    return go_escape(_COMPACT.encode(value)).encode(errors="replace")


def go_json(value: object, *, sort: bool = False) -> bytes:
    """Return compact JSON on one line with a line feed, like `json.NewEncoder(...).Encode`.

    sort: write maps sorted by key, as Go does; otherwise in the given order, as Go's structs.
    Raises ValueError for infinite numbers and for types that JSON does not have.
    """
    return (_text(value, sort=sort) + "\n").encode(errors="replace")


def _text(value: object, *, sort: bool) -> str:
    match value:
        case None | bool() | int() | str():
            return go_escape(_COMPACT.encode(value))
        case float():
            return json_number(value)
        case Mapping():
            keys = sorted(value) if sort else value
            entries = (f"{_text(key, sort=sort)}:{_text(value[key], sort=sort)}" for key in keys)
            return "{" + ",".join(entries) + "}"
        case list() | tuple():
            return "[" + ",".join(_text(item, sort=sort) for item in value) + "]"
        case _:
            raise ValueError(f"JSON has no {type(value).__name__}")


def json_number(value: float) -> str:
    """Format a float64: shortest digits, no `.0`, an exponent below 1e-6 and from 1e21 on.

    Raises ValueError for a number that is not finite.
    """
    if not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        return f"{Decimal(repr(value)):f}".removesuffix(".0")
    mantissa, _, exponent = repr(value).partition("e")
    sign = "-" if exponent.startswith("-") else "+"
    return f"{mantissa}e{sign}{exponent.lstrip('+-0')}"


def replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which UTF-8 cannot encode, by U+FFFD, as Go does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sanitize_json(value: Any) -> Any:
    """Return a JSON value with `replace_surrogates` applied to all its strings and keys."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [sanitize_json(item) for item in value]
    if isinstance(value, dict):
        return {str(sanitize_json(key)): sanitize_json(item) for key, item in value.items()}
    return value
