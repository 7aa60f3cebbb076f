"""The `openai` npm package against the daemon; its stream helper checks the order of events."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from typing import Any

import pytest
import pytest_asyncio

from tests.clients.environments import (
    OPENAI_NODE_VERSION,
    PROGRAMS,
    node_environment,
    run_program,
)
from tests.daemon_process import running
from tests.gguf_files import OllamaStore
from tests.scripted_model import write_scripted_model

pytestmark = [
    pytest.mark.native,
    pytest.mark.contract("clients.openai-js", "openai.responses-stream"),
    pytest.mark.timeout(600),  # the first one waits for the environment to be made
]

SAID = "It is sunny in Paris."
THOUGHT = "Let me see."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
#: What the user asks → the cue at the end of the prompt, and what the model says after it.
CUES = {
    "text": ("A", SAID),
    "thought": ("T", f"<think>{THOUGHT}</think>{SAID}"),
    "called": ("C", f"<think>{THOUGHT}</think>And {CALL}"),
    "at once": ("N", CALL),
    "silent": ("S", f"<think>{THOUGHT}</think>"),
}
TEMPLATE = (
    "{%- for message in messages -%}<|{{ message.role }}|>{{ message.content }}{%- endfor -%}"
    "{%- if tools -%}<tool_call></tool_call>{%- endif -%}"
    "{#- <think></think> -#}"
    + "".join(
        f"{{%- if messages[-1].content == '{word}' -%}}{cue}{{%- endif -%}}"
        for word, (cue, _) in CUES.items()
    )
)
TOOL = {
    "type": "function",
    "name": "get_weather",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
#: What one item of each kind sends, deltas as one.
COURSES = {
    "reasoning": [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ],
    "message": [
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ],
    "function_call": [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the client's report of each word, by word."""
    folder = await asyncio.to_thread(node_environment, OPENAI_NODE_VERSION)
    if folder is None:
        pytest.skip(f"no npm or no Node.js {OPENAI_NODE_VERSION} on this machine")
    tmp_path = tmp_path_factory.mktemp("openai-js")
    weights = write_scripted_model(tmp_path / "speaker.gguf", dict(CUES.values()), TEMPLATE)
    OllamaStore(tmp_path / "models").add("speaker", weights=weights)
    program = str(shutil.copy(PROGRAMS / "openai_js.mjs", folder))  # imports packages of its folder
    asked = {
        word: {
            "model": "speaker",
            "input": word,
            "tools": [TOOL] if "<tool_call>" in script else [],
        }
        for word, (_, script) in CUES.items()
    }
    given = json.dumps(asked).encode()
    async with running(tmp_path) as daemon:
        return await run_program("node", program, daemon.url, home=tmp_path, given=given)


@pytest.mark.parametrize(
    "word, items",
    [
        ("text", ["message"]),
        ("thought", ["reasoning", "message"]),
        ("called", ["reasoning", "message", "function_call"]),
        ("at once", ["function_call"]),
        ("silent", ["reasoning", "message"]),
    ],
)
def test_a_streamed_response_equals_the_whole_one(
    reports: dict[str, Any], word: str, items: list[str]
) -> None:
    report = reports[word]
    assert "error" not in report, report["error"]
    streamed, whole = report["streamed"], report["whole"]
    assert [item["type"] for item in whole["output"]] == items
    assert [text_of(item) for item in streamed["output"]] == [
        text_of(item) for item in whole["output"]
    ]
    assert streamed["output_text"] == whole["output_text"]
    if "reasoning" in items:
        assert text_of(whole["output"][0]) == THOUGHT
    events = [event.removeprefix("response.") for event in report["events"]]
    # A run of deltas counts once, because their number depends on the model.
    course = [name for name, _ in itertools.groupby(events)]
    expected = [name for item in items for name in COURSES[item]]
    if word == "silent":
        expected.remove("output_text.delta")
    assert course == ["created", "in_progress", *expected, "completed"]


def text_of(item: dict[str, Any]) -> str:
    match item["type"]:
        case "reasoning":
            return str(item["summary"][0]["text"])
        case "message":
            return str(item["content"][0]["text"])
        case _:
            return f"{item['name']} {item['arguments']}"
