"""Names of pre-tokenizers that mean the same to llama.cpp.

The groups are those of src/llama-vocab.cpp as vendored in llama-cpp-python 0.3.36: the names of a
group select the same pre-tokenizer and the same merge rule.  All other names are different ones.
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
"""The first name of each group is the one that is shown."""

#: Pre-tokenizers with which a text begins with BOS unless the file says otherwise.
BEGIN_WITH_BOS: Final = frozenset({"llama-bpe", "tekken", "chameleon"})
#: The pre-tokenizer with which a text always begins with BOS.
ALWAYS_WITH_BOS: Final = "gemma4"

_SHOWN: Final = {name: group[0] for group in GROUPS for name in group}


def shown_name(name: str) -> str:
    """Return the first name of the group; llama.cpp's default for an empty name."""
    return _SHOWN.get(name, name) or DEFAULT
