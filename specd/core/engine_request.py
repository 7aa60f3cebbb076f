"""A rendered request for an engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

TokenId = int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of the sampler; neutral values switch a filter off.

    The order of the filters is llama.cpp's: penalties, top_k, typical_p, top_p, min_p, temperature.
    seed: the seed itself, including 0; −1 was replaced by a random seed before.
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


#: The pair source of a drafter that needs no model.
BUILTIN = "builtin"


class DrafterKind(StrEnum):
    """A source of drafts."""

    MODEL = "model"
    LOOKUP = "lookup"  # prompt lookup: the tokens that followed the same tokens earlier


class SpeculationMode(StrEnum):
    AUTO = "auto"
    FIXED = "fixed"  # always draft n_draft_max tokens: for benchmarks only


class GrammarKind(StrEnum):
    JSON = "json"  # any JSON object, no text needed
    JSON_SCHEMA = "json_schema"
    GBNF = "gbnf"  # llama.cpp's notation; starts at its rule `root`
    REGEX = "regex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """The grammar that a whole answer must match.

    text: the grammar, in the notation of `kind`.
    thinking: the tags around free text before the answer, None if there is none.  An empty first
    tag means that the prompt has opened it, so that the answer starts inside.
    """

    kind: GrammarKind
    text: str = ""
    thinking: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image, or a sound, at its place in a prompt.  data: the file's bytes, as sent."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A rendered request for one slot.

    prompt: text pieces, token ids and images, in order; the engine checks the ids.
    add_bos: add BOS before the first piece if the vocabulary has that rule.
    n_predict: most tokens of the answer; < 0 means no limit.
    n_keep: tokens at the start that a context shift never drops.
    visible: control tokens whose text is part of the answer; the text of all others is left out.
    grammar: None allows any text.
    n_ctx: tokens of its slot that it may fill; 0 means the whole slot.
    n_draft_max: longest draft in tokens; None is the controller's limit, 0 is plain decoding.
    drafters: the kinds that may draft; with the mode FIXED only the first one.
    """

    prompt: tuple[str | TokenId | Image, ...]
    sampling: SamplingParams
    add_bos: bool = True
    n_predict: int = -1
    n_keep: int = 4
    stop: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    grammar: Grammar | None = None
    truncate: bool = True
    shift: bool = True
    n_logprobs: int | None = None
    want_context: bool = False
    n_ctx: int = 0
    n_draft_max: int | None = None
    mode: SpeculationMode = SpeculationMode.AUTO
    drafters: tuple[DrafterKind, ...] = (DrafterKind.MODEL, DrafterKind.LOOKUP)
