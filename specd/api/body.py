"""A request's body as typed fields, with Go's decoding rules and its error texts.

Content type, unknown fields and bytes after the first value are ignored; keys match ignoring case;
`null` leaves a field unset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from aiohttp import hdrs, web

from specd.api.body_budget import body_reservation, read_body
from specd.api.decompress import decompress, is_compressed
from specd.api.go_json_decoder import decode_first
from specd.errors import InvalidRequest

Codec = Callable[[object], object]
Fields = dict[str, Codec]
T = TypeVar("T")

#: Longer bodies are converted in a thread, so that they do not block the event loop.
MAX_INLINE_BYTES: Final = 2**16


class Mismatch(Exception):
    """A value of the wrong JSON type; `path` grows while the error leaves the nested structs."""

    def __init__(self, found: str, go_type: str, path: tuple[str, ...] = ()) -> None:
        self.found = found
        self.go_type = go_type
        self.path = path
        super().__init__(found, go_type, path)

    def in_field(self, field: str) -> Mismatch:
        return Mismatch(self.found, self.go_type, (field, *self.path))


async def read_fields(request: web.Request, go_name: str, fields: Fields) -> dict[str, Any]:
    """Return the fields that were sent and are not null, by name.

    go_name: name of the struct in Ollama's source, for its error texts ("api.ChatRequest").
    Raises InvalidRequest, or EmptyBody for an empty body.
    """
    raw = await read_body(request)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "")
    if not is_compressed(encoding) or not raw:
        return await convert_body(request, lambda: decode(decode_first(raw), fields, go_name))
    reservation = body_reservation(request)
    # The result is only reserved afterwards: at most MAX_CONVERSIONS times MAX_DECOMPRESSED_BYTES.
    decompressed = await reservation.budget.convert(lambda: decompress(raw, encoding))
    reservation.n_bytes = len(decompressed)
    reservation.resize(reservation.n_bytes)
    return await convert_body(request, lambda: decode(decode_first(decompressed), fields, go_name))


async def convert_body(request: web.Request, convert: Callable[[], T]) -> T:
    """Return the result of `convert`, which runs in a thread if the request's body is long."""
    reservation = body_reservation(request)
    return (
        await reservation.budget.convert(convert)
        if reservation.n_bytes > MAX_INLINE_BYTES
        else convert()
    )


def decode(value: object, fields: Fields, go_name: str) -> dict[str, Any]:
    """Decode like `decode_struct`; null has no fields.

    Raises InvalidRequest with Go's error text for a wrong type.
    """
    if value is None:
        return {}
    try:
        return decode_struct(value, fields, go_name)
    except Mismatch as mismatch:
        target = (
            f"struct field {go_name.rpartition('.')[2]}.{'.'.join(mismatch.path)}"
            if mismatch.path
            else "value"
        )
        raise InvalidRequest(
            f"json: cannot unmarshal {mismatch.found} into Go {target} of type {mismatch.go_type}"
        ) from mismatch


def decode_struct(value: object, fields: Fields, go_name: str) -> dict[str, Any]:
    """Decode each known field.  Raises the first Mismatch, after all fields were tried.

    A codec that raises InvalidRequest ends the decoding at once, as Go's custom ones do.
    """
    if not isinstance(value, dict):
        raise Mismatch(json_type(value), go_name)
    names = {name.lower(): name for name in fields}
    decoded: dict[str, Any] = {}
    first: Mismatch | None = None
    for key, item in value.items():
        name = names.get(key.lower())
        if name is None or item is None:
            continue
        try:
            decoded[name] = fields[name](item)
        except Mismatch as mismatch:
            first = first or mismatch.in_field(name)
    if first is not None:
        raise first
    return decoded


def json_type(value: object) -> str:
    """Return the name of a JSON value's type in Go's error texts."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names[type(value)]


def go_any_type(value: object) -> str:
    """Return Go's `%T` of a JSON value that was decoded into an interface."""
    if value is None:
        return "<nil>"
    names: dict[type, str] = {bool: "bool", int: "float64", float: "float64", str: "string"}
    names |= {list: "[]interface {}", dict: "map[string]interface {}"}
    return names[type(value)]


# --------------------------------------------------------------------------- codecs


def string(value: object) -> str:
    if not isinstance(value, str):
        raise Mismatch(json_type(value), "string")
    return value


def boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise Mismatch(json_type(value), "bool")
    return value


def integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch(json_type(value), "int")
    if isinstance(value, float) or not -(2**63) <= value < 2**63:
        raise Mismatch(f"number {value!r}", "int")
    return value


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Mismatch(json_type(value), "float64")
    return float(value)


def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch(json_type(value), "map[string]interface {}")
    return value


def anything(value: object) -> object:
    return value


def list_of(codec: Codec, go_type: str, *, null: object) -> Codec:
    """Return a codec for an array of `codec`.

    null: replaces a null element, as Go's zero value does.
    """

    def decode(value: object) -> list[object]:
        if not isinstance(value, list):
            raise Mismatch(json_type(value), go_type)
        return [null if item is None else codec(item) for item in value]

    return decode


def struct(fields: Fields, go_name: str) -> Codec:
    def decode(value: object) -> dict[str, Any]:
        return decode_struct(value, fields, go_name)

    return decode
