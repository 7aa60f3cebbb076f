"""What a model can do, by the contract's rules: pure functions of its metadata and template.

The template that is read is the one that is used: the GGUF's Jinja where it has one, else the Go
template.  The flags of Ollama's built-in parsers play no part, since those models are served with
their own Jinja template here.
"""

from __future__ import annotations

import re
from typing import Final

from specd.store.facts import GgufFacts
from specd.store.manifest import Config

_ACTION: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_FIELD: Final = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)")
_GPT_OSS: Final = frozenset({"gptoss", "gpt-oss"})


def capabilities(
    facts: GgufFacts, config: Config, *, go_template: str | None, has_projector: bool
) -> tuple[str, ...]:
    """In Ollama's words and order, each once."""
    found = ["embedding" if facts.has_pooling else "completion"]
    if facts.has_vision or has_projector:
        found.append("vision")
    if facts.has_audio:
        found.append("audio")
    found += _of_template(facts.chat_template, go_template)
    if config.model_family in _GPT_OSS or facts.architecture in _GPT_OSS:
        found.append("thinking")
    return tuple(dict.fromkeys([*found, *(config.capabilities or ())]))


def _of_template(jinja: str | None, go_template: str | None) -> list[str]:
    variables = go_variables(go_template or "")
    found = []
    if jinja is not None:
        if "tools" in jinja or "tool_call" in jinja:
            found.append("tools")
        if "<think>" in jinja and "</think>" in jinja:
            found.append("thinking")
    else:
        found += [name for name in ("tools", "thinking") if name in variables]
    # Infill is written in Go templates alone, whichever serves the chat.
    if "suffix" in variables:
        found.append("insert")
    return found


def go_variables(template: str) -> frozenset[str]:
    """The fields that a Go template's actions name, in lower case."""
    return frozenset(
        field.lower() for action in _ACTION.findall(template) for field in _FIELD.findall(action)
    )
