"""The nouns all rooms speak.  Frozen values only: no I/O, no clocks, no dialects.

Sizes are bytes (`*_bytes`), counts are `n_*`, durations `*_ns` on the wire and `*_s` elsewhere.
"""

from specd.core.answer import (
    Delta,
    Done,
    Event,
    Failed,
    FailureKind,
    SpeculationState,
    SpeculationStats,
    StopReason,
    Token,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from specd.core.engine_request import (
    BUILTIN,
    DrafterKind,
    EngineRequest,
    Grammar,
    GrammarKind,
    SpeculationMode,
)
from specd.core.history import (
    TEMPERATURE_BANDS,
    BandHistory,
    PairHistory,
)
from specd.core.load import (
    KV_CACHE_TYPES,
    MAX_SLOTS,
    EngineFacts,
    EngineSpec,
    ModelMemory,
    PassCosts,
)
from specd.core.model import (
    Drafter,
    ModelRef,
    NoPair,
    Pair,
)
from specd.core.request import (
    ChatPrompt,
    GenerateRequest,
    Message,
    SamplingParams,
    TextPrompt,
)
from specd.core.words import (
    TokenId,
)

__all__ = [
    "BUILTIN",
    "KV_CACHE_TYPES",
    "MAX_SLOTS",
    "TEMPERATURE_BANDS",
    "BandHistory",
    "ChatPrompt",
    "Delta",
    "Done",
    "Drafter",
    "DrafterKind",
    "EngineFacts",
    "EngineRequest",
    "EngineSpec",
    "Event",
    "Failed",
    "FailureKind",
    "GenerateRequest",
    "Grammar",
    "GrammarKind",
    "Message",
    "ModelMemory",
    "ModelRef",
    "NoPair",
    "Pair",
    "PairHistory",
    "PassCosts",
    "SamplingParams",
    "SpeculationMode",
    "SpeculationState",
    "SpeculationStats",
    "StopReason",
    "TextPrompt",
    "Token",
    "TokenId",
    "TokenLogprob",
    "TopLogprob",
    "Usage",
]
