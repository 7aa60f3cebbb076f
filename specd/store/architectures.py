"""Sets of llama.cpp architectures that behave alike, under llama.cpp's names.

The sets follow `llm_arch_is_recurrent`, `llm_arch_is_hybrid`, `llm_arch_supports_rs_rollback` and
`llm_arch_is_diffusion` (src/llama-arch.cpp), and `llama_model::create_memory`, as vendored in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from typing import Final

RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Architectures whose only memory is a running state."""

HYBRID: Final = frozenset(
    {
        "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h",
        "nemotron_h_moe", "qwen3next", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next",
        "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "minimax-01",
    }
)  # fmt: skip
"""Architectures in which some layers keep a running state."""

RECURRENT_OR_HYBRID: Final = RECURRENT | HYBRID

HAS_STATE_SNAPSHOTS: Final = frozenset(
    {
        "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h",
        "nemotron_h_moe", "lfm2", "lfm2moe", "bailingmoe3",
    }
)  # fmt: skip
"""Architectures for which llama.cpp can keep snapshots of recent states (`n_rs_seq`)."""

CANNOT_REWIND: Final = RECURRENT_OR_HYBRID - HAS_STATE_SNAPSHOTS
"""Architectures whose running state cannot drop rejected tokens, so they cannot verify drafts.

They can still be drafters: specd restores a drafter from a copy of its state.
"""

DIFFUSION: Final = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Diffusion models, which do not generate from left to right."""

DRAFT_HEADS: Final = frozenset({"eagle3", "dflash", "dspark", "gemma4-assistant"})
"""Drafting heads: they read the target's hidden states and cannot run alone."""

_ENCODERS: Final = frozenset(
    {
        "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2",
        "jina-bert-v3", "eurobert", "gemma-embedding", "wavtokenizer-dec",
    }
)  # fmt: skip

WITHOUT_LM_HEAD: Final = _ENCODERS | {"t5encoder"}
"""Architectures that compute no logits."""

NO_TEXT_GENERATION: Final = WITHOUT_LM_HEAD | {"llama-embed", "t5", "clip", "qwen3tts", "pockettts"}
"""Architectures that cannot continue a text: encoders, vision and speech models."""
