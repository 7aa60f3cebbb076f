"""Analysis of a Go template by Ollama's rules: capabilities, thinking tags and the tool call tag.

All functions take a template's text; one that does not parse counts as empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from specd.errors import GoTemplateError
from specd.go_template import nodes
from specd.go_template.template import Template, names, parse

_TOOL_RESULTS = ('eq .Role "tool"', "tool_response", "TOOL_RESULTS")


def variables(text: str) -> frozenset[str]:
    """Return the names of the fields that the template uses, in lower case."""
    return _parsed(text).variables


@lru_cache(maxsize=1024)
def capabilities(text: str) -> tuple[str, ...]:
    """Return which of tools, insert and thinking the template supports, in this order."""
    used = variables(text)
    found = [
        ("tools", "tools" in used),
        ("insert", "suffix" in used),
        ("thinking", thinking_tags(text) is not None),
    ]
    return tuple(name for name, has in found if has)


@lru_cache(maxsize=1024)
def has_tool_round_trip(text: str) -> bool:
    """Return whether the template renders tools, tool calls and their results."""
    return {"tools", "toolcalls"} <= variables(text) and any(mark in text for mark in _TOOL_RESULTS)


def thinking_tags(text: str) -> tuple[str, str] | None:
    """Return the texts around a message's `.Thinking`; None if there is no such pair."""
    first = last = ""
    for block in _blocks_with_thinking(_parsed(text).body, in_messages=False):
        if isinstance(block[0], nodes.Text):
            first = block[0].text.strip()
        if isinstance(block[-1], nodes.Text):
            last = block[-1].text.strip()
    return (first, last) if first and last else None


def tool_tag(text: str) -> str:
    """Return the text before a message's tool calls; `{` if the template has none."""
    calls = _if_tool_calls(_parsed(text).body)
    shown = None if calls is None else _first_text(calls.body)
    tag = "" if shown is None else shown.text.strip().replace("\r\n", "\n").partition("{")[0]
    return tag.strip() or "{"


def _parsed(text: str) -> Template:
    try:
        return parse(text)
    except GoTemplateError:
        return parse("")


def _blocks_with_thinking(block: nodes.Block, *, in_messages: bool) -> Iterator[nodes.Block]:
    """Yield the statement list around each `.Thinking` in a range over the messages."""
    for node in block:
        if isinstance(node, nodes.Text | nodes.Break | nodes.Continue) or node.pipe is None:
            continue
        inside = _ranges_messages(node) if isinstance(node, nodes.Range) else in_messages
        if inside:
            yield from (block for field in node.pipe.fields() if field.names[0] == "Thinking")
        if isinstance(node, nodes.Branch):
            yield from _blocks_with_thinking(node.body, in_messages=inside)
            yield from _blocks_with_thinking(node.else_body or (), in_messages=inside)


def _ranges_messages(node: nodes.Range) -> bool:
    return any(field.names[0] == "Messages" for field in node.pipe.fields())


def _if_tool_calls(block: nodes.Block) -> nodes.If | None:
    """Return the first `if` at any depth that tests for a message's tool calls."""
    for node in block:
        if isinstance(node, nodes.If) and "ToolCalls" in names(node.pipe):
            return node
        if isinstance(node, nodes.Branch):
            for inner in (node.body, node.else_body or ()):
                if (found := _if_tool_calls(inner)) is not None:
                    return found
    return None


def _first_text(block: nodes.Block) -> nodes.Text | None:
    """Return the first text that is not blank, before any action prints."""
    for node in block:
        match node:
            case nodes.Text() if node.text.strip():
                return node
            case nodes.If() | nodes.With() | nodes.Range():
                return _first_text(node.body) or _first_text(node.else_body or ())
            case nodes.Action() if not node.pipe.declared:
                return None
    return None
