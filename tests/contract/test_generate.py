"""Contract 2.1 and 2.2: the answers of `/api/generate`, field by field."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from typing import Any

import pytest

from tests.contract.conftest import THOUGHT, WORDS, ContractClient
from tests.daemon_process import ended
from tests.gguf_projectors import picture

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
METRICS = (
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
)
#: A random model would go on for long.
SHORT = {"num_predict": 8, "seed": 1}


def asking(model: str = "speaker", **fields: object) -> dict[str, Any]:
    return {"model": model, "prompt": "x", "think": False} | fields


# --------------------------------------------------------------------------- the answer


@pytest.mark.contract(
    "generate.response",
    "generate.stream",
    "stream.default",
    "stream.ndjson",
    "answer.model-echo",
    "answer.times",
    "answer.durations",
)
async def test_a_stream_line_by_line(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("generate", asking("SPEAKER", logprobs=True))
    assert (reply.status, reply.type) == (200, "application/x-ndjson")
    assert reply.body.endswith(b"}\n")
    assert b'": ' not in reply.body  # compact
    *lines, last = reply.lines
    assert len(lines) > 1
    for line in lines:
        assert list(line) == ["model", "created_at", "response", "done", "logprobs"]
        assert line["done"] is False
        assert UTC.fullmatch(line["created_at"])
    assert "".join(line["response"] for line in [*lines, last]) == WORDS
    assert list(last) == [
        *("model", "created_at", "response", "done", "done_reason", "context"),
        *METRICS,
        "speculation",
    ]
    assert (last["model"], last["done"], last["done_reason"]) == ("SPEAKER", True, "stop")
    assert all(type(last[key]) is int and last[key] > 0 for key in METRICS)
    assert last["total_duration"] >= last["load_duration"] + last["eval_duration"]


@pytest.mark.contract("generate.whole", "generate.response", "think.apart", "think.default-on")
async def test_without_a_stream_it_is_one_object(contract_client: ContractClient) -> None:
    body = {"model": "speaker", "prompt": "x", "stream": False, "logprobs": True}
    reply = await contract_client.ask("generate", body)
    assert (reply.status, reply.type) == (200, "application/json; charset=utf-8")
    assert not reply.body.endswith(b"\n")
    answer = reply.json
    assert list(answer) == [
        *("model", "created_at", "response", "thinking", "done", "done_reason", "context"),
        *METRICS,
        *("logprobs", "speculation"),
    ]
    assert (answer["response"], answer["thinking"].strip()) == ("So be it, then.", THOUGHT)
    said = "".join(entry["token"] for entry in answer["logprobs"])
    assert THOUGHT in said
    assert said.endswith("So be it, then.")


@pytest.mark.contract("answer.prompt-count", "answer.load-duration")
async def test_cached_tokens_and_load_time_are_counted(
    contract_client: ContractClient,
) -> None:
    first = (await contract_client.ask("generate", asking(stream=False))).json
    again = (await contract_client.ask("generate", asking(stream=False))).json
    # BOS, <|user|>, x, <|end|>, <|assistant|>, A
    assert first["prompt_eval_count"] == again["prompt_eval_count"] == 6
    assert again["load_duration"] > 0


@pytest.mark.contract("answer.done-reason", "options.stop-served")
@pytest.mark.parametrize(
    "options, said, reason",
    [
        ({"num_predict": 2}, "Only a", "length"),
        ({"stop": ["words"]}, "Only a few ", "stop"),
        ({"stop": ["w words, n", "few wo"]}, "Only a ", "stop"),
        ({}, WORDS, "stop"),
    ],
)
async def test_why_an_answer_ends(
    contract_client: ContractClient, options: dict[str, object], said: str, reason: str
) -> None:
    answer = (await contract_client.ask("generate", asking(stream=False, options=options))).json
    assert (answer["response"], answer["done_reason"]) == (said, reason)


@pytest.mark.contract("generate.context", "generate.raw")
async def test_the_context_is_the_conversation_so_far(contract_client: ContractClient) -> None:
    first = (
        await contract_client.ask("generate", asking("bare", stream=False, options=SHORT))
    ).json
    assert len(first["context"]) == first["prompt_eval_count"] + first["eval_count"]
    second = asking("bare", stream=False, options=SHORT, context=first["context"])
    answer = (await contract_client.ask("generate", second)).json
    # All that was, and "x".
    assert answer["prompt_eval_count"] == len(first["context"]) + 1
    raw = asking("bare", stream=False, options=SHORT, raw=True)
    assert "context" not in (await contract_client.ask("generate", raw)).json


@pytest.mark.contract("logprobs.shape", "logprobs.top")
async def test_log_probabilities(contract_client: ContractClient) -> None:
    fields = asking("bare", stream=False, options=SHORT, logprobs=True)
    plain = (await contract_client.ask("generate", fields)).json["logprobs"]
    assert len(plain) == SHORT["num_predict"]
    for entry in plain:
        assert list(entry)[:2] == ["token", "logprob"]
        assert "top_logprobs" not in entry
        assert entry["logprob"] < 0
        assert bytes(entry.get("bytes", [])).decode(errors="replace") == entry["token"]
    best = (await contract_client.ask("generate", fields | {"top_logprobs": 3})).json["logprobs"]
    for entry in best:
        tops = [top["logprob"] for top in entry["top_logprobs"]]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
    unasked = await contract_client.ask("generate", fields | {"logprobs": False, "top_logprobs": 3})
    assert "logprobs" not in unasked.json


# --------------------------------------------------------------------------- the prompt


@pytest.mark.contract("render-only")
async def test_the_prompt_is_shown_in_place_of_an_answer(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("generate", asking(_debug_render_only=True))
    assert reply.type == "application/json; charset=utf-8"
    assert reply.json | {"created_at": ""} == {
        "model": "speaker",
        "created_at": "",
        "response": "",
        "done": False,
        "_debug_info": {"rendered_template": "<|user|>x<|end|><|assistant|>A"},
    }


@pytest.mark.contract("render-only")
async def test_a_shown_prompt_begins_with_the_text_of_its_context(
    contract_client: ContractClient,
) -> None:
    first = (await contract_client.ask("generate", asking(stream=False))).json
    shown = await contract_client.rendered("generate", **asking(), context=first["context"])
    turn = "<|user|>x<|end|><|assistant|>A"
    assert shown == f"<|begin|>{turn}{WORDS}{turn}"
    bad = asking(_debug_render_only=True, context=[-1])
    reply = await contract_client.ask("generate", bad)
    assert (reply.status, "out of range" in reply.json["error"]) == (400, True)


@pytest.mark.contract("generate.system", "generate.modelfile")
async def test_the_modelfile_comes_first_and_may_be_overruled(
    contract_client: ContractClient,
) -> None:
    turns = "<|user|>Hi<|end|><|assistant|>Ho<|end|><|user|>x<|end|><|assistant|>A"
    dressed = asking("dressed")
    assert (
        await contract_client.rendered("generate", **dressed) == f"<|system|>Be kind.<|end|>{turns}"
    )
    said = await contract_client.rendered("generate", **dressed, system="Be brief.")
    assert said == f"<|system|>Be brief.<|end|>{turns}"
    continued = await contract_client.rendered("generate", **dressed, context=[1])
    assert "Hi" not in continued


@pytest.mark.contract("generate.template", "generate.raw", "generate.no-template")
async def test_templates_of_the_request_of_the_model_and_none(
    contract_client: ContractClient,
) -> None:
    own = asking(template="{{ .System }}-{{ .Prompt }}-", system="s")
    assert await contract_client.rendered("generate", **own) == "s-x-"
    assert await contract_client.rendered("generate", **asking(raw=True)) == "x"
    assert await contract_client.rendered("generate", **asking("bare")) == "x"


@pytest.mark.contract("generate.suffix")
async def test_infill(contract_client: ContractClient) -> None:
    infill = asking("able", suffix="y", system="never seen")
    assert await contract_client.rendered("generate", **infill) == "x<fill>y"


@pytest.mark.contract("think.kwargs", "think.default-on")
@pytest.mark.parametrize(
    "fields, end",
    [
        ({}, "<|assistant|>T"),
        ({"think": None}, "<|assistant|>T"),
        ({"think": True}, "<|assistant|>T"),
        ({"think": False}, "<|assistant|>A"),
        ({"think": "low"}, "<effort low><|assistant|>T"),
        ({"think": "max"}, "<effort max><|assistant|>T"),
    ],
)
@pytest.mark.parametrize("path", ["generate", "chat"])
async def test_thinking_fields_reach_the_jinja_template(
    contract_client: ContractClient, path: str, fields: dict[str, object], end: str
) -> None:
    asked: dict[str, Any] = {"prompt": "x"}
    if path == "chat":
        asked = {"messages": [{"role": "user", "content": "x"}]}
    said = await contract_client.rendered(path, model="speaker", **asked, **fields)
    assert said == "<|user|>x<|end|>" + end


@pytest.mark.contract("templates.go-served")
async def test_a_model_with_a_go_template_alone(contract_client: ContractClient) -> None:
    said = await contract_client.rendered("generate", **asking("gopher", system="s"))
    assert said == "<s>s</s>x|false||true>"


# --------------------------------------------------------------------------- formats and images


@pytest.mark.contract("format.json", "format.schema", "format.off")
async def test_formats_bind_even_a_model_that_babbles(contract_client: ContractClient) -> None:
    options = {"seed": 3, "num_predict": 200}
    body = asking("plain", stream=False, options=options)
    free = (await contract_client.ask("generate", body)).json["response"]
    for off in ("", None):
        assert (await contract_client.ask("generate", body | {"format": off})).json[
            "response"
        ] == free
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 99}, "s": {"enum": ["a", "b"]}},
        "required": ["n", "s"],
        "additionalProperties": False,
    }
    answer = (await contract_client.ask("generate", body | {"format": schema})).json["response"]
    found = json.loads(answer)
    assert found["s"] in {"a", "b"}
    assert found["n"] <= 99
    # The answer may be cut, but it is the beginning of an object.
    begun = (await contract_client.ask("generate", body | {"format": "json"})).json["response"]
    assert begun.lstrip().startswith("{")


@pytest.mark.contract("format.thinking")
async def test_a_format_does_not_bind_the_thinking_before_it(
    contract_client: ContractClient,
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    options = {"num_predict": 60}
    body = {"model": "speaker", "prompt": "x", "stream": False, "format": schema}
    answer = (await contract_client.ask("generate", body | {"options": options})).json
    assert answer["thinking"].strip() == THOUGHT
    assert answer["response"].lstrip().startswith("{")


@pytest.mark.contract("images.served")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
async def test_an_image_is_part_of_the_prompt(contract_client: ContractClient, kind: str) -> None:
    image = base64.b64encode(picture(kind=kind)).decode()
    body = asking("seeing", stream=False, options=SHORT)
    blind = (await contract_client.ask("generate", body)).json
    seen = await contract_client.ask("generate", body | {"images": [image]})
    assert seen.status == 200, seen
    assert seen.json["prompt_eval_count"] == blind["prompt_eval_count"] + 16


# --------------------------------------------------------------------------- loading and leaving


@pytest.mark.contract("generate.load", "answer.done-reason", "answer.model-echo")
@pytest.mark.parametrize("path", ["generate", "chat"])
async def test_nothing_to_say_loads(contract_client: ContractClient, path: str) -> None:
    reply = await contract_client.ask(path, {"model": "bare"})
    assert reply.type == "application/json; charset=utf-8"
    said: dict[str, object] = {"response": ""}
    if path == "chat":
        said = {"message": {"role": "assistant", "content": ""}}
    expected = {"model": "bare", "created_at": ""} | said | {"done": True, "done_reason": "load"}
    assert reply.json | {"created_at": ""} == expected
    assert list(reply.json) == list(expected)
    assert "bare:latest" in await contract_client.residents()


@pytest.mark.contract("generate.unload", "chat.load")
@pytest.mark.parametrize("path", ["generate", "chat"])
@pytest.mark.parametrize("keep_alive", [0, 0.0, "0", "0s"])
async def test_nothing_to_say_and_nothing_to_keep_unloads(
    contract_client: ContractClient, path: str, keep_alive: object
) -> None:
    await contract_client.ask(path, {"model": "bare"})
    for _ in range(2):  # the second time no model is loaded
        reply = await contract_client.ask(path, {"model": "BARE", "keep_alive": keep_alive})
        assert (reply.status, reply.type) == (200, "application/json; charset=utf-8")
        assert (reply.json["done"], reply.json["done_reason"]) == (True, "unload")
        assert "bare:latest" not in await contract_client.residents()


@pytest.mark.contract("keep-alive.zero")
async def test_keep_alive_zero_unloads_after_the_answer(contract_client: ContractClient) -> None:
    await contract_client.ask("generate", {"model": "speaker", "keep_alive": "1h"})
    engines = {engine.pid for engine in contract_client.daemon.engines()}
    reply = await contract_client.ask("generate", asking("bare", options=SHORT, keep_alive=0))
    assert reply.lines[-1]["done"]
    left = [engine for engine in contract_client.daemon.engines() if engine.pid not in engines]
    assert await ended(left)
    assert "bare:latest" not in await contract_client.residents()


@pytest.mark.contract(
    "keep-alive.number", "keep-alive.duration", "keep-alive.forever", "keep-alive.absent"
)
@pytest.mark.parametrize(
    "keep_alive, least, most",
    [
        (7200, 7000, 7200),
        (7200.5, 7000, 7201),
        ("2h", 7000, 7200),
        ("1h60m", 7000, 7200),
        (-1, 200 * 365 * 86400, 300 * 365 * 86400),
        ("-1m", 200 * 365 * 86400, 300 * 365 * 86400),
        (1e300, 200 * 365 * 86400, 300 * 365 * 86400),
    ],
)
async def test_how_long_a_model_is_kept(
    contract_client: ContractClient, keep_alive: object, least: float, most: float
) -> None:
    await contract_client.ask("generate", {"model": "bare", "keep_alive": keep_alive})
    assert least <= await left(contract_client) <= most
    # A request without keep_alive does not change it.
    await contract_client.ask("generate", asking("bare", options=SHORT))
    assert least <= await left(contract_client) <= most


async def left(contract_client: ContractClient) -> float:
    """Return the seconds until "bare" is unloaded."""
    entry = (await contract_client.residents())["bare:latest"]
    remaining = dt.datetime.fromisoformat(entry["expires_at"]) - dt.datetime.now(dt.UTC)
    return remaining.total_seconds()
