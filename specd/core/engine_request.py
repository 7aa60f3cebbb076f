"""A rendered request, as an engine is given it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from specd.core.sampling import SamplingParams
from specd.core.token_id import TokenId

#: The pair source of a drafter that needs no model.
BUILTIN = "builtin"


class DrafterKind(StrEnum):
    """Who may guess for a request."""

    MODEL = "model"
    LOOKUP = "lookup"  # what followed the same tokens earlier in prompt or answer


class SpeculationMode(StrEnum):
    AUTO = "auto"
    FIXED = "fixed"  # always draft n_max tokens: for benches, never for users


class GrammarKind(StrEnum):
    JSON = "json"  # any JSON object, no text needed
    JSON_SCHEMA = "json_schema"
    GBNF = "gbnf"  # llama.cpp's notation, begins at its rule `root`
    REGEX = "regex"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What an answer must be, from its first byte to its last; text is in the kind's notation.

    thinking: the tags around what may be thought before, free in its words.  An empty first tag:
    the prompt has opened it already, so that the answer begins inside; None: nothing stands before.
    """

    kind: GrammarKind
    text: str = ""
    thinking: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """A picture (or a sound) at its place in a prompt: the file's bytes, as they were sent."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A rendered request for one slot.

    prompt: text pieces, token ids and images, in order; ids are checked by the engine.
    visible: control tokens whose text is part of the answer; that of all others is left out.
    add_bos: let the vocabulary's own rule add BOS before the first piece.
    n_predict: < 0 is without limit.  n_keep: tokens that a context shift never drops.
    grammar: None is free text.
    n_ctx: tokens that it may fill of its slot; 0 is the whole slot.
    n_draft_max: None is the controller's own bound, 0 is plain decoding.
    drafters: who may guess; the first one alone where the mode is FIXED.
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
