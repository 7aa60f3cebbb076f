"""What the families have in common: one file each, and this Protocol beside them."""

from __future__ import annotations

from typing import Protocol

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import Reading, TextStream


class ToolFormat(Protocol):
    """One way to write calls down; frozen, so that one serves all requests."""

    @property
    def openers(self) -> tuple[str, ...]:
        """Each begins calls; none is a part of another."""

    @property
    def is_only_leading(self) -> bool:
        """Whether an opener counts only where nothing was said before it but space."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """What may be control tokens in a vocabulary, and must be seen for all that."""

    def read(self, source: TextStream, tools: Tools) -> Reading[list[ToolCall]]:
        """From an opener to the end of what it opened; at least one call.  Raises NotAToolCall.

        ids are "" where the model wrote none; every index is 0.
        """
