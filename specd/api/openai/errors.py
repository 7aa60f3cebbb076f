"""OpenAI's error shape, with the texts of the native API."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from specd.api.errors import Unauthorized, status_of
from specd.api.go_format import dump_json
from specd.api.streaming import sse_event
from specd.errors import InvalidRequest, SpecdError

_TYPES: Final = {
    400: "invalid_request_error",
    401: "invalid_request_error",  # OpenAI's own, beside the code
    404: "not_found_error",
}


class NoSuchResponse(InvalidRequest):
    """A response to go on from, where none is stored; clients know OpenAI's code for it."""

    param = "previous_response_id"
    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id}' not found:"
            " nothing is stored, send the whole conversation as input"
        )


def error_reply(error: SpecdError) -> web.Response:
    return web.Response(
        status=status_of(error),
        body=_body(error),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def error_event(error: SpecdError) -> bytes:
    """The last event of a stream whose status is already sent; OpenAI's clients raise it."""
    return sse_event(_body(error))


def _body(error: SpecdError) -> bytes:
    kind = _TYPES.get(status_of(error), "api_error")
    param, code = None, None
    if isinstance(error, NoSuchResponse):
        param, code = error.param, error.code
    elif isinstance(error, Unauthorized):
        code = "invalid_api_key"
    return dump_json({"error": {"message": str(error), "type": kind, "param": param, "code": code}})
