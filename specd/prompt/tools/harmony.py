"""Parser of gpt-oss messages: `analysis` is thinking, and a message with a recipient is a call.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from specd.core import Delta, ToolCall
from specd.prompt.tools.call import arguments_of
from specd.prompt.tools.parser import StreamParser, random_call_id
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import (
    NotAToolCall,
    Reading,
    TextStream,
    any_of,
    match_literal,
    partial_tag_length,
    read_until,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
TOKENS = ("<|constrain|>", MESSAGE, *_ENDS)

#: The text between thinking and answer, which a grammar must allow.
FINAL = CHANNEL + "final" + MESSAGE

_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"(?:^|\s|>)to=([^\s<]+)")
_NO_IDENTIFIER = re.compile(r"\W")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a message.  channel: "" if it has none."""

    channel: str = ""
    recipient: str = ""

    @classmethod
    def of(cls, text: str) -> Header:
        channel, recipient = _CHANNEL_NAME.search(text), _RECIPIENT.search(text)
        name = recipient[1].removeprefix("functions.") if recipient else ""
        return cls(channel[1] if channel else "", "" if name in {"user", "all"} else name)


class HarmonyParser(StreamParser):
    """Streaming parser of gpt-oss answers.

    inside: the header of the message that the prompt has opened, if any.
    """

    def __init__(
        self,
        tools: Tools,
        *,
        inside: Header | None = None,
        new_id: Callable[[], str] = random_call_id,
    ) -> None:
        super().__init__(tools, new_id)
        self._inside = inside
        self._content = self._thinking = ""

    @classmethod
    def after(
        cls, prompt: str, tools: Tools, *, new_id: Callable[[], str] = random_call_id
    ) -> HarmonyParser:
        return cls(tools, inside=open_message(prompt), new_id=new_id)

    def _take_text(self) -> Delta:
        delta = Delta(content=self._content, thinking=self._thinking)
        self._content = self._thinking = ""
        return delta

    def _read(self) -> Reading[None]:
        source, header = self._source, self._inside
        while True:
            if header is None:
                header = yield from _header(source)
            if header.recipient and self._tools.names:
                yield from self._call(header)
            else:
                yield from self._message(header)
            if source.ended and source.exhausted:
                return
            header = None

    def _message(self, header: Header) -> Reading[None]:
        """Emit a message's text as it arrives, up to its end."""
        source = self._source
        while True:
            mark = any_of(_ENDS).search(source.text, source.at)
            end = mark.start() if mark else len(source.text)
            if not mark and not source.ended:
                end -= max(partial_tag_length(source.text[source.at :], x) for x in _ENDS)
            text = source.text[source.at : end]
            if header.channel == "analysis" and not header.recipient:
                self._thinking += text
            else:
                self._content += text
            source.at = end
            source.drop_read()
            if mark or source.ended:
                return
            yield

    def _call(self, header: Header) -> Reading[None]:
        source = self._source
        source.drop_read()
        try:
            text, mark = yield from read_until(source, *_ENDS)
            source.at -= len(mark)
        except NotAToolCall:
            # The token after a call also ends the answer; it has no text then.
            text, source.at = source.text, len(source.text)
        try:
            call = ToolCall(name=self._name(header.recipient), arguments=arguments_of(text))
        except NotAToolCall:
            self._content += text
        else:
            self._calls.append(self._numbering.numbered(call))
        source.drop_read()

    def _name(self, recipient: str) -> str:
        """Return the tool that is meant; its name may have been changed to an identifier."""
        names = self._tools.names
        if recipient in names:
            return recipient
        return next((x for x in names if _NO_IDENTIFIER.sub("_", x) == recipient), recipient)


def open_message(prompt: str) -> Header | None:
    """Return the header at the end of a prompt whose message the answer continues."""
    if not prompt.endswith(MESSAGE):
        return None
    return Header.of(prompt.rpartition(START)[2])


def _header(source: TextStream) -> Reading[Header]:
    """Read a header to its end; other text is an answer without a header."""
    while (yield from match_literal(source, "<|end|>", "<|call|>", "<|return|>")):
        pass
    begin = source.at
    if not (
        yield from match_literal(
            source, START, CHANNEL, MESSAGE, "<|constrain|>", "assistant", " to="
        )
    ):
        return Header()
    source.at = begin
    try:
        text, _ = yield from read_until(source, MESSAGE)
    except NotAToolCall:
        # The answer ends within a header, which has no content.
        source.at = len(source.text)
        return Header()
    return Header.of(text)
