"""Formatting of numbers by the verbs of Go's fmt."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

from specd.go_template.flags import Flags
from specd.go_template.literals import quote


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
