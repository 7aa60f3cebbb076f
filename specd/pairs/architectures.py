"""Architectures that cannot take part in drafting, by llama.cpp's names for them.

The sets follow llama.cpp's `llm_arch_is_recurrent`, `llm_arch_is_hybrid` and
`llm_arch_is_diffusion` (src/llama-arch.cpp) as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from typing import Final

CANNOT_REWIND: Final = frozenset(
    {
        # recurrent
        "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7",
        # hybrid
        "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h",
        "nemotron_h_moe", "qwen3next", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next",
        "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "minimax-01",
    }
)  # fmt: skip
"""Their memory is a running state: rejected tokens cannot be taken out of it one by one."""

NOT_TOKEN_BY_TOKEN: Final = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Diffusion models, which do not write from left to right."""

HEADS: Final = frozenset({"eagle3", "dflash", "dspark", "gemma4-assistant"})
"""Drafting heads that read their target's hidden states; they are no models of their own."""
