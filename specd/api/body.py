"""A request's body as typed fields, with Go's decoding rules and its error texts.

Content type, unknown fields and bytes after the first value are ignored; keys match ignoring case;
`null` leaves a field unset.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import importlib
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_args, get_origin, get_type_hints

from aiohttp import hdrs, web

from specd.api.body_budget import body_reservation, read_body
from specd.api.error_handling import BodyTooLarge
from specd.api.go_json_decoder import decode_first
from specd.errors import InvalidRequest

Codec = Callable[[object], object]
Fields = dict[str, Codec]

#: Longer bodies are converted in a thread, so that they do not block the event loop.
MAX_INLINE_BYTES: Final = 2**16
#: Ollama's limit for zstd, which applies to gzip and deflate here too.
MAX_DECOMPRESSED_BYTES: Final = 20 * 2**20

_ZSTD: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
_zstd: Any = importlib.import_module(_ZSTD)
_DECOMPRESSORS: Final[Mapping[str, Callable[[], Any]]] = {
    "zstd": _zstd.ZstdDecompressor,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "deflate": zlib.decompressobj,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A body's fields, each with the default for a field that is not sent or null.

    A field's codec follows from its type; `Annotated[type, codec]` names another one.  The metadata
    `json` is the field's name in JSON, if it differs.
    go_name: name of the struct in Ollama's source, for its error texts ("api.ChatRequest").
    """

    go_name: ClassVar[str]


B = TypeVar("B", bound=Body)
T = TypeVar("T")


class Mismatch(Exception):
    """A value of the wrong JSON type; `path` grows while the error leaves the nested structs."""

    def __init__(self, found: str, go_type: str, path: tuple[str, ...] = ()) -> None:
        self.found = found
        self.go_type = go_type
        self.path = path
        super().__init__(found, go_type, path)

    def in_field(self, field: str) -> Mismatch:
        return Mismatch(self.found, self.go_type, (field, *self.path))


async def read(request: web.Request, kind: type[B]) -> B:
    """Return the request's body as an instance of a body class (see `Body`).

    Raises InvalidRequest, or EmptyBody for an empty body.
    """
    raw = await read_body(request)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if raw and encoding in _DECOMPRESSORS:
        reservation, compressed = body_reservation(request), raw
        # The result is only reserved afterwards: at most MAX_CONVERSIONS results at once.
        raw = await reservation.budget.convert(lambda: decompress(compressed, encoding))
        reservation.n_bytes = len(raw)
        reservation.resize(reservation.n_bytes)
    return await convert_body(request, lambda: decode_body(decode_first(raw), kind))


async def convert_body(request: web.Request, convert: Callable[[], T]) -> T:
    """Return the result of `convert`, which runs in a thread if the request's body is long."""
    reservation = body_reservation(request)
    return (
        await reservation.budget.convert(convert)
        if reservation.n_bytes > MAX_INLINE_BYTES
        else convert()
    )


def decode_body(value: object, kind: type[B]) -> B:
    """Return a JSON value as an instance of a body class.  Raises like `decode`."""
    fields = fields_of(kind)  # type: ignore[arg-type]  # mypy: a class is Hashable
    decoded = decode(value, fields, kind.go_name)
    names = {_json_name(field): field.name for field in dataclasses.fields(kind)}
    return kind(**{names[key]: item for key, item in decoded.items()})


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


def decompress(raw: bytes, encoding: str) -> bytes:
    """Return the decompressed body.  encoding: zstd, gzip or deflate.

    aiohttp's own decompression closes the connection on a corrupt body, and continues after the
    body was refused as too large.
    Raises BodyTooLarge, or InvalidRequest for a corrupt or incomplete body.
    """
    decompressor = _DECOMPRESSORS[encoding]()
    try:
        data: bytes = decompressor.decompress(raw, MAX_DECOMPRESSED_BYTES + 1)
    except (zlib.error, _zstd.ZstdError) as error:
        raise InvalidRequest("unexpected EOF") from error
    if len(data) > MAX_DECOMPRESSED_BYTES:
        raise BodyTooLarge("request body too large")
    if not decompressor.eof:
        raise InvalidRequest("unexpected EOF")
    return data


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


_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*")


def decode_base64(text: str) -> bytes:
    """Return the bytes of padded standard base64; skip line breaks.

    Raises InvalidRequest with Go's "illegal base64 data at input byte N".
    """
    packed = text.replace("\r", "").replace("\n", "")
    match = _BASE64.match(packed)
    assert match is not None  # the pattern may be empty
    bad = _first_bad_byte(packed, match.end())
    if bad is not None:
        raise InvalidRequest(f"illegal base64 data at input byte {bad}")
    return base64.b64decode(packed)


def _first_bad_byte(text: str, end: int) -> int | None:
    """Return the index that Go's decoder reports; `end` is where the alphabet ends."""
    in_quantum = end % 4
    if end == len(text):
        return end - in_quantum if in_quantum else None
    if text[end] != "=" or in_quantum < 2:
        return end
    padding = 4 - in_quantum
    if text[end : end + padding] != "=" * padding:
        # Two `=` are needed: Go reports the byte in place of the second.
        return end + 1
    return end + padding if len(text) > end + padding else None


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


_CODECS: Final[Mapping[object, Codec]] = {
    str: string,
    bool: boolean,
    int: integer,
    float: number,
    dict: mapping,
    Mapping: mapping,
    object: anything,
}


@functools.cache
def fields_of(kind: type[Body]) -> Fields:
    """Return the codecs of a body class by the fields' names in JSON."""
    hints = get_type_hints(kind, include_extras=True)
    return {_json_name(field): _codec(hints[field.name]) for field in dataclasses.fields(kind)}


def _json_name(field: dataclasses.Field[Any]) -> str:
    name: str = field.metadata.get("json", field.name)
    return name


def _codec(hint: object) -> Codec:
    if get_origin(hint) is Annotated:
        codec: Codec = get_args(hint)[1]
        return codec
    args = [arg for arg in get_args(hint) if arg is not type(None)]
    plain = args[0] if isinstance(hint, UnionType) else hint
    return _CODECS[get_origin(plain) or plain]
