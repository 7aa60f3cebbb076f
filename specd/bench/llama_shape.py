"""The dimensions of a dense Llama, and of a larger one that contains it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Proportions of the families of that size: Llama 3.2 1B, TinyLlama, Qwen3 have widths of 64 to
# 128 times their depth and feed-forward layers of 2.7 to 4 times their width.
_WIDTH_PER_LAYER = 100
_FF_PER_WIDTH = 2.75
_BLOCK = 32
_WIDE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """The dimensions of a dense Llama.

    has_output: whether the output matrix is separate from the embedding.
    """

    n_embd: int
    n_layers: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    has_output: bool = False

    @classmethod
    def empty(cls, like: LlamaShape) -> LlamaShape:
        """Return the shape without heads and feed-forward columns."""
        return replace(like, n_ff=0, n_heads=0, n_kv_heads=0)

    def copied(self, n: int) -> LlamaShape:
        """Return the shape with n times the embedding, heads and feed-forward columns."""
        return replace(
            self,
            n_embd=n * self.n_embd,
            n_ff=n * self.n_ff,
            n_heads=n * self.n_heads,
            n_kv_heads=n * self.n_kv_heads,
        )

    @property
    def n_parameters(self) -> int:
        attention = 2 * (self.n_heads + self.n_kv_heads) * self.head_dim * self.n_embd
        layer = attention + 3 * self.n_ff * self.n_embd + 2 * self.n_embd
        vocabulary = self.n_vocab * self.n_embd * (1 + self.has_output)
        return vocabulary + self.n_layers * layer + self.n_embd

    @property
    def label(self) -> str:
        """The number of parameters as in model names: 30M, 1.1B."""
        n = self.n_parameters
        return f"{n / 1e9:.2g}B" if n >= 1e9 or round(n / 1e6) >= 1000 else f"{n / 1e6:.0f}M"

    def describe(self) -> str:
        return (
            f"{self.n_parameters / 1e6:.0f} M parameters, {self.n_layers} layers,"
            f" width {self.n_embd}, feed-forward {self.n_ff}, {self.n_heads} heads"
        )


def scaled(small: LlamaShape, n_parameters: int) -> LlamaShape:
    """Return the shape nearest to `n_parameters` that contains `small`, proportioned as a real one.

    Heads keep their size and grouping.  Every row is a whole number of Q8_0 blocks.
    """
    group = small.n_heads // small.n_kv_heads
    step = math.lcm(small.head_dim * group, _BLOCK)
    kv_share = 2 * (1 + 1 / group)
    per_cube = (kv_share + 3 * _FF_PER_WIDTH) / _WIDTH_PER_LAYER
    wanted_width = (n_parameters / per_cube) ** (1 / 3)
    if wanted_width >= 4 * _WIDE:
        step = math.lcm(step, _WIDE)
    n_embd = max(_nearest(wanted_width, step), _at_least(small.n_embd, step))
    n_heads = max(n_embd // small.head_dim, small.n_heads)
    base = replace(
        small,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_heads // group,
        n_ff=max(_nearest(_FF_PER_WIDTH * n_embd, _BLOCK), small.n_ff),
    )
    one_layer = replace(base, n_layers=1).n_parameters - replace(base, n_layers=0).n_parameters
    rest = n_parameters - replace(base, n_layers=0).n_parameters
    deep = replace(base, n_layers=max(round(rest / one_layer), small.n_layers))
    # What rounding the depth has left over goes into the feed-forward layers.
    without_ff = replace(deep, n_ff=0).n_parameters
    n_ff = (n_parameters - without_ff) / (3 * n_embd * deep.n_layers)
    ff_step = _WIDE if n_ff >= 4 * _WIDE else _BLOCK
    return replace(deep, n_ff=max(_nearest(n_ff, ff_step), _at_least(small.n_ff, _BLOCK)))


def _nearest(value: float, step: int) -> int:
    return max(round(value / step), 1) * step


def _at_least(value: int, step: int) -> int:
    return -(-value // step) * step
