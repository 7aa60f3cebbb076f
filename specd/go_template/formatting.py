"""Formatting of one value by one verb of Go's fmt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from specd.errors import GoTemplateError
from specd.go_template.literals import quote
from specd.go_template.values import NO_VALUE, Stringer, Struct, encode_utf8, type_name

#: Limit for the output of one call, since each of many values may have a huge width.
MAX_CHARACTERS: Final = 1 << 24


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


# --------------------------------------------------------------------------- numbers


def integer(value: int, verb: str, flags: Flags) -> str | None:
    """Format an integer; return None if the verb is not for integers."""
    match verb:
        case "v" | "d":
            return _digits(value, str(abs(value)), "", flags)
        case "b":
            return _digits(value, f"{abs(value):b}", "0b" if flags.sharp else "", flags)
        case "o":
            digits = f"{abs(value):o}"
            return _digits(value, digits, "0" if flags.sharp and digits[0] != "0" else "", flags)
        case "O":
            return _digits(value, f"{abs(value):o}", "0o", flags)
        case "x" | "X":
            return _digits(value, f"{abs(value):{verb}}", f"0{verb}" if flags.sharp else "", flags)
        case "c":
            return flags.pad(_rune(value))
        case "q":
            return flags.pad(quote(_rune(value), "'", ascii_only=flags.plus))
        case "U":
            return _code_point(value, flags)
        case _:
            return None


def _rune(value: int) -> str:
    is_rune = 0 <= value < 0x110000 and not 0xD800 <= value < 0xE000
    return chr(value) if is_rune else "\ufffd"


def _code_point(value: int, flags: Flags) -> str:
    text = f"U+{value % 2**64:0{max(4, flags.precision or 0)}X}"
    if flags.sharp and 0 <= value < 0x110000 and chr(value).isprintable():
        text += f" '{chr(value)}'"
    return flags.pad(text, zero=False)


def _digits(value: int, digits: str, prefix: str, flags: Flags) -> str:
    sign = "-" if value < 0 else "+" if flags.plus else " " if flags.space else ""
    least = 0
    if flags.precision is not None:
        least = flags.precision
        if least == 0 and value == 0:
            return " " * (flags.width or 0)
    elif flags.zero and not flags.minus and flags.width is not None:
        least = flags.width - bool(sign)
    zeros = "0" * (least - len(digits))
    if prefix == "0" and zeros:
        prefix = ""
    return flags.pad(sign + prefix + zeros + digits, zero=False)


def floating(value: float, verb: str, flags: Flags) -> str | None:
    """Format a float; return None if the verb is not for floats, or is `%b`, `%x` or `%X`."""
    forms: dict[str, Callable[[], str]] = {
        "v": lambda: _general(value, flags.precision),
        "g": lambda: _general(value, flags.precision),
        "G": lambda: _general(value, flags.precision).upper(),
        "f": lambda: f"{value:.{_default_precision(flags)}f}",
        "F": lambda: f"{value:.{_default_precision(flags)}f}",
        "e": lambda: f"{value:.{_default_precision(flags)}e}",
        "E": lambda: f"{value:.{_default_precision(flags)}E}",
    }
    if verb not in forms:
        return None
    if not math.isfinite(value):
        text = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
        if text == "+Inf" and not flags.plus:
            text = " Inf" if flags.space else "+Inf"
        elif text == "NaN" and (flags.plus or flags.space):
            text = f"{'+' if flags.plus else ' '}NaN"
        return flags.pad(text, zero=False)
    text = forms[verb]()
    sign = "-" if text.startswith("-") else "+" if flags.plus else " " if flags.space else ""
    digits = text.removeprefix("-")
    if sign and flags.zero and not flags.minus and flags.width:
        return sign + "0" * (flags.width - len(sign) - len(digits)) + digits
    return flags.pad(sign + digits)


def _default_precision(flags: Flags) -> int:
    return 6 if flags.precision is None else min(flags.precision, 1100)


def _general(value: float, precision: int | None) -> str:
    """Format like Go's %v: shortest digits, exponent from 1e+06 and below 1e-04."""
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if precision is None:
        digits, limit = Decimal(repr(value)).normalize(), 6
    else:
        wanted = max(precision, 1)
        digits = Decimal(f"{value:.{min(wanted, 1100) - 1}e}").normalize()
        n_digits = len(digits.as_tuple().digits)
        limit = n_digits if wanted > n_digits > digits.adjusted() else wanted
    if -4 <= digits.adjusted() < limit:
        return f"{digits:f}"
    mantissa, _, exponent = f"{digits:e}".partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:]:0>2}"
