"""Rendering of Go templates with Ollama's variables, in one of three ways.

A template that uses `.Messages` gets the whole chat.  Any other runs once per turn, and for the
last turn only up to `.Response`.  With a suffix, a template renders the text around a gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from specd.core import Message
from specd.go_template import Budget, Template, nodes, parse
from specd.prompt.go_values import go_messages, go_tools
from specd.prompt.message_order import merge_messages


@dataclass(frozen=True, slots=True)
class Thinking:
    """A template's variables for `think`.

    level: low, medium, high or max; "" if off.  is_set: `think` was requested or is supported.
    """

    is_on: bool = False
    level: str = ""
    is_set: bool = False

    @classmethod
    def of(cls, think: bool | str | None, *, can_think: bool) -> Thinking:
        """Return the variables for a request.  think: None means on if the model can."""
        if think is None:
            think = True if can_think else None
        if isinstance(think, str):
            return cls(is_on=True, level=think, is_set=True)
        return cls(is_on=bool(think), level="medium" if think else "", is_set=think is not None)

    @property
    def values(self) -> dict[str, object]:
        return {"Think": self.is_on, "ThinkLevel": self.level, "IsThinkSet": self.is_set}


def go_chat(
    text: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] = (),
    thinking: Thinking,
) -> str:
    """Return the prompt for a conversation.  Raises GoTemplateError."""
    template, turns = _with_response(text), merge_messages(messages)
    if "messages" not in template.variables:
        return _render_turns(template, turns, thinking)
    system = "\n\n".join(turn.content for turn in messages if turn.role == "system")
    return template.render(
        {
            "System": system,
            "Messages": go_messages(turns),
            "Tools": go_tools(tools),
            "Response": "",
            **thinking.values,
        }
    )


def go_infill(text: str, before: str, after: str, thinking: Thinking) -> str:
    """Return the prompt for the text between `before` and `after`.  Raises GoTemplateError."""
    gap = {"Prompt": before, "Suffix": after, "Response": ""}
    return _with_response(text).render(gap | thinking.values)


def _render_turns(template: Template, turns: Sequence[Message], thinking: Thinking) -> str:
    out: list[str] = []
    values = {"System": "", "Prompt": "", "Response": ""}
    budget = Budget()  # one for all turns of the chat

    def finish(run: Template) -> None:
        out.append(run.render({**values, **thinking.values}, budget))
        values.update(System="", Prompt="", Response="")

    for turn in turns:
        match turn.role:
            case "system":
                if values["Prompt"] or values["Response"]:
                    finish(template)
                values["System"] = turn.content
            case "user":
                if values["Response"]:
                    finish(template)
                values["Prompt"] = turn.content
            case "assistant":
                values["Response"] = turn.content
    # The text after the response is only for complete turns.
    finish(template.with_body(_until_response(template.body)[0]))
    return "".join(out)


@lru_cache(maxsize=128)
def _with_response(text: str) -> Template:
    """Parse a template; append `.Response` if it uses neither messages nor the response."""
    template = parse(text)
    if template.variables & {"messages", "response"}:
        return template
    return template.with_body((*template.body, *parse("{{ .Response }}").body))


def _until_response(block: nodes.Block) -> tuple[nodes.Block, bool]:
    """Return the statements up to the first that prints `.Response`, and whether one does."""
    found: list[nodes.Statement] = []
    for node in block:
        match node:
            case nodes.Action():
                found.append(node)
                if any("Response" in field.names for field in node.pipe.fields()):
                    return tuple(found), True
            case nodes.If() | nodes.With() | nodes.Range():
                body, is_cut = _until_response(node.body)
                else_body = node.else_body
                if else_body is not None and not is_cut:
                    else_body, is_cut = _until_response(else_body)
                found.append(replace(node, body=body, else_body=else_body))
                if is_cut:
                    return tuple(found), True
            case _:
                found.append(node)
    return tuple(found), False
