"""Generate bad requests: connections, HTTP, bodies, options, names, schemas, templates."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import Any, Final

from tests.bad_inputs.inputs import (
    BODIES,
    ODD,
    OPTIONS,
    TURNS,
    Input,
    corrupt_json,
    post,
    request,
)

_PATHS: Final = tuple(BODIES)


def wire(draw: random.Random) -> Input:
    """Return a valid request whose bytes were cut, flipped, doubled or swapped."""
    path = draw.choice(_PATHS)
    raw = bytearray(request("POST", path, json.dumps(BODIES[path]).encode()))
    for _ in range(draw.randint(1, 5)):
        at = draw.randrange(max(len(raw), 1))
        match draw.randrange(5):
            case 0:
                raw[at : at + 1] = draw.randbytes(1)
            case 1:
                del raw[at : at + draw.randint(1, 40)]
            case 2:
                raw[at:at] = draw.randbytes(draw.randint(1, 40))
            case 3:
                raw[at:at] = raw[at : at + 200]
            case _:
                del raw[at:]
                raw = raw or bytearray(b"\r\n")
    return Input(kind="wire", requests=(bytes(raw),), ends=True)


_HEADERS: Final = (
    *(("Content-Length", value) for value in ("-1", "99999999999999999999", "1e3", "0x10", " ")),
    *(("Transfer-Encoding", value) for value in ("chunked", "gzip, chunked", "identity", "x")),
    *(("Host", value) for value in ("", "evil.example", "[::1", "localhost:x", "\xff", "a" * 9000)),
    *(("Origin", value) for value in ("null", "http://evil.example", "file://", "\0", "*")),
    *(("Content-Encoding", value) for value in ("gzip", "zstd", "deflate", "br", "gzip, gzip")),
    *(("Expect", value) for value in ("100-continue", "200-ok")),
    *(("Upgrade", "websocket"), ("Connection", "upgrade"), ("TE", "trailers"), ("Range", "x")),
    *(("X-Request-Id", "\x01" * 300), ("X-Request-Id", "a\tb"), ("Authorization", "Bearer \xff")),
    *(("Accept", "*/*" * 3000), ("Cookie", "c=" + "x" * 60_000), ("Cookie", "x" * 70_000)),
    *((f"X-{'n' * 300}", "v"), ("X Bad", "v"), ("", "v"), ("X:Y", "v"), ("User-Agent", "\x7f")),
)
_TARGETS: Final = (
    *("/", "*", "//", "/..", "/api/../api/tags", "/%2e%2e/%2e%2e/etc/passwd", "/%00", "/%ff%fe"),
    *("http://evil.example/api/tags", "/api/tags?" + "x" * 60_000, "/" + "a/" * 9000, "/api/tags/"),
    *("/v1/models/" + "x" * 9000, "/v1/models/../../etc/passwd", "/v1/models/%00", "/api/TAGS"),
    *("/api/blobs/sha256:" + "0" * 64, "/api/blobs/..%2f..%2fetc%2fpasswd", "/api/blobs/x", "?"),
    *("/health/x", "/metrics?x", "/v1", "/v1/messages/count_tokens", "\u00e9", "/api/delete"),
)
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
_FOLDED: Final = (gzip.compress(b" " * 2**22), zlib.compress(b"[" * 2**20), b"\x1f\x8b", b"x" * 99)


def http(draw: random.Random) -> Input:
    """Return complete HTTP that violates its rules: methods, targets, headers."""
    body = draw.choice((b"", b"{}", json.dumps(BODIES["/api/show"]).encode(), *_FOLDED))
    headers = dict(draw.sample(_HEADERS, draw.randint(0, 3)))
    target = draw.choice((*_TARGETS, *_PATHS))
    method = draw.choice((*_METHODS, "get", "G ET", "\xff", "X" * 99))
    raw = request(method, target, body, headers)
    if draw.random() < 0.2:
        raw = raw.replace(b"HTTP/1.1", draw.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"")), 1)
    return Input(kind="http", requests=(raw,), ends=True)


def bodies(draw: random.Random) -> Input:
    """Return a body that is not JSON, or not what the route expects."""
    path = draw.choice(_PATHS)
    value: Any = BODIES[path]
    for _ in range(draw.randint(1, 3)):
        value = corrupt_json(value, draw)
    raw = json.dumps(value).encode()
    if draw.random() < 0.15:
        raw = draw.choice(
            (
                raw[: draw.randrange(len(raw) + 1)],
                raw.decode().encode("utf-16"),
                b"\xef\xbb\xbf" + raw,
                raw.replace(b":", b"=", 1),
                b"[" * 5000,
                b'{"a":' * 5000 + b"1" + b"}" * 5000,
                raw.replace(b'"', b'"\xff\xfe', 3),
                b"NaN",
                raw + raw,
            )
        )
    return Input(kind="bodies", requests=(request("POST", path, raw),))


_OPTIONS: Final = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "seed"),
    *("num_predict", "top_k", "top_p", "min_p", "typical_p", "temperature", "repeat_last_n"),
    *("repeat_penalty", "presence_penalty", "frequency_penalty", "stop", "draft_num_predict"),
    *("use_mmap", "speculative.n_max", "mirostat", "nothing", "", "\0"),
)


def options(draw: random.Random) -> Input:
    """Return one to four options with odd values; few of them reload the model."""
    names = draw.sample(_OPTIONS, draw.randint(1, 4))
    if draw.random() < 0.9:
        names = [name for name in names if name not in {"num_ctx", "num_batch", "num_gpu"}]
    said = OPTIONS | {name: draw.choice(ODD) for name in names}
    if not isinstance(said["num_predict"], bool) and isinstance(said["num_predict"], int | float):
        said["num_predict"] = min(float(said["num_predict"]), 8.0)  # else most would be answers
    body = {"model": "m", "prompt": "a", "stream": False, "options": said}
    return Input(kind="options", requests=(post("/api/generate", body),))


_NAMES: Final = (
    *("", "..", "../m", "m/../m", "/etc/passwd", "a/b/c/d/e", "m:", ":m", "m:a:b", "m@sha256:0"),
    *("http://127.0.0.1:1/a/b", "m\0", "m\n", "é", "m" * 400, "a/" * 200, "-m", ".m", "m:.x", "~"),
    *("C:\\x", "m%2f..", "\u202em", "m:cloud", "m:local:cloud", "file:///x", "x.gguf", "\ud800"),
)


def names(draw: random.Random) -> Input:
    name = draw.choice(_NAMES) + draw.choice(("", "", "x", ":t", "/z"))
    match draw.randrange(6):
        case 0:
            raw = post("/api/copy", {"source": "m", "destination": f"{name}\0"})
        case 1:
            raw = request("DELETE", "/api/delete", json.dumps({"model": f"none{name}"}).encode())
        case 2:
            raw = post("/api/create", {"model": name, "from": "nowhere", "stream": False})
        case 3:
            raw = post(draw.choice(("/api/pull", "/api/push")), {"model": f"{name}\0"})
        case 4:
            raw = post("/api/show", {"model": name})
        case _:
            raw = post("/v1/chat/completions", {"model": name, "messages": TURNS})
    return Input(kind="names", requests=(raw,))


# --------------------------------------------------------------------------- grammars, templates

_PATTERNS: Final = (
    *(
        "^((a{1,1000}){1,1000}){1,1000}$",
        "^(a+)+$",
        "^(a|a)*b{500}$",
        "^[ab]*a[ab]{200}$",
        "(",
        "[",
    ),
    *(
        "^.{1,4000}.{1,4000}$",
        "\\p{L}{500}",
        "(?=a)b",
        "(?<n>a)\\k<n>",
        "a{99999999}",
        "\\",
        "[z-a]",
    ),
    *(
        "(?:" * 300 + "a" + ")*" * 300,
        "|".join("ab" for _ in range(3000)),
        "^$",
        "\\u{110000}",
        "*",
    ),
)


#: `...` stands for any schema.
_SCHEMAS: Final[tuple[Any, ...]] = (
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/x"},
    {"$ref": "file:///etc/passwd"},
    {"$defs": {"a": ..., "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/b"},
    *({"type": "string", "pattern": pattern} for pattern in _PATTERNS),
    {"type": "string", "minLength": 10**6, "maxLength": 2**40},
    {"type": "string", "format": "regex"},
    {"enum": [f"value {i}" for i in range(900)]},
    *({word: [..., ..., ...]} for word in ("oneOf", "anyOf", "allOf")),
    {"not": ...},
    {"if": ..., "then": ..., "else": ...},
    {"type": "array", "items": ..., "minItems": 10**6},
    {"type": "array", "prefixItems": [..., ...], "maxItems": 2**20},
    {"type": "object", "properties": {f"p{i}": {} for i in range(400)}},
    {"type": "object", "properties": {"a": ..., "b": ...}, "required": ["a", "c"]},
    {"type": "object", "patternProperties": {"^(a|b)*$": ..., "(": ...}},
    {"type": "object", "minProperties": 30, "properties": {f"p{i}": {} for i in range(31)}},
    *({"type": "integer", "multipleOf": n} for n in (0, -1, 0.1, 99999989, 1e-300)),
    {"type": "number", "minimum": -(10**300), "exclusiveMaximum": 10**300},
    {"type": ["null", "thing"], "const": {"a": [list(range(50))] * 20}},
)


def _schema(draw: random.Random, depth: int = 0) -> Any:
    if depth > 4:
        return draw.choice(({}, True, False, {"$ref": "#"}, {"$ref": "#/$defs/a"}))
    filled = _filled(draw.choice(_SCHEMAS), draw, depth)
    return corrupt_json(filled, draw) if draw.random() < 0.2 else filled


def _filled(value: Any, draw: random.Random, depth: int) -> Any:
    if value is ...:
        return _schema(draw, depth + 1)
    if isinstance(value, dict):
        return {key: _filled(item, draw, depth) for key, item in value.items()}
    return [_filled(item, draw, depth) for item in value] if isinstance(value, list) else value


def schemas(draw: random.Random) -> Input:
    schema = _schema(draw)
    if draw.random() < 0.5:
        body = {"model": "m", "prompt": "a", "stream": False, "format": schema, "options": OPTIONS}
        return Input(kind="schemas", requests=(post("/api/generate", body),))
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"model": "m", "messages": TURNS, "max_tokens": 4, "response_format": form}
    return Input(kind="schemas", requests=(post("/v1/chat/completions", body),))


_GO: Final = (
    *("{{", "}}", "{{ .Prompt", "{{ if }}", "{{ end }}", "{{ range 9999999 }}x{{ end }}"),
    '{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}',
    '{{ $x := "aaaaaaaa" }}{{ range 60 }}{{ $x = printf "%s%s" $x $x }}{{ end }}{{ $x }}',
    *('{{ printf "%999999999d" 1 }}', "{{ .Messages.Prompt.X }}", "{{ index .Messages 99999 }}"),
    *(
        "{{ call .Prompt }}",
        '{{ slice "abc" 5 1 }}',
        "{{ len 3 }}",
        '{{ html (js "<") }}',
        "{{ $z }}",
    ),
    *(
        "{{" * 3000,
        "{{ " + "(" * 900 + " }}",
        "{{/*",
        '{{ "\\',
        "{{ 99999999999999999999 }}",
        "{{ nil }}",
    ),
    "{{ range .Messages }}{{ range $.Messages }}{{ range $.Messages }}x{{ end }}{{ end }}{{ end }}",
    "x" * 70_000,
)


def templates(draw: random.Random) -> Input:
    template = "".join(draw.choice(_GO) for _ in range(draw.randint(1, 3)))
    if draw.random() < 0.3:
        text = list(template[:5000])
        draw.shuffle(text)
        template = "".join(text)
    if draw.random() < 0.3:
        body: dict[str, Any] = {"model": "made", "from": "m", "template": template}
        return Input(kind="templates", requests=(post("/api/create", body | {"stream": False}),))
    body = {"model": "m", "prompt": "a", "stream": False, "template": template, "options": OPTIONS}
    return Input(kind="templates", requests=(post("/api/generate", body),))
