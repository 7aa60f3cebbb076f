"""The values of templates: Python values in place of Go's, with Go's rules.

None is a nil interface, NO_VALUE Go's "no value at all".  bool, int, float, str, lists and dicts
with text keys are themselves; a text's length is that of its UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from specd.go_json_encoder import replace_surrogates


class NoValue:
    """Go's "no value": prints as `<no value>`, is false, and each field is NO_VALUE again."""

    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE: Final = NoValue()


@runtime_checkable
class Stringer(Protocol):
    """A value that prints as its own text instead of its parts."""

    def go_string(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Struct:
    """A Go struct; an unknown field is an error, not a missing key.

    json: its form as JSON, if that differs from its fields.
    methods: functions without arguments, by name.
    """

    type_name: str
    fields: Mapping[str, object]
    json: Mapping[str, object] | None = None
    methods: Mapping[str, Callable[[], object]] = field(default_factory=dict)


def type_name(value: object) -> str:
    """Return Go's name of a value's type; lists and dicts may override it with `type_name`."""
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float64"
        case str():
            return "string"
        case list():
            plain = "[]interface {}"
        case dict():
            plain = "map[string]interface {}"
        case _:
            plain = "interface {}"
    return str(getattr(value, "type_name", plain))


def is_true(value: object) -> bool:
    """Return whether a value is not the zero of its type; a struct is always true."""
    if isinstance(value, Struct):
        return True
    return value is not NO_VALUE and bool(value)


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(encode_utf8(text))


def encode_utf8(text: str) -> bytes:
    """Encode as UTF-8; half a surrogate pair becomes the replacement character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text).encode()
