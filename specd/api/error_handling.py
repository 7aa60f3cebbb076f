"""Turns every exception of a handler into an answer in the dialect's form."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from specd import errors
from specd.api.body_budget import send_if_long
from specd.api.lookup import CloudDisabled
from specd.errors import InvalidRequest, RegistryError, SpecdError, StoreError
from specd.go_json_encoder import dump_json
from specd.metrics import current_record

log = logging.getLogger(__name__)
#: For aiohttp's messages about connections, without those about clients' errors: such a client gets
#: an answer, and the log would get a traceback for each.
connection_log = logging.getLogger(f"{__name__}.connection")
connection_log.addFilter(lambda record: not _is_client_error(record))

#: Errors logged with their text: it names files, disks and hosts, but no prompt, answer or key.
_LOGGED_ERRORS: Final = (StoreError, RegistryError)
_MAX_LOGGED: Final = 500
_MAX_SEARCHED: Final = 8 * _MAX_LOGGED
#: A URL's password, and its query, in which a registry may hand out a token.
_PASSWORD: Final = re.compile(r"(?<=://)[^/?#\s\"]*@")
_QUERY: Final = re.compile(r"(?<=://)([^?#\s\"]*)[?#][^\s\"]*")

T = TypeVar("T")
ErrorReply = Callable[[SpecdError], web.Response]


class BodyTooLarge(SpecdError):
    pass


class Unauthorized(SpecdError):
    """A missing or a wrong API key; the text does not tell which."""

    def __init__(self) -> None:
        super().__init__("unauthorized: a valid API key is required")


# The first row that matches decides.
_STATUSES: Final[tuple[tuple[type[SpecdError], int], ...]] = (
    (errors.InvalidOption, 500),  # Ollama's choice
    (errors.EmbeddingsUnsupported, 501),
    (InvalidRequest, 400),
    (errors.ModelNotFound, 404),
    (Unauthorized, 401),
    (CloudDisabled, 403),
    (BodyTooLarge, 413),
    (errors.Cancelled, 499),
    (errors.Unavailable, 503),
)


def status_of(error: SpecdError) -> int:
    """Return the HTTP status of an error, which is the same in every dialect."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def json_reply(value: object, status: int = 200) -> web.Response:
    return web.Response(
        status=status,
        body=dump_json(value),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def to_public_error(error: Exception) -> SpecdError:
    """Return the error to show to the caller, and record its kind.

    An unexpected error is logged with its traceback, an error of a disk or a registry with its
    text, because the caller may discard the answer.
    """
    public_error = _classify(error)
    cause = public_error.__cause__ if type(public_error) is SpecdError else public_error
    if isinstance(cause, _LOGGED_ERRORS):
        log.warning("%s", _loggable(str(public_error)))
    current_record().error = type(cause).__name__ if isinstance(cause, SpecdError) else "Internal"
    return public_error


def _classify(error: Exception) -> SpecdError:
    if isinstance(error, SpecdError):
        return error
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return BodyTooLarge("request body too large")
    if isinstance(error, web.RequestPayloadError):
        return InvalidRequest("unexpected EOF")
    log.error("unexpected error in a request", exc_info=error)
    return SpecdError(f"internal error: {type(error).__name__}")


def _loggable(sentence: str) -> str:
    """Return the text on one line, shortened and without URL credentials: registries wrote it."""
    clean = _QUERY.sub(r"\1", _PASSWORD.sub("", sentence[:_MAX_SEARCHED]))[:_MAX_LOGGED]
    return "".join(c if c.isprintable() else " " for c in clean)


def _is_client_error(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError)


def handle_errors(handler: Handler, reply: ErrorReply) -> Handler:
    """Wrap a handler so that its errors become answers of `reply`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await send_if_long(request, await handler(request))
        except Exception as error:  # noqa: BLE001 - no exception may leave a handler
            return reply(to_public_error(error))

    return handle


def routes(reply: ErrorReply, *rows: tuple[str, str, Handler]) -> list[web.RouteDef]:
    """Return routes with error handling; a row is methods separated by spaces, path, handler.

    A GET has no HEAD beside it unless the row names it, as in Ollama.
    """
    return [
        web.RouteDef(
            method,
            path,
            handle_errors(handler, reply),
            {"allow_head": False} if method == hdrs.METH_GET else {},
        )
        for methods, path, handler in rows
        for method in methods.split()
    ]


@asynccontextmanager
async def aclosing(events: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close the iterator at the end, like `contextlib.aclosing`, to free its slot at once."""
    try:
        yield events
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(events, "aclose", None)
        if close is not None:
            await close()
