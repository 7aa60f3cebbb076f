"""Models, local and upstream, and pairs of target and drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from specd.core.message import Message

#: The architecture of gpt-oss, as configs and GGUFs spell it.
GPT_OSS: Final = frozenset({"gptoss", "gpt-oss"})
#: The PARSER of models that answer in gpt-oss's format, with any architecture.
HARMONY: Final = "harmony"


class Templating(StrEnum):
    """The template language that turns messages into a prompt."""

    JINJA = "jinja"  # the GGUF's chat template; ChatML if it has none
    GO = "go"  # the manifest's template layer

    def choose_template(self, jinja: str | None, go: str | None) -> str | None:
        """Return the template that chats are rendered with."""
        return go if self is Templating.GO else jinja


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef(ABC):
    """A model that requests can name: a `LocalModel` or an `UpstreamModel`.

    name: short display name, always with a tag.  digest: 64 hex digits, no prefix; "" if unknown.
    chat_template: the GGUF's Jinja text.  go_template: the manifest's template layer.
    parameters: the Modelfile's PARAMETERs.  messages: the Modelfile's MESSAGEs.
    capabilities: completion, tools, insert, vision, audio, embedding, thinking.
    templating: which of the two templates a chat is rendered with.
    family, renderer, parser: the config's names of the prompt format; "" if it has none.
    infill: the GGUF's tokens before the prefix, before the suffix, and before the text to fill in.
    version: changes when the named model is deleted or written again.
    """

    name: str
    full_name: str
    digest: str
    chat_template: str | None = None
    go_template: str | None = None
    bos_token: str = ""
    eos_token: str = ""
    system: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    capabilities: tuple[str, ...] = ("completion",)
    architecture: str = ""
    n_ctx_train: int = 0
    templating: Templating = Templating.JINJA
    family: str = ""
    renderer: str = ""
    parser: str = ""
    infill: tuple[str, str, str] | None = None
    version: object = field(default=None, compare=False, repr=False)

    @property
    @abstractmethod
    def key(self) -> str:
        """The scheduler's key: two models with the same key share one engine."""

    @property
    @abstractmethod
    def reads_images(self) -> bool:
        """Whether an engine can show it images or sounds."""

    @property
    def template(self) -> str | None:
        """The template that chats are rendered with."""
        return self.templating.choose_template(self.chat_template, self.go_template)

    @property
    def effective_go_template(self) -> str | None:
        """The manifest's template if chats are rendered with it, else None."""
        return self.templating.choose_template(None, self.go_template)

    @property
    def is_embedding_only(self) -> bool:
        """Whether the model only returns vectors and generates no text."""
        return "embedding" in self.capabilities and "completion" not in self.capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel(ModelRef):
    """A model of the store: its GGUF files are on this machine.

    draft: the GGUF of the manifest's draft layer, if it has one.  adapters: LoRA files.
    projector: the GGUF that turns images into embeddings.
    """

    weights: Path
    draft: Path | None = None
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None

    @property
    def key(self) -> str:
        return str(self.weights)

    @property
    def reads_images(self) -> bool:
        return self.projector is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamModel(ModelRef):
    """A model that another server holds.

    engine: the name of the engine that reaches it.  upstream_name: the model's name there.
    """

    engine: str
    upstream_name: str

    @property
    def key(self) -> str:
        return f"{self.engine}:{self.upstream_name}"

    @property
    def reads_images(self) -> bool:
        return not {"vision", "audio"}.isdisjoint(self.capabilities)


class NoPair(StrEnum):
    """The reason why a target has no drafter."""

    NOT_FOUND = "drafter_not_found"
    VOCABULARY_DIFFERS = "vocabulary_differs"
    UNREADABLE = "drafter_unreadable"
    REFUSED_BY_RULE = "refused_by_rule"
    DISABLED_BY_USER = "disabled_by_user"
    LOAD_FAILED = "drafter_load_failed"
    CANNOT_REWIND = "architecture_cannot_rewind"
    EMBEDS = "embedding_model"
    NO_VRAM = "drafter_no_vram"
    DOES_NOT_PAY = "does_not_pay"
    NOT_EXACT = "not_exact"
    UPSTREAM = "upstream_engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafter of a target.

    name: its name for the user.
    source: where the choice comes from: manifest, user, registry, or shelf (a compatible model of
    the local store).
    max_draft: longest draft in tokens, if the rule limits it.
    """

    name: str
    weights: Path
    source: str
    max_draft: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedDrafter:
    """A drafter that is not used because it made its target slower on this machine.

    gain: tokens/s ÷ plain in its best temperature band.  n_requests: measured answers.
    n_answers_left: answers of the target until the next trial; None while another drafter pays.
    n_retries: trials so far after the first.  detail: all this in a sentence.
    """

    name: str
    weights: Path
    gain: float
    n_requests: int
    n_drafted: int
    n_accepted: int
    n_answers_left: int | None
    n_retries: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target with its drafter, or with the reason why it has none.

    reason, detail: why there is no drafter, as a name and a sentence for the user.
    rule: the rule that applies to the target, "" if none does.
    expected: published gain (tokens/s ÷ plain) by task.
    pull: drafters that could be pulled for it, the best first; with a drafter from the local store,
    those that the rule names, if none of them is installed.
    skipped_drafters: drafters that would be preferred if they had not lost on this machine.
    """

    target: ModelRef
    drafter: Drafter | None = None
    reason: NoPair | None = None
    detail: str = ""
    rule: str = ""
    expected: Mapping[str, float] = field(default_factory=dict)
    pull: tuple[str, ...] = ()
    skipped_drafters: tuple[SkippedDrafter, ...] = ()
