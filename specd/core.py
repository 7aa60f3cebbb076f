"""The nouns all rooms speak.  Frozen values only: no I/O, no clocks, no dialects.

Sizes are bytes (`*_bytes`), counts are `n_*`, durations `*_ns` on the wire and `*_s` elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

TokenId = int


# --------------------------------------------------------------------------- what is asked


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


# --------------------------------------------------------------------------- models and pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """A model of the store, resolved: its weights on disk and what the Modelfile says of it.

    name: short display name, always with a tag.  digest: 64 hex digits, no prefix.
    draft: the GGUF of the manifest's own draft layer, where it has one.
    chat_template: the GGUF's Jinja text.  go_template: the manifest's template layer.
    parameters: the Modelfile's PARAMETERs.  messages: the Modelfile's MESSAGEs.
    capabilities: completion, tools, insert, vision, embedding, thinking.
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


class NoPair(StrEnum):
    """Why a target is served without a drafter."""

    NOT_FOUND = "drafter_not_found"
    VOCABULARY_DIFFERS = "vocabulary_differs"
    UNREADABLE = "drafter_unreadable"
    REFUSED_BY_RULE = "refused_by_rule"
    DISABLED_BY_USER = "disabled_by_user"
    LOAD_FAILED = "drafter_load_failed"
    CANNOT_REWIND = "architecture_cannot_rewind"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """name: what the user calls it.  source: which rule chose it (manifest, user, registry)."""

    name: str
    weights: Path
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target with its drafter, or with the reason why it has none.

    detail is one sentence for the user; empty when there is a drafter.
    """

    target: ModelRef
    drafter: Drafter | None = None
    reason: NoPair | None = None
    detail: str = ""


# -------------------------------------------------------------------------- what an engine is given


#: Number formats of a KV cache, as llama.cpp spells them.
KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
#: Most slots that one engine can have: llama.cpp's limit on sequences.
MAX_SLOTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that decides how an engine process loads; two equal specs may share one process.

    n_ctx: tokens per slot.  n_gpu_layers: −1 all, 0 CPU only.
    flash_attention: None lets llama.cpp decide.  kv_cache_type: f32, f16, bf16, q8_0, q4_0, ...
    acceptance_threshold: accepted ÷ drafted below which a request stops drafting.
    """

    weights: str
    drafter: str | None = None
    drafter_name: str = ""
    pair_source: str = ""
    no_pair_reason: str = ""
    no_pair_detail: str = ""
    n_ctx: int = 4096
    n_slots: int = 1
    n_batch: int = 512
    n_gpu_layers: int = -1
    main_gpu: int | None = None
    n_threads: int = 0
    use_mmap: bool | None = None
    flash_attention: bool | None = None
    kv_cache_type: str = "f16"
    acceptance_threshold: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory:
    """Bytes one model took, by where they lie; `device` names the accelerator or "CPU"."""

    device: str
    total_bytes: int
    vram_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """What passes took when they were measured at load.

    target_s: (rows of a target pass, its seconds).  draft_step_s: one drafted token; 0 without a
    drafter.
    """

    target_s: tuple[tuple[int, float], ...] = ()
    draft_step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What came true after a load.  drafter None: the reason and its sentence say why."""

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    target: ModelMemory
    drafter: ModelMemory | None = None
    no_pair_reason: str = ""
    no_pair_detail: str = ""
    plain_tokens_per_s: float = 0.0
    costs: PassCosts = PassCosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class BandHistory:
    """What one drafter came to in one band of temperatures.  Whoever reads it may ignore any part.

    drafter: "model" or "lookup".  by_confidence, by_depth: (mean acceptance, observations) per bin.
    parked: why drafting was off in the end, "" where it was on.  gain: tokens/s ÷ plain tokens/s.
    """

    drafter: str
    band: int
    by_confidence: tuple[tuple[float, float], ...] = ()
    by_depth: tuple[tuple[float, float], ...] = ()
    parked: str = ""
    gain: float | None = None
    n_requests: int = 0
    n_drafted: int = 0
    n_accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairHistory:
    """What an engine learned of its pair, to start from when it is loaded again.

    device: where the target lay; the worker fills it in, and believes no other device's history.
    target_s: (rows of a pass, its seconds) as last measured, to be shown and never believed.
    """

    bands: tuple[BandHistory, ...] = ()
    device: str = ""
    target_s: tuple[tuple[int, float], ...] = ()


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
    """What an answer must be, from its first byte to its last; text is in the kind's notation."""

    kind: GrammarKind
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A rendered request for one slot.

    prompt: text pieces and token ids, in order; ids are checked by the engine.
    add_bos: let the vocabulary's own rule add BOS before the first piece.
    n_predict: < 0 is without limit.  n_keep: tokens that a context shift never drops.
    grammar: None is free text.
    n_draft_max: None is the controller's own bound, 0 is plain decoding.
    drafters: who may guess; the first one alone where the mode is FIXED.
    """

    prompt: tuple[str | TokenId, ...]
    sampling: SamplingParams
    add_bos: bool = True
    n_predict: int = -1
    n_keep: int = 4
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    truncate: bool = True
    shift: bool = True
    n_logprobs: int | None = None
    want_context: bool = False
    n_draft_max: int | None = None
    mode: SpeculationMode = SpeculationMode.AUTO
    drafters: tuple[DrafterKind, ...] = (DrafterKind.MODEL, DrafterKind.LOOKUP)


# --------------------------------------------------------------------------- what comes back


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    token: str
    bytes: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    token: str
    bytes: tuple[int, ...]
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """n_prompt includes n_cached; durations are nanoseconds of engine time.

    native_ns: the part of generate_ns that passes of both models took; the rest is ours.
    """

    n_prompt: int = 0
    n_cached: int = 0
    prompt_ns: int = 0
    n_generated: int = 0
    generate_ns: int = 0
    native_ns: int = 0


class SpeculationState(StrEnum):
    ACTIVE = "active"  # drafting when the request ended
    PARKED = "parked"  # switched off by measurement, probing now and then
    OFF = "off"  # never drafted: no drafter, or the user said so


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """What speculation did for one request (SPECULATION.md 4).

    lookup_n, lookup_n_accepted: the part of draft_n and draft_n_accepted that prompt lookup found.
    speedup: measured tokens/s over the plain tokens/s measured for this model; None while unknown.
    """

    drafter: str | None = None
    pair_source: str | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0
    lookup_n: int = 0
    lookup_n_accepted: int = 0
    rounds: int = 0
    n_steps: int = 0
    state: SpeculationState = SpeculationState.OFF
    reason: str = ""
    detail: str = ""
    speedup: float | None = None
    accepted_per_depth: tuple[int, ...] = ()
    drafted_per_depth: tuple[int, ...] = ()

    @property
    def acceptance_rate(self) -> float:
        return self.draft_n_accepted / self.draft_n if self.draft_n else 0.0

    @property
    def mean_draft_length(self) -> float:
        return self.draft_n / self.rounds if self.rounds else 0.0


class StopReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Text that is safe to show: whole UTF-8, and no part of a stop string."""

    text: str
    n_tokens: int = 1
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """context: prompt and answer as token ids, where they were asked for."""

    reason: StopReason
    usage: Usage
    speculation: SpeculationStats
    context: tuple[TokenId, ...] = ()
    load_ns: int = 0


class FailureKind(StrEnum):
    INVALID = "invalid"  # the request's own fault
    CONTEXT_LENGTH = "context_length"
    ENGINE = "engine"  # decode failed; the engine lives
    CRASHED = "crashed"  # the engine process is gone
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    kind: FailureKind
    message: str
    n_prompt: int = 0
    n_ctx: int = 0


Event = Token | Done | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A parsed piece of an answer, as dialects send it: content, thinking, or both empty."""

    content: str = ""
    thinking: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
