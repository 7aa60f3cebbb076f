"""What a model can do, by the contract's rules: pure functions of its metadata and template.

The template that is read is the one that is used.  The flags of Ollama's built-in parsers play no
part, since those models are served with their own Jinja template here; but for `harmony`, by which
answers are parsed here as well.
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
    """Return them in Ollama's words and order, each once.  hears: its projector encodes sounds."""
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
    # Infill goes by a Go template or by the GGUF's own tokens, whichever serves the chat.
    if "insert" in go or facts.infill:
        found.append("insert")
    if config.parser == HARMONY or GPT_OSS & {config.model_family, facts.architecture}:
        found.append("thinking")
    return tuple(dict.fromkeys([*found, *(config.capabilities or ())]))
