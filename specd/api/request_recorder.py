"""Records every request for the metrics and the log, and gives it an id.

It is the outermost middleware, so it sees what the others refuse.  `EarlyErrors` records what no
middleware sees, such as invalid HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

import specd
from specd import metrics
from specd.api.keys import Keys

_X_REQUEST_ID: Final = "X-Request-Id"
#: Dialect → additional header from which its clients read the id.
_HEADERS: Final[Mapping[str, str]] = {"anthropic": "request-id"}
_RECORD: Final = web.RequestKey("specd_record", metrics.RequestRecord)
#: The status that nginx and Ollama log if the client left before the answer.
_CLIENT_LEFT: Final = 499


def record_requests(
    collector: metrics.Metrics, keys: Keys, dialects: Mapping[str, str]
) -> Middleware:
    """Return the middleware.  dialects: canonical path of a route → its dialect."""

    @web.middleware
    async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
        record = _begin_record(request, collector, keys, dialects)
        request[_RECORD] = record
        with metrics.record_context(record):
            try:
                response = await handler(request)
                record.status = response.status
                return response
            except asyncio.CancelledError:
                record.left = True
                # With a status, the answer was already being sent.
                record.status = record.status or _CLIENT_LEFT
                raise
            except web.HTTPException as answer:
                record.status = answer.status
                raise
            except Exception:
                record.status = HTTPStatus.INTERNAL_SERVER_ERROR
                raise
            finally:
                if record.status >= HTTPStatus.BAD_REQUEST and not record.error:
                    record.error = _error_kind(record.status)
                collector.end(record)
                metrics.log_request(record)

    return watched


class EarlyErrors:
    """Answers requests that aiohttp refuses before any middleware, with net/http's texts."""

    def __init__(self, collector: metrics.Metrics) -> None:
        self._collector = collector

    def refuse(self, request: web.BaseRequest, status: int) -> web.Response:
        """Return an answer that quotes nothing of the request and closes the connection."""
        sent = request.headers.get(_X_REQUEST_ID, "")
        record = self._collector.begin(
            request_id=metrics.request_id(sent),
            method="",
            dialect="",
            route="",
            path="",
            client=request.remote or "",
        )
        record.status, record.error = status, _error_kind(status)
        self._collector.end(record)
        with metrics.record_context(record):
            metrics.log_request(record)
        reply = web.Response(
            status=status,
            text=f"{status} {HTTPStatus(status).phrase}",
            headers={_X_REQUEST_ID: record.id, hdrs.SERVER: f"specd/{specd.__version__}"},
        )
        reply.force_close()
        return reply


EARLY_ERRORS: Final = web.AppKey("specd_unseen", EarlyErrors)


def is_recorded(request: web.BaseRequest) -> bool:
    """Return whether `record_requests` has seen the request."""
    return _RECORD in request


def _begin_record(
    request: web.Request, collector: metrics.Metrics, keys: Keys, dialects: Mapping[str, str]
) -> metrics.RequestRecord:
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else ""
    record = collector.begin(
        request_id=metrics.request_id(request.headers.get(_X_REQUEST_ID, "")),
        method=request.method,
        dialect=dialects.get(route, ""),
        route=route,
        path="" if route else request.rel_url.raw_path,
        client=request.remote or "",
    )
    record.key = keys.client(request).removeprefix("key=")
    return record


def _error_kind(status: int) -> str:
    """Return the kind of error for a status without an exception, like NotFound for 404."""
    if status == _CLIENT_LEFT:
        return "Cancelled"
    try:
        return HTTPStatus(status).phrase.title().replace(" ", "").replace("-", "")
    except ValueError:
        return str(status)


def request_headers() -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a handler of `on_response_prepare` that records the status and sends the id."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        record = request.get(_RECORD)
        if record is None:
            return
        record.status = response.status
        response.headers[_X_REQUEST_ID] = record.id
        if own := _HEADERS.get(record.dialect):
            response.headers[own] = record.id

    return add
