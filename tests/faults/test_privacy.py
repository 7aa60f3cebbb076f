"""Prompts, answers and keys: in no file, no log and no connection afterwards."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.daemon_process import FAKE_ENGINE, ROOT, Daemon, running
from tests.gguf_files import OllamaStore, write_llama

WORD = "canarywren"
KEY = "sk-canary-key-0123456789"
SECRETS = (WORD, KEY, "sk-wrong-key-canary")
#: In the daemon and in all its children: logs as `specd serve` writes them, and a note of every
#: connection that Python makes.
_SITE = """
import logging, sys
logging.basicConfig(level=logging.WARNING)
logging.getLogger("specd").setLevel({level!r})
def hook(event, arguments, path={path!r}):
    if event in {{"socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.gethostbyname"}}:
        with open(path, "a") as file:
            print(event, arguments[1:] if event.startswith("socket.c") else arguments, file=file)
sys.addaudithook(hook)
"""
TOOL = {
    "type": "function",
    "function": {"name": WORD, "description": WORD, "parameters": {"type": "object"}},
}
CHAT = [
    {"role": "system", "content": WORD},
    {"role": "user", "content": f"{WORD} and more"},
    {"role": "assistant", "content": WORD, "thinking": WORD},
    {"role": "user", "content": WORD},
]
SCHEMA = {"type": "object", "properties": {WORD: {"type": "string", "enum": [WORD]}}}


def bodies() -> Iterator[tuple[str, Any]]:
    """Return valid and broken bodies with a secret in every field that a user fills."""
    picture = base64.b64encode(WORD.encode()).decode()
    yield "/api/generate", {"prompt": WORD, "system": WORD, "stream": False}
    yield "/api/generate", {"prompt": WORD, "options": {"num_predict": 9, "stop": [WORD]}}
    yield "/api/generate", {"prompt": WORD, "raw": True, "suffix": WORD}
    yield "/api/generate", {"prompt": WORD, "template": f"{{{{ .{WORD} }}}} {{{{"}
    yield "/api/generate", {"prompt": WORD, "format": {"type": WORD}}
    yield "/api/generate", {"prompt": WORD, "format": WORD}
    yield "/api/generate", {"prompt": WORD, "format": SCHEMA, "options": {"num_predict": 5}}
    yield "/api/generate", {"prompt": WORD, "images": [picture]}
    yield "/api/generate", {"prompt": WORD, "images": [WORD + "!"]}
    yield "/api/generate", {"prompt": WORD, "options": {"temperature": WORD}}
    yield "/api/generate", {"prompt": WORD, "keep_alive": WORD, "think": WORD}
    yield "/api/generate", {"prompt": WORD * 9000, "truncate": False, "shift": False}
    yield "/api/generate", {"prompt": WORD, "_debug_render_only": True}
    yield "/api/generate", {"prompt": f"crash {WORD}"}
    yield "/api/chat", {"messages": CHAT, "stream": False, "options": {"num_predict": 9}}
    yield "/api/chat", {"messages": CHAT, "tools": [TOOL]}
    yield "/api/chat", {"messages": [{"role": WORD, "content": WORD}]}
    yield "/api/embed", {"input": [WORD, WORD]}
    yield "/api/embeddings", {"prompt": WORD}
    yield "/api/show", {"system": WORD}
    yield "/v1/chat/completions", {"messages": CHAT, "max_tokens": 9}
    yield "/v1/chat/completions", {"messages": CHAT, "stop": WORD, "stream": True}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": {WORD: 1}}]}
    yield "/v1/completions", {"prompt": WORD, "max_tokens": 9}
    yield "/v1/responses", {"input": WORD, "instructions": WORD, "max_output_tokens": 9}
    yield "/v1/responses", {"input": [{"type": WORD}], "previous_response_id": WORD}
    yield "/v1/embeddings", {"input": WORD}
    yield "/v1/messages", {"messages": CHAT[1:2], "system": WORD, "max_tokens": 9}
    yield "/v1/messages", {"messages": [{"role": "user", "content": [{"type": WORD}]}]}
    yield "/v1/messages/count_tokens", {"messages": CHAT[1:2]}


def raw_bodies() -> Iterator[bytes]:
    text = json.dumps({"model": "m", "prompt": WORD}).encode()
    yield text[:-1]
    yield text.replace(b"{", b"{{")
    yield WORD.encode()
    yield b'"' + WORD.encode() + b'"'
    yield gzip.compress(text)[:-9]


async def asked_everything(daemon: Daemon) -> None:
    """Send all requests, and read each answer to its end, whether it succeeds or not."""
    headers = {"Authorization": f"Bearer {KEY}"}
    http = daemon.http

    async def read(path: str, **fields: Any) -> None:
        try:
            async with http.post(path, **fields) as reply:
                await reply.read()
        except aiohttp.ClientError:
            pass  # a crashed engine may end a stream early

    for turn, (path, body) in enumerate(bodies()):
        said = {"model": "m"} | body
        sent = headers | ({"X-Note": WORD} if turn % 2 else {"Cookie": f"c={WORD}"})
        await read(path, json=said, headers=sent)
    for raw in raw_bodies():
        for path in ("/api/chat", "/v1/messages", "/v1/responses"):
            await read(path, data=raw, headers=headers)
            await read(path, data=raw, headers=headers | {"Content-Encoding": "gzip"})
    await read("/api/chat", json={}, headers={"x-api-key": "sk-wrong-key-canary"})
    await read("/api/chat?" + urllib.parse.urlencode({"q": WORD}), json={}, headers=headers)
    async with http.get(f"/v1/models?key={KEY}", headers={"Authorization": KEY}) as reply:
        assert reply.status == 401
    async with http.get("/api/tags", headers={"x-api-key": KEY}) as reply:
        assert reply.status == 200
    gone = asyncio.ensure_future(read("/api/generate", json={"model": "m", "prompt": WORD}))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)


def found(folder: Path) -> list[str]:
    """Return each place of a secret, by file and line."""
    forms = [form for word in SECRETS for form in (word, base64.b64encode(word.encode()).decode())]
    pattern = re.compile("|".join(map(re.escape, forms)).encode())
    return [
        f"{path.relative_to(folder)}: {line[:300]!r}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for line in path.read_bytes().split(b"\n")
        if pattern.search(line)
    ]


@pytest.mark.parametrize(
    "engine, level",
    [
        pytest.param(FAKE_ENGINE, "DEBUG", id="fake engine"),
        pytest.param(
            FAKE_ENGINE, "INFO", id="fake engine at log level INFO", marks=pytest.mark.system
        ),
        pytest.param((), "DEBUG", id="real engine", marks=[pytest.mark.native, pytest.mark.system]),
    ],
)
async def test_neither_prompts_nor_answers_nor_keys_are_written_to_disk_or_sent(
    tmp_path: Path, engine: tuple[str, ...], level: str
) -> None:
    OllamaStore(tmp_path / "models").add("m", weights=write_llama(tmp_path / "m.gguf"))
    for name in ("home", "tmp", "traces", "site"):
        (tmp_path / name).mkdir()
    connections = tmp_path / "connections"
    site = _SITE.format(level=level, path=str(connections))
    (tmp_path / "site" / "sitecustomize.py").write_text(site)
    variables = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "SPECD_TRACE_DIR": str(tmp_path / "traces"),
        "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}",
        "OLLAMA_DEBUG": "1" if level == "DEBUG" else "0",
        "OLLAMA_CONTEXT_LENGTH": "512",
        "SPECD_API_KEYS": f"{KEY},sk-another-key-9999999",
    }
    with (tmp_path / "log").open("wb") as log:
        async with running(tmp_path, engine=engine, log=log.fileno(), **variables) as daemon:
            await asked_everything(daemon)
            daemon.process.terminate()
            assert await daemon.process.wait() == 0
    said = (tmp_path / "log").read_text(errors="replace")
    assert "/api/chat" in said  # requests are logged, without their words
    (tmp_path / "control").write_text(f"a\n{WORD}\n")
    assert found(tmp_path) == [f"control: {WORD.encode()!r}"]
    told = connections.read_text().splitlines()
    to_systemd = [line for line in told if str(tmp_path / "notify") in line]
    assert told == to_systemd != []
