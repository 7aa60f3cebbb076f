"""The objects and events of `/v1/responses`: items open and close in turn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd import core, errors
from specd.api.openai.responses.body import ResponsesBody
from specd.api.openai.responses.writer import ResponseWriter
from tests.api.fakes import DONE, FakeGeneration, Script
from tests.api.openai.asking import ask, stream_of

PATH = "/v1/responses"
BODY: dict[str, object] = {"model": "Able", "input": "x"}
CALL = core.ToolCall(id="call_1", name="add", arguments={"b": 2, "a": 1})

REASONING = {
    "id": "rs_42042_0",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "hm",
}
FUNCTION_CALL = {
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "add",
    "arguments": '{"b":2,"a":1}',
}


def message(item_id: str, text: str) -> dict[str, object]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


@pytest.mark.contract("openai.responses")
async def test_an_answer_at_once() -> None:
    script: Script = [core.Delta(thinking="hm"), core.Delta(content="Hello"), DONE]
    status, answer = await ask(FakeGeneration(script), PATH, BODY)
    assert status == 200
    assert answer.pop("specd")["speculation"]["drafter"] == "tiny:latest"
    assert answer.pop("timings")["draft_n"] == 8
    assert answer == {
        "id": "resp_42042",
        "object": "response",
        "created_at": 1_785_585_600,
        "completed_at": 1_785_585_600,
        "status": "completed",
        "incomplete_details": None,
        "model": "Able",
        "previous_response_id": None,
        "instructions": None,
        "output": [REASONING, message("msg_42042_1", "Hello")],
        "error": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": None,
        "usage": {
            "input_tokens": 5,
            "output_tokens": 7,
            "total_tokens": 12,
            "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


@pytest.mark.contract("openai.responses")
async def test_the_request_is_echoed() -> None:
    search = {"type": "web_search", "search_context_size": "low"}
    echoed = {
        "instructions": "Be brief.",
        "temperature": 0.25,
        "top_p": 0.5,
        "max_output_tokens": 9,
        "truncation": "auto",
        "background": True,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tool_choice": "none",
    }
    sent = BODY | echoed | {
        "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "f"}, search],
        "metadata": {"a": "b"},
    }  # fmt: skip
    _, answer = await ask(FakeGeneration(), PATH, sent)
    assert {key: answer[key] for key in echoed} == echoed
    assert answer["reasoning"] == {"effort": "low", "summary": None}
    function = {"type": "function", "name": "f"}
    missing = {"description": None, "strict": None, "parameters": None}
    assert answer["tools"] == [function | missing, search]


@pytest.mark.contract("openai.responses-stream")
async def test_a_stream_of_thinking_and_text() -> None:
    script: Script = [
        core.Delta(thinking="h"),
        core.Delta(thinking="m", content="Hel"),
        core.Delta(content="lo"),
        DONE,
    ]
    events = await stream_of(FakeGeneration(script), PATH, BODY)
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))
    created, in_progress, *course, completed = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    thought = {"output_index": 0, "item_id": "rs_42042_0", "summary_index": 0}
    summary = {"type": "summary_text", "text": "hm"}
    said = {"output_index": 1, "item_id": "msg_42042_1", "content_index": 0}
    done = message("msg_42042_1", "Hello")
    assert isinstance(done["content"], list)
    part = done["content"][0]
    assert course == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"id": "rs_42042_0", "type": "reasoning", "summary": []},
        },
        {
            "type": "response.reasoning_summary_part.added",
            **thought,
            "part": summary | {"text": ""},
        },
        {"type": "response.reasoning_summary_text.delta", **thought, "delta": "h"},
        {"type": "response.reasoning_summary_text.delta", **thought, "delta": "m"},
        {"type": "response.reasoning_summary_text.done", **thought, "text": "hm"},
        {"type": "response.reasoning_summary_part.done", **thought, "part": summary},
        {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": done | {"status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **said, "part": part | {"text": ""}},
        {"type": "response.output_text.delta", **said, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **said, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **said, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **said, "part": part},
        {"type": "response.output_item.done", "output_index": 1, "item": done},
    ]
    assert completed["type"] == "response.completed"
    _, whole = await ask(FakeGeneration(script), PATH, BODY)
    assert completed["response"] == whole


@pytest.mark.contract("openai.responses-stream")
async def test_a_stream_of_a_call() -> None:
    script: Script = [core.Delta(content="So"), core.Delta(tool_calls=(CALL,)), DONE]
    *events, completed = await stream_of(FakeGeneration(script), PATH, BODY)
    item = {"id": "fc_42042_1", **FUNCTION_CALL}
    place = {"output_index": 1, "item_id": "fc_42042_1"}
    calls = [event for event in events if event.get("output_index") == 1]
    for event in calls:
        del event["sequence_number"]
    assert calls == [
        {
            "type": "response.output_item.added",
            "output_index": 1,
            "item": item | {"status": "in_progress", "arguments": ""},
        },
        {
            "type": "response.function_call_arguments.delta",
            **place,
            "delta": FUNCTION_CALL["arguments"],
        },
        {
            "type": "response.function_call_arguments.done",
            **place,
            "name": "add",
            "arguments": FUNCTION_CALL["arguments"],
        },
        {"type": "response.output_item.done", "output_index": 1, "item": item},
    ]
    assert completed["response"]["output"] == [message("msg_42042_0", "So"), item]


async def test_a_call_alone_needs_no_message() -> None:
    _, answer = await ask(FakeGeneration([core.Delta(tool_calls=(CALL,)), DONE]), PATH, BODY)
    assert [item["type"] for item in answer["output"]] == ["function_call"]


@pytest.mark.parametrize("thinking", ["", "hm"])
async def test_an_empty_answer_has_an_empty_message(thinking: str) -> None:
    script: Script = [core.Delta(thinking=thinking), DONE]
    _, answer = await ask(FakeGeneration(script), PATH, BODY)
    assert answer["output"][-1]["content"][0]["text"] == ""
    *_, completed = await stream_of(FakeGeneration(script), PATH, BODY)
    assert completed["response"] == answer


@pytest.mark.contract("openai.responses")
async def test_a_limit_is_completed_as_well() -> None:
    cut = core.Done(reason=core.StopReason.LENGTH, usage=DONE.usage, speculation=DONE.speculation)
    _, answer = await ask(FakeGeneration([core.Delta(content="a"), cut]), PATH, BODY)
    assert (answer["status"], answer["incomplete_details"]) == ("completed", None)


@pytest.mark.contract("openai.stream-error")
async def test_an_error_in_mid_stream_is_a_failed_response() -> None:
    script: Script = [core.Delta(thinking="hm", content="a"), errors.EngineCrashed("gone")]
    *before, last = await stream_of(FakeGeneration(script), PATH, BODY)
    assert (last["type"], last["sequence_number"]) == ("response.failed", len(before))
    response = last["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "gone"}
    assert response["output"] == [REASONING]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_byte_has_a_status(stream: bool) -> None:
    generation = FakeGeneration([errors.QueueFull()])
    status, answer = await ask(generation, PATH, BODY | {"stream": stream})
    assert (status, answer["error"]["type"]) == (503, "api_error")


DELTAS = st.lists(
    st.builds(
        core.Delta,
        content=st.sampled_from(["", "a", "b\n"]),
        thinking=st.sampled_from(["", "h", "m"]),
        tool_calls=st.sampled_from([(), (CALL,), (CALL, CALL)]),
    ),
    max_size=8,
)


@given(DELTAS)
def test_a_stream_ends_with_the_object_of_the_whole_answer(deltas: list[core.Delta]) -> None:
    """Each item is added, then done, in the order of its index, and the deltas are its text."""
    writer = ResponseWriter(body=ResponsesBody(model="m"), number=1, now=lambda: 0)
    sent = [writer.pieces(delta) for delta in deltas] + [writer.last(DONE)]
    events: list[Any] = [
        json.loads(event.split(b"\ndata: ")[1]) for event in b"".join(sent).split(b"\n\n")[:-1]
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    added = [event["item"]["id"] for event in events if event["type"].endswith("item.added")]
    done = [event["item"] for event in events if event["type"].endswith("item.done")]
    assert (added, done) == ([item["id"] for item in output], output)
    assert len(set(added)) == len(added)
    for index, item in enumerate(output):
        of_item = [event for event in events if event.get("output_index") == index]
        told = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
        kept = {
            "message": lambda item: item["content"][0]["text"],
            "reasoning": lambda item: item["encrypted_content"],
            "function_call": lambda item: item["arguments"],
        }[item["type"]](item)
        assert told == kept
    said = [item["content"][0]["text"] for item in output if item["type"] == "message"]
    assert "".join(said) == "".join(delta.content for delta in deltas)
