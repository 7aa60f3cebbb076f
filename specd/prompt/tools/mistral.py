"""Mistral: `[TOOL_CALLS]` before a list of objects, or before each name with its `[ARGS]`."""

from __future__ import annotations

from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, calls_of, decoded
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.source import (
    Reading,
    Source,
    expect,
    json_text,
    more_json,
    skip_space,
    until,
    word,
)


@dataclass(frozen=True, slots=True)
class Mistral:
    """`[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, often without id, now and then without `[ARGS]`."""

    openers: tuple[str, ...] = ("[TOOL_CALLS]",)
    leading: bool = False
    tokens: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def read(self, source: Source, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG002
        yield from expect(source, *self.openers)
        yield from skip_space(source)
        if (yield from more_json(source)):
            return calls_of(decoded((yield from json_text(source))))
        name, call_id = (yield from word(source)), ""
        yield from skip_space(source)
        if (yield from expect(source, "[CALL_ID]", "[ARGS]", "{")) == "[CALL_ID]":
            call_id, _ = yield from until(source, "[ARGS]")
        if source.text[source.at - 1] == "{":
            source.at -= 1
        yield from skip_space(source)
        arguments = arguments_of(decoded((yield from json_text(source))))
        return [ToolCall(name=name, arguments=arguments, id=call_id.strip())]
