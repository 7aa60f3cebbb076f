"""Anthropic's error object, with the texts of the native API."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from specd.api.error_handling import json_reply, status_of
from specd.api.streaming import sse_event
from specd.errors import SpecdError
from specd.go_json_encoder import dump_json
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
    return json_reply(_object(error), status_of(error))


def error_event(error: SpecdError) -> bytes:
    """Return the last event of a stream whose status is already sent; clients raise it."""
    return sse_event(dump_json(_object(error)), event="error")


def _object(error: SpecdError) -> dict[str, object]:
    kind = _TYPES.get(status_of(error), "api_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": str(error)},
        "request_id": current_record().id,
    }
