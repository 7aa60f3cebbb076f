"""Reads a `multipart/form-data` body within the memory budget of bodies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import BodyPartReader, MultipartReader, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from specd.api.body_budget import BudgetReservation, body_reservation
from specd.errors import InvalidRequest

#: A form's whole body: the longest sound that an engine reads, and the other fields.
MAX_FORM_BYTES: Final = 26 * 2**20
#: Go's limit.  Parsing each part takes time on the event loop, even if it is short.
MAX_PARTS: Final = 1000
_CHUNK_BYTES: Final = 2**16
#: Exceptions of aiohttp for a body that does not match its Content-Type.
_PARSE_ERRORS: Final = (ValueError, RuntimeError, HttpProcessingError)


@dataclass(slots=True)
class Form:
    """A form.  fields: texts by name.  files: contents by name.

    The first of several parts with one name counts.  As in Go, a part with a file name is a file.
    """

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)


async def read_form(request: web.Request, names: Collection[str]) -> Form:
    """Read the form to its end and return its parts of these names; others are dropped.

    Raises InvalidRequest with Ollama's text, HTTPRequestEntityTooLarge, NoRoom.
    """
    if request.content_type != "multipart/form-data":
        raise _unreadable("request Content-Type isn't multipart/form-data")
    if hdrs.CONTENT_LENGTH in request.headers:
        _check_length(request, request.content_length or 0)
    form = Form()
    try:
        reader = _reader(request)
        await _read_parts(request, reader, names, form)
    except web.RequestPayloadError as error:
        raise _unreadable("unexpected EOF") from error
    except _PARSE_ERRORS as error:
        # aiohttp's text would quote the body.
        raise _unreadable("the parts do not fit the boundary, or the end is missing") from error
    return form


class _Part(BodyPartReader):
    """A part of a form, whose end is its boundary and not its Content-Length."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options | {"subtype": "form-data"})


class _Parts(MultipartReader):
    part_reader_cls = _Part


def _reader(request: web.Request) -> MultipartReader:
    """Return a reader of the parts.  Raises ValueError if the header has no boundary.

    In a form, aiohttp takes a first part named `_charset_` as the charset of the others.  The type
    `multipart/mixed` avoids that.
    """
    _, _, parameters = request.headers[hdrs.CONTENT_TYPE].partition(";")
    return _Parts({hdrs.CONTENT_TYPE: f"multipart/mixed;{parameters}"}, request.content)


async def _read_parts(
    request: web.Request, reader: MultipartReader, names: Collection[str], form: Form
) -> None:
    reservation = body_reservation(request)
    for _ in range(MAX_PARTS):
        part = await reader.next()
        if part is None:
            return
        if not isinstance(part, BodyPartReader):
            raise _unreadable("a part is a multipart body of its own")
        name = part.name or ""
        is_new = name not in (form.files if part.filename else form.fields)
        data = await _read_part(request, part, reservation if name in names and is_new else None)
        if data is None:
            continue
        if part.filename:
            form.files[name] = data
        else:
            form.fields[name] = data.decode(errors="replace")
    raise _unreadable(f"more than {MAX_PARTS} parts")


async def _read_part(
    request: web.Request, part: BodyPartReader, reservation: BudgetReservation | None
) -> bytes | None:
    """Return the content, counted in the reservation; without one, drop it and return None."""
    data = bytearray()
    while not part.at_eof():
        chunk = await part.read_chunk(_CHUNK_BYTES)
        _check_length(request, request.content.total_bytes)
        if reservation is not None:
            reservation.grow(len(chunk))
            data += chunk
    return None if reservation is None else bytes(data)


def _check_length(request: web.Request, n_bytes: int) -> None:
    """Check the length of a body.  Raises HTTPRequestEntityTooLarge."""
    max_bytes = min(MAX_FORM_BYTES, request.client_max_size)
    if n_bytes > max_bytes:
        raise web.HTTPRequestEntityTooLarge(max_bytes, n_bytes)


def _unreadable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"failed to parse multipart form: {reason}")
