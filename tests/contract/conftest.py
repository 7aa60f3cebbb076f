"""One daemon with a model of each kind, which all tests of a module ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.daemon_process import Daemon, running
from tests.gguf_files import (
    CHAT_TEMPLATE,
    OllamaStore,
    write_llama,
    write_truncated,
    write_unknown_architecture,
)
from tests.gguf_projectors import write_llava
from tests.scripted_model import write_scripted_model

WORDS = "Only a few words, no more."
THOUGHT = "It is all the same to me."
CALL = '<tool_call>\n{"name": "look", "arguments": {"z": {"y": [1, "<&>"]}, "a": 0}}\n</tool_call>'
AFTER = "It looks fine."
#: Shows `think` and `level`; the last letter of the prompt selects the model's answer.
SPEAKING = (
    "{%- for message in messages -%}"
    "<|{{ message.role }}|>"
    "{%- if message.thinking -%}({{ message.thinking }}){%- endif -%}{{ message.content }}"
    "{%- for call in message.tool_calls or [] -%}"
    "<tool_call>{{ call.function | tojson }}</tool_call>"
    "{%- endfor -%}<|end|>"
    "{%- endfor -%}"
    "{%- if tools -%}[{{ tools | tojson }}]{%- endif -%}"
    "{%- if reasoning_effort is defined -%}<effort {{ reasoning_effort }}>{%- endif -%}"
    "{#- <think></think> -#}<|assistant|>"
    "{%- if messages[-1].role == 'tool' -%}R"
    "{%- elif tools -%}C"
    "{%- elif enable_thinking -%}T"
    "{%- else -%}A{%- endif -%}"
)
SCRIPTS = {
    "A": WORDS,
    "C": CALL,
    "R": AFTER,
    "T": f"<think>\n{THOUGHT}\n</think>\n\nSo be it, then.",
}
GO = (
    "{{ if .System }}<s>{{ .System }}</s>{{ end }}{{ .Prompt }}"
    "|{{ .Think }}|{{ .ThinkLevel }}|{{ .IsThinkSet }}>{{ .Response }}"
)
THINKING = CHAT_TEMPLATE + "{#- <think></think> -#}"
#: Its Jinja template supports tools, its Go template infill.
ABLE = THINKING + "{#- tools -#}"
INFILL = "{{ .Prompt }}<fill>{{ .Suffix }}"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    type: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


@dataclass(frozen=True, slots=True)
class ContractClient:
    """Models: plain, thinker, able (thinking, tools, infill), embedder, infinite (its vectors are
    not finite), painter, remote, safetensors, strange and cut (weights that no engine loads),
    Speaker (says SCRIPTS), dressed (a Modelfile of all kinds over it), gopher (a Go template),
    seeing (with a projector).
    """

    daemon: Daemon
    store: OllamaStore

    async def ask(self, path: str, body: object = None, **headers: str) -> Reply:
        """body: bytes as they are, all else as JSON.  path: without `/api/`, but for `/v1/...`."""
        method = "DELETE" if path == "delete" else "POST"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        url = path if path.startswith("/") else f"/api/{path}"
        async with self.daemon.http.request(method, url, data=data, headers=headers) as response:
            kind = response.headers.get("Content-Type", "")
            return Reply(response.status, kind, await response.read())

    async def get(self, path: str, **headers: str) -> Reply:
        async with self.daemon.http.get(path, headers=headers) as response:
            kind = response.headers.get("Content-Type", "")
            return Reply(response.status, kind, await response.read())

    async def rendered(self, path: str, **fields: object) -> str:
        """Return the rendered prompt of a request."""
        reply = await self.ask(path, fields | {"_debug_render_only": True})
        assert reply.status == 200, reply
        text: str = reply.json["_debug_info"]["rendered_template"]
        return text

    async def residents(self) -> dict[str, Any]:
        """Return the entries of ps by name."""
        models = (await self.get("/api/ps")).json["models"]
        return {model["name"]: model for model in models}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def contract_client(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ContractClient]:
    folder = tmp_path_factory.mktemp("daemon")
    store = OllamaStore(folder / "models")
    lay_out(store, folder)
    async with running(folder, HOME=str(folder)) as daemon:
        yield ContractClient(daemon, store)


def lay_out(store: OllamaStore, folder: Path) -> None:
    plain = write_llama(folder / "plain.gguf")
    store.add("plain", weights=plain, params={"num_predict": 16})
    store.add("thinker", weights=write_llama(folder / "t.gguf", chat_template=THINKING))
    able = write_llama(folder / "able.gguf", chat_template=ABLE)
    store.add("able", weights=able, template=INFILL)
    pooled = {"llama.pooling_type": 1}
    store.add("embedder", weights=write_llama(folder / "embedder.gguf", extra=pooled))
    nowhere = {"output_norm.weight": np.full(32, np.nan, np.float32)}
    infinite = write_llama(folder / "infinite.gguf", extra=pooled, tensors=nowhere)
    store.add("infinite", weights=infinite)
    store.add("painter", weights=plain, config={"capabilities": ["image"]})
    remote = {"remote_host": "https://ollama.com:443", "remote_model": "big"}
    store.add("remote", weights=None, config=remote)
    store.add("strange", weights=write_unknown_architecture(folder / "strange.gguf"))
    store.add("cut", weights=write_llama(folder / "cut.gguf", seed=5))
    write_truncated(store.weights_path("cut"))
    _add_safetensors(store)
    speaker = write_scripted_model(folder / "speaker.gguf", SCRIPTS, SPEAKING)
    store.add("Speaker", weights=speaker)
    store.add(
        "dressed",
        weights=speaker,
        system="Be kind.",
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
        params={"temperature": 0, "stop": ["few"], "num_ctx": 256},
        license=["MIT", "BSD"],
        parent="speaker:latest",
    )
    bare = write_llama(folder / "bare.gguf", chat_template=None)
    store.add("bare", weights=bare)
    store.add("gopher", weights=bare, template=GO)
    seeing = write_llama(folder / "seeing.gguf", seed=3)
    store.add("seeing", weights=seeing, projector=write_llava(folder / "p.gguf"))


def _add_safetensors(store: OllamaStore) -> None:
    """A model that MLX would serve: each tensor a layer."""
    store.add("safetensors", weights=None, config={"model_format": "safetensors"})
    path = store.manifest_path("safetensors")
    manifest = json.loads(path.read_bytes())
    data = bytes(64)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    store.blob_path(digest).write_bytes(data)
    media = "application/vnd.ollama.image.tensor"
    manifest["layers"] = [{"mediaType": media, "digest": digest, "size": 64, "name": "w"}]
    path.write_text(json.dumps(manifest))
