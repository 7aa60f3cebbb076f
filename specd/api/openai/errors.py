"""OpenAI's error object, with the texts of the native API."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from specd.api.error_handling import Unauthorized, json_reply, status_of
from specd.api.streaming import sse_event
from specd.errors import InvalidRequest, SpecdError
from specd.go_json_encoder import dump_json

_TYPES: Final = {
    400: "invalid_request_error",
    401: "invalid_request_error",  # as OpenAI's own service, beside the code
    404: "not_found_error",
}


class NoSuchResponse(InvalidRequest):
    """The response to continue, which is not stored; clients know OpenAI's code for it."""

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id '{response_id}' not found:"
            " nothing is stored, send the whole conversation as input"
        )


def error_reply(error: SpecdError) -> web.Response:
    return json_reply(_object(error), status_of(error))


def error_event(error: SpecdError) -> bytes:
    """Return the last event of a stream whose status is already sent; clients raise it."""
    return sse_event(dump_json(_object(error)))


def _object(error: SpecdError) -> dict[str, object]:
    kind = _TYPES.get(status_of(error), "api_error")
    param, code = None, None
    if isinstance(error, NoSuchResponse):
        param, code = "previous_response_id", "previous_response_not_found"
    elif isinstance(error, Unauthorized):
        code = "invalid_api_key"
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}
