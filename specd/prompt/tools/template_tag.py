"""Calls after the tag that a Go template shows: a tool's name and JSON with its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.call import arguments_of, decode_json
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    expect,
    json_text,
    match_literal,
    skip_closing_tag,
    skip_space,
)

#: Maximum characters between a tag and its JSON: a name and some punctuation.
_MAX_BEFORE_JSON = 256


@dataclass(frozen=True, slots=True)
class TemplateTag:
    """Calls after a tag.  tag: from the template; `{` and `[` count only at the answer's start."""

    tag: str

    @classmethod
    def of(cls, tag: str) -> TemplateTag:
        """The tag without a list's bracket, which many models omit."""
        return cls(tag.removesuffix("[").rstrip() or tag)

    @property
    def openers(self) -> tuple[str, ...]:
        return (self.tag,)

    @property
    def is_only_leading(self) -> bool:
        return self.tag in {"{", "["}

    @property
    def tokens(self) -> tuple[str, ...]:
        return () if self.is_only_leading else (self.tag, *self._closers)

    @property
    def _closers(self) -> tuple[str, ...]:
        """Return the closing tag: </x> for <x>, <|/x|> for <|x|>, [/x] for [x], or a fence."""
        if "```" in self.tag:
            return ("```",)
        for left, right in (("<|", "|>"), ("<", ">"), ("[", "]")):
            if self.tag.startswith(left) and self.tag.endswith(right) and not self.is_only_leading:
                return (f"{left}/{self.tag[len(left) :]}",)
        return ()

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        if not self.is_only_leading:
            yield from expect(source, self.tag)
        calls = [(yield from _call(source, tools))]
        while True:
            begin = source.at
            try:
                yield from skip_space(source)
                yield from match_literal(source, ",", ";")
                calls.append((yield from _call(source, tools)))
            except NotAToolCall:
                source.at = begin
                break
        yield from skip_closing_tag(source, "]")
        yield from skip_closing_tag(source, *self._closers)
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
    said = payload.get("name")
    known = [said] if isinstance(said, str) and said in tools.names else []
    name = max(known or [x for x in tools.names if x in before + text], key=len, default="")
    if not name:
        raise NotAToolCall
    for key in ("arguments", "parameters", name):
        if key in payload:
            return ToolCall(name=name, arguments=arguments_of(payload[key]))
    return ToolCall(name=name, arguments={} if known else payload)
