"""The interface of a tool call format; each family implements it in its own file."""

from __future__ import annotations

from typing import Protocol

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import Reading, TextStream


class ToolFormat(Protocol):
    """Format of tool calls; immutable, so that all requests share it."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Texts that begin calls; none is a part of another."""

    @property
    def is_only_leading(self) -> bool:
        """Whether an opener counts only with nothing but white space before it."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """Possible control tokens that the parser needs to see."""

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        """Read from an opener to its end; return at least one call.  Raises NotAToolCall.

        Ids are "" if the model wrote none; every index is 0.
        """
