"""The functions that templates can call: Go's and Ollama's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import quote_plus

from specd.errors import GoTemplateError
from specd.go_template.json_text import json_text
from specd.go_template.printing import format_action, print_values, printf, println_values
from specd.go_template.values import (
    NO_VALUE,
    Struct,
    byte_length,
    encode_utf8,
    is_true,
    type_name,
)

#: The kinds of parameters.
ANY: Final = "any"
VALUE: Final = "value"
TEXT: Final = "string"

_BASIC: Final = {bool: "bool", int: "int", float: "float", str: "string"}
_HTML: Final = str.maketrans(
    {"\0": "\ufffd", '"': "&#34;", "'": "&#39;", "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_JS: Final = {
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
    "<": "\\u003C",
    ">": "\\u003E",
    "&": "\\u0026",
    "=": "\\u003D",
}


@dataclass(frozen=True, slots=True)
class Function:
    """A template function.

    parameter_kinds: one kind per fixed parameter.  variadic_kind: the kind of further arguments.
    run: raises GoTemplateError, without the position.
    """

    run: Callable[..., object]
    parameter_kinds: tuple[str, ...] = ()
    variadic_kind: str = ""

    def kind(self, i: int) -> str:
        return self.parameter_kinds[i] if i < len(self.parameter_kinds) else self.variadic_kind

    def argument_count_error(self, name: str, n_args: int, n_given: int) -> str:
        """Return Go's error for a wrong number of arguments, "" if it is right.

        n_given counts the piped argument, too.
        """
        least, words = len(self.parameter_kinds), f"wrong number of args for {name}: want"
        if self.variadic_kind:
            return "" if n_given >= least else f"{words} at least {least} got {n_args}"
        return "" if n_given == least else f"{words} {least} got {n_given}"


# --------------------------------------------------------------------------- comparison


def equal(first: object, *others: object) -> bool:
    """Return whether the first equals any of the others.  Raises GoTemplateError."""
    if not others:
        raise GoTemplateError("missing argument for comparison")
    return any(_equal(first, other) for other in others)


def less(a: object, b: object) -> bool:
    kind, other = _BASIC.get(type(a)), _BASIC.get(type(b))
    if kind is None or other is None:
        raise GoTemplateError("invalid type for comparison")
    if kind != other:
        raise _incompatible(a, b)
    if kind == "bool":
        raise GoTemplateError("invalid type for comparison")
    return bool(a < b)  # type: ignore[operator]  # both have the same ordered kind


def _less_or_equal(a: object, b: object) -> bool:
    return less(a, b) or equal(a, b)


def _equal(a: object, b: object) -> bool:
    kind, other = _BASIC.get(type(a)), _BASIC.get(type(b))
    if kind is not None and kind is other:
        return a == b
    a_is_nil, b_is_nil = a is None or a is NO_VALUE, b is None or b is NO_VALUE
    if a_is_nil or b_is_nil:
        return a_is_nil and b_is_nil
    if kind != other:
        raise _incompatible(a, b)
    if type(a) is not type(b):
        raise GoTemplateError(
            f"non-comparable types {printf('%s', [a])}: {type_name(a)}, {type_name(b)}:"
            f" {format_action(b)}"
        )
    raise GoTemplateError(f"non-comparable type {printf('%s', [b])}: {type_name(b)}")


def _incompatible(a: object, b: object) -> GoTemplateError:
    return GoTemplateError(f"incompatible types for comparison: {type_name(a)} and {type_name(b)}")


# --------------------------------------------------------------------------- collections


def length(value: object) -> int:
    match value:
        case str():
            return byte_length(value)
        case list() | dict():
            return len(value)
        case None:
            raise GoTemplateError("len of nil pointer")
    if value is NO_VALUE:
        raise GoTemplateError("reflect: call of reflect.Value.Type on zero Value")
    raise GoTemplateError(f"len of type {type_name(value)}")


def index(value: object, *keys: object) -> object:
    if value is None or value is NO_VALUE:
        raise GoTemplateError("index of untyped nil")
    for key in keys:
        value = _item(value, key)
    return value


def _item(value: object, key: object) -> object:
    match value:
        case None:
            raise GoTemplateError("index of nil pointer")
        case str():
            data = encode_utf8(value)
            i = _position(key, len(data))
            if i == len(data):
                raise GoTemplateError("reflect: string index out of range")
            return data[i]
        case list():
            i = _position(key, len(value))
            if i == len(value):
                raise GoTemplateError("reflect: slice index out of range")
            return value[i]
        case dict():
            if key is None or key is NO_VALUE:
                raise GoTemplateError("value is nil; should be of type string")
            if not isinstance(key, str):
                raise GoTemplateError(f"value has type {type_name(key)}; should be string")
            return value.get(key)
    raise GoTemplateError(f"can't index item of type {type_name(value)}")


def _position(key: object, limit: int) -> int:
    if key is None or key is NO_VALUE:
        raise GoTemplateError("cannot index slice/array with nil")
    if not isinstance(key, int) or isinstance(key, bool):
        raise GoTemplateError(f"cannot index slice/array with type {type_name(key)}")
    if not 0 <= key <= limit:
        raise GoTemplateError(f"index out of range: {key}")
    return key


def slice_(value: object, *bounds: object) -> object:
    if value is None or value is NO_VALUE:
        raise GoTemplateError("slice of untyped nil")
    if len(bounds) > 3:
        raise GoTemplateError(f"too many slice indexes: {len(bounds)}")
    if isinstance(value, str) and len(bounds) == 3:
        raise GoTemplateError("cannot 3-index slice a string")
    if not isinstance(value, str | list):
        raise GoTemplateError(f"can't slice item of type {type_name(value)}")
    # A Python list has no capacity, so its length is the limit.
    data = encode_utf8(value) if isinstance(value, str) else value
    found = [_position(bound, len(data)) for bound in bounds]
    steps = [*found, *(0, len(data))[len(found) :]]
    for low, high in pairwise(steps):
        if low > high:
            raise GoTemplateError(f"invalid slice index: {low} > {high}")
    part = data[steps[0] : steps[1]]
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def call(name: str, function: object, *_: object) -> object:
    """Fail as Go does for `call`: no value here is a function."""
    if function is None or function is NO_VALUE:
        raise GoTemplateError("call of nil")
    raise GoTemplateError(f"non-function {name} of type {type_name(function)}")


# --------------------------------------------------------------------------- escaping


def html(text: str) -> str:
    return text.translate(_HTML)


def js(text: str) -> str:
    return "".join(_js(char) for char in text)


def _js(char: str) -> str:
    if special := _JS.get(char):
        return special
    if char < " " or (char > "~" and char != "\x7f" and not char.isprintable()):
        return f"\\u{ord(char):04X}"
    return char


def urlquery(text: str) -> str:
    return quote_plus(encode_utf8(text), safe="~")


def _escaper(escape: Callable[[str], str]) -> Callable[..., str]:
    def run(*values: object) -> str:
        shown = ["<no value>" if value is None else value for value in values]
        return escape(format_action(shown[0]) if len(shown) == 1 else print_values(shown))

    return run


def to_typescript(value: object) -> str:
    """Return the TypeScript type of a tool's property."""
    run = value.methods.get("ToTypeScriptType") if isinstance(value, Struct) else None
    return str(run()) if run else "any"


def _date(days: int) -> Callable[..., str]:
    def run(*_: object) -> str:
        return (dt.datetime.now().astimezone() + dt.timedelta(days=days)).strftime("%Y-%m-%d")

    return run


def _unreachable(*_: object) -> object:
    raise AssertionError("the evaluator runs and, or and call itself")


#: The evaluator runs `and`, `or` and `call` itself, because it must not evaluate all arguments.
FUNCTIONS: Final[Mapping[str, Function]] = {
    "and": Function(_unreachable, (VALUE,), VALUE),
    "or": Function(_unreachable, (VALUE,), VALUE),
    "call": Function(_unreachable, (VALUE,), VALUE),
    "not": Function(lambda value: not is_true(value), (VALUE,)),
    "eq": Function(equal, (VALUE,), VALUE),
    "ne": Function(lambda a, b: not equal(a, b), (VALUE, VALUE)),
    "lt": Function(less, (VALUE, VALUE)),
    "le": Function(_less_or_equal, (VALUE, VALUE)),
    "gt": Function(lambda a, b: not _less_or_equal(a, b), (VALUE, VALUE)),
    "ge": Function(lambda a, b: not less(a, b), (VALUE, VALUE)),
    "len": Function(length, (VALUE,)),
    "index": Function(index, (VALUE,), VALUE),
    "slice": Function(slice_, (VALUE,), VALUE),
    "print": Function(lambda *values: print_values(values), (), ANY),
    "printf": Function(lambda form, *values: printf(form, values), (TEXT,), ANY),
    "println": Function(lambda *values: println_values(values), (), ANY),
    "html": Function(_escaper(html), (), ANY),
    "js": Function(_escaper(js), (), ANY),
    "urlquery": Function(_escaper(urlquery), (), ANY),
    "json": Function(json_text, (ANY,)),
    "toTypeScriptType": Function(to_typescript, (ANY,)),
    "currentDate": Function(_date(0), (), TEXT),
    "yesterdayDate": Function(_date(-1), (), TEXT),
}
