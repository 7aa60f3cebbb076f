"""Ollama's error object: `{"error": "text"}`."""

from __future__ import annotations

from aiohttp import web

from specd.api.error_handling import json_reply, status_of
from specd.api.go_json_decoder import EmptyBody
from specd.api.ollama.schema import InvalidFormat
from specd.errors import SpecdError
from specd.go_json_encoder import dump_json


def error_reply(error: SpecdError) -> web.Response:
    status = 500 if isinstance(error, InvalidFormat) else status_of(error)
    return json_reply(_object(error), status)


def error_line(error: SpecdError) -> bytes:
    """Return the last line of a stream whose status is already sent."""
    return dump_json(_object(error)) + b"\n"


def _object(error: SpecdError) -> dict[str, object]:
    return {"error": "missing request body" if isinstance(error, EmptyBody) else str(error)}
