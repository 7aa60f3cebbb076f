"""Calls as JSON between tags: Hermes, Qwen, Granite, Phi, Nemotron, Command, FireFunction, ..."""

from __future__ import annotations

from functools import partial

from specd.core import ToolCall
from specd.prompt.tools.call import calls_of, read_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    Reading,
    TextStream,
    expect,
    skip_closing_tag,
    skip_space,
    starts_json,
)
from specd.prompt.tools.tool_format import ToolFormat

#: Opening and closing tags of calls; "" for no closing tag.
PAIRS = {
    "<tool_call>": "</tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<function_call>": "</function_call>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "functools": "",
}


def _read(opener: str, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:  # noqa: ARG001
    """Read a call, a list of calls, or several of them, up to the closing tag if there is one."""
    yield from expect(source, opener)
    calls: list[ToolCall] = []
    while True:
        yield from skip_space(source)
        if calls and not (yield from starts_json(source)):
            break
        calls += calls_of((yield from read_json(source)))
    if close := PAIRS[opener]:
        yield from skip_closing_tag(source, close)
    return calls


#: The formats by opening tag.
TAGGED_JSON = {
    tag: ToolFormat((tag,), partial(_read, tag), tokens=(tag, close) if close else (tag,))
    for tag, close in PAIRS.items()
}
