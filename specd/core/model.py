"""Models of the store, and the pairs they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from specd.core.request import Message

#: What configs and GGUFs call gpt-oss.
GPT_OSS: Final = frozenset({"gptoss", "gpt-oss"})
#: The PARSER of a model that writes its answers as gpt-oss does, whatever its architecture.
HARMONY: Final = "harmony"


class Templating(StrEnum):
    """What turns messages into a prompt (contract 7.1)."""

    JINJA = "jinja"  # the GGUF's chat template; ChatML where it has none
    GO = "go"  # the manifest's template layer

    def choose_template(self, jinja: str | None, go: str | None) -> str | None:
        """Of a model's two templates the one that chats are rendered with."""
        return go if self is Templating.GO else jinja


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model of the store, resolved: its weights on disk and what the Modelfile says of it.

    name: short display name, always with a tag.  digest: 64 hex digits, no prefix.
    draft: the GGUF of the manifest's own draft layer, where it has one.
    chat_template: the GGUF's Jinja text.  go_template: the manifest's template layer.
    parameters: the Modelfile's PARAMETERs.  messages: the Modelfile's MESSAGEs.
    capabilities: completion, tools, insert, vision, audio, embedding, thinking.
    templating: which of the two templates a chat is rendered with.
    adapters: LoRA files.  projector: the GGUF that turns images into embeddings.
    family, renderer, parser: the config's words for how the model is spoken to; "" where silent.
    infill: the GGUF's tokens before a text, before what follows its gap, and before the gap.
    """

    name: str
    full_name: str
    digest: str
    weights: Path
    draft: Path | None = None
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
    adapters: tuple[Path, ...] = ()
    projector: Path | None = None
    family: str = ""
    renderer: str = ""
    parser: str = ""
    infill: tuple[str, str, str] | None = None

    @property
    def template(self) -> str | None:
        """Of its two templates the one that counts."""
        return self.templating.choose_template(self.chat_template, self.go_template)

    @property
    def effective_go_template(self) -> str | None:
        """The manifest's template, where that is the one that counts."""
        return self.templating.choose_template(None, self.go_template)

    @property
    def is_embedding_only(self) -> bool:
        """It gives vectors, and no text."""
        return "embedding" in self.capabilities and "completion" not in self.capabilities


class NoPair(StrEnum):
    """Why a target is served without a drafter."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """name: what the user calls it.  max_draft: no draft is longer, where the rule says so.

    source: who chose it: manifest, user, registry, or shelf (a compatible model that was there).
    """

    name: str
    weights: Path
    source: str
    max_draft: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedDrafter:
    """A drafter that is not used because it made its target slower on this machine.

    gain: tokens/s ÷ plain in its best temperature band.  n_requests: answers that were measured.
    n_answers_left: answers of the target until it is tried again; None while another drafter pays.
    n_retries: how often it was tried again so far.  detail: all this in a sentence.
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

    detail is one sentence for the user; empty when there is a drafter.
    rule: the pattern that decided, "" where none did; beside a drafter from the shelf, the one
    whose own were of no use.  expected: published gain (tokens/s ÷ plain) by task.
    pull: drafters that could be pulled for it, the best first; beside one from the shelf, those
    that a rule names, where none of them is here.
    passed_over: drafters that would come before this one if they had not lost on this machine.
    """

    target: ModelRef
    drafter: Drafter | None = None
    reason: NoPair | None = None
    detail: str = ""
    rule: str = ""
    expected: Mapping[str, float] = field(default_factory=dict)
    pull: tuple[str, ...] = ()
    skipped_drafters: tuple[SkippedDrafter, ...] = ()
