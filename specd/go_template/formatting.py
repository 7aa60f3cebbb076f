"""Formatting of one value by one verb of Go's fmt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from specd.go_template.error import GoTemplateError
from specd.go_template.flags import NO_FLAGS, Flags
from specd.go_template.literals import quote
from specd.go_template.numbers import floating, integer
from specd.go_template.values import NO_VALUE, Stringer, Struct, encode_utf8, type_name

#: Limit for the output of one call, since each of many values may have a huge width.
MAX_CHARACTERS: Final = 1 << 24


def join_texts(parts: Iterable[str], between: str = "") -> str:
    """Join texts.  Raises GoTemplateError if the result would be too long."""
    found: list[str] = []
    n_characters = 0
    for part in parts:
        n_characters += len(part)
        if n_characters > MAX_CHARACTERS:
            raise GoTemplateError("the text is too long")
        found.append(part)
    return between.join(found)


def format_typed(value: object, flags: Flags = NO_FLAGS) -> str:
    return "<nil>" if _is_nil(value) else f"{type_name(value)}={format_value(value, 'v', flags)}"


def _is_nil(value: object) -> bool:
    return value is None or value is NO_VALUE


def _bad_verb(value: object, verb: str, flags: Flags) -> str:
    if not isinstance(value, Stringer):
        return f"%!{verb}({format_typed(value, flags)})"
    # Inside a composite, a value's own `go_string` is not used.
    parts: object = list(value) if isinstance(value, list) else value
    if isinstance(value, dict):
        parts = dict(value)
    return f"%!{verb}({type_name(value)}={format_value(parts, 'v', flags)})"


def format_value(value: object, verb: str, flags: Flags) -> str:
    if _is_nil(value):
        return flags.pad("<nil>") if verb in "Tv" else _bad_verb(value, verb, flags)
    if verb == "T":
        return flags.pad(_truncate(type_name(value), flags))
    if verb in "vsxXq" and not flags.sharp_v and isinstance(value, Stringer):
        return _string(value.go_string(), verb, flags)
    match value:
        case bool():
            return (
                flags.pad("true" if value else "false")
                if verb in "tv"
                else _bad_verb(value, verb, flags)
            )
        case int():
            return integer(value, verb, flags) or _bad_verb(value, verb, flags)
        case float():
            return floating(value, verb, flags) or _bad_verb(value, verb, flags)
        case str():
            return _string(value, verb, flags)
        case _:
            return _format_composite(value, verb, flags)


def _format_composite(value: object, verb: str, flags: Flags) -> str:
    if verb == "p":
        return _bad_verb(value, verb, flags)
    go = flags.sharp_v
    between = ", " if go else " "
    name = type_name(value) if go else ""

    def part(item: object) -> str:
        if _is_nil(item):
            return "interface {}(nil)" if go else "<nil>"
        return format_value(item, verb, flags)

    match value:
        case Struct():
            named = go or flags.plus_v
            fields = value.fields.items()
            inner = join_texts((f"{k}:{part(v)}" if named else part(v) for k, v in fields), between)
            return f"{name}{{{inner}}}"
        case dict():
            inner = join_texts(
                (f"{part(key)}:{part(value[key])}" for key in sorted(value)), between
            )
            return f"{name}{{{inner}}}" if go else f"map[{inner}]"
        case list():
            inner = join_texts(map(part, value), between)
            return f"{name}{{{inner}}}" if go else f"[{inner}]"
        case _:
            return f"?{name}?"


def _truncate(text: str, flags: Flags) -> str:
    return text if flags.precision is None else text[: flags.precision]


def _string(text: str, verb: str, flags: Flags) -> str:
    match verb:
        case "v" if flags.sharp_v:
            return flags.pad(quote(_truncate(text, flags)))
        case "v" | "s":
            return flags.pad(_truncate(text, flags))
        case "q":
            text = _truncate(text, flags)
            if flags.sharp and "`" not in text and all(c == "\t" or c.isprintable() for c in text):
                return flags.pad(f"`{text}`")
            return flags.pad(quote(text, ascii_only=flags.plus))
        case "x" | "X":
            return _hex(text, verb, flags)
        case _:
            return _bad_verb(text, verb, flags)


def _hex(text: str, verb: str, flags: Flags) -> str:
    data = encode_utf8(text[: flags.precision])[: flags.precision]
    prefix = f"0{verb}" if flags.sharp and data else ""
    digits = data.hex().upper() if verb == "X" else data.hex()
    if flags.space:
        pairs = [digits[i : i + 2] for i in range(0, len(digits), 2)]
        return flags.pad(" ".join(prefix + pair for pair in pairs))
    return flags.pad(prefix + digits)
