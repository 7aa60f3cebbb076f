"""A small Llama in PyTorch, as llama.cpp's "llama" architecture computes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RMS_EPS = 1e-5


@dataclass(frozen=True)
class ModelShape:
    """The sizes of one model."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int = 2048
    context: int = 2048
    rope_base: float = 200000.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads


TARGET = ModelShape(width=256, layers=6, heads=4, hidden=640)
DRAFTER = ModelShape(width=256, layers=5, heads=4, hidden=288)


class Cache:
    """Keys and values of the positions so far, in preallocated buffers."""

    def __init__(self, shape: ModelShape, batch: int, length: int) -> None:
        size = (shape.layers, batch, shape.heads, length, shape.head_width)
        self.keys, self.values = torch.empty(size), torch.empty(size)
        self.used = 0

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new positions and return all of that layer."""
        end = self.used + k.shape[2]
        self.keys[layer, :, :, self.used : end] = k
        self.values[layer, :, :, self.used : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def rope_tables(shape: ModelShape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, (context, head_width / 2)."""
    half = torch.arange(0, shape.head_width, 2, dtype=torch.float32)
    inverse = shape.rope_base ** (-half / shape.head_width)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), inverse)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to the two halves of each head; export.py reorders them to pairs."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.type_as(x)


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q = nn.Linear(shape.width, shape.width, bias=False)
        self.k = nn.Linear(shape.width, shape.width, bias=False)
        self.v = nn.Linear(shape.width, shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], layer: int, cache: Cache | None
    ) -> Tensor:
        q = rotate(self._split(self.q(x)), *rope)
        k = rotate(self._split(self.k(x)), *rope)
        v = self._split(self.v(x))
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        causal = q.shape[2] > 1
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=RMS_EPS)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=RMS_EPS)
        self.feed_forward = FeedForward(shape)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], layer: int, cache: Cache | None
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, layer, cache)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Maps token ids to logits; the embedding is also the output matrix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=RMS_EPS)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.02)
        for block in self.blocks:
            assert isinstance(block, Block)
            nn.init.zeros_(block.attention.out.weight)
            nn.init.zeros_(block.feed_forward.down.weight)

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Return logits for every position.

        With a cache, the first call has the prompt, and each later call one position.
        """
        start = cache.used if cache else 0
        end = start + ids.shape[1]
        rope = (self.cos[start:end], self.sin[start:end])
        x = self.embedding(ids)
        for layer, block in enumerate(self.blocks):
            x = block(x, rope, layer, cache)
        if cache:
            cache.used = end
        return F.linear(self.norm(x), self.embedding.weight)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())
