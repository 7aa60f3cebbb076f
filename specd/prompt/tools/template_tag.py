"""Calls after the tag that a Go template shows: a tool's name and JSON with its arguments."""

from __future__ import annotations

from functools import partial

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    json_text,
    match_after_space,
    match_literal,
    skip_closing_tag,
)
from specd.prompt.tools.tool_format import ToolFormat

#: Maximum characters between a tag and its JSON: a name and some punctuation.
_MAX_BEFORE_JSON = 256


def template_tag(tag: str) -> ToolFormat:
    """Return the format for a template's tag; `{` and `[` count only at the answer's start."""
    tag = tag.removesuffix("[").rstrip() or tag  # many models omit a list's bracket
    if tag in {"{", "["}:
        return ToolFormat((tag,), partial(_read, "", ""), is_only_leading=True)
    close = _closing_tag(tag)
    tokens = (tag, close) if close else (tag,)
    return ToolFormat((tag,), partial(_read, tag, close), tokens=tokens)


def _closing_tag(tag: str) -> str:
    """Return </x> for <x>, <|/x|> for <|x|>, [/x] for [x], a fence for a fence, else ""."""
    if "```" in tag:
        return "```"
    for left, right in (("<|", "|>"), ("<", ">"), ("[", "]")):
        if tag.startswith(left) and tag.endswith(right):
            return f"{left}/{tag[len(left) :]}"
    return ""


def _read(tag: str, close: str, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
    yield from match_literal(source, tag)
    calls = [(yield from _call(source, tools))]
    while True:
        begin = source.at
        try:
            yield from match_after_space(source, ",", ";")
            calls.append((yield from _call(source, tools)))
        except NotAToolCall:
            source.at = begin
            break
    yield from skip_closing_tag(source, "]")
    if close:
        yield from skip_closing_tag(source, close)
    return calls


def _call(source: TextStream, tools: Tools) -> Reading[ToolCall]:
    begin = source.at
    while (brace := source.text.find("{", begin, begin + _MAX_BEFORE_JSON)) < 0:
        if source.ended or len(source.text) >= begin + _MAX_BEFORE_JSON:
            raise NotAToolCall
        yield
    source.at = brace
    text = yield from json_text(source)
    payload = decode_json(text)
    assert isinstance(payload, dict)
    return _named(payload, source.text[begin:brace], text, tools)


def _named(payload: dict[str, object], before: str, text: str, tools: Tools) -> ToolCall:
    given = payload.get("name")
    known = [given] if isinstance(given, str) and given in tools.names else []
    name = max(known or [x for x in tools.names if x in before + text], key=len, default="")
    if not name:
        raise NotAToolCall
    for key in ("arguments", "parameters", name):
        if key in payload:
            return ToolCall(name=name, arguments=arguments_of(payload[key]))
    return ToolCall(name=name, arguments={} if known else payload)
