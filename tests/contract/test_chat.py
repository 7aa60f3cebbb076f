"""Contract 2.3: the answers of `/api/chat`, and its messages in the template."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract.conftest import AFTER, THOUGHT, WORDS, ContractClient
from tests.gguf_projectors import picture
from tests.scripted_model import write_scripted_model

pytestmark = [pytest.mark.native, pytest.mark.asyncio(loop_scope="module")]

TURN = [{"role": "user", "content": "x"}]
METRICS = (
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
)
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at <it>",
        "parameters": {
            "type": "object",
            "$defs": {"d": {"type": "string"}},
            "required": ["z"],
            "properties": {
                "z": {"type": ["object", "null"], "description": "last", "enum": [1]},
                "a": {"anyOf": [{"type": "integer"}], "items": {"type": "string"}},
            },
        },
    },
}


def asking(**fields: object) -> dict[str, Any]:
    return {"model": "speaker", "messages": TURN, "think": False} | fields


# --------------------------------------------------------------------------- the answer


@pytest.mark.contract("chat.response", "stream.ndjson", "answer.model-echo")
async def test_a_stream_line_by_line(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("chat", asking(model="SPEAKER"))
    assert (reply.status, reply.type) == (200, "application/x-ndjson")
    *lines, last = reply.lines
    for line in lines:
        assert list(line) == ["model", "created_at", "message", "done"]
        assert list(line["message"]) == ["role", "content"]
        assert (line["model"], line["done"]) == ("SPEAKER", False)
    said = [line["message"]["content"] for line in [*lines, last]]
    assert "".join(said) == WORDS
    assert list(last) == [
        *("model", "created_at", "message", "done", "done_reason"),
        *METRICS,
        "speculation",
    ]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")


@pytest.mark.contract("chat.response", "chat.whole", "think.apart", "think.default-on")
async def test_without_a_stream_it_is_one_object(contract_client: ContractClient) -> None:
    body = {"model": "speaker", "messages": TURN, "stream": False, "logprobs": True}
    reply = await contract_client.ask("chat", body)
    assert reply.type == "application/json; charset=utf-8"
    answer = reply.json
    assert list(answer) == [
        *("model", "created_at", "message", "done", "done_reason", "logprobs"),
        *METRICS,
        "speculation",
    ]
    assert list(answer["message"]) == ["role", "content", "thinking"]
    assert answer["message"]["content"] == "So be it, then."
    assert answer["message"]["thinking"].strip() == THOUGHT


@pytest.mark.contract("think.apart", "chat.response")
async def test_thinking_streams_in_a_field_of_its_own(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("chat", {"model": "speaker", "messages": TURN})
    messages = [line["message"] for line in reply.lines]
    thinking = [message for message in messages if "thinking" in message]
    assert "".join(message["thinking"] for message in thinking).strip() == THOUGHT
    assert all(message["content"] == "" for message in thinking)
    assert "".join(message["content"] for message in messages) == "So be it, then."


@pytest.mark.contract("think.apart")
@pytest.mark.parametrize("tags", [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
async def test_a_model_that_thinks_though_it_is_asked_not_to_has_a_clean_answer(
    contract_client: ContractClient, tmp_path: Path, tags: tuple[str, str]
) -> None:
    """The template names the tags but opens none; the model opens one itself."""
    script = {"A": f"{tags[0]}{THOUGHT}{tags[1]}\n\n{WORDS}"}
    template = f"{{#- {tags[0]}{tags[1]} -#}}{{{{- messages[-1].content -}}}}|A"
    weights = write_scripted_model(tmp_path / "stubborn.gguf", script, template)
    contract_client.store.add("stubborn", weights=weights)
    try:
        reply = await contract_client.ask("chat", asking(model="stubborn", stream=False))
        assert reply.json["message"]["content"] == WORDS
        assert reply.json["message"]["thinking"] == THOUGHT
        body = {"model": "stubborn", "prompt": "x", "think": False, "stream": False}
        answer = (await contract_client.ask("generate", body)).json
        assert (answer["response"], answer["thinking"]) == (WORDS, THOUGHT)
    finally:
        await contract_client.ask("delete", {"model": "stubborn"})


# --------------------------------------------------------------------------- tools


@pytest.mark.contract("chat.tool-calls", "chat.key-order")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_call_comes_whole(contract_client: ContractClient, stream: bool) -> None:
    reply = await contract_client.ask("chat", asking(tools=[LOOK], stream=stream))
    called = [line["message"] for line in reply.lines if "tool_calls" in line["message"]]
    [message] = called
    assert list(message) == ["role", "content", "tool_calls"]
    assert message["content"] == ""
    [call] = message["tool_calls"]
    assert list(call) == ["id", "function"]
    assert re.fullmatch(r"call_[a-z0-9]{8}", call["id"])
    # The keys keep the model's order; they are not sorted.
    assert json.dumps(call["function"]) == (
        '{"index": 0, "name": "look", "arguments": {"z": {"y": [1, "<&>"]}, "a": 0}}'
    )
    assert reply.lines[-1]["done_reason"] == "stop"


@pytest.mark.contract("chat.tools", "chat.key-order")
async def test_tools_reach_the_template_with_their_keys_in_order(
    contract_client: ContractClient,
) -> None:
    said = await contract_client.rendered("chat", **asking(tools=[LOOK]))
    assert f"[{json.dumps([LOOK])}]" in said
    assert said.endswith("<|assistant|>C")


@pytest.mark.contract("chat.tool-results", "chat.message-fields", "chat.key-order")
async def test_calls_and_their_results_reach_the_template(contract_client: ContractClient) -> None:
    function = {"name": "look", "arguments": {"z": 1, "a": [2]}}
    messages = [
        {"role": "USER", "content": "x"},
        {
            "role": "assistant",
            "content": "",
            "thinking": "Hm.",
            "tool_calls": [{"id": "call_1", "function": {"index": 0, **function}}],
        },
        {"role": "Tool", "content": "fine", "tool_name": "look", "tool_call_id": "call_1"},
    ]
    said = await contract_client.rendered("chat", **asking(messages=messages))
    written = re.search(r"<tool_call>(.*)</tool_call>", said)
    assert written is not None
    assert json.dumps(json.loads(written[1])["arguments"]) == json.dumps(function["arguments"])
    assert said.endswith("<|tool|>fine<|end|><|assistant|>R")
    assert said.startswith("<|user|>x")
    answer = (await contract_client.ask("chat", asking(messages=messages, stream=False))).json
    assert answer["message"] == {"role": "assistant", "content": AFTER}


# --------------------------------------------------------------------------- turns


@pytest.mark.contract("chat.roles")
async def test_roles_are_in_small_letters_and_any_word(contract_client: ContractClient) -> None:
    said = await contract_client.rendered(
        "chat", **asking(messages=[{"role": "Judge", "content": "x"}])
    )
    assert said.startswith("<|judge|>x")


@pytest.mark.contract("chat.modelfile")
async def test_the_modelfiles_turns_and_its_system(contract_client: ContractClient) -> None:
    end = "<|user|>x<|end|><|assistant|>A"
    history = "<|user|>Hi<|end|><|assistant|>Ho<|end|>"
    said = await contract_client.rendered("chat", **asking(model="dressed"))
    assert said == f"<|system|>Be kind.<|end|>{history}{end}"
    own = [{"role": "system", "content": "Be brief."}, *TURN]
    said = await contract_client.rendered("chat", **asking(model="dressed", messages=own))
    assert said == f"{history}<|system|>Be brief.<|end|>{end}"


@pytest.mark.contract("chat.no-template")
async def test_a_model_without_a_template_gets_chatml(contract_client: ContractClient) -> None:
    said = await contract_client.rendered("chat", **asking(model="bare"))
    assert said == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.contract("render-only")
async def test_the_prompt_is_shown_in_place_of_an_answer(contract_client: ContractClient) -> None:
    reply = await contract_client.ask("chat", asking(_debug_render_only=True))
    assert reply.json | {"created_at": ""} == {
        "model": "speaker",
        "created_at": "",
        "message": {"role": "", "content": ""},
        "done": False,
        "_debug_info": {"rendered_template": "<|user|>x<|end|><|assistant|>A"},
    }


@pytest.mark.contract("truncate.chat")
async def test_a_chat_too_long_loses_its_oldest_turns(contract_client: ContractClient) -> None:
    turns = [
        {"role": "system", "content": "s" * 20},
        *({"role": "user", "content": "u" * 30} for _ in range(9)),
        {"role": "user", "content": "x"},
    ]
    options = {"num_ctx": 64, "num_predict": 1}
    body = asking(messages=turns, options=options, stream=False)
    answer = (await contract_client.ask("chat", body)).json
    # BOS, the system's 22, one of the nine with 32, x with 3, <|assistant|> and A.
    assert answer["prompt_eval_count"] == 1 + 22 + 32 + 3 + 2
    refused = await contract_client.ask("chat", body | {"truncate": False})
    assert refused.status == 400
    assert "exceeds the available context size (64 tokens)" in refused.json["error"]


@pytest.mark.contract("truncate.last")
async def test_a_last_turn_too_long_is_cut_in_its_middle(contract_client: ContractClient) -> None:
    turns = [*TURN, {"role": "user", "content": "a" * 90 + "z" * 90}]
    body = asking(messages=turns, options={"num_ctx": 64, "num_predict": 1}, stream=False)
    reply = await contract_client.ask("chat", body)
    assert reply.status == 200
    assert 32 <= reply.json["prompt_eval_count"] < 64
    refused = await contract_client.ask("chat", body | {"shift": False})
    assert refused.status == 400
    assert "exceeds the available context size (64 tokens)" in refused.json["error"]


@pytest.mark.contract("images.served")
async def test_an_image_of_a_message_is_part_of_the_prompt(contract_client: ContractClient) -> None:
    image = base64.b64encode(picture()).decode()
    options = {"num_predict": 1}
    body = asking(model="seeing", stream=False, options=options)
    blind = (await contract_client.ask("chat", body)).json
    turn = {"role": "user", "content": "x", "images": [image, image]}
    seen = (await contract_client.ask("chat", body | {"messages": [turn]})).json
    assert seen["prompt_eval_count"] == blind["prompt_eval_count"] + 2 * 16
