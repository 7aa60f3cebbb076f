"""Ollama's error shape: `{"error": "text"}`."""

from __future__ import annotations

from aiohttp import web

from specd.api.errors import status_of
from specd.api.go_format import dump_json
from specd.api.go_json_decoder import EmptyBody
from specd.api.ollama.schema import InvalidFormat
from specd.errors import SpecdError


def error_reply(error: SpecdError) -> web.Response:
    status = 500 if isinstance(error, InvalidFormat) else status_of(error)
    return web.Response(
        status=status,
        body=_body(error),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def error_line(error: SpecdError) -> bytes:
    """The last line of a stream whose status is already sent."""
    return _body(error) + b"\n"


def _body(error: SpecdError) -> bytes:
    text = "missing request body" if isinstance(error, EmptyBody) else str(error)
    return dump_json({"error": text})
