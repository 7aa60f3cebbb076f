"""A client's request, independent of its dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specd.core.engine_request import Grammar
from specd.core.token_id import TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a function, written by the model.

    arguments: a JSON object; its keys keep the model's order.  index: its position in the answer.
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    id: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat.

    role: lower-case, not checked further.
    images: files as sent (PNG, JPEG, ..., audio); the prompt has them in the places of `[img]` in
    the content, or before it.
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
    """A chat.  tools: JSON objects in OpenAI's shape, {"type": "function", "function": {...}}."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """The prompt of `/api/generate`: one user turn, or text to use unchanged if `raw`.

    suffix: text that follows the answer (infill).  system: None means the Modelfile's.
    template: a Go template in place of the model's; None is the model's.
    context: token ids of an earlier answer, checked by the engine.
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
    """A request for text, independent of its dialect.

    options: the request's options, untyped; `options.Options` merges them over the Modelfile's.
    keep_alive_s: None keeps the runner's value, 0 unloads when idle, inf is for ever.
    think: None is the model's default (on, if it can think); a string is an effort level.
    shift: None is the model's default.
    n_logprobs: None means none, 0 only those of the chosen tokens.
    grammar: the grammar of the answer without its thinking; None allows any text.
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
        """The number of images and sounds in the request."""
        if isinstance(self.prompt, TextPrompt):
            return len(self.prompt.images)
        return sum(len(message.images) for message in self.prompt.messages)


def _ignore(_n_numbers: int) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """A request for embeddings, one vector per text.

    on_vector: called with the length of each vector as it arrives; its exceptions end the request.
    options, keep_alive_s: as in GenerateRequest.
    truncate: cut texts that do not fit the context; if False they raise ContextLengthExceeded.
    """

    model: str
    texts: tuple[str, ...]
    on_vector: Callable[[int], None] = field(default=_ignore, compare=False)
    options: Mapping[str, object] = field(default_factory=dict)
    keep_alive_s: float | None = None
    truncate: bool = True
