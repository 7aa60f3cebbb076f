"""What cuts a text before its tokens are looked up: names that llama.cpp takes for one.

The groups are those of src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36: names of one
group set one pre-tokenizer, and join tokens by one rule.  Names that are not here stand alone.
"""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "default"

GROUPS: Final = (
    (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano",
    ),
    (
        "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de",
        "jina-v2-code", "roberta-bpe", "gigachat", "a.x-4.0", "mellum", "modern-bert", "exaone4",
    ),
    ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"),
    ("gpt-4o", "llama4", "kanana2", "talkie"),
    ("gemma4", "granite-embed-multi-311m"),
    ("glm4", "glm5"),
    ("tiny_aya", "cohere2moe"),
    ("bailingmoe", "bailingmoe2", "llada-moe"),
)  # fmt: skip
"""The first name of each is the one that is shown."""

#: Those with which every text begins with BOS, where the file does not say otherwise.
BEGIN_WITH_BOS: Final = frozenset({"llama-bpe", "tekken", "chameleon"})
#: The one with which it does whatever the file says.
ALWAYS_WITH_BOS: Final = "gemma4"

_SHOWN: Final = {name: group[0] for group in GROUPS for name in group}


def shown_name(name: str) -> str:
    """One name for all that cut alike; a file without one has llama.cpp's default."""
    return _SHOWN.get(name, name) or DEFAULT
