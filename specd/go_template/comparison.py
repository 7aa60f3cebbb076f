"""Go's eq, ne, lt, le, gt and ge, with their errors about incompatible types."""

from __future__ import annotations

from specd.go_template.error import GoTemplateError
from specd.go_template.printing import format_action, printf
from specd.go_template.values import NO_VALUE, type_name

_BASIC = {bool: "bool", int: "int", float: "float", str: "string"}


def equal(first: object, *others: object) -> bool:
    """Return whether the first equals any of the others.  Raises GoTemplateError."""
    if not others:
        raise GoTemplateError("missing argument for comparison")
    return any(_equal(first, other) for other in others)


def unequal(a: object, b: object) -> bool:
    return not equal(a, b)


def less(a: object, b: object) -> bool:
    kind, other = _BASIC.get(type(a)), _BASIC.get(type(b))
    if kind is None or other is None:
        raise GoTemplateError("invalid type for comparison")
    if kind != other:
        raise _incompatible(a, b)
    if kind == "bool":
        raise GoTemplateError("invalid type for comparison")
    return bool(a < b)  # type: ignore[operator]  # both have the same ordered kind


def less_or_equal(a: object, b: object) -> bool:
    return less(a, b) or equal(a, b)


def greater(a: object, b: object) -> bool:
    return not less_or_equal(a, b)


def greater_or_equal(a: object, b: object) -> bool:
    return not less(a, b)


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
