"""Mistral's calls: `[TOOL_CALLS]` before a list of objects, or before each name and `[ARGS]`."""

from __future__ import annotations

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, calls_of, read_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    expect_after_space,
    read_until,
    read_word,
    skip_space,
    starts_json,
)
from specd.prompt.tools.tool_format import ToolFormat


def _read(source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG001
    """Read `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`; the id and `[ARGS]` are optional."""
    yield from expect(source, *MISTRAL.openers)
    yield from skip_space(source)
    if (yield from starts_json(source)):
        return calls_of((yield from read_json(source)))
    name, call_id = (yield from read_word(source)), ""
    if (yield from expect_after_space(source, "[CALL_ID]", "[ARGS]", "{")) == "[CALL_ID]":
        call_id, _ = yield from read_until(source, "[ARGS]")
    if source.text[source.at - 1] == "{":
        source.at -= 1
    yield from skip_space(source)
    arguments = arguments_of((yield from read_json(source)))
    return [ToolCall(name=name, arguments=arguments, id=call_id.strip())]


MISTRAL = ToolFormat(("[TOOL_CALLS]",), _read, tokens=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"))
