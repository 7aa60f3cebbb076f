"""The error matrix: for each bad request the status and the text that clients match on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specd import errors
from tests.api.fakes import FakeGeneration, client, model_ref

GENERATE, CHAT, SHOW = "/api/generate", "/api/chat", "/api/show"
FQ = "registry.ollama.ai/library"
GO, GO_MAP = "json: cannot unmarshal", "map[string]interface {}"


@pytest.mark.contract("body.empty", "body.truncated", "body.bad-json", "body.error-shape")
@pytest.mark.parametrize("path", [GENERATE, CHAT, SHOW])
@pytest.mark.parametrize(
    "body, text",
    [
        ("", "missing request body"),
        ("  \n", "missing request body"),
        ('{"model":', "unexpected EOF"),
        ("x", "invalid character 'x' looking for beginning of value"),
    ],
)
async def test_an_invalid_json_body(path: str, body: str, text: str) -> None:
    async with client() as http, http.post(path, data=body) as reply:
        assert (reply.status, await reply.json()) == (400, {"error": text})
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"


@pytest.mark.contract(
    "body.wrong-type",
    "think.bad-word",
    "think.bad-type",
    "keep-alive.duration",
    "keep-alive.type",
    "images.base64",
    "top-logprobs.range",
    "chat.missing-model",
    "show.missing-model",
    "names.grammar",
    "names.local",
    "generate.raw",
    "generate.image-model",
    "generate.not-completion",
    "chat.not-completion",
    "options.not-object",
    "think.refused",
    "generate.suffix-refused",
    "chat.tools-refused",
)
@pytest.mark.parametrize(
    "path, body, text",
    [
        (GENERATE, '"x"', f"{GO} string into Go value of type api.GenerateRequest"),
        (CHAT, "[]", f"{GO} array into Go value of type api.ChatRequest"),
        (
            GENERATE,
            '{"top_logprobs":"5"}',
            f"{GO} string into Go struct field GenerateRequest.top_logprobs of type int",
        ),
        (
            GENERATE,
            '{"top_logprobs":1.5}',
            f"{GO} number 1.5 into Go struct field GenerateRequest.top_logprobs of type int",
        ),
        (
            GENERATE,
            '{"MODEL":3,"stream":"yes"}',
            f"{GO} number into Go struct field GenerateRequest.model of type string",
        ),
        (
            GENERATE,
            '{"context":[1,true]}',
            f"{GO} bool into Go struct field GenerateRequest.context of type int",
        ),
        (
            CHAT,
            '{"options":[]}',
            f"{GO} array into Go struct field ChatRequest.options of type {GO_MAP}",
        ),
        (
            CHAT,
            '{"messages":[{"content":[{"type":"text"}]}]}',
            f"{GO} array into Go struct field ChatRequest.messages.content of type string",
        ),
        (
            CHAT,
            '{"messages":[{"content":"a"},{"tool_calls":[{"function":{"arguments":"{}"}}]}]}',
            (
                f"{GO} string into Go struct field"
                " ChatRequest.messages.tool_calls.function.arguments"
                f" of type {GO_MAP}"
            ),
        ),
        (
            CHAT,
            '{"messages":"hi"}',
            f"{GO} string into Go struct field ChatRequest.messages of type []api.Message",
        ),
        (
            GENERATE,
            '{"think":"x"}',
            'invalid think value: "x" (must be "high", "medium", "low", "max", true, or false)',
        ),
        (
            CHAT,
            '{"think":1}',
            'think must be a boolean or string ("high", "medium", "low", "max", true, or false)',
        ),
        (GENERATE, '{"keep_alive":"5"}', 'time: missing unit in duration "5"'),
        (GENERATE, '{"keep_alive":"x"}', 'time: invalid duration "x"'),
        (CHAT, '{"keep_alive":true}', "Unsupported type: 'bool'"),
        (CHAT, '{"keep_alive":{}}', "Unsupported type: 'map[string]interface {}'"),
        (GENERATE, '{"images":["data:x"]}', "illegal base64 data at input byte 4"),
        (CHAT, '{"messages":[{"images":["A"]}]}', "illegal base64 data at input byte 0"),
        (GENERATE, '{"top_logprobs":21}', "top_logprobs must be between 0 and 20"),
        (CHAT, '{"top_logprobs":-1}', "top_logprobs must be between 0 and 20"),
        (CHAT, "{}", "model is required"),
        (CHAT, "null", "model is required"),
        (SHOW, "{}", "model is required"),
        (GENERATE, '{"model":"foo bar"}', "invalid model name"),
        (CHAT, '{"model":"a@b"}', "invalid model name"),
        (SHOW, '{"model":"../x"}', "invalid model name"),
        (
            GENERATE,
            '{"model":"x:local:cloud"}',
            'use either :local or :cloud, not both: "x:local:cloud"',
        ),
        (
            GENERATE,
            '{"model":"plain","prompt":"x","raw":true,"system":"s"}',
            "raw mode does not support template, system, or context",
        ),
        (
            GENERATE,
            '{"model":"painter","prompt":"x"}',
            "image generation models are not currently supported",
        ),
        (GENERATE, '{"model":"embedder","prompt":"x"}', '"embedder" does not support generate'),
        (CHAT, '{"model":"embedder","messages":[{}]}', '"embedder" does not support chat'),
        (
            CHAT,
            '{"model":"plain","messages":[{}],"tools":[{}]}',
            f"{FQ}/plain:latest does not support tools",
        ),
        (
            GENERATE,
            '{"model":"plain","prompt":"x","suffix":"y"}',
            f"{FQ}/plain:latest does not support insert",
        ),
        (
            CHAT,
            '{"model":"Plain","messages":[{}],"think":"low"}',
            '"Plain" does not support thinking',
        ),
        (
            GENERATE,
            '{"model":"plain","prompt":"x","think":true}',
            '"plain" does not support thinking',
        ),
    ],
)
async def test_a_bad_request_is_400(path: str, body: str, text: str) -> None:
    generation = FakeGeneration()
    async with client(generation) as http, http.post(path, data=body) as reply:
        assert (reply.status, await reply.json()) == (400, {"error": text})
    assert not generation.requests
    assert not generation.loads


@pytest.mark.contract(
    "generate.missing-model",
    "generate.unknown-model",
    "chat.unknown-model",
    "show.unknown-model",
    "format.bad",
)
@pytest.mark.parametrize(
    "path, body, status, text",
    [
        (GENERATE, {}, 404, "model '' not found"),
        (GENERATE, {"model": "no"}, 404, "model 'no' not found"),
        (CHAT, {"model": "No:tag"}, 404, "model 'No:tag' not found"),
        (SHOW, {"name": "no"}, 404, "model 'no:latest' not found"),
        (GENERATE, {"model": "no", "keep_alive": 0}, 404, "model 'no' not found"),
        (
            CHAT,
            {"model": "plain", "messages": [{}], "format": "yaml"},
            500,
            'invalid format: "\\"yaml\\""; expected "json" or a valid JSON Schema object',
        ),
    ],
)
async def test_other_refusals(path: str, body: object, status: int, text: str) -> None:
    async with client() as http, http.post(path, json=body) as reply:
        assert (reply.status, await reply.json()) == (status, {"error": text})


@pytest.mark.contract("images.no-vision")
async def test_images_to_a_model_without_eyes_are_400() -> None:
    body = {"model": "plain", "prompt": "x", "images": ["AAAA"]}
    async with client() as http, http.post(GENERATE, json=body) as reply:
        assert reply.status == 400
        assert "does not support multimodal" in (await reply.json())["error"]


@pytest.mark.parametrize("path", [GENERATE, CHAT])
async def test_images_for_a_model_without_a_separate_projector_are_400(path: str) -> None:
    blind = replace(model_ref("blind", "completion", "vision"), projector=None)
    body = {
        "model": "blind",
        "prompt": "x",
        "images": ["AAAA"],
        "messages": [{"role": "user", "content": "x", "images": ["AAAA"]}],
    }
    async with client(models=[blind]) as http, http.post(path, json=body) as reply:
        assert reply.status == 400
        assert "has no projector" in (await reply.json())["error"]


@pytest.mark.contract("names.cloud")
@pytest.mark.parametrize(
    "name, path, text",
    [
        ("x:cloud", GENERATE, "remote model is unavailable"),
        ("x:20b-cloud", CHAT, "remote model is unavailable"),
        ("x:cloud", SHOW, "remote model details are unavailable"),
    ],
)
async def test_remote_models_are_403(name: str, path: str, text: str) -> None:
    async with client() as http, http.post(path, json={"model": name}) as reply:
        expected = {"error": f"ollama cloud is disabled: {text}"}
        assert (reply.status, await reply.json()) == (403, expected)


@pytest.mark.contract("edge.body-limit")
async def test_a_body_beyond_the_limit_is_413() -> None:
    async with client(max_body_bytes=100) as http:
        async with http.post(GENERATE, data=b" " * 90 + b"{}") as reply:
            assert reply.status == 404
        async with http.post(GENERATE, data=b" " * 200) as reply:
            assert (reply.status, await reply.json()) == (413, {"error": "request body too large"})


async def test_a_body_that_cannot_be_unpacked_is_400() -> None:
    headers = {"Content-Encoding": "gzip"}
    async with client() as http, http.post(GENERATE, data=b"{}", headers=headers) as reply:
        assert reply.status == 400


FAILURES = [
    (errors.InvalidOption('option "temperature" must be of type float32'), 500),
    (errors.InvalidRequest("context: token 99 is out of range"), 400),
    (errors.ContextLengthExceeded(900, 512), 400),
    (errors.QueueFull(), 503),
    (errors.ShuttingDown("specd is stopping"), 503),
    (errors.LoadFailed("weights.gguf: unknown architecture"), 500),
    (errors.EngineCrashed("model runner has unexpectedly stopped"), 500),
    (errors.StoreError("blob is missing"), 500),
    (errors.Cancelled("request canceled"), 499),
]


@pytest.mark.contract(
    "stream.early-error", "truncate.off", "options.types", "sched.queue", "sched.load-failure"
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("error, status", FAILURES, ids=lambda value: type(value).__name__)
async def test_an_error_before_the_first_byte_has_a_status(
    error: errors.SpecdError, status: int, stream: bool
) -> None:
    body = {"model": "plain", "prompt": "x", "stream": stream}
    async with (
        client(FakeGeneration([error])) as http,
        http.post(GENERATE, json=body) as reply,
    ):
        assert (reply.status, await reply.json()) == (status, {"error": str(error)})
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"


async def test_an_unexpected_error_is_500_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = {"model": "plain", "prompt": "x"}
    async with (
        client(FakeGeneration([ZeroDivisionError("secret")])) as http,
        http.post(GENERATE, json=body) as reply,
    ):
        assert reply.status == 500
        assert json.loads(await reply.text()) == {"error": "internal error: ZeroDivisionError"}
    assert "secret" in caplog.text
