"""A client's request, independent of its dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from specd.core.engine_request import Grammar, TokenId
from specd.core.message import Message
from specd.core.model import ModelRef


class OptionValues(TypedDict, total=False):
    """Options by Ollama's names; `options.Options` has their defaults and meanings."""

    num_ctx: int
    num_batch: int
    num_gpu: int
    main_gpu: int
    use_mmap: bool
    num_thread: int
    draft_num_predict: int
    num_keep: int
    seed: int
    num_predict: int
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    temperature: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: tuple[str, ...]


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
class LoadRequest:
    """A request that needs a loaded model, such as one that only loads it.

    options: they replace the Modelfile's.
    keep_alive_s: None keeps the runner's value, 0 unloads when idle, inf is for ever.
    """

    model: ModelRef
    options: OptionValues = field(default_factory=OptionValues)
    keep_alive_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(LoadRequest):
    """A request for text, independent of its dialect.

    think: None is the model's default (on, if it can think); a string is an effort level.
    shift: None is the model's default.
    n_logprobs: None means none, 0 only those of the chosen tokens.
    grammar: the grammar of the answer without its thinking; None allows any text.
    """

    prompt: ChatPrompt | TextPrompt
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
class EmbedRequest(LoadRequest):
    """A request for embeddings, one vector per text.

    on_vector: called with the length of each vector as it arrives; its exceptions end the request.
    truncate: cut texts that do not fit the context; if False they raise ContextLengthExceeded.
    """

    texts: tuple[str, ...]
    on_vector: Callable[[int], None] = field(default=_ignore, compare=False)
    truncate: bool = True
