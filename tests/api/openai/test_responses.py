"""The requests of `/v1/responses` to the generation: items, instructions, tools, formats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specd import core
from tests.api.fakes import FakeGeneration
from tests.api.openai.asking import ask, stream_of

PATH = "/v1/responses"


def body(**fields: object) -> dict[str, object]:
    return {"model": "able", "input": "x"} | fields


async def asked(**fields: object) -> core.GenerateRequest:
    generation = FakeGeneration()
    status, answer = await ask(generation, PATH, body(**fields))
    assert status == 200, answer
    return generation.requests[0]


async def prompt(**fields: object) -> core.ChatPrompt:
    found = (await asked(**fields)).prompt
    assert isinstance(found, core.ChatPrompt)
    return found


# --------------------------------------------------------------------------- input


@pytest.mark.contract("openai.responses-input")
async def test_a_string_is_a_users_message_after_the_instructions() -> None:
    assert (await prompt(instructions="Be brief.")).messages == (
        core.Message(role="system", content="Be brief."),
        core.Message(role="user", content="x"),
    )


@pytest.mark.contract("openai.responses-input")
async def test_instructions_and_developers_are_one_message_of_the_system() -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"role": "system", "content": ""},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": "x"},
        {"role": "developer", "content": "c"},
    ]
    assert (await prompt(instructions="Be brief.", input=items)).messages == (
        core.Message(role="system", content="Be brief.\n\na\n\nb"),
        core.Message(role="user", content="x"),
        core.Message(role="system", content="c"),
    )


@pytest.mark.contract("openai.responses-input")
async def test_text_parts_are_joined_and_images_are_separate() -> None:
    content = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "detail": "auto", "image_url": "data:;base64,AAAA"},
        {"type": "input_image", "detail": "auto", "file_id": "file_1"},
        {"type": "output_text", "text": "b"},
    ]
    assert (await prompt(input=[{"role": "User", "content": content}])).messages == (
        core.Message(role="user", content="ab", images=(b"\0\0\0",)),
    )


async def test_a_developer_is_the_system() -> None:
    items = [{"type": "message", "role": "developer", "content": "d"}]
    assert (await prompt(input=items)).messages == (core.Message(role="system", content="d"),)


def call(n: int, arguments: str = "{}") -> dict[str, str]:
    return {"type": "function_call", "call_id": f"c{n}", "name": f"f{n}", "arguments": arguments}


def output(n: int, sent: object) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": f"c{n}", "output": sent}


@pytest.mark.contract("openai.responses-input")
async def test_a_conversation_with_calls_is_the_chat_that_it_was() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "summary": [], "encrypted_content": "hm"},
        {"role": "assistant", "content": "Let me see."},
        call(1, '{"b":1,"a":2}'),
        {"role": "assistant", "content": "And"},
        call(2, ""),
        output(1, "one"),
        output(2, [{"type": "input_text", "text": "two"}]),
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        call(3),
        output(3, None),
        {"role": "assistant", "content": None},
    ]
    first = core.ToolCall(id="c1", name="f1", arguments={"b": 1, "a": 2})
    assert (await prompt(input=items)).messages == (
        core.Message(role="user", content="x"),
        core.Message(
            role="assistant",
            content="Let me see.\nAnd",
            thinking="hm",
            tool_calls=(first, core.ToolCall(id="c2", name="f2", index=1)),
        ),
        core.Message(role="tool", content="one", tool_call_id="c1", tool_name="f1"),
        core.Message(role="tool", content="two", tool_call_id="c2", tool_name="f2"),
        core.Message(
            role="assistant", thinking="so", tool_calls=(core.ToolCall(id="c3", name="f3"),)
        ),
        core.Message(role="tool", tool_call_id="c3", tool_name="f3"),
        core.Message(role="assistant"),
    )


@pytest.mark.contract("openai.responses-input")
async def test_later_thinking_between_calls_replaces_earlier_thinking() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "encrypted_content": "first"},
        call(1),
        {"type": "reasoning", "encrypted_content": "second"},
        call(2),
        call(3),
    ]
    [message] = (await prompt(input=items)).messages
    assert message.thinking == "second"
    assert [(said.id, said.index) for said in message.tool_calls] == [
        ("c1", 0),
        ("c2", 1),
        ("c3", 2),
    ]


async def test_many_calls_in_a_row_are_each_copied_a_few_times_at_most() -> None:
    """The test counts created objects; it measures no time."""
    n_calls, made = 300, 0

    class Counted(core.ToolCall):
        def __init__(self, **fields: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(**fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "ToolCall", Counted)
        [message] = (await prompt(input=[call(n) for n in range(n_calls)])).messages
    assert len(message.tool_calls) == n_calls
    assert n_calls <= made <= 3 * n_calls


async def test_reasoning_at_the_end_becomes_a_message() -> None:
    items = [{"role": "user", "content": "x"}, {"type": "reasoning", "encrypted_content": "hm"}]
    assert (await prompt(input=items)).messages[-1] == core.Message(role="assistant", thinking="hm")


async def test_two_answers_in_a_row_stay_two() -> None:
    items = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert [message.content for message in (await prompt(input=items)).messages] == ["a", "b"]


@pytest.mark.parametrize("sent", [None, "", []])
async def test_without_input_the_model_is_loaded(sent: object) -> None:
    generation = FakeGeneration()
    status, answer = await ask(generation, PATH, body(input=sent))
    assert (status, answer["status"], generation.requests) == (200, "completed", [])
    assert generation.loads[0][0] == "able:latest"
    events = await stream_of(generation, PATH, body(input=sent))
    assert events[-1]["response"]["output"] == answer["output"]


# --------------------------------------------------------------------------- the rest of a body


@pytest.mark.contract("openai.defaults")
async def test_options_are_those_of_ollamas_layer() -> None:
    assert (await asked()).options == {"temperature": 1.0}
    sent = {"temperature": 0.25, "top_p": 0.5, "max_output_tokens": 9}
    assert (await asked(**sent)).options == {
        "temperature": 0.25,
        "top_p": 0.5,
        "num_predict": 9,
    }


@pytest.mark.contract("openai.effort")
@pytest.mark.parametrize(
    "reasoning,think",
    [
        (None, None),
        ({"summary": "auto"}, None),
        ({"effort": "none"}, False),
        ({"effort": "xhigh"}, "max"),
    ],
)
async def test_effort_is_think(reasoning: object, think: object) -> None:
    assert (await asked(reasoning=reasoning)).think == think


SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


@pytest.mark.contract("openai.formats")
@pytest.mark.parametrize(
    "text,grammar",
    [
        (None, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, core.Grammar(kind=core.GrammarKind.JSON)),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
            core.Grammar(kind=core.GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA)),
        ),
    ],
)
async def test_a_format_is_a_grammar(text: object, grammar: core.Grammar | None) -> None:
    assert (await asked(text=text)).grammar == grammar


def function(name: str, **fields: object) -> dict[str, object]:
    return {"type": "function", "name": name, "parameters": SCHEMA, "strict": True} | fields


@pytest.mark.contract("openai.responses-tools")
async def test_functions_are_offered_those_of_a_namespace_under_its_name() -> None:
    members = [
        function("list", description="Lists."),
        function("crm.get"),
        {"type": "custom", "name": "free"},
    ]
    tools = [
        function("add"),
        {"type": "namespace", "name": "crm", "description": "d", "tools": members},
        {"type": "web_search", "search_context_size": "low"},
        {"type": "function", "name": "bare", "parameters": None, "description": None},
    ]
    assert (await prompt(tools=tools)).tools == (
        {"type": "function", "function": {"name": "add", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {"name": "crm.list", "description": "Lists.", "parameters": SCHEMA},
        },
        {"type": "function", "function": {"name": "crm.get", "parameters": SCHEMA}},
        {
            "type": "function",
            "function": {"name": "bare", "parameters": {"type": "object", "properties": {}}},
        },
    )
    assert (await prompt(tools=tools, tool_choice="none")).tools == ()


# --------------------------------------------------------------------------- refusals

FOREIGN_IMAGE = {"type": "input_image", "image_url": "http://x"}


@pytest.mark.contract("openai.responses-refused")
@pytest.mark.parametrize(
    "fields,status,text",
    [
        ({"model": ""}, 400, "model is required"),
        ({"model": "no"}, 404, "model 'no' not found"),
        ({"model": "plain", "reasoning": {"effort": "low"}}, 400, "does not support thinking"),
        ({"reasoning": {"effort": "x"}}, 400, 'invalid reasoning value: "x"'),
        ({"model": "embedder"}, 400, '"embedder" does not support chat'),
        ({"model": "plain", "tools": [function("f")]}, 400, "plain:latest does not support tools"),
        ({"input": 5}, 400, "input must be a string or array: json: cannot unmarshal number"),
        ({"input": ["x"]}, 400, "input[0]: json: cannot unmarshal string into Go value"),
        ({"input": [{}]}, 400, "input[0]: input item missing required 'type' field"),
        (
            {"input": [{"role": "user", "content": "x"}, {"type": "item_reference"}]},
            400,
            'input[1]: unknown input item type: "item_reference"',
        ),
        ({"input": [{"role": "user", "content": 1}]}, 400, "content must be a string or array: "),
        ({"input": [output(1, 1)]}, 400, "input[0]: output must be a string or array: "),
        (
            {"input": [{"role": "user", "content": [{"type": "x"}]}]},
            400,
            "input[0]: content[0]: unknown content type: x",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            400,
            "file inputs are not currently supported",
        ),
        (
            {"input": [{"role": "user", "content": [FOREIGN_IMAGE]}]},
            400,
            "image URLs are not currently supported, please use base64 encoded data instead",
        ),
        ({"input": [call(1, "{")]}, 400, "failed to parse function call arguments: "),
        ({"input": [call(1, "[]")]}, 400, "failed to parse function call arguments: "),
        (
            {"tools": [{"name": 5}]},
            400,
            "json: cannot unmarshal number into Go struct field ResponsesRequest.tools.name of",
        ),
        (
            {"tools": [{"type": "function", "strict": "yes"}]},
            400,
            "cannot unmarshal string into Go struct field ResponsesRequest.tools.strict of",
        ),
        ({"conversation": "conv_1"}, 400, "send the whole conversation as input"),
    ],
)
async def test_refusals(fields: dict[str, object], status: int, text: str) -> None:
    generation = FakeGeneration()
    got, answer = await ask(generation, PATH, body(**fields))
    assert got == status
    assert text in answer["error"].pop("message")
    kind = {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert answer == {"error": {"type": kind, "param": None, "code": None}}
    assert not generation.requests


@pytest.mark.contract("openai.responses-refused")
async def test_nothing_is_stored_to_go_on_from() -> None:
    status, answer = await ask(FakeGeneration(), PATH, body(previous_response_id="resp_1"))
    assert status == 400
    assert answer["error"].pop("message").startswith("Previous response with id 'resp_1' not found")
    assert answer["error"] == {
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }
