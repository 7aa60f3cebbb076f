"""Chats made over for templates that ask for more order than clients keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specd.core import Message


def merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of one role, tools excepted, become one message."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1].role == message.role != "tool":
            last = found[-1]
            found[-1] = replace(
                last,
                content=f"{last.content}\n\n{message.content}",
                thinking="\n\n".join(filter(None, (last.thinking, message.thinking))),
                images=last.images + message.images,
                tool_calls=last.tool_calls + message.tool_calls,
            )
        else:
            found.append(message)
    return found


def linked(messages: Sequence[Message]) -> list[Message]:
    """Every call has an id, and every result the id and the name of its call, where it has one.

    Many clients leave them out: then results answer the calls of their name, in order.
    """
    found: list[Message] = []
    waiting: list[tuple[str, str]] = []  # id and name of the calls without a result
    n_calls = 0
    for message in messages:
        calls = []
        for call in message.tool_calls:
            n_calls += 1
            # Nine letters and digits: what the strictest templates ask for.
            calls.append(replace(call, id=call.id or f"call{n_calls:05d}"))
        waiting += [(call.id, call.name) for call in calls]
        result = replace(message, tool_calls=tuple(calls)) if calls else message
        if message.role == "tool" and (answered := _answered(message, waiting)):
            waiting.remove(answered)
            result = replace(message, tool_call_id=answered[0], tool_name=answered[1])
        found.append(result)
    return found


def orderly(messages: Sequence[Message]) -> list[Message]:
    """For the strictest templates: one system text, in front; roles that take turns; short ids."""
    systems = [message.content for message in messages if message.role == "system"]
    opening = [Message(role="system", content="\n\n".join(systems))] if systems else []
    others = [_without_ids(message) for message in messages if message.role != "system"]
    return linked([*opening, *merged(others)])


def _answered(result: Message, waiting: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    def fits(call: tuple[str, str]) -> bool:
        if result.tool_call_id:
            return call[0] == result.tool_call_id
        return not result.tool_name or call[1] == result.tool_name

    return next(filter(fits, waiting), None)


def _without_ids(message: Message) -> Message:
    calls = tuple(replace(call, id="") for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id="")
