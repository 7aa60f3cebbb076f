"""What a client asks, after its dialect has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specd.core.engine_request import Grammar
from specd.core.token_id import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function that the model wants called.

    arguments: a JSON object; the order of its keys is the model's.  index: its place in the answer.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    id: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat; `role` is lower-case and not checked further.

    images: files as they were sent (PNG, JPEG, ...; audio too); in the prompt they stand where the
    content says `[img]`, or before it.
    """

    role: str
    content: str = ""
    thinking: str = ""
    images: tuple[bytes, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """tools: JSON objects in OpenAI's shape, {"type": "function", "function": {...}}."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """`/api/generate`: one user turn to be rendered, or bare text when `raw`.

    `context` holds token ids of an earlier answer, checked by the engine, not by the daemon.
    `system` None means the Modelfile's.  suffix: what shall follow the answer (infill).
    template: a Go template to render with in place of the model's own; None is the model's.
    """

    text: str
    suffix: str = ""
    system: str | None = None
    template: str | None = None
    raw: bool = False
    images: tuple[bytes, ...] = ()
    context: tuple[TokenId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A request after its dialect has ended.

    options: the request's own map, untyped; merged over the Modelfile's by `options.Options`.
    keep_alive_s: None keeps the runner's value, 0 unloads when idle, inf is for ever.
    think: None is the model's default (on, where it can think); a string is an effort level.
    shift: None is the model's default.
    n_logprobs: None is off, 0 asks for the chosen token's alone.
    grammar: what the answer must be, thinking excepted; None is free text.
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
    grammar: Grammar | None = None

    @property
    def n_images(self) -> int:
        """Return how many images, and sounds, the request sends."""
        if isinstance(self.prompt, TextPrompt):
            return len(self.prompt.images)
        return sum(len(message.images) for message in self.prompt.messages)


def _ignore(_n_numbers: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to be turned into vectors, one each.

    options, keep_alive_s: as in GenerateRequest.  truncate: cut what does not fit the context;
    without it such a text is ContextLengthExceeded.  on_vector: called with the numbers of each
    vector as it comes; what it raises ends the request.
    """

    model: str
    texts: tuple[str, ...]
    on_vector: Callable[[int], None] = field(default=_ignore, compare=False)
    options: Mapping[str, object] = field(default_factory=dict)
    keep_alive_s: float | None = None
    truncate: bool = True
