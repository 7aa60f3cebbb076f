"""Capabilities of a model (Ollama's `capabilities`), derived from its metadata and template.

They follow the template that specd uses.  Ollama's built-in parsers do not count, because specd
serves those models with their own Jinja template; `harmony` is the exception.
"""

from __future__ import annotations

from specd.core import GPT_OSS, HARMONY, Templating
from specd.store import templating
from specd.store.gguf_metadata import GgufMetadata
from specd.store.manifest import Config


def capabilities(
    facts: GgufMetadata,
    config: Config,
    *,
    go_template: str | None,
    chosen: Templating,
    has_projector: bool,
    has_sound: bool = False,
) -> tuple[str, ...]:
    """Return the capabilities in Ollama's words and order, each once.

    has_sound: the projector encodes sounds.
    """
    found = ["embedding" if facts.has_pooling else "completion"]
    if facts.has_vision or has_projector:
        found.append("vision")
    if facts.has_audio or has_sound:
        found.append("audio")
    go = templating.go_capabilities(go_template or "")
    if chosen is Templating.GO:
        found += go
    else:
        found += templating.jinja_capabilities(facts.chat_template or "")
    # Infill uses the Go template or the GGUF's tokens, whichever template serves the chat.
    if "insert" in go or facts.infill:
        found.append("insert")
    if config.parser == HARMONY or GPT_OSS & {config.model_family, facts.architecture}:
        found.append("thinking")
    return tuple(dict.fromkeys([*found, *(config.capabilities or ())]))
