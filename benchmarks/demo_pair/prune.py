"""Initialise a smaller model from a larger one of the same width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from model import Block, FeedForward, Llama, ModelShape
from torch import Tensor

RIDGE = 0.01


@torch.no_grad()
def pruned(model: Llama, shape: ModelShape, kept: tuple[int, ...], ids: Tensor) -> Llama:
    """Return a model of some of the layers, each with its most active hidden units on this text."""
    smaller = Llama(shape)
    smaller.embedding.load_state_dict(model.embedding.state_dict())
    smaller.norm.load_state_dict(model.norm.state_dict())
    inputs = feed_forward_inputs(model, ids)
    for block, index in zip(smaller.blocks, kept, strict=True):
        whole = model.blocks[index]
        assert isinstance(whole, Block)
        state = whole.state_dict() | {
            f"feed_forward.{name}.weight": weight
            for name, weight in narrowed(whole.feed_forward, inputs[index], shape.hidden).items()
        }
        block.load_state_dict(state)
    return smaller


def feed_forward_inputs(model: Llama, ids: Tensor) -> list[Tensor]:
    """Return the inputs of each layer's feed-forward part along this text, (tokens, width) each."""
    seen: list[Tensor] = []
    hooks = [
        block.feed_forward.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for block in model.blocks
        if isinstance(block, Block)
    ]
    model(ids)
    for hook in hooks:
        hook.remove()
    return [given.flatten(0, 1) for given in seen]


def narrowed(part: FeedForward, inputs: Tensor, hidden: int) -> dict[str, Tensor]:
    """Return the strongest units, with outgoing weights that best replace the removed ones.

    This is a ridge regression of the whole part's output on the remaining units' activations,
    starting from their weights.
    """
    active = F.silu(part.gate(inputs)) * part.up(inputs)
    strength = active.square().mean(0).sqrt() * part.down.weight.norm(dim=0)
    units = strength.topk(hidden).indices.sort().values
    kept, down = active[:, units], part.down.weight[:, units]
    gram = kept.T @ kept
    gram.diagonal().add_(RIDGE * gram.diagonal().mean())
    missing = part.down(active) - kept @ down.T
    down = down + torch.linalg.solve(gram, kept.T @ missing).T
    return {"up": part.up.weight[units], "gate": part.gate.weight[units], "down": down}
