"""Generate bad files: GGUFs, manifests and layers, images and sounds."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final

from PIL import Image

from tests.bad_inputs.inputs import ODD, OPTIONS, TURNS, Input, corrupt_json, post, request
from tests.gguf_files import Shape, write_llama, write_mamba
from tests.gguf_projectors import picture, sound
from tests.malformed_gguf import STRING, mutate_gguf, take_apart, text

#: The share of bad files that an engine loads; all are listed, shown and copied.
_LOADED: Final = 0.08


@functools.cache
def _good() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        return tuple(
            write(path).read_bytes()
            for write in (functools.partial(write_llama, shape=Shape(n_ctx=256)), write_mamba)
        )


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def ggufs(draw: random.Random) -> Input:
    """Return a bad GGUF to upload, create, and show or load; an engine may die from it."""
    data = mutate_gguf(draw.choice(_good()), draw)
    name = f"strange{draw.randrange(4)}"
    create = {"model": name, "files": {"x.gguf": _digest(data)}, "stream": False}
    last = post("/api/show", {"model": name, "verbose": True})
    if draw.random() < _LOADED:
        body = {"model": name, "prompt": "a", "stream": False, "keep_alive": 0, "options": OPTIONS}
        last = post("/api/generate", body)
    elif draw.random() < 0.3:
        last = request("GET", "/api/tags")
    upload = request("POST", f"/api/blobs/{_digest(data)}", data)
    return Input(kind="GGUFs", requests=(upload, post("/api/create", create), last))


_JINJA: Final = (
    *("{{", "{% for %}", "{{ 9 ** 9 ** 9 }}", "{{ ''.__class__ }}", "{{ 'x' * 9999999999 }}"),
    *("{% include '/etc/passwd' %}", "{{ lipsum.__globals__ }}", "{{ raise_exception('x') }}"),
    *("{% for i in range(999999999) %}{% endfor %}", "{{ messages|tojson(indent=99999999) }}"),
    *("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ [1]|map('attr','__class__')|list }}"),
    *("{{ messages[99].x.y }}", "{{ undefined.x }}", "{% set messages = 1 %}", "x" * 70_000),
)


def chat_templates(draw: random.Random) -> Input:
    """Return a bad chat template in a GGUF; rendering it needs no engine."""
    parts = take_apart(_good()[0])
    template = "".join(draw.choice(_JINJA) for _ in range(draw.randint(1, 2)))
    parts.set(b"tokenizer.chat_template", STRING, text(template.encode()))
    data = parts.write()
    create = {"model": "templated", "files": {"x.gguf": _digest(data)}, "stream": False}
    chat = {"model": "templated", "messages": TURNS, "stream": False, "_debug_render_only": True}
    upload = request("POST", f"/api/blobs/{_digest(data)}", data)
    requests = (upload, post("/api/create", create), post("/api/chat", chat))
    return Input(kind="chat templates", requests=requests)


_MANIFEST: Final[Any] = {
    "schemaVersion": 2,
    "config": {
        "mediaType": "application/vnd.docker.container.image.v1+json",
        "digest": _digest(b"{}"),
        "size": 2,
    },
    "layers": [
        {
            "mediaType": f"application/vnd.ollama.image.{kind}",
            "digest": _digest(kind.encode()),
            "size": 10,
        }
        for kind in ("model", "template", "params", "messages", "license", "projector", "draft")
    ],
}


def manifests(draw: random.Random) -> Input:
    """Return a bad manifest in the store, as another program could write it."""
    value = _MANIFEST
    for _ in range(draw.randint(1, 3)):
        value = corrupt_json(value, draw)
    data = json.dumps(value).encode()
    if draw.random() < 0.2:
        data = draw.choice((data[:50], b"", b"\0" * 99, b"[" * 9000, data.replace(b":", b"")))
    last = draw.choice(
        (
            request("GET", "/api/tags"),
            post("/api/show", {"model": "strange-manifest"}),
            post("/api/generate", {"model": "strange-manifest", "prompt": "a"}),
            post("/api/copy", {"source": "strange-manifest", "destination": "strange-copy"}),
            request("DELETE", "/api/delete", b'{"model":"strange-copy"}'),
        )
    )
    path = "manifests/registry.ollama.ai/library/strange-manifest/latest"
    return Input(kind="manifests", requests=(last,), file=(path, data))


# --------------------------------------------------------------------------- images and sounds


@functools.cache
def _bomb(side: int) -> bytes:
    """Return a PNG of `side` × `side` white pixels, one bit each."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    line = b"\0" + b"\xff" * (side // 8)
    folding = zlib.compressobj(9)
    pixels = b"".join(folding.compress(line) for _ in range(side)) + folding.flush()
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


@functools.cache
def _pictures() -> tuple[bytes, ...]:
    kinds = [picture(1, kind=kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP")]
    tiff = io.BytesIO()
    Image.new("RGB", (9, 9)).save(tiff, "TIFF")
    return (
        *kinds,
        sound(1, 0.2),
        tiff.getvalue(),
        b"",
        b"x",
        b"RIFF\0\0\0\0WAVE",
        b"fLaC" + b"\0" * 40,
    )


def images(draw: random.Random) -> Input:
    """Return an image that is damaged, of another type, or far larger than its file."""
    data = bytearray(draw.choice(_pictures()))
    if draw.random() < 0.03:
        data = bytearray(_bomb(draw.choice((8000, 30_000, 60_000))))
    for _ in range(draw.randint(0, 4) if data else 0):
        at = draw.randrange(len(data))
        match draw.randrange(3):
            case 0:
                data[at] = draw.randrange(256)
            case 1:
                data[at : at + 4] = struct.pack(draw.choice("<>") + "I", draw.choice((0, 2**31, 9)))
            case _:
                data = data[: at + 1]
    encoded = base64.b64encode(bytes(data)).decode()
    if draw.random() < 0.1:
        encoded = draw.choice(
            (encoded[:-1], encoded + "=", "!" + encoded, "data:;base64," + encoded)
        )
    several = [encoded] * draw.choice((1, 1, 1, 3))
    if draw.random() < 0.5:
        body: dict[str, Any] = {"prompt": "see", "images": several, "options": OPTIONS}
        path = "/api/generate"
    else:
        kind = f"data:{draw.choice(('image/png', 'image/svg+xml', 'x', ''))};base64,"
        url = draw.choice((kind + encoded, "http://127.0.0.1:1/x.png", "file:///etc/passwd"))
        content = [{"type": "image_url", "image_url": {"url": url}}, draw.choice(ODD)]
        body = {"messages": [{"role": "user", "content": content[: draw.randint(1, 2)]}]}
        path, body = "/v1/chat/completions", body | {"max_tokens": 3}
    return Input(kind="images", requests=(post(path, {"model": "eye", "stream": False} | body),))
