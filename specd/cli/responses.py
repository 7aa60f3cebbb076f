"""Parse the daemon's HTTP answers, and turn failures into errors."""

from __future__ import annotations

import json
from typing import Any

from specd.errors import SpecdError

Json = dict[str, Any]


class DaemonUnreachable(SpecdError):
    pass


class DaemonRefused(SpecdError):
    """An error answer of the daemon.  status: HTTP's; 200 if the error came in mid-stream."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


def unreachable_error(url: str) -> DaemonUnreachable:
    """Return the error for an address at which no daemon listens."""
    return DaemonUnreachable(
        f"no daemon answers at {url}: start one with `specd serve`,"
        " or name another with OLLAMA_HOST"
    )


def connection_error(url: str, error: Exception) -> DaemonUnreachable:
    """Return the error for a connection that failed."""
    return DaemonUnreachable(f"the connection to {url} failed: {error}")


def response_error(status: int, text: str) -> DaemonRefused:
    """Return the error for an answer of status 400 and above, as JSON or plain text."""
    text = text.strip()
    try:
        message = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        message = text
    if isinstance(message, dict):
        message = message.get("message", message)
    if status == 401:
        message = f"{message}; set SPECD_API_KEYS to a key that the daemon accepts"
    return DaemonRefused(status, str(message) or f"HTTP status {status}")


def parse_object(text: bytes) -> Json:
    """Return the JSON object of an answer, or of a line of one.  Raises DaemonRefused."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DaemonRefused(200, "the answer is not JSON: is this the daemon?") from error
    if not isinstance(value, dict):
        raise DaemonRefused(200, "the answer is not a JSON object: is this the daemon?")
    return value
