"""Define an input: requests in bytes, of one kind, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A bad input.

    requests: sent one after the other; the answer to the last is judged.
    ends: close the sending side at the end, because a server that waits for the rest waits for
    ever.
    file: written into the store before and removed after it: (path below the store, bytes).
    """

    kind: str
    requests: tuple[bytes, ...]
    ends: bool = False
    file: tuple[str, bytes] | None = None


def request(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a request that asks the server to close the connection after the answer."""
    said = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in (said | dict(headers or {})).items()]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def with_header(given: Input, line: str) -> Input:
    """Return the request with that header as its first, if it has a first line."""
    first = b"\r\n" + line.encode() + b"\r\n"
    return replace(given, requests=tuple(raw.replace(b"\r\n", first, 1) for raw in given.requests))


def post(path: str, value: object) -> bytes:
    return request("POST", path, json.dumps(value).encode())


OPTIONS: Final = {"num_predict": 4, "num_ctx": 256}
TURNS: Final = [{"role": "user", "content": "a b"}]
#: A valid body for every route; none of them deletes, pulls or pushes an existing model.
BODIES: Final[Mapping[str, dict[str, Any]]] = {
    "/api/generate": {
        "model": "m",
        "prompt": "a b",
        "system": "s",
        "template": "{{ .Prompt }}",
        "raw": False,
        "stream": False,
        "think": False,
        "format": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "images": [],
        "context": [1, 2],
        "keep_alive": "5m",
        "logprobs": True,
        "top_logprobs": 2,
        "options": OPTIONS,
    },
    "/api/chat": {
        "model": "m",
        "messages": [
            *TURNS,
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "1", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "options": OPTIONS,
    },
    "/api/embed": {"model": "m", "input": ["a", "b"], "dimensions": 3, "truncate": True},
    "/api/embeddings": {"model": "m", "prompt": "a", "options": {}},
    "/api/show": {"model": "m", "verbose": True, "system": "x"},
    "/api/copy": {"source": "none", "destination": "a/b:c"},
    "/api/create": {
        "model": "none-of-yours",
        "from": "nowhere",
        "files": {"a.gguf": "sha256:" + "0" * 64},
        "parameters": {"stop": ["x"], "num_ctx": 1},
        "messages": TURNS,
        "quantize": "q4_0",
    },
    "/v1/chat/completions": {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "max_tokens": 4,
        "stop": ["x"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "seed": 1,
        "temperature": 1.0,
    },
    "/v1/completions": {"model": "m", "prompt": "a", "max_tokens": 4, "suffix": "", "echo": False},
    "/v1/responses": {
        "model": "m",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "max_output_tokens": 4,
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
    },
    "/v1/embeddings": {"model": "m", "input": ["a"], "encoding_format": "base64", "dimensions": 2},
    "/v1/messages": {
        "model": "m",
        "max_tokens": 4,
        "system": [{"type": "text", "text": "s"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "stop_sequences": ["x"],
        "thinking": {"type": "disabled"},
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "/v1/messages/count_tokens": {"model": "m", "messages": TURNS},
}
#: The odd values that replace a valid one.
ODD: Final[tuple[object, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0),
    *(1e308, -1e308, 1e-320, "", " ", "\0", "m", "\ud800", "\U0010ffff", "e\u0301\u202e", "-1"),
    *("../../../etc/passwd", "/dev/zero", "file:///etc/passwd", "{{ . }}", "%s%n", "null", "NaN"),
    *("x" * 70_000, "💣" * 5000, "\n" * 9000, [], {}, [[]], [None], [{}], {"": ""}, {"a": None}),
    *([0] * 3000, ["x"] * 3000, [[[[[[[[]]]]]]]], {"a": {"b": {"c": {"d": {}}}}}),
    *({"type": "text"}, {"role": "user"}, {"type": "object", "properties": None}, "data:;base64,!"),
)


def corrupt_json(value: Any, draw: random.Random) -> Any:
    """Return the JSON with an odd value in one place."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return draw.choice(ODD)
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], corrupt_json(value[at], draw), *value[at + 1 :]]
    key = draw.choice(list(value))
    if draw.random() < 0.1:
        return {name: item for name, item in value.items() if name != key}
    if draw.random() < 0.1:
        return value | {str(draw.choice(ODD)): draw.choice(ODD)}
    return value | {key: corrupt_json(value[key], draw)}
