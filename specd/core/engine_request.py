"""A rendered request for an engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

TokenId = int


class SamplerStage(StrEnum):
    """A stage of the sampler, by llama-server's names."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerChain:
    """The stages of the sampler in their order, with the parameters that Ollama does not have.

    The defaults are llama-server's; a stage that is not listed is left out.
    min_keep: candidates that top_p, typical_p, min_p and xtc leave at least.
    top_n_sigma: keep logits within so many standard deviations of the best; ≤ 0: off.
    xtc_probability, xtc_threshold: the share of tokens for which all candidates of at least this
    probability are dropped, except the least likely of them.
    dynatemp_range, dynatemp_exponent: the temperature follows the entropy, within ± this range.
    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n: the penalty of a token that
    would continue a repetition of n tokens, n ≥ allowed_length, within the last_n tokens, is
    multiplier · base ** (n − allowed_length); last_n ≤ 0 or multiplier 0: off.
    dry_breakers: (token, tokens that must follow it): sequences that end a repetition.
    logit_bias: (token, added to its logit, −inf to forbid it).
    """

    stages: tuple[SamplerStage, ...] = tuple(SamplerStage)
    min_keep: int = 0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_breakers: tuple[tuple[TokenId, tuple[TokenId, ...]], ...] = ()
    logit_bias: tuple[tuple[TokenId, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of the sampler; neutral values switch a filter off.

    The order of the filters is llama.cpp's: penalties, top_k, typical_p, top_p, min_p, temperature.
    seed: the seed itself, including 0; −1 was replaced by a random seed before.
    chain: the stages in another order, and further ones; None for the order above.
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
    chain: SamplerChain | None = None


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
