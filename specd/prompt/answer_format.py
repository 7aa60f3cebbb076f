"""The format of a model's answers: thinking tags and tool calls."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specd import core
from specd.go_template import analysis
from specd.prompt.reasoning import ReasoningParser, is_open
from specd.prompt.tools import HarmonyParser, ToolFormat, ToolParser, Tools, formats, harmony
from specd.prompt.tools.parser import random_call_id

#: The opening thinking tag by parser name, for templates that do not contain it.
_OPEN_TAGS = {
    "ministral": "[THINK]",
    "gemma4": "<|channel>thought",
    "cohere": "<|START_THINKING|>",
}
# Mistral's templates reject tool call ids of any other length.
_NINE_CHARACTERS = re.compile(r"length\s*!=\s*9")


class AnswerParser(Protocol):
    """Streaming parser: feed it raw text in any pieces, then call `finish` once."""

    def feed(self, text: str) -> core.Delta:
        """Return what can be parsed by now; hold back text that may be part of a tag or call."""

    def finish(self) -> core.Delta:
        """Return the text that was held back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How to parse the answers of one request.

    tags: around thinking; None if the model cannot think.  is_thinking: thinking is requested.
    tools: the request's tools; calls are parsed only if there are any.
    calls: formats in which the model writes calls.
    harmony: gpt-oss's channels, in place of tags and calls.
    has_short_ids: call ids must have nine characters.
    """

    tags: tuple[str, str] | None = None
    is_thinking: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    calls: tuple[ToolFormat, ...] = ()
    harmony: bool = False
    has_short_ids: bool = False

    @classmethod
    def of(
        cls,
        model: core.ModelRef,
        *,
        tools: Sequence[Mapping[str, object]] = (),
        think: bool | str | None = None,
    ) -> AnswerFormat:
        """Return the format of a model's answers.  think: None means on if the model can."""
        if uses_harmony(model):
            return cls(is_thinking=True, tools=tuple(tools), harmony=True)
        tags, template, go = _tags(model), model.template or "", model.effective_go_template
        tag = None if go is None else analysis.tool_tag(go)
        return cls(
            tags=tags,
            is_thinking=think is not False and tags is not None,
            tools=tuple(tools),
            calls=formats(template, parser=model.parser, tag=tag) if tools else (),
            has_short_ids=bool(_NINE_CHARACTERS.search(template)),
        )

    @property
    def visible(self) -> tuple[str, ...]:
        """The control tokens that the parser needs in the answer's text."""
        if self.harmony:
            return harmony.TOKENS
        found = [*(self.tags or ()), *(token for form in self.calls for token in form.tokens)]
        return tuple(dict.fromkeys(found))

    def parser(
        self, prompt: str, *, new_id: Callable[[], str] | None = None
    ) -> AnswerParser | None:
        """Return the parser for the text after a rendered prompt; None if none is needed."""
        name = new_id or (mistral_call_id if self.has_short_ids else random_call_id)
        known = Tools(self.tools)
        if self.harmony:
            return HarmonyParser.after(prompt, known, new_id=name)
        calls = ToolParser(self.calls, known, new_id=name) if self.tools else None
        # Also without requested thinking: the template may still open the tag, and some models
        # (LFM2, Ministral) open it themselves.
        if self.tags is None:
            return calls
        thinking = ReasoningParser.after(prompt, open_tag=self.tags[0], close_tag=self.tags[1])
        return thinking if calls is None else ThinkingThenCalls(thinking, calls)

    def thinking_tags(self, prompt: str) -> tuple[str, str] | None:
        """Return the tags around thinking after this prompt; None if it cannot think there.

        The first tag is empty if the prompt has already opened it.
        """
        if self.harmony:
            opened = harmony.open_message(prompt)
            return None if opened and opened.channel == "final" else ("", harmony.FINAL)
        if self.tags is None:
            return None
        if is_open(prompt, self.tags[0]):
            return ("", self.tags[1])
        return self.tags if self.is_thinking else None


class ThinkingThenCalls:
    """Parser of thinking, then of tool calls in the text after it.

    Calls inside thinking do not count, except at the end of thinking that was never closed.
    """

    def __init__(self, thinking: ReasoningParser, calls: ToolParser) -> None:
        self._thinking = thinking
        self._calls = calls
        self._thoughts: list[str] = []

    def feed(self, text: str) -> core.Delta:
        return self._parse_calls(self._thinking.feed(text))

    def finish(self) -> core.Delta:
        last = self._parse_calls(self._thinking.finish())
        if self._thinking.is_unclosed:
            return replace(last, tool_calls=self._calls.trailing_calls("".join(self._thoughts)))
        end = self._calls.finish()
        content, found = last.content + end.content, last.tool_calls + end.tool_calls
        return replace(last, content=content, tool_calls=found)

    def _parse_calls(self, delta: core.Delta) -> core.Delta:
        self._thoughts.append(delta.thinking)
        called = self._calls.feed(delta.content) if delta.content else core.Delta()
        return replace(called, thinking=delta.thinking)


def uses_harmony(model: core.ModelRef) -> bool:
    """Return whether it is gpt-oss or its template writes messages on channels."""
    template = model.template or ""
    marks = (harmony.START, harmony.CHANNEL, harmony.MESSAGE)
    if model.parser == core.HARMONY or all(mark in template for mark in marks):
        return True
    return bool(core.GPT_OSS & {model.family, model.architecture}) and harmony.START in template


def mistral_call_id() -> str:
    """Return a random call id of nine characters, as Mistral's templates require."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def _tags(model: core.ModelRef) -> tuple[str, str] | None:
    """Return the thinking tags, by the template, else by the parser's name; None without any."""
    if (go := model.effective_go_template) is not None and (found := analysis.thinking_tags(go)):
        return found
    if found := core.thinking_tags(model.template or ""):
        return found
    if (opening := _OPEN_TAGS.get(model.parser)) is not None:
        return opening, dict(core.THINKING_TAGS)[opening]
    return core.THINKING_TAGS[0] if "thinking" in model.capabilities else None
