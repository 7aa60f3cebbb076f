"""Mistral's calls: `[TOOL_CALLS]` before a list of objects, or before each name and `[ARGS]`."""

from __future__ import annotations

from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, calls_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    json_text,
    read_until,
    read_word,
    skip_space,
    starts_json,
)


@dataclass(frozen=True, slots=True)
class Mistral:
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`; the id and `[ARGS]` are optional."""

    openers: tuple[str, ...] = ("[TOOL_CALLS]",)
    is_only_leading: bool = False
    tokens: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG002
        yield from expect(source, *self.openers)
        yield from skip_space(source)
        if (yield from starts_json(source)):
            return calls_of(decode_json((yield from json_text(source))))
        name, call_id = (yield from read_word(source)), ""
        yield from skip_space(source)
        if (yield from expect(source, "[CALL_ID]", "[ARGS]", "{")) == "[CALL_ID]":
            call_id, _ = yield from read_until(source, "[ARGS]")
        if source.text[source.at - 1] == "{":
            source.at -= 1
        yield from skip_space(source)
        arguments = arguments_of(decode_json((yield from json_text(source))))
        return [ToolCall(name=name, arguments=arguments, id=call_id.strip())]
