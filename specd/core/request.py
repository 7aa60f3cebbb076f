"""What a client asks, after its dialect has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specd.core.words import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn; neutral values switch a filter off.

    Order of the filters is llama.cpp's: penalties, top_k, typical_p, top_p, min_p, temperature.
    `seed` is a real seed, 0 included; whoever builds this has already replaced −1 by a random one.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat; `role` is lower-case and not checked further."""

    role: str
    content: str = ""
    thinking: str = ""
    images: tuple[bytes, ...] = ()
    tool_calls: tuple[Mapping[str, object], ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """`/api/generate`: one user turn to be rendered, or bare text when `raw`.

    `context` holds token ids of an earlier answer, checked by the engine, not by the daemon.
    `system` None means the Modelfile's.
    """

    text: str
    system: str | None = None
    raw: bool = False
    context: tuple[TokenId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request after its dialect has ended.

    options: the request's own map, untyped; merged over the Modelfile's by `options.Options`.
    keep_alive_s: None keeps the runner's value, 0 unloads when idle, inf is for ever.
    think: None is the model's default (on, where it can think); a string is an effort level.
    shift: None is the model's default.
    n_logprobs: None is off, 0 asks for the chosen token's alone.
    """

    model: str
    prompt: ChatPrompt | TextPrompt
    options: Mapping[str, object] = field(default_factory=dict)
    keep_alive_s: float | None = None
    think: bool | str | None = None
    truncate: bool = True
    shift: bool | None = None
    n_logprobs: int | None = None
    want_context: bool = False
