"""JSON as Go's encoding/json writes it: no spaces, sorted keys, `<`, `>` and `&` escaped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

from specd.go_template.values import NoValue, Struct

_ESCAPES: Final = str.maketrans(
    {
        "<": "\\u003c",
        ">": "\\u003e",
        "&": "\\u0026",
        "\u2028": "\\u2028",
        "\u2029": "\\u2029",
        **{chr(code): "\ufffd" for code in range(0xD800, 0xE000)},
    }
)


def json_text(value: object) -> str:
    """Go's own words for what is no JSON (not a number, infinity): an empty text."""
    try:
        return _encoded(value)
    except ValueError:
        return ""


def _encoded(value: object) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).translate(_ESCAPES)
        case None | NoValue():
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _number(value)
        case Struct():
            fields = value.fields if value.json is None else value.json
            return _object(fields.items())
        case dict():
            return _object((key, value[key]) for key in sorted(value))
        case list():
            return "[" + ",".join(map(_encoded, value)) + "]"
        case _:
            raise ValueError(value)


def _object(items: Iterable[tuple[str, object]]) -> str:
    return "{" + ",".join(f"{_encoded(key)}:{_encoded(value)}" for key, value in items) + "}"


def _number(value: float) -> str:
    """Like JavaScript: digits below 1e21, an exponent from there on and below 1e-6."""
    if not math.isfinite(value):
        raise ValueError(value)
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits = Decimal(repr(value)).normalize()
    if 1e-6 <= abs(value) < 1e21:
        return f"{digits:f}"
    mantissa, _, exponent = f"{digits:e}".partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"
