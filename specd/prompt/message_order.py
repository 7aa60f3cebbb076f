"""Normalization of chats for templates that expect a stricter order than clients send."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from specd.core import Message, ToolCall


def merge_messages(messages: Sequence[Message]) -> list[Message]:
    """Merge consecutive messages of the same role, except tool results."""
    found: list[Message] = []
    for role, turns in groupby(messages, key=attrgetter("role")):
        run = list(turns)
        found += run if role == "tool" or len(run) == 1 else [_joined(run)]
    return found


def _joined(turns: Sequence[Message]) -> Message:
    return replace(
        turns[0],
        content="\n\n".join(turn.content for turn in turns),
        thinking="\n\n".join(turn.thinking for turn in turns if turn.thinking),
        images=tuple(image for turn in turns for image in turn.images),
        tool_calls=tuple(call for turn in turns for call in turn.tool_calls),
    )


def link_tool_results(messages: Sequence[Message]) -> list[Message]:
    """Give every call an id, and every result the id and name of its call, if one is found.

    Many clients omit them; results then match calls by name, in order.
    """
    found: list[Message] = []
    waiting = _PendingCalls()
    n_calls = 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            n_calls += 1
            # Nine letters and digits, as the strictest templates require.
            calls.append(replace(call, id=call.id or f"call{n_calls:05d}"))
            waiting.add(calls[-1])
        result = replace(message, tool_calls=tuple(calls)) if calls else message
        if message.role == "tool" and (answered := waiting.take_call_for(message)):
            result = replace(message, tool_call_id=answered.id, tool_name=answered.name)
        found.append(result)
    return found


class _PendingCalls:
    """Calls without a result, oldest first, in queues by id, by name and for all.

    Each call is in three queues; the other two drop it when it reaches their front.
    """

    def __init__(self) -> None:
        self._queues: defaultdict[tuple[str, str], deque[tuple[int, ToolCall]]] = defaultdict(deque)
        self._n_calls = 0
        self._answered: set[int] = set()

    def add(self, call: ToolCall) -> None:
        for key in (("id", call.id), ("name", call.name), ("any", "")):
            self._queues[key].append((self._n_calls, call))
        self._n_calls += 1

    def take_call_for(self, result: Message) -> ToolCall | None:
        """Remove and return the call of a result, by its id, else its name, else the order."""
        key = ("name", result.tool_name) if result.tool_name else ("any", "")
        queue = self._queues[("id", result.tool_call_id) if result.tool_call_id else key]
        while queue:
            number, call = queue.popleft()
            if number not in self._answered:
                self._answered.add(number)
                return call
        return None


def normalize_messages(messages: Sequence[Message]) -> list[Message]:
    """Return the chat for the strictest templates.

    It has one system message at the start, alternating roles and call ids of nine characters.
    """
    systems = [message.content for message in messages if message.role == "system"]
    opening = [Message(role="system", content="\n\n".join(systems))] if systems else []
    others = [_without_ids(message) for message in messages if message.role != "system"]
    return link_tool_results([*opening, *merge_messages(others)])


def _without_ids(message: Message) -> Message:
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id="")
