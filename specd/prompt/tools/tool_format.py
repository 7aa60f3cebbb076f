"""A format of tool calls; each family of models has its own, in its own file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specd.core import ToolCall
from specd.prompt.tools.schema import Tools
from specd.prompt.tools.text_stream import Reading, TextStream


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Format of tool calls; immutable, so that all requests share it.

    openers: texts that begin calls; none is a part of another.
    read: reads from an opener to its end and returns at least one call, else raises NotAToolCall.
    Ids are "" if the model wrote none; every index is 0.
    tokens: possible control tokens that the parser needs to see.
    is_only_leading: an opener counts only with nothing but white space before it.
    """

    openers: tuple[str, ...]
    read: Callable[[TextStream, Tools], Reading[list[ToolCall]]]
    tokens: tuple[str, ...] = ()
    is_only_leading: bool = False
