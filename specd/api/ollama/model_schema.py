"""What the routes that change the store read from a body: Ollama's fields with Go's types."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from specd.api.body import (
    Codec,
    Fields,
    Mismatch,
    boolean,
    json_type,
    list_of,
    mapping,
    read_fields,
    string,
)
from specd.api.ollama.schema import message
from specd.core import Message
from specd.create import CreateRequest
from specd.errors import InvalidRequest


def _files(value: object) -> dict[str, str]:
    """A null digest is an empty one."""
    if not isinstance(value, dict):
        raise Mismatch(json_type(value), "map[string]string")
    return {path: "" if digest is None else string(digest) for path, digest in value.items()}


def _licenses(value: object) -> tuple[str, ...]:
    found: list[str] = []
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str):
            raise InvalidRequest("license must be a string or an array of strings")
        found += [text] if text else []
    return tuple(found)


_messages: Final[Codec] = list_of(message, "[]api.Message", null=Message(role=""))
_NAMED: Final[Fields] = {"model": string, "name": string}
_COPY: Final[Fields] = {"source": string, "destination": string}
_CREATE: Final[Fields] = _NAMED | {
    "stream": boolean,
    "from": string,
    "files": _files,
    "adapters": _files,
    "draft_files": _files,
    "quantize": string,
    "quantization": string,
    "draft_quantize": string,
    "template": string,
    "license": _licenses,
    "system": string,
    "parameters": mapping,
    "messages": _messages,
    "renderer": string,
    "parser": string,
    "requires": string,
    "info": mapping,
    "remote_host": string,
}


async def read_copy(request: web.Request) -> tuple[str, str]:
    """Source and destination."""
    fields = await read_fields(request, "api.CopyRequest", _COPY)
    return fields.get("source", ""), fields.get("destination", "")


async def read_delete(request: web.Request) -> str:
    return _name(await read_fields(request, "api.DeleteRequest", _NAMED))


async def read_create(request: web.Request) -> tuple[CreateRequest, bool]:
    """What is to be made, and whether its progress is streamed."""
    fields = await read_fields(request, "api.CreateRequest", _CREATE)
    streamed = fields.pop("stream", True)
    old_spelling = fields.pop("quantization", "")
    quantize = fields.pop("quantize", "") or old_spelling
    renamed: dict[str, Any] = {"base": fields.pop("from", ""), "quantize": quantize}
    renamed["licenses"] = fields.pop("license", ())
    renamed["messages"] = tuple(fields.pop("messages", ()))
    name = _name(fields)
    fields = {key: value for key, value in fields.items() if key not in _NAMED}
    return CreateRequest(model=name, **fields, **renamed), streamed


def _name(fields: dict[str, Any]) -> str:
    """`name` is the older spelling of `model`, which the `ollama` command still sends."""
    name: str = fields.get("model") or fields.get("name", "")
    return name
