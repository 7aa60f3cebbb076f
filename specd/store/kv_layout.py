"""What each layer of a model stores per token (KV cache) or per sequence (running state).

The rules by architecture are llama.cpp's: which layers attend, with which window, and which have a
running state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from specd.store.architectures import (
    CANNOT_REWIND,
    RECURRENT,
    RECURRENT_OR_HYBRID,
    WITHOUT_KV_CACHE,
    WITHOUT_LM_HEAD,
)
from specd.store.gguf import GgufHeader, LongArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKv:
    """Elements that one layer stores.

    key, value: elements per token in the KV cache, 0 for none.
    window: tokens that the KV cache covers, 0 for all.  state: elements of the running state.
    """

    key: int = 0
    value: int = 0
    window: int = 0
    state: int = 0


@dataclass(frozen=True, slots=True)
class _Window:
    """Sliding-window attention of an architecture.

    every: one layer in `every` has no window, unless the file has a pattern.
    dense_first: that layer is the first of each group, else the last.
    size: default window, tokens.  fixed: `size` overrides the file's window.
    """

    every: int = 1
    dense_first: bool = False
    size: int = 0
    fixed: bool = False


#: Architectures with sliding windows; llama.cpp ignores a window in the files of all others.
_WINDOWS: Final = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, dense_first=True),
    "exaone-moe": _Window(4, size=128),
    "exaone4": _Window(4, size=4096),
    "gemma2": _Window(2, size=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(),
    "laguna": _Window(4, dense_first=True),
    "lfm2": _Window(0),
    "lfm2moe": _Window(0),
    "llama4": _Window(4, size=8192, fixed=True),
    "maple": _Window(),
    "mellum": _Window(4),
    "mimo2": _Window(),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, dense_first=True, size=4096, fixed=True),
    "spark2_5": _Window(),
    "step35": _Window(),
}
#: A layer without key-value heads has a running state.
_HYBRID_BY_HEADS: Final = frozenset(
    {
        "jamba",
        "granitehybrid",
        "plamo2",
        "lfm2",
        "lfm2moe",
        "kimi-linear",
        "kimi-k3",
        "bailingmoe3",
        "glm5-next",
    }
)
#: One layer in so many attends, unless the file has another interval.
_HYBRID_BY_INTERVAL: Final = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen4exp": 4,
    "minimax-01": 8,
}
#: Layers with a running state attend as well.
_BOTH: Final = frozenset({"falcon-h1", "deepseek4"})
_NEMOTRON: Final = frozenset({"nemotron_h", "nemotron_h_moe"})
#: Tokens compressed into one row: rows of keys in the state of the tokens not yet compressed.  With
#: a ratio of four, the index has such a state, too.
_COMPRESSED: Final = {4: 32, 128: 256}
_KEYS_OF_INDEX: Final = frozenset({"deepseek32", "glm-dsa", "hy_v4", "minimax-m3"})


def is_recurrent(architecture: str) -> bool:
    """Return whether any layer keeps a running state."""
    return architecture in RECURRENT_OR_HYBRID


def has_cache(architecture: str) -> bool:
    return architecture not in WITHOUT_KV_CACHE


def gives_logits(architecture: str) -> bool:
    return architecture not in WITHOUT_LM_HEAD


def can_rewind(architecture: str) -> bool:
    return architecture not in CANNOT_REWIND


def kv_layout(header: GgufHeader, n_layers: int) -> tuple[LayerKv, ...]:
    """Return what each layer stores; senseless numbers in the header count as 0."""
    architecture = header.architecture
    if architecture in WITHOUT_KV_CACHE:
        return (LayerKv(),) * n_layers
    heads = _heads(header, n_layers)
    carries = _carries(header, n_layers, heads.kv)
    windows = _windows(header, n_layers, carries)
    states = _states(header, n_layers, heads.all[0] if heads.all else 0)
    n_own = n_layers - max(header.arch_integer("nextn_predict_layers"), 0)
    n_first = _count_kv_layers(header, n_layers)

    def layer(at: int) -> LayerKv:
        found = LayerKv(state=states[at]) if carries[at] and at < n_own else LayerKv()
        if not _attends(header, at, carries[at]) or at >= min(n_own, n_first):
            return found
        key, value = _row(header, heads.kv[at], heads.width, in_window=windows[at] > 0)
        return replace(found, key=key, value=value, window=windows[at])

    return tuple(map(layer, range(n_layers)))


# --------------------------------------------------------------------------- attention


@dataclass(frozen=True, slots=True)
class _Heads:
    all: Sequence[int]
    kv: Sequence[int]
    width: int


def _heads(header: GgufHeader, n_layers: int) -> _Heads:
    all_heads = per_layer(header, "attention.head_count", n_layers)
    kv = per_layer(header, "attention.head_count_kv", n_layers, all_heads)
    first = all_heads[0] if all_heads else 0
    return _Heads(
        all_heads, kv, max(header.arch_integer("embedding_length"), 0) // first if first else 0
    )


def _row(header: GgufHeader, n_heads: int, width: int, *, in_window: bool) -> tuple[int, int]:
    """Return the elements of one token's keys and of its values."""
    if n_heads <= 0:
        return 0, 0
    key, value = (
        header.arch_integer(f"attention.{name}_length", width) for name in ("key", "value")
    )
    if in_window:
        key = header.arch_integer("attention.key_length_swa", key)
        value = header.arch_integer("attention.value_length_swa", value)
    latent = header.arch_integer("attention.key_length_mla") > 0
    index = 0
    if header.architecture in _KEYS_OF_INDEX:
        index = max(header.arch_integer("attention.indexer.key_length"), 0)
    # With latent attention (MLA), the values are a part of the keys.
    return max(key, 0) * n_heads + index, 0 if latent else max(value, 0) * n_heads


def _windows(header: GgufHeader, n_layers: int, carries: Sequence[bool]) -> Sequence[int]:
    """Return each layer's window in tokens, 0 for none."""
    none = (0,) * n_layers
    rule = _WINDOWS.get(header.architecture)
    if rule is None or (header.architecture == "exaone4" and n_layers != 64):
        return none
    in_file = header.arch_integer("attention.sliding_window", -1)
    size = rule.size if in_file < 0 or (rule.fixed and in_file > 0) else in_file
    if size <= 0 or (header.architecture == "smallthinker" and in_file <= 0):
        return none
    key = f"{header.architecture}.attention.sliding_window_pattern"
    pattern = header.values.get(key)
    if isinstance(pattern, LongArray):
        pattern = pattern.values()
    if header.architecture.startswith("lfm2"):
        return tuple(0 if carried else size for carried in carries)
    if isinstance(pattern, tuple):
        flags = (*pattern, *none)
        return tuple(size if flags[at] else 0 for at in range(n_layers))
    every = pattern if isinstance(pattern, int) and pattern >= 0 else rule.every
    dense = 0 if rule.dense_first else every - 1
    return tuple(0 if every and at % every == dense else size for at in range(n_layers))


def _count_kv_layers(header: GgufHeader, n_layers: int) -> int:
    """Return the number of layers with a KV cache; the layers after them share an earlier one."""
    if header.architecture == "gemma3n":
        return min(20, n_layers)
    if header.architecture == "gemma4":
        return n_layers - max(header.arch_integer("attention.shared_kv_layers"), 0)
    return n_layers


def _attends(header: GgufHeader, at: int, carried: bool) -> bool:
    if header.architecture in _BOTH:
        return True
    if header.architecture in _NEMOTRON and _n_ff(header, at):
        return False
    return not carried


# ------------------------------------------------------------------------ running states


def _carries(header: GgufHeader, n_layers: int, kv_heads: Sequence[int]) -> Sequence[bool]:
    """Return for each layer whether it has a running state."""
    architecture = header.architecture
    if architecture in RECURRENT or architecture == "falcon-h1":
        return (True,) * n_layers
    if architecture == "deepseek4":
        return tuple(ratio in _COMPRESSED for ratio in _ratios(header, n_layers))
    if architecture in _HYBRID_BY_HEADS:
        return tuple(n == 0 for n in kv_heads)
    if architecture in _NEMOTRON:
        return tuple(n == 0 and not _n_ff(header, at) for at, n in enumerate(kv_heads))
    if architecture in _HYBRID_BY_INTERVAL:
        flags = header.values.get(f"{architecture}.attention.recurrent_layers")
        if isinstance(flags, tuple):
            flags = (*flags, *(0,) * n_layers)
            return tuple(bool(flags[at]) for at in range(n_layers))
        interval = header.arch_integer("full_attention_interval", _HYBRID_BY_INTERVAL[architecture])
        return tuple((at + 1) % max(interval, 1) != 0 for at in range(n_layers))
    return (False,) * n_layers


def _states(header: GgufHeader, n_layers: int, n_heads: int) -> Sequence[int]:
    """Return the elements of each layer's running state, if it has one."""
    if header.architecture != "deepseek4":
        return (max(_state(header, n_heads), 0),) * n_layers
    key = max(header.arch_integer("attention.key_length"), 0)
    index = max(header.arch_integer("attention.indexer.key_length"), 0)
    return tuple(
        _COMPRESSED.get(ratio, 0) * (key + (index if ratio == min(_COMPRESSED) else 0))
        for ratio in _ratios(header, n_layers)
    )


def _ratios(header: GgufHeader, n_layers: int) -> Sequence[int]:
    """Return for each layer how many tokens it compresses into one row."""
    return per_layer(header, "attention.compress_ratios", n_layers)


def _state(header: GgufHeader, n_heads: int) -> int:
    """Return the elements of one layer's state: recent inputs and the state itself."""
    n_embd = header.arch_integer("embedding_length")
    conv = max(header.arch_integer("ssm.conv_kernel") - 1, 0)
    if wkv := header.arch_integer("wkv.head_size"):
        return n_embd * (header.arch_integer("token_shift_count", 2) + wkv)
    if reach := header.arch_integer("shortconv.l_cache"):
        return n_embd * (reach - 1)
    if width := header.arch_integer("kda.head_dim"):
        return n_heads * width * (3 * (conv or 3) + width)
    inner, size = header.arch_integer("ssm.inner_size"), header.arch_integer("ssm.state_size")
    if header.architecture == "minimax-01":
        width = header.arch_integer("attention.key_length", n_embd // n_heads if n_heads else 0)
        return width * width * n_heads
    return conv * (inner + 2 * header.arch_integer("ssm.group_count") * size) + size * inner


def mixer(header: GgufHeader) -> int:
    """Return the elements of scratch memory per token in a layer with a running state."""
    n_embd = max(header.arch_integer("embedding_length"), 0)
    if header.arch_integer("wkv.head_size"):
        return 18 * n_embd
    inner, n_groups = header.arch_integer("ssm.inner_size"), header.arch_integer("ssm.group_count")
    rows = header.arch_integer("kda.head_dim") * max(
        header.arch_integers("attention.head_count"), default=0
    )
    if rows:
        return max(9 * rows, 0)
    if not n_groups:
        return max(4 * inner + 4 * n_embd, 0) if inner else 0
    conv = inner + 2 * n_groups * header.arch_integer("ssm.state_size")
    if header.architecture in _HYBRID_BY_INTERVAL:
        return max(2 * conv + 2 * inner + 2 * n_embd, 0)
    return max(inner + conv + header.arch_integer("ssm.time_step_rank") + 2 * conv + 2 * inner, 0)


# ------------------------------------------------------------------------------- numbers


def per_layer(
    header: GgufHeader, key: str, n_layers: int, default: Sequence[int] = ()
) -> Sequence[int]:
    """Return one number per layer; the file has one for all layers or one for each."""
    numbers = header.arch_integers(key)
    if not numbers:
        return default or (0,) * n_layers
    whole = numbers * n_layers if len(numbers) == 1 else (*numbers, *(0,) * n_layers)
    return whole[:n_layers]


def _n_ff(header: GgufHeader, at: int) -> int:
    numbers = header.arch_integers("feed_forward_length")
    if len(numbers) == 1:
        return numbers[0]
    return numbers[at] if at < len(numbers) else 0
