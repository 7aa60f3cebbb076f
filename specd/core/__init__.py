"""The types that all packages share.  Frozen values only: no I/O, no clocks, no dialects.

Sizes are bytes (`*_bytes`), counts are `n_*`, durations `*_ns` on the wire and `*_s` elsewhere.
"""

from specd.core.answer import (
    Delta,
    Done,
    Embedding,
    Embeddings,
    Event,
    Failed,
    FailureKind,
    SpeculationState,
    SpeculationStats,
    Started,
    StopReason,
    Token,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from specd.core.audio import is_audio
from specd.core.engine_request import (
    BUILTIN,
    DrafterKind,
    EngineRequest,
    Grammar,
    GrammarKind,
    Image,
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
    NVIDIA_UUID,
    Enforced,
    EngineFacts,
    EngineSpec,
    Exactness,
    ModelMemory,
    PassCosts,
    smallest_ctx,
)
from specd.core.model import (
    GPT_OSS,
    HARMONY,
    Drafter,
    ModelRef,
    NoPair,
    Pair,
    SkippedDrafter,
    Templating,
)
from specd.core.placement import BackendDevice, GiveUp, Placement, PlacementRequest
from specd.core.progress import Progress
from specd.core.request import (
    ChatPrompt,
    EmbedRequest,
    GenerateRequest,
    Message,
    TextPrompt,
    ToolCall,
)
from specd.core.sampling import (
    SamplingParams,
)
from specd.core.thinking import (
    THINKING_TAGS,
    thinking_tags,
)
from specd.core.token_id import (
    TokenId,
)

__all__ = [
    "BUILTIN",
    "GPT_OSS",
    "HARMONY",
    "KV_CACHE_TYPES",
    "MAX_SLOTS",
    "NVIDIA_UUID",
    "TEMPERATURE_BANDS",
    "THINKING_TAGS",
    "BackendDevice",
    "BandHistory",
    "ChatPrompt",
    "Delta",
    "Done",
    "Drafter",
    "DrafterKind",
    "EmbedRequest",
    "Embedding",
    "Embeddings",
    "Enforced",
    "EngineFacts",
    "EngineRequest",
    "EngineSpec",
    "Event",
    "Exactness",
    "Failed",
    "FailureKind",
    "GenerateRequest",
    "GiveUp",
    "Grammar",
    "GrammarKind",
    "Image",
    "Message",
    "ModelMemory",
    "ModelRef",
    "NoPair",
    "Pair",
    "PairHistory",
    "PassCosts",
    "Placement",
    "PlacementRequest",
    "Progress",
    "SamplingParams",
    "SkippedDrafter",
    "SpeculationMode",
    "SpeculationState",
    "SpeculationStats",
    "Started",
    "StopReason",
    "Templating",
    "TextPrompt",
    "Token",
    "TokenId",
    "TokenLogprob",
    "ToolCall",
    "TopLogprob",
    "Usage",
    "is_audio",
    "smallest_ctx",
    "thinking_tags",
]
