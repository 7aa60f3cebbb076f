"""How a model writes its answers: where it thinks, how it calls tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specd import core
from specd.prompt.reasoning import CLOSE_TAG, OPEN_TAG, ReasoningParser


class AnswerParser(Protocol):
    """Feed it pieces of raw text in order, then `finish` once; any split parses the same."""

    def feed(self, text: str) -> core.Delta:
        """What can be told apart by now; what may be part of a tag or a call is held back."""

    def finish(self) -> core.Delta:
        """What was held back, now that nothing can complete it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """visible: control tokens that the parser must see in the answer's text.

    thinks: whether the answer may begin with thinking.
    """

    visible: tuple[str, ...] = ()
    thinks: bool = False

    @classmethod
    def of(
        cls,
        model: core.ModelRef,
        *,
        tools: Sequence[Mapping[str, object]] = (),  # noqa: ARG003
        think: bool | str | None = None,
    ) -> AnswerFormat:
        """think: None is on where the model can."""
        return cls(thinks=think is not False and "thinking" in model.capabilities)

    def parser(self, prompt: str) -> AnswerParser | None:
        """For what follows a rendered prompt; None where there is nothing to tell apart."""
        return ReasoningParser.after(prompt) if self.thinks else None

    def thinking_tags(self, prompt: str) -> tuple[str, str] | None:
        """The tags around what may be thought; an empty first one was opened by the prompt."""
        if not self.thinks:
            return None
        inside = prompt.rstrip().endswith(OPEN_TAG)
        return ("" if inside else OPEN_TAG), CLOSE_TAG
