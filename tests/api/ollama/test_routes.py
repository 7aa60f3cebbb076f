"""The answers of `/` and `/api/*`, field by field."""

from __future__ import annotations

import json
import math
from typing import Any

import ollama
import pytest

import specd
from specd import core
from specd.errors import EngineCrashed
from tests.api.fakes import (
    DONE,
    MODIFIED,
    FakeGeneration,
    Script,
    client,
    model_ref,
)
from tests.api.ollama.test_running_models import resident

CREATED = "2026-08-01T12:00:00.00000012Z"
SPECULATION = {
    "drafter": "tiny:latest",
    "pair_source": "manifest",
    "draft_n": 8,
    "draft_n_accepted": 6,
    "lookup_n": 0,
    "lookup_n_accepted": 0,
    "acceptance_rate": 0.75,
    "mean_draft_length": 4.0,
    "rounds": 2,
    "threshold": 0.2198,
    "state": "active",
    "reason": "",
    "speedup": 1.75,
}
METRICS = {
    "total_duration": 100,
    "load_duration": 30,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 10,
    "eval_count": 7,
    "eval_duration": 20,
}
ENTRY = core.TokenLogprob(token="a", bytes=(97,), logprob=-1.0)


async def ask(path: str, generation: FakeGeneration, **body: object) -> tuple[str, list[Any]]:
    """Return the content type and JSON lines of a successful answer."""
    async with client(generation) as http, http.post(path, json=body) as reply:
        text = await reply.text()
        assert reply.status == 200, text
        lines = [json.loads(line) for line in text.splitlines()]
        assert all(list(line) == sorted(line, key=ORDER.index) for line in lines)
        return reply.headers["Content-Type"], lines


ORDER = (
    *("model", "created_at", "message", "response", "thinking", "done", "done_reason"),
    *("context", "_debug_info", "total_duration", "load_duration", "prompt_eval_count"),
    *("prompt_eval_duration", "eval_count", "eval_duration", "logprobs", "speculation"),
)


# --------------------------------------------------------------------------- the daemon


@pytest.mark.contract("routes.root", "routes.head", "routes.specd-version")
async def test_the_root_answers_that_ollama_is_running() -> None:
    async with client() as http:
        async with http.get("/") as reply:
            assert (reply.status, await reply.text()) == (200, "Ollama is running")
            assert reply.headers["Content-Type"].startswith("text/plain")
            assert reply.headers["Server"] == f"specd/{specd.__version__}"
        for path in ("/", "/api/version", "/api/tags"):
            async with http.head(path) as reply:
                assert (reply.status, await reply.text()) == (200, "")


@pytest.mark.contract("routes.version", "routes.specd-version")
async def test_the_version_is_ollamas_and_ours() -> None:
    async with client() as http, http.get("/api/version") as reply:
        assert await reply.json() == {
            "version": specd.OLLAMA_API_VERSION,
            "specd_version": specd.__version__,
        }


@pytest.mark.contract("routes.status")
async def test_the_cloud_is_disabled() -> None:
    async with client() as http, http.get("/api/status") as reply:
        assert (await reply.json())["cloud"]["disabled"] is True


# --------------------------------------------------------------------------- models


@pytest.mark.contract("tags.fields")
async def test_tags_name_every_model_with_its_tag() -> None:
    async with client(models=[model_ref("plain")]) as http, http.get("/api/tags") as reply:
        (model,) = (await reply.json())["models"]
    assert list(model) == [
        *("name", "model", "modified_at", "size", "digest", "details", "capabilities")
    ]
    assert model["name"] == model["model"] == "plain:latest"
    assert model["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "5M",
        "quantization_level": "Q8_0",
        "context_length": 2048,
    }


@pytest.mark.contract("tags.order")
async def test_an_empty_store_is_an_empty_list() -> None:
    async with client(models=[]) as http, http.get("/api/tags") as reply:
        assert await reply.json() == {"models": []}


@pytest.mark.contract("show.name")
@pytest.mark.parametrize("key", ["model", "name", "NAME"])
async def test_show_takes_both_spellings(key: str) -> None:
    async with client() as http, http.post("/api/show", json={key: "plain"}) as reply:
        shown = await reply.json()
    assert list(shown) == [
        *("modelfile", "template", "system", "details", "messages", "model_info"),
        *("capabilities", "modified_at", "specd"),
    ]
    assert shown["model_info"]["general.basename"] == "demo"
    assert shown["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.contract("show.copilot")
async def test_show_gives_copilot_the_name_that_it_sent() -> None:
    headers = {"User-Agent": "GitHubCopilotChat/1.0"}
    body = {"model": "Plain", "system": "Else."}
    async with client() as http, http.post("/api/show", json=body, headers=headers) as reply:
        shown = await reply.json()
    assert shown["model_info"]["general.basename"] == "Plain"
    assert shown["system"] == "Else."


# --------------------------------------------------------------------------- generate


@pytest.mark.contract(
    "generate.response",
    "stream.default",
    "stream.ndjson",
    "answer.model-echo",
    "answer.times",
    "answer.durations",
    "answer.done-reason",
    "answer.prompt-count",
)
async def test_generate_streams_lines_and_ends_with_the_metrics() -> None:
    generation = FakeGeneration()
    kind, lines = await ask("/api/generate", generation, model="Plain", prompt="x")
    assert kind == "application/x-ndjson"
    head = {"model": "Plain", "created_at": CREATED}
    assert lines == [
        head | {"response": "Hel", "done": False},
        head | {"response": "lo", "done": False},
        head
        | {"response": "", "done": True, "done_reason": "stop", "context": [1, 2, 3]}
        | METRICS
        | {"speculation": SPECULATION},
    ]


@pytest.mark.contract("generate.response", "stream.default")
async def test_generate_at_once_is_one_object() -> None:
    script: Script = [
        core.Delta(thinking="hm"),
        core.Delta(content="a", logprobs=(ENTRY,)),
        core.Delta(content="b"),
        DONE,
    ]
    generation = FakeGeneration(script)
    kind, (answer,) = await ask(
        "/api/generate", generation, model="plain", prompt="x", stream=False, logprobs=True
    )
    assert kind == "application/json; charset=utf-8"
    assert (answer["response"], answer["thinking"], answer["done"]) == ("ab", "hm", True)
    assert answer["logprobs"] == [{"token": "a", "logprob": -1.0, "bytes": [97]}]


@pytest.mark.contract("keep-alive.duration")
async def test_generate_passes_every_field_on() -> None:
    generation = FakeGeneration()
    await ask(
        "/api/generate",
        generation,
        model="thinker",
        prompt="x",
        system="s",
        context=[1, -2],
        options={"temperature": 0, "new": None},
        keep_alive="1h30m",
        think="high",
        truncate=False,
        shift=False,
        logprobs=True,
        top_logprobs=3,
        format="",
        images=[],
        unknown="ignored",
    )
    assert generation.requests == [
        core.GenerateRequest(
            model=model_ref("thinker", "completion", "thinking"),
            prompt=core.TextPrompt(text="x", system="s", context=(1, -2)),
            options={"temperature": 0},
            keep_alive_s=5400.0,
            think="high",
            truncate=False,
            shift=False,
            n_logprobs=3,
            want_context=True,
        )
    ]


async def test_generate_passes_suffix_and_template_on() -> None:
    generation = FakeGeneration()
    fields = {"prompt": "a", "suffix": "b", "template": "{{ .Prompt }}"}
    await ask("/api/generate", generation, model="able", **fields)
    assert generation.requests[0].prompt == core.TextPrompt(
        text="a", suffix="b", template="{{ .Prompt }}"
    )


@pytest.mark.contract("names.local")
async def test_generate_has_defaults_for_fields_that_were_not_sent() -> None:
    generation = FakeGeneration()
    await ask("/api/generate", generation, model="plain:local", prompt="x", raw=True, options=None)
    assert generation.requests == [
        core.GenerateRequest(model=model_ref("plain"), prompt=core.TextPrompt(text="x", raw=True))
    ]


@pytest.mark.contract(
    "body.content-type", "body.first-value", "body.unknown-fields", "body.case", "body.null"
)
async def test_the_content_type_and_bytes_after_the_first_value_are_ignored() -> None:
    generation = FakeGeneration()
    body = b'{"MODEL":"plain","Prompt":"x","stream":null} and more'
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with (
        client(generation) as http,
        http.post("/api/generate", data=body, headers=headers) as reply,
    ):
        assert reply.status == 200
    assert generation.requests[0].model.name == "plain:latest"


@pytest.mark.contract(
    "generate.load", "answer.done-reason", "keep-alive.number", "keep-alive.forever"
)
@pytest.mark.parametrize(
    "keep_alive, seconds",
    [
        (None, None),
        (300, 300.0),
        (1.5, 1.5),
        (-1, math.inf),
        ("-1m", math.inf),
        (1e300, math.inf),
        ("250ms", 0.25),
    ],
)
async def test_an_empty_prompt_loads(keep_alive: object, seconds: float | None) -> None:
    generation = FakeGeneration()
    kind, (answer,) = await ask(
        "/api/generate", generation, model="plain", keep_alive=keep_alive, options={"num_ctx": 9}
    )
    assert kind == "application/json; charset=utf-8"
    assert answer == {
        "model": "plain",
        "created_at": CREATED,
        "response": "",
        "done": True,
        "done_reason": "load",
    }
    assert generation.loads == [("plain:latest", {"num_ctx": 9}, seconds)]


@pytest.mark.contract("generate.unload")
@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s"])
async def test_an_empty_prompt_without_keep_alive_unloads_before_all_other_checks(
    keep_alive: object,
) -> None:
    generation = FakeGeneration()
    _, (answer,) = await ask(
        "/api/generate", generation, model="embedder", keep_alive=keep_alive, think=True
    )
    assert answer["done_reason"] == "unload"
    assert generation.unloads == ["embedder:latest"]


@pytest.mark.contract("keep-alive.zero")
async def test_keep_alive_zero_with_a_prompt_is_a_request() -> None:
    generation = FakeGeneration()
    await ask("/api/generate", generation, model="plain", prompt="x", keep_alive=0)
    assert not generation.unloads
    assert generation.requests[0].keep_alive_s == 0


@pytest.mark.contract("render-only")
async def test_a_rendered_prompt_is_shown_on_request() -> None:
    generation = FakeGeneration()
    _, (answer,) = await ask(
        "/api/generate", generation, model="plain", prompt="x", _debug_render_only=True
    )
    assert answer == {
        "model": "plain",
        "created_at": CREATED,
        "response": "",
        "done": False,
        "_debug_info": {"rendered_template": "<rendered>"},
    }


@pytest.mark.contract("stream.late-error")
async def test_an_error_in_mid_stream_is_the_last_line() -> None:
    generation = FakeGeneration([core.Delta(content="a"), EngineCrashed("gone")])
    _, lines = await ask_lines(generation)
    assert lines[0]["response"] == "a"
    assert lines[1:] == [{"error": "gone"}]


@pytest.mark.contract("stream.one-end", "sched.crash")
async def test_an_unexpected_error_in_a_stream_is_the_last_line() -> None:
    _, lines = await ask_lines(FakeGeneration([core.Delta(content="a"), KeyError("x")]))
    assert lines[-1] == {"error": "internal error: KeyError"}


async def ask_lines(generation: FakeGeneration) -> tuple[int, list[Any]]:
    body = {"model": "plain", "prompt": "x"}
    async with client(generation) as http, http.post("/api/generate", json=body) as reply:
        return reply.status, [json.loads(line) for line in (await reply.text()).splitlines()]


# --------------------------------------------------------------------------- chat


@pytest.mark.contract("chat.response", "stream.ndjson")
async def test_chat_streams_messages() -> None:
    script: Script = [core.Delta(thinking="hm", logprobs=(ENTRY,)), core.Delta(content="a"), DONE]
    kind, lines = await ask(
        "/api/chat", FakeGeneration(script), model="thinker", messages=[{"content": "x"}]
    )
    assert kind == "application/x-ndjson"
    assert [line["message"] for line in lines] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": ""},
    ]
    assert lines[0]["logprobs"] == [{"token": "a", "logprob": -1.0, "bytes": [97]}]
    last = lines[-1]
    assert (last["done"], last["done_reason"], last["speculation"]) == (True, "stop", SPECULATION)
    assert "context" not in last
    assert {key: last[key] for key in METRICS} == METRICS


@pytest.mark.contract("chat.roles", "chat.message-fields")
async def test_chat_passes_messages_of_every_kind_on() -> None:
    generation = FakeGeneration()
    call = {"id": "1", "function": {"index": 0, "name": "f", "arguments": {"b": 1, "a": 2}}}
    await ask(
        "/api/chat",
        generation,
        model="plain",
        stream=False,
        images=[],
        tools=[],
        messages=[
            {"role": "SYSTEM", "content": "s"},
            {"role": "assistant", "content": None, "thinking": "t", "tool_calls": [call]},
            {"role": "tool", "content": "c", "tool_name": "f", "tool_call_id": "1", "images": []},
            None,
        ],
    )
    assert generation.requests[0].prompt == core.ChatPrompt(
        messages=(
            core.Message(role="system", content="s"),
            core.Message(
                role="assistant",
                thinking="t",
                tool_calls=(core.ToolCall(id="1", name="f", arguments={"b": 1, "a": 2}),),
            ),
            core.Message(role="tool", content="c", tool_name="f", tool_call_id="1"),
            core.Message(role=""),
        )
    )


@pytest.mark.contract("chat.load")
async def test_chat_without_messages_loads_and_unloads() -> None:
    generation = FakeGeneration()
    _, (loaded,) = await ask("/api/chat", generation, model="plain", messages=[])
    _, (unloaded,) = await ask("/api/chat", generation, model="plain", keep_alive=0)
    for answer, reason in ((loaded, "load"), (unloaded, "unload")):
        assert answer == {
            "model": "plain",
            "created_at": CREATED,
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": reason,
        }
    assert (len(generation.loads), generation.unloads) == (1, ["plain:latest"])


@pytest.mark.contract("render-only")
async def test_chat_shows_a_rendered_prompt_on_request() -> None:
    _, (answer,) = await ask(
        "/api/chat", FakeGeneration(), model="plain", messages=[{}], _debug_render_only=True
    )
    assert answer["message"] == {"role": "", "content": ""}
    assert answer["_debug_info"] == {"rendered_template": "<rendered>"}


CALL = core.ToolCall(name="f", arguments={"b": 1, "a": [2]}, id="call_1")


@pytest.mark.contract("chat.tool-calls", "chat.key-order")
@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls_are_whole_and_keep_the_order_of_their_keys(stream: bool) -> None:
    script: Script = (
        core.Delta(content="Let me see."),
        core.Delta(tool_calls=(CALL, core.ToolCall(name="g", index=1))),
        DONE,
    )
    _, lines = await ask(
        "/api/chat",
        generation := FakeGeneration(script),
        model="able",
        stream=stream,
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
    )
    expected = [
        {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"b": 1, "a": [2]}}},
        {"function": {"index": 1, "name": "g", "arguments": {}}},
    ]
    told = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
    assert told == [expected]
    assert list(told[0][0]["function"]["arguments"]) == ["b", "a"]
    assert lines[-1]["done_reason"] == "stop"
    prompt = generation.requests[0].prompt
    assert isinstance(prompt, core.ChatPrompt)
    assert prompt.tools == ({"type": "function", "function": {"name": "f"}},)


@pytest.mark.contract("format.off")
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(
    "sent, grammar",
    [
        (None, None),
        ("", None),
        ("json", core.Grammar(kind=core.GrammarKind.JSON)),
        (
            {"type": "object", "properties": {"ü": {}, "a": {}}},
            core.Grammar(
                kind=core.GrammarKind.JSON_SCHEMA,
                text='{"type": "object", "properties": {"ü": {}, "a": {}}}',
            ),
        ),
    ],
)
async def test_a_format_is_a_grammar(path: str, sent: object, grammar: core.Grammar | None) -> None:
    generation = FakeGeneration()
    await ask(path, generation, model="plain", prompt="x", messages=[{}], format=sent)
    assert generation.requests[0].grammar == grammar


@pytest.mark.contract("think.false-anywhere")
async def test_thinking_can_be_refused_to_any_model() -> None:
    generation = FakeGeneration()
    await ask("/api/chat", generation, model="plain", messages=[{}], think=False)
    assert generation.requests[0].think is False


# --------------------------------------------------------------------------- Ollama's own client


async def test_the_ollama_client_reads_every_answer() -> None:
    async with (
        client(loaded=[resident("plain", 2e9)]) as http,
        ollama.AsyncClient(host=str(http.make_url("/"))) as api,
    ):
        listed = await api.list()
        assert listed.models[0].model == "plain:latest"
        assert listed.models[0].modified_at == MODIFIED
        shown = await api.show("plain")
        assert shown.modelinfo == {"general.architecture": "llama", "general.basename": "demo"}
        running = await api.ps()
        assert running.models[0].expires_at is not None
        whole = await api.generate("plain", "x")
        assert (whole.response, whole.eval_count) == ("Hello", 7)
        stream = await api.chat("plain", [{"role": "user", "content": "x"}], stream=True)
        parts = [part async for part in stream]
        assert "".join(part.message.content or "" for part in parts) == "Hello"
        assert parts[-1].done
        with pytest.raises(ollama.ResponseError, match="model 'no' not found") as caught:
            await api.generate("no", "x")
        assert caught.value.status_code == 404
