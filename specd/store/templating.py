"""Choice between a model's two chat templates, and the model's capabilities (as Ollama names them).

The Go template is a layer of the manifest; the Jinja template is in the GGUF.  Capabilities follow
the template that specd uses.  Ollama's built-in parsers do not count, because specd serves those
models with their own Jinja template; `harmony` is the exception.
"""

from __future__ import annotations

from typing import Final

from specd.core import GPT_OSS, HARMONY, Templating, thinking_tags
from specd.go_template import analysis
from specd.store.gguf_metadata import GgufMetadata
from specd.store.manifest import Config
from specd.store.modelfile import DEFAULT_TEMPLATE

_CALLS: Final = ("tool_calls", "assistant_tool_call")
_RESULTS: Final = (
    "tool_response",
    "tool_results",
    "ipython",
    *(f"role{end}] == {quote}tool{quote}" for end in "'\"" for quote in "'\""),
    *(f"message.role == {quote}tool{quote}" for quote in "'\""),
)
_SPLITS: Final = ("content.split('</think>')", 'content.split("</think>")')
#: A template with one of these splits what the client sent; it does not make the model think.
_SPLITS_FOR_OTHERS: Final = ("reasoning_content", "<SPECIAL_12>")


def choose_templating(
    jinja: str | None,
    go_template: str | None,
    config: Config,
    *,
    architecture: str,
    prefer_go: bool | None,
) -> Templating:
    """Return which template to use; a model's only template is used in any case.

    prefer_go: OLLAMA_GO_TEMPLATE, None if unset.
    """
    if config.renderer and go_template == DEFAULT_TEMPLATE:
        go_template = None  # a placeholder for Ollama's built-in renderer
    if jinja is None or go_template is None:
        return Templating.JINJA if go_template is None else Templating.GO
    if config.renderer or config.parser:
        # Ollama renders these in Go code; the GGUF has the template they were trained with.
        return Templating.JINJA
    is_gpt_oss = bool(GPT_OSS & {config.model_family, architecture})
    if is_gpt_oss and "<|start|>" in go_template and "<|end|>" in go_template:
        return Templating.GO
    if prefer_go is None:
        prefer_go = not _is_jinja_better(jinja, go_template)
    return Templating.GO if prefer_go else Templating.JINJA


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
    go = analysis.capabilities(go_template or "")
    if chosen is Templating.GO:
        found += go
    else:
        found += jinja_capabilities(facts.chat_template or "")
    # Infill uses the Go template or the GGUF's tokens, whichever template serves the chat.
    if "insert" in go or facts.infill:
        found.append("insert")
    if config.parser == HARMONY or GPT_OSS & {config.model_family, facts.architecture}:
        found.append("thinking")
    return tuple(dict.fromkeys([*found, *(config.capabilities or ())]))


def jinja_capabilities(text: str) -> tuple[str, ...]:
    """Return which of "tools" and "thinking" the template supports."""
    found = [("tools", "tools" in text or "tool_call" in text), ("thinking", _has_thinking(text))]
    return tuple(name for name, has in found if has)


def _is_jinja_better(jinja: str, go_template: str) -> bool:
    """Return whether the Jinja template supports more than the Go template."""
    jinja_names, go_names = jinja_capabilities(jinja), analysis.capabilities(go_template)
    if len(jinja_names) > len(go_names):
        return not analysis.has_tool_round_trip(go_template) or _has_tool_round_trip(jinja)
    if set(jinja_names) != set(go_names) or "tools" not in jinja_names:
        return False
    return _has_tool_round_trip(jinja) and not analysis.has_tool_round_trip(go_template)


def _has_tool_round_trip(jinja: str) -> bool:
    return any(mark in jinja for mark in _CALLS) and any(mark in jinja for mark in _RESULTS)


def _has_thinking(jinja: str) -> bool:
    if thinking_tags(jinja) is not None:
        return True
    splits = any(mark in jinja for mark in _SPLITS)
    return splits and not any(mark in jinja for mark in _SPLITS_FOR_OTHERS)
