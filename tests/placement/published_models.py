"""Headers of published models, made from their hyperparameters without files, and machines.

Sizes follow from the shapes of the tensors and from the formats that llama.cpp's quantization
chooses for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from specd.core import ContextMemory, EngineSpec
from specd.placement import Cpu, Device, DeviceKind
from specd.store.gguf import GgufHeader, TensorInfo, Value
from specd.store.shape import Shape, shape_of

MIB, GIB = 2**20, 2**30
#: Bytes per 256 weights.
_BYTES = {"Q4_K": 144, "Q5_0": 176, "Q6_K": 210, "Q8_0": 272, "F16": 512, "MXFP4": 136, "F32": 1024}
#: The format that replaces another if the row length is no multiple of 256.
_INSTEAD = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Hyperparameters.  n_ff: of dense layers; a model with experts begins with n_dense of these.

    attention: layers with attention; the others have a state of inner × state numbers.
    """

    architecture: str = "llama"
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    n_vocab: int
    n_ctx: int
    ties: bool = False
    window: int = 0
    n_experts: int = 0
    n_used: int = 0
    expert_ff: int = 0
    shared_ff: int = 0
    n_dense: int = 0
    latent: bool = False
    attention: tuple[int, ...] = ()
    inner: int = 0
    state: int = 0

    def header(self, kind: str) -> GgufHeader:
        tensors = tuple(self._tensors(kind))
        return GgufHeader(path=Path("published"), values=self._values(), tensors=tensors)

    def memory(self, spec: EngineSpec, *, is_drafter: bool) -> ContextMemory:
        """Return what llama.cpp would allocate for a context of the spec."""
        n_slots, n_batch = max(spec.n_slots, 1), min(spec.n_batch, spec.n_ctx * spec.n_slots)
        n_cells = -(-spec.n_ctx * n_slots // 256) * 256
        n_window = min(n_cells, -(-(self.window * n_slots + n_batch) // 256) * 256)
        n_states = 2 * n_slots if is_drafter else n_slots
        row_bytes = _row_bytes(
            576 if self.latent else 2 * self.n_kv_heads * self.head_width, spec.kv_cache_type
        )
        state_bytes = 4 * (self.inner * self.state + 3 * (self.inner + 2 * self.state))
        every = {"gemma3": 6, "gpt-oss": 2}.get(self.architecture, 1)

        def cache(at: int) -> int:
            if self.architecture == "nomic-bert":
                return 0
            if self.attention and at not in self.attention:
                return state_bytes * n_states
            return row_bytes * (n_window if (at + 1) % every else n_cells)

        all_cells = n_cells + (n_window if every > 1 else 0)
        n_ff = max(self.n_ff, self.n_used * self.expert_ff)
        rows = 4 * self.n_embd + 3 * n_ff + 8 * self.inner
        results_bytes = 4 * n_slots * 17 * self.n_vocab
        return ContextMemory(
            n_ctx=spec.n_ctx,
            layers=tuple((at, cache(at)) for at in range(self.n_layers)),
            n_cells=all_cells,
            scratch_bytes=2 * all_cells * n_batch + max(4 * rows * n_batch, results_bytes),
            results_bytes=results_bytes,
        )

    def _values(self) -> Mapping[str, Value]:
        own: dict[str, Value] = {
            "block_count": self.n_layers,
            "context_length": self.n_ctx,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv_heads,
            "attention.key_length": self.head_width,
            "attention.value_length": self.head_width,
        }
        if self.window:
            own["attention.sliding_window"] = self.window
        if self.n_experts:
            own |= {"expert_count": self.n_experts, "expert_used_count": self.n_used}
            own["expert_feed_forward_length"] = self.expert_ff
        if self.latent:  # DeepSeek V2's values
            own |= {"attention.key_length": 576, "attention.value_length": 512}
            own |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
            own["attention.head_count_kv"] = 1
        if self.attention:
            kv = tuple(self.n_kv_heads * (at in self.attention) for at in range(self.n_layers))
            own |= {"attention.head_count_kv": kv, "ssm.conv_kernel": 4, "ssm.group_count": 1}
            own |= {"ssm.inner_size": self.inner, "ssm.state_size": self.state}
        values: dict[str, Value] = {"general.architecture": self.architecture}
        return values | {f"{self.architecture}.{key}": value for key, value in own.items()}

    def _tensors(self, kind: str) -> Iterator[TensorInfo]:
        low, high = {"Q4_K_M": ("Q4_K", "Q6_K"), "MXFP4": ("Q8_0", "Q8_0")}.get(kind, (kind, kind))
        yield _tensor("token_embd.weight", high if self.ties else low, self.n_embd, self.n_vocab)
        if not self.ties:
            yield _tensor("output.weight", high, self.n_embd, self.n_vocab)
        for at in range(self.n_layers):
            third = (at - self.n_layers // 8) % 3 == 2
            outer = at < self.n_layers // 8 or at >= 7 * self.n_layers // 8
            best = high if third or outer else low
            yield from self._mixer(f"blk.{at}.", at, low, best)
            yield from self._feed_forward(f"blk.{at}.", at, kind, low, best)

    def _mixer(self, blk: str, at: int, low: str, best: str) -> Iterator[TensorInfo]:
        width = self.n_heads * self.head_width
        kv_width = self.n_kv_heads * self.head_width
        if self.attention and at not in self.attention:
            yield _tensor(blk + "ssm_in.weight", low, self.n_embd, 2 * self.inner + 2 * self.state)
            yield _tensor(blk + "ssm_out.weight", low, self.inner, self.n_embd)
            return
        if self.latent:
            yield _tensor(blk + "attn_q.weight", low, self.n_embd, 192 * self.n_heads)
            yield _tensor(blk + "attn_kv_a_mqa.weight", low, self.n_embd, 576)
            yield _tensor(blk + "attn_kv_b.weight", low, 512, 256 * self.n_heads)
            yield _tensor(blk + "attn_output.weight", low, 128 * self.n_heads, self.n_embd)
            return
        yield _tensor(blk + "attn_q.weight", low, self.n_embd, width)
        yield _tensor(blk + "attn_k.weight", low, self.n_embd, kv_width)
        yield _tensor(blk + "attn_v.weight", best, self.n_embd, kv_width)
        yield _tensor(blk + "attn_output.weight", low, width, self.n_embd)

    def _feed_forward(
        self, blk: str, at: int, kind: str, low: str, best: str
    ) -> Iterator[TensorInfo]:
        if not self.n_experts or at < self.n_dense:
            yield from _gated(blk + "ffn_", low, best, self.n_embd, self.n_ff)
            return
        if kind == "MXFP4":
            low = best = "MXFP4"
        yield from _gated(blk + "exps_", low, best, self.n_embd, self.expert_ff, self.n_experts)
        if self.shared_ff:
            yield from _gated(blk + "shexp_", low, best, self.n_embd, self.shared_ff)


def _gated(prefix: str, low: str, best: str, n: int, n_ff: int, *many: int) -> Iterator[TensorInfo]:
    yield _tensor(f"{prefix}gate.weight", low, n, n_ff, *many)
    yield _tensor(f"{prefix}up.weight", low, n, n_ff, *many)
    yield _tensor(f"{prefix}down.weight", best, n_ff, n, *many)


def _row_bytes(n: int, kv_cache_type: str) -> int:
    n_elements, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kv_cache_type.upper()]]
    return int(n // n_elements * n_bytes)


def _tensor(name: str, kind: str, *shape: int) -> TensorInfo:
    if shape[0] % 256:
        kind = _INSTEAD.get(kind, kind)
    return TensorInfo(name, kind, shape, math.prod(shape) * _BYTES[kind] // 256)


def _llama(
    n_layers: int,
    n_embd: int,
    n_ff: int,
    n_heads: int,
    n_kv_heads: int,
    head_width: int,
    *,
    architecture: str = "llama",
    n_vocab: int = 128_256,
    n_ctx: int = 131_072,
    ties: bool = False,
    window: int = 0,
) -> Published:
    return Published(
        architecture=architecture,
        n_layers=n_layers,
        n_embd=n_embd,
        n_ff=n_ff,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_width=head_width,
        n_vocab=n_vocab,
        n_ctx=n_ctx,
        ties=ties,
        window=window,
    )


def _qwen2(*numbers: int, n_vocab: int = 152_064, ties: bool = False) -> Published:
    return _llama(*numbers, architecture="qwen2", n_vocab=n_vocab, n_ctx=32_768, ties=ties)


def _qwen3(*numbers: int, ties: bool = False) -> Published:
    return _llama(*numbers, architecture="qwen3", n_vocab=151_936, n_ctx=40_960, ties=ties)


def _gemma3(*numbers: int, n_ctx: int = 131_072, window: int = 1024) -> Published:
    return _llama(
        *numbers, architecture="gemma3", n_vocab=262_144, n_ctx=n_ctx, ties=True, window=window
    )


PUBLISHED = {
    "llama3.2:1b": _llama(16, 2048, 8192, 32, 8, 64, ties=True),
    "llama3.2:3b": _llama(28, 3072, 8192, 24, 8, 128, ties=True),
    "llama3.1:8b": _llama(32, 4096, 14_336, 32, 8, 128),
    "llama3.3:70b": _llama(80, 8192, 28_672, 64, 8, 128),
    "qwen2.5:0.5b": _qwen2(24, 896, 4864, 14, 2, 64, n_vocab=151_936, ties=True),
    "qwen2.5:1.5b": _qwen2(28, 1536, 8960, 12, 2, 128, n_vocab=151_936, ties=True),
    "qwen2.5:7b": _qwen2(28, 3584, 18_944, 28, 4, 128),
    "qwen2.5:14b": _qwen2(48, 5120, 13_824, 40, 8, 128),
    "qwen2.5:32b": _qwen2(64, 5120, 27_648, 40, 8, 128),
    "qwen2.5:72b": _qwen2(80, 8192, 29_568, 64, 8, 128),
    "qwen3:0.6b": _qwen3(28, 1024, 3072, 16, 8, 128, ties=True),
    "qwen3:1.7b": _qwen3(28, 2048, 6144, 16, 8, 128, ties=True),
    "qwen3:4b": _qwen3(36, 2560, 9728, 32, 8, 128, ties=True),
    "qwen3:8b": _qwen3(36, 4096, 12_288, 32, 8, 128),
    "qwen3:14b": _qwen3(40, 5120, 17_408, 40, 8, 128),
    "qwen3:32b": _qwen3(64, 5120, 25_600, 64, 8, 128),
    "gemma3:1b": _gemma3(26, 1152, 6912, 4, 1, 256, n_ctx=32_768, window=512),
    "gemma3:4b": _gemma3(34, 2560, 10_240, 8, 4, 256),
    "gemma3:12b": _gemma3(48, 3840, 15_360, 16, 8, 256),
    "gemma3:27b": _gemma3(62, 5376, 21_504, 32, 16, 128),
    "mistral-small:24b": _llama(40, 5120, 32_768, 32, 8, 128, n_vocab=131_072, n_ctx=32_768),
    "mistral-draft:0.5b": _llama(24, 896, 4864, 14, 2, 64, n_vocab=131_072, ties=True),
    "phi4:14b": _llama(40, 5120, 17_920, 40, 10, 128, n_vocab=100_352, n_ctx=16_384),
    "qwen3:30b-a3b": Published(
        architecture="qwen3moe",
        n_layers=48,
        n_embd=2048,
        n_ff=6144,
        n_heads=32,
        n_kv_heads=4,
        head_width=128,
        n_vocab=151_936,
        n_ctx=40_960,
        n_experts=128,
        n_used=8,
        expert_ff=768,
    ),
    "gpt-oss:20b": Published(
        architecture="gpt-oss",
        n_layers=24,
        n_embd=2880,
        n_ff=2880,
        n_heads=64,
        n_kv_heads=8,
        head_width=64,
        n_vocab=201_088,
        n_ctx=131_072,
        window=128,
        n_experts=32,
        n_used=4,
        expert_ff=2880,
    ),
    "gpt-oss:120b": Published(
        architecture="gpt-oss",
        n_layers=36,
        n_embd=2880,
        n_ff=2880,
        n_heads=64,
        n_kv_heads=8,
        head_width=64,
        n_vocab=201_088,
        n_ctx=131_072,
        window=128,
        n_experts=128,
        n_used=4,
        expert_ff=2880,
    ),
    "deepseek-v2:16b": Published(
        architecture="deepseek2",
        n_layers=27,
        n_embd=2048,
        n_ff=10_944,
        n_heads=16,
        n_kv_heads=16,
        head_width=128,
        n_vocab=102_400,
        n_ctx=163_840,
        n_experts=64,
        n_used=6,
        expert_ff=1408,
        shared_ff=2816,
        n_dense=1,
        latent=True,
    ),
    "granite4:7b-a1b-h": Published(
        architecture="granitehybrid",
        n_layers=40,
        n_embd=1536,
        n_ff=512,
        n_heads=12,
        n_kv_heads=4,
        head_width=128,
        n_vocab=100_352,
        n_ctx=131_072,
        ties=True,
        n_experts=64,
        n_used=6,
        expert_ff=512,
        shared_ff=1024,
        attention=(5, 15, 25, 35),
        inner=3072,
        state=128,
    ),
    "granite4:350m-h": Published(
        architecture="granitehybrid",
        n_layers=32,
        n_embd=768,
        n_ff=2048,
        n_heads=12,
        n_kv_heads=4,
        head_width=64,
        n_vocab=100_352,
        n_ctx=32_768,
        ties=True,
        attention=(10, 13, 17, 27),
        inner=1536,
        state=128,
    ),
    "nomic-embed-text": _llama(
        12, 768, 3072, 12, 12, 64, architecture="nomic-bert", n_vocab=30_522, n_ctx=2048, ties=True
    ),
}


@cache
def shape(name: str) -> Shape:
    """Return the shape of a published model, such as "llama3.1:8b Q4_K_M"."""
    model, kind = name.split()
    return shape_of(PUBLISHED[model].header(kind))


#: Nominal size in GB → name, MiB by the driver, and MiB free without a display.
_CARDS = {
    "4": ("NVIDIA GeForce GTX 1650", 4096, 3900),
    "8": ("NVIDIA GeForce RTX 4060", 8188, 7930),
    "12": ("NVIDIA GeForce RTX 3060", 12_288, 12_030),
    "16": ("NVIDIA GeForce RTX 4080", 16_376, 16_060),
    "24": ("NVIDIA GeForce RTX 4090", 24_564, 24_200),
    "48": ("NVIDIA RTX A6000", 49_140, 48_640),
    "80": ("NVIDIA H100 80GB HBM3", 81_559, 81_000),
    "mig": ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, 9970),
    "igpu": ("AMD Radeon 780M", 16_000, 15_000),
}


def gpus(cards: str) -> tuple[Device, ...]:
    """Return GPUs, such as "24+8"; "" is none, "mig" a MIG instance, "igpu" shares main memory."""
    return tuple(
        _gpu(card, index, *_CARDS[card])
        for index, card in enumerate(filter(None, cards.split("+")))
    )


def _gpu(card: str, index: int, name: str, total_mib: int, free_mib: int) -> Device:
    device = {"mig": "MIG", "igpu": "Vulkan"}.get(card, "GPU")
    return Device(
        vendor="nvidia",
        index=index,
        name=name,
        uuid=f"GPU-{index}",
        total_bytes=total_mib * MIB,
        free_bytes=free_mib * MIB,
        id=f"{device}-{index}",
        kind=DeviceKind.INTEGRATED if card == "igpu" else DeviceKind.DISCRETE,
    )


def main_memory(gib: int) -> Cpu:
    """Return a machine's main memory; the system and its services hold 2 GiB of it."""
    return Cpu(total_bytes=gib * GIB, available_bytes=(gib - 2) * GIB, n_cores=8)
