"""Anthropic's error shape, with the texts of the native API."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from specd.api.errors import status_of
from specd.api.go_format import dump_json
from specd.api.streaming import sse_event
from specd.errors import SpecdError
from specd.metrics import current_record

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_reply(error: SpecdError) -> web.Response:
    return web.Response(
        status=status_of(error),
        body=_body(error),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def error_event(error: SpecdError) -> bytes:
    """The last event of a stream whose status is already sent; Anthropic's clients raise it."""
    return sse_event(_body(error), event="error")


def _body(error: SpecdError) -> bytes:
    kind = _TYPES.get(status_of(error), "api_error")
    return dump_json(
        {
            "type": "error",
            "error": {"type": kind, "message": str(error)},
            "request_id": current_record().id,
        }
    )
