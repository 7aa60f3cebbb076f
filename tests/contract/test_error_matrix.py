"""Contract 1.3, row by row: the status and the text that clients match on, from a real daemon.

Rows that need a fault (a crash, a stall, a full queue, a client gone) are in test_late_errors.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from tests.contract.conftest import ContractClient, Reply
from tests.registry.fake_registry import FakeRegistry

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

JSON_UTF8 = "application/json; charset=utf-8"
#: Every endpoint of `/api/` that reads JSON, with the struct that its error texts name.
STRUCTS = {
    "generate": "GenerateRequest",
    "chat": "ChatRequest",
    "embed": "EmbedRequest",
    "embeddings": "EmbeddingRequest",
    "show": "ShowRequest",
    "pull": "PullRequest",
    "push": "PushRequest",
    "create": "CreateRequest",
    "copy": "CopyRequest",
    "delete": "DeleteRequest",
}
ALL = tuple(STRUCTS)
ANSWERING = ("generate", "chat")
EMBEDDING = ("embed", "embeddings")
FQ = "registry.ollama.ai/library"
GO = "json: cannot unmarshal"
LEVELS = '"high", "medium", "low", "max", true, or false'
CLOUD = "ollama cloud is disabled: remote model is unavailable"
MULTIMODAL = "Multimodal data provided, but model does not support multimodal requests."
ZEROS = f"sha256:{'0' * 64}"
LONG = "x" * 40


class Row(NamedTuple):
    """body: bytes as they are, all else as JSON."""

    path: str
    body: Any
    status: int
    text: str


def rows(mark: pytest.MarkDecorator, *found: Row) -> list[Any]:
    return [pytest.param(*row, id=_label(row), marks=mark) for row in found]


def _label(row: Row) -> str:
    sent = row.body.decode() if isinstance(row.body, bytes) else json.dumps(row.body)
    return f"{row.path} {sent[:60]}"


def on(paths: Sequence[str], fields: object, status: int, text: str) -> list[Row]:
    """Return a row per endpoint, with the fields added to those that it requires."""
    if not isinstance(fields, dict):
        return [Row(path, fields, status, text) for path in paths]
    return [Row(path, _asking(path) | fields, status, text) for path in paths]


_LEAST: dict[str, dict[str, Any]] = {
    "generate": {"model": "plain", "prompt": "x"},
    "chat": {"model": "plain", "messages": [{"role": "user", "content": "x"}]},
    "embed": {"model": "embedder", "input": "x"},
    "embeddings": {"model": "embedder", "prompt": "x"},
    "copy": {"source": "plain", "destination": "copied"},
    "create": {"model": "made", "from": "plain"},
}


def _asking(path: str) -> dict[str, Any]:
    """Return a minimal valid body for an endpoint."""
    return _LEAST.get(path, {"model": "absent"})


def named(path: str, model: str) -> dict[str, Any]:
    return _asking(path) | {"source" if path == "copy" else "model": model}


MATRIX = [
    # ----------------------------------------------------------------- bodies
    *rows(
        pytest.mark.contract("body.empty", "body.error-shape"),
        *on(ALL, b"", 400, "missing request body"),
    ),
    *rows(pytest.mark.contract("body.truncated"), *on(ALL, b'{"model":', 400, "unexpected EOF")),
    *rows(
        pytest.mark.contract("body.bad-json"),
        *on(ALL, b"x", 400, "invalid character 'x' looking for beginning of value"),
        Row("chat", b'{"a" 1}', 400, "invalid character '1' after object key"),
        Row(
            "show", b"{,}", 400, "invalid character ',' looking for beginning of object key string"
        ),
    ),
    *rows(
        pytest.mark.contract("body.wrong-type"),
        *(
            Row(
                path,
                {field: 3},
                400,
                f"{GO} number into Go struct field {struct}.{field} of type string",
            )
            for path, struct in STRUCTS.items()
            for field in ["source" if path == "copy" else "model"]
        ),
        *(
            Row(path, [], 400, f"{GO} array into Go value of type api.{struct}")
            for path, struct in STRUCTS.items()
        ),
        *(
            Row(
                path,
                {"top_logprobs": "x"},
                400,
                f"{GO} string into Go struct field {STRUCTS[path]}.top_logprobs of type int",
            )
            for path in ANSWERING
        ),
    ),
    # ----------------------------------------------------------------- fields
    *rows(
        pytest.mark.contract("think.bad-word"),
        *on(ANSWERING, {"think": "x"}, 400, f'invalid think value: "x" (must be {LEVELS})'),
        *on(ANSWERING, {"think": ""}, 400, f'invalid think value: "" (must be {LEVELS})'),
    ),
    *rows(
        pytest.mark.contract("think.bad-type"),
        *on(ANSWERING, {"think": 1}, 400, f"think must be a boolean or string ({LEVELS})"),
        *on(ANSWERING, {"think": {}}, 400, f"think must be a boolean or string ({LEVELS})"),
    ),
    *rows(
        pytest.mark.contract("keep-alive.duration"),
        *on(
            (*ANSWERING, *EMBEDDING),
            {"keep_alive": "5"},
            400,
            'time: missing unit in duration "5"',
        ),
        *on(ANSWERING, {"keep_alive": "soon"}, 400, 'time: invalid duration "soon"'),
        *on(ANSWERING, {"keep_alive": "5x"}, 400, 'time: unknown unit "x" in duration "5x"'),
    ),
    *rows(
        pytest.mark.contract("keep-alive.type"),
        *on((*ANSWERING, *EMBEDDING), {"keep_alive": True}, 400, "Unsupported type: 'bool'"),
        *on(ANSWERING, {"keep_alive": []}, 400, "Unsupported type: '[]interface {}'"),
    ),
    *rows(
        pytest.mark.contract("images.base64"),
        Row("generate", {"images": ["AA=A"]}, 400, "illegal base64 data at input byte 3"),
        Row("generate", {"images": ["data:x"]}, 400, "illegal base64 data at input byte 4"),
        Row("chat", {"messages": [{"images": ["?"]}]}, 400, "illegal base64 data at input byte 0"),
    ),
    *rows(
        pytest.mark.contract("top-logprobs.range"),
        *on(ANSWERING, {"top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        *on(ANSWERING, {"top_logprobs": -1}, 400, "top_logprobs must be between 0 and 20"),
    ),
    *rows(
        pytest.mark.contract("options.types"),
        *(
            row
            for option, sent, kind in (
                ("temperature", "hot", "of type float32"),
                ("num_ctx", "big", "of type integer"),
                ("seed", True, "of type integer"),
                ("use_mmap", 1, "of type boolean"),
                ("stop", {}, "of type array"),
            )
            for row in on(
                (*ANSWERING, *EMBEDDING),
                {"options": {option: sent}},
                500,
                f'option "{option}" must be {kind}',
            )
        ),
    ),
    *rows(
        pytest.mark.contract("options.stop"),
        *on(ANSWERING, {"options": {"stop": "x"}}, 500, 'option "stop" must be of type array'),
        *on(
            ANSWERING,
            {"options": {"stop": ["x", 1]}},
            500,
            'option "stop" must be of an array of strings',
        ),
    ),
    *rows(
        pytest.mark.contract("options.not-object"),
        *(
            Row(
                path,
                _asking(path) | {"options": "x"},
                400,
                f"{GO} string into Go struct field {STRUCTS[path]}.options"
                " of type map[string]interface {}",
            )
            for path in (*ANSWERING, *EMBEDDING)
        ),
    ),
    *rows(
        pytest.mark.contract("generate.raw"),
        *(
            Row(
                "generate",
                {"model": "plain", "prompt": "x", "raw": True, field: value},
                400,
                "raw mode does not support template, system, or context",
            )
            for field, value in (("template", "t"), ("system", "s"), ("context", [1]))
        ),
    ),
    *rows(
        pytest.mark.contract("generate.template"),
        Row(
            "generate",
            {"model": "plain", "prompt": "x", "template": "{{ if }}"},
            500,
            "template: :1: missing value for if",
        ),
    ),
    *rows(
        pytest.mark.contract("format.bad"),
        *on(
            ANSWERING,
            {"format": "yaml"},
            500,
            'invalid format: "\\"yaml\\""; expected "json" or a valid JSON Schema object',
        ),
        *on(
            ANSWERING,
            {"format": 5},
            500,
            'invalid format: "5"; expected "json" or a valid JSON Schema object',
        ),
    ),
    # ----------------------------------------------------------------- names
    *rows(
        pytest.mark.contract("generate.missing-model", "embed.missing-model"),
        *on(("generate", "embed"), {"model": ""}, 404, "model '' not found"),
    ),
    *rows(
        pytest.mark.contract(
            "chat.missing-model", "embed.missing-model", "show.missing-model", "pull.names"
        ),
        *on(("chat", "embeddings", "show", "push"), b"{}", 400, "model is required"),
    ),
    *rows(
        pytest.mark.contract("delete.errors"),
        Row("delete", {}, 400, "model is required"),
        Row("delete", {"model": "a@b"}, 400, 'name "a@b" is invalid'),
        Row("delete", {"model": "Absent"}, 404, "model 'Absent' not found"),
    ),
    *rows(
        pytest.mark.contract("pull.names", "create.errors.name"),
        *on(("pull", "create"), b"{}", 400, "invalid model name"),
    ),
    *rows(
        pytest.mark.contract("copy.errors"),
        Row("copy", {}, 400, 'source "" is invalid'),
        Row("copy", {"source": "plain"}, 400, 'destination "" is invalid'),
        Row("copy", {"source": "a@b", "destination": "x"}, 400, 'source "a@b" is invalid'),
        Row("copy", {"source": "Absent", "destination": "x"}, 404, 'model "Absent" not found'),
    ),
    *rows(
        pytest.mark.contract("names.grammar", "names.digest", "create.errors.name", "pull.names"),
        *(
            Row(path, named(path, name), 400, "invalid model name")
            for path in (*ANSWERING, *EMBEDDING, "show", "pull", "push", "create")
            for name in ("foo bar", "a@b", "../x", ":tag")
        ),
    ),
    *rows(
        pytest.mark.contract("names.local"),
        *(
            Row(
                path,
                named(path, "x:local:cloud"),
                400,
                'use either :local or :cloud, not both: "x:local:cloud"',
            )
            for path in ALL
        ),
    ),
    *rows(
        pytest.mark.contract("generate.unknown-model", "chat.unknown-model"),
        *on(ANSWERING, {"model": "Absent:v1"}, 404, "model 'Absent:v1' not found"),
        *on(ANSWERING, {"model": "absent"}, 404, "model 'absent' not found"),
    ),
    *rows(
        pytest.mark.contract("show.unknown-model"),
        Row("show", {"model": "Absent"}, 404, "model 'Absent:latest' not found"),
        Row(
            "show",
            {"model": "registry.ollama.ai/library/absent"},
            404,
            "model 'absent:latest' not found",
        ),
    ),
    *rows(
        pytest.mark.contract("embed.unknown-model"),
        *on(EMBEDDING, {"model": "Absent"}, 404, 'model "Absent" not found, try pulling it first'),
    ),
    *rows(
        pytest.mark.contract("names.cloud"),
        *(
            Row(path, named(path, name), 403, CLOUD)
            for path in (*ANSWERING, *EMBEDDING, "pull", "push")
            for name in ("x:cloud", "x:20b-cloud")
        ),
        Row("show", {"model": "x:cloud"}, 403, CLOUD.replace("model is", "model details are")),
    ),
    *rows(
        pytest.mark.contract("names.remote"),
        *on((*ANSWERING, *EMBEDDING), {"model": "remote"}, 403, CLOUD),
        Row("show", {"model": "remote"}, 403, CLOUD.replace("model is", "model details are")),
    ),
    # ----------------------------------------------------------------- missing capabilities
    *rows(
        pytest.mark.contract("generate.not-completion"),
        Row("generate", named("generate", "Embedder"), 400, '"Embedder" does not support generate'),
    ),
    *rows(
        pytest.mark.contract("chat.not-completion"),
        Row("chat", named("chat", "Embedder"), 400, '"Embedder" does not support chat'),
    ),
    *rows(
        pytest.mark.contract("chat.tools-refused"),
        *on(("chat",), {"tools": [{}]}, 400, f"{FQ}/plain:latest does not support tools"),
    ),
    *rows(
        pytest.mark.contract("generate.suffix-refused"),
        *on(("generate",), {"suffix": "y"}, 400, f"{FQ}/plain:latest does not support insert"),
    ),
    *rows(
        pytest.mark.contract("think.refused"),
        *(
            row
            for think in (True, "low")
            for row in on(
                ANSWERING,
                {"model": "PLAIN", "think": think},
                400,
                '"PLAIN" does not support thinking',
            )
        ),
    ),
    *rows(
        pytest.mark.contract("generate.image-model"),
        Row(
            "generate",
            named("generate", "painter"),
            400,
            "image generation models are not currently supported",
        ),
    ),
    *rows(
        pytest.mark.contract("images.no-vision"),
        Row("generate", _asking("generate") | {"images": ["AAAA"]}, 400, MULTIMODAL),
        Row("chat", {"model": "plain", "messages": [{"images": ["AAAA"]}]}, 400, MULTIMODAL),
    ),
    # ----------------------------------------------------------------- embeddings
    *rows(
        pytest.mark.contract("embed.not-embedder"),
        *(
            Row(
                path,
                named(path, "plain"),
                status,
                "This server does not support embeddings. Start it with `--embeddings`",
            )
            for path, status in (("embed", 501), ("embeddings", 500))
        ),
    ),
    *rows(
        pytest.mark.contract("embed.input"),
        *on(("embed",), {"input": 5}, 400, "invalid input type"),
        *on(("embed",), {"input": ["x", 5]}, 400, "invalid input type"),
        *on(("embed",), {"input": {}}, 400, "invalid input type"),
    ),
    *rows(
        pytest.mark.contract("embed.truncate-off"),
        *on(
            ("embed",),
            {"input": LONG, "truncate": False, "options": {"num_ctx": 8}},
            400,
            "the input length exceeds the context length",
        ),
    ),
    *rows(
        pytest.mark.contract("embed.nan"),
        *on(EMBEDDING, {"model": "infinite"}, 400, "embedding contains NaN or Inf values"),
    ),
    # ----------------------------------------------------------------- prompts too long
    *rows(
        pytest.mark.contract("truncate.off", "shift.prompt"),
        *(
            Row(
                "generate",
                {"model": "plain", "prompt": LONG, "raw": True, "options": {"num_ctx": 8}, **how},
                400,
                "request (41 tokens) exceeds the available context size (8 tokens),"
                " try increasing it",
            )
            for how in ({"truncate": False}, {"shift": False})
        ),
    ),
    # ----------------------------------------------------------------- blobs and create
    *rows(
        pytest.mark.contract("blobs.post"),
        Row("blobs/sha256:12", b"x", 400, "invalid digest format"),
        Row(
            f"blobs/{ZEROS}",
            b"",
            400,
            f'digest mismatch, expected "{ZEROS}", got "sha256:'
            'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"',
        ),
    ),
    *rows(
        pytest.mark.contract("create.errors.source"),
        Row("create", {"model": "x"}, 400, "neither 'from' or 'files' was specified"),
    ),
    *rows(
        pytest.mark.contract("create.errors.template"),
        *on(
            ("create",),
            {"template": "{{ if }}"},
            400,
            "template error: template: :1: missing value for if",
        ),
    ),
    *rows(
        pytest.mark.contract("create.errors.files"),
        Row("create", {"model": "x", "files": {"/a": ZEROS}}, 400, "file path must be relative"),
        Row("create", {"model": "x", "files": {"../a": ZEROS}}, 400, "file path must be relative"),
        Row("create", {"model": "x", "files": {"a": ""}}, 400, "invalid digest format"),
        Row("create", {"model": "x", "files": {}}, 400, "no files provided to convert"),
    ),
    *rows(
        pytest.mark.contract("create.errors.adapters"),
        *on(
            ("create",),
            {"adapters": {"a": ZEROS, "b": ZEROS}},
            400,
            "only one adapter is currently supported",
        ),
    ),
    *rows(
        pytest.mark.contract("create.errors.draft"),
        *on(
            ("create",),
            {"draft_quantize": "Q8_0"},
            400,
            "--draft-quantize requires a DRAFT model",
        ),
        *on(
            ("create",),
            {"remote_host": "h", "draft_files": {"d": ZEROS}},
            400,
            "DRAFT cannot be used with remote models",
        ),
    ),
    *rows(
        pytest.mark.contract("pull.insecure"),
        *(
            Row(path, {"model": "http://localhost/a/b"}, 500, "insecure protocol http")
            for path in ("pull", "push")
        ),
    ),
]


@pytest.mark.parametrize("path, body, status, text", MATRIX)
async def test_a_row(
    contract_client: ContractClient, path: str, body: object, status: int, text: str
) -> None:
    reply = await contract_client.ask(path, body)
    assert (reply.status, reply.json) == (status, {"error": text})
    assert reply.type == JSON_UTF8


# --------------------------------------------------------------------------- no error at all


@pytest.mark.contract("options.unknown", "think.false-anywhere")
@pytest.mark.parametrize("path", [*ANSWERING, *EMBEDDING])
async def test_unknown_options_are_accepted(contract_client: ContractClient, path: str) -> None:
    fields = {"options": {"mirostat": 1, "tfs_z": "x", "num_predict": 1}, "think": False}
    reply = await contract_client.ask(path, _asking(path) | fields)
    assert reply.status == 200


# --------------------------------------------------------------------------- files and registries


@pytest.mark.contract("sched.load-failure")
@pytest.mark.parametrize(
    "model, words", [("strange", "unknown model architecture: 'gargantua'"), ("cut", "truncated")]
)
@pytest.mark.parametrize("path", ANSWERING)
async def test_weights_that_cannot_be_loaded(
    contract_client: ContractClient, path: str, model: str, words: str
) -> None:
    reply = await contract_client.ask(path, named(path, model))
    assert (reply.status, reply.type) == (500, JSON_UTF8)
    assert str(contract_client.store.weights_path(model)) in reply.json["error"]
    assert words in reply.json["error"]


@pytest.mark.contract("store.safetensors")
@pytest.mark.parametrize("path", [*ANSWERING, *EMBEDDING, "show"])
async def test_safetensors_are_refused_with_a_sentence(
    contract_client: ContractClient, path: str
) -> None:
    reply = await contract_client.ask(path, named(path, "safetensors"))
    text = "safetensors:latest is stored as safetensors; only GGUF can be loaded"
    assert (reply.status, reply.json) == (500, {"error": text})


@pytest.mark.contract("create.errors.files")
@pytest.mark.parametrize(
    "name, text",
    [("a.gguf", "supplied file was not in GGUF format"), ("a.bin", "unknown type")],
)
async def test_files_that_no_model_is_made_of(
    contract_client: ContractClient, name: str, text: str
) -> None:
    data = b"GGML" + bytes(60)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert (await contract_client.ask(f"blobs/{digest}", data)).status in {200, 201}
    reply = await contract_client.ask("create", {"model": "x", "files": {name: digest}})
    assert (reply.status, reply.json) == (400, {"error": text})


@pytest.mark.contract("blobs.head")
@pytest.mark.parametrize("digest, status", [(ZEROS, 404), ("sha256:12", 400), ("x", 400)])
async def test_blobs_that_are_not_there(
    contract_client: ContractClient, digest: str, status: int
) -> None:
    async with contract_client.daemon.http.head(f"/api/blobs/{digest}") as response:
        assert (response.status, await response.read()) == (status, b"")


@pytest.mark.contract("pull.unknown")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_pull_of_what_no_registry_has(
    contract_client: ContractClient, stream: bool
) -> None:
    async with FakeRegistry().serve() as registry:
        name = registry.name("library/absent/latest")
        body = {"model": name, "insecure": True, "stream": stream}
        reply = await contract_client.ask("pull", body)
    error = {"error": "pull model manifest: file does not exist"}
    if stream:
        assert (reply.status, reply.type) == (200, "application/x-ndjson")
        assert reply.lines == [{"status": "pulling manifest"}, error]
    else:
        assert (reply.status, reply.type, reply.json) == (500, JSON_UTF8, error)


@pytest.mark.contract("push.sequence")
async def test_a_push_of_what_is_not_there(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("push", {"model": "absent"})
    assert (reply.status, reply.type) == (200, "application/x-ndjson")
    *lines, last = reply.lines
    assert lines == [
        {"status": "retrieving manifest"},
        {"status": "couldn't retrieve manifest"},
    ]
    assert last["error"].endswith("/library/absent/latest: no such file or directory")


# --------------------------------------------------------------------------- order


BAD: dict[str, Any] = {"raw": True, "system": "s", "think": True, "options": {"seed": "x"}}


@pytest.mark.contract("generate.order")
@pytest.mark.parametrize(
    "fields, status, text",
    [
        ({"model": 3, "top_logprobs": 21, "keep_alive": 0}, 400, f"{GO} number into Go struct"),
        ({"model": "a@b", "top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        ({"model": "absent", "top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        ({"model": "a@b"}, 400, "invalid model name"),
        ({"model": "x:cloud", "keep_alive": 0}, 403, CLOUD),
        ({"model": "absent", "keep_alive": 0}, 404, "model 'absent' not found"),
        ({"model": "remote", "keep_alive": 0}, 403, CLOUD),
        ({"model": "painter", "keep_alive": 0}, 200, "unload"),
        ({"model": "embedder", "keep_alive": "0s", "suffix": "x"}, 200, "unload"),
        ({"model": "painter"}, 400, "image generation models are not currently supported"),
        ({"model": "plain"}, 400, "raw mode does not support template, system, or context"),
        ({"model": "embedder", "raw": False}, 400, '"embedder" does not support thinking'),
        (
            {"model": "embedder", "raw": False, "think": False},
            400,
            '"embedder" does not support generate',
        ),
        (
            {"model": "plain", "raw": False, "think": False, "suffix": "x"},
            400,
            f"{FQ}/plain:latest does not support insert",
        ),
        (
            {"model": "plain", "raw": False, "think": False, "template": "{{ if }}"},
            500,
            'option "seed" must be of type integer',
        ),
        (
            {
                "model": "plain",
                "raw": False,
                "think": False,
                "template": "{{ if }}",
                "options": {},
            },
            200,
            "load",
        ),
    ],
)
async def test_only_the_first_of_several_faults_is_reported(
    contract_client: ContractClient, fields: dict[str, Any], status: int, text: str
) -> None:
    """Each request also has all faults that are checked after the reported one."""
    reply = await contract_client.ask("generate", BAD | fields)
    assert reply.status == status
    if status == 200:
        assert reply.json["done_reason"] == text
    else:
        assert reply.json["error"].startswith(text)


@pytest.mark.contract("body.error-shape")
async def test_an_error_is_one_compact_object(contract_client: ContractClient) -> None:
    reply: Reply = await contract_client.ask("generate", {"model": "<&>"})
    assert reply.body == b'{"error":"invalid model name"}'
