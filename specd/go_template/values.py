"""What a template works on: Python values that stand for Go's, and Go's rules about them.

None is a nil interface, NO_VALUE Go's "no value at all".  bool, int, float, str, lists and dicts
with text keys are themselves; a text's length is that of its UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from specd.go_json_encoder import replace_surrogates


class NoValue:
    """Prints as `<no value>`, is false, and has no fields but more of its kind."""

    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE: Final = NoValue()


@runtime_checkable
class Stringer(Protocol):
    """A value with a text of its own, which is printed instead of its parts."""

    def go_string(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Struct:
    """A Go struct: names it does not have are errors, not missing keys.

    json: what it is as JSON, where that is not its fields under their own names.
    methods: functions without arguments, called by their names.
    """

    type_name: str
    fields: Mapping[str, object]
    json: Mapping[str, object] | None = None
    methods: Mapping[str, Callable[[], object]] = field(default_factory=dict)


def type_name(value: object) -> str:
    """Go's name of the type; lists and dicts with a name of their own say it in `type_name`."""
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
    """Whether it is not the zero of its type; a struct always is true."""
    if isinstance(value, Struct):
        return True
    return value is not NO_VALUE and bool(value)


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(encode_utf8(text))


def encode_utf8(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which has none, becomes the replacement character."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return replace_surrogates(text).encode()
