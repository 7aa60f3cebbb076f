"""Train the drafter on the target's distribution, on the library and on the target's own text."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import corpus
import numpy as np
import torch
from corpus import Tokens
from model import Cache, Llama
from tokenizers import Tokenizer
from torch import Tensor

Loss = Callable[[], Tensor]

ROW_LENGTH = 320
ROW_BATCH = 128
LONGEST_PROMPT = 160
TEMPERATURES = (0.01, 0.8, 0.01, 0.8, 0.01, 0.8, 0.8, 1.0)
TOP_K, TOP_P = 40, 0.9
LIBRARY_EVERY = 6
LOSS_CHUNK = 128


@dataclass(frozen=True)
class TrainingText:
    """The library and its tokens."""

    library: corpus.Corpus
    tokenizer: Tokenizer
    tokens: Tokens
    held_out: Tokens


@dataclass(frozen=True)
class GeneratedRows:
    """Rows of the target's own text, and the logits that produced them."""

    ids: Tensor
    logits: Tensor


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def drafter_losses(
    drafter: Llama, target: Llama, library_rows: Iterator[Tensor], written: GeneratedRows, seed: int
) -> Iterator[Loss]:
    """Yield losses: one step in six on rows of the library, the others on the target's text."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for step, library in enumerate(library_rows):
        if step % LIBRARY_EVERY:
            count = library.numel() // ROW_LENGTH
            if len(order) < count:
                order = torch.randperm(len(written.ids), generator=generator)
            chosen, order = order[:count], order[count:]
            ids, wanted = written.ids[chosen], written.logits[chosen]
        else:
            ids = library[:, :-1]
            with torch.no_grad(), autocast():
                wanted = target(ids)
        yield partial(distillation_loss, drafter, ids, wanted)


def distillation_loss(drafter: Llama, ids: Tensor, wanted: Tensor) -> Tensor:
    with autocast():
        given = drafter(ids)
    loss: Tensor = Divergence.apply(given.flatten(0, 1), wanted.flatten(0, 1))
    return loss


class Divergence(torch.autograd.Function):
    """KL from the target at temperature 1, plus half at 0.5, where the most probable token decides.

    The gradient is computed in the forward pass, a few rows at a time: these wide rows would
    otherwise cost as much as the whole model.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, wanted: Tensor) -> Tensor:
        gradient = torch.empty_like(given)
        total = torch.zeros(())
        for start in range(0, len(given), LOSS_CHUNK):
            rows = slice(start, start + LOSS_CHUNK)
            log_q, log_p = (x[rows].float().log_softmax(-1) for x in (given, wanted))
            q, p = log_q.exp(), log_p.exp()
            q_sharp, p_sharp = (x.square() for x in (q, p))
            q_total, p_total = (x.sum(-1, keepdim=True) for x in (q_sharp, p_sharp))
            p_sharp /= p_total
            apart = log_p.sub_(log_q)
            total += torch.vdot(p.add(p_sharp).flatten(), apart.flatten())
            total += 0.5 * (q_total.log() - p_total.log()).sum()
            gradient[rows] = (q - p + q_sharp.div_(q_total) - p_sharp) / len(given)
        ctx.save_for_backward(gradient)
        return total / len(given)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * above, None


@torch.no_grad()
def write_text(target: Llama, text: TrainingText, count: int, seed: int) -> GeneratedRows:
    """Return rows that the target wrote after prompts of every kind, at several temperatures."""
    generator = torch.Generator().manual_seed(seed)
    prompts = sorted(beginnings(text, count, seed), key=len)
    written = GeneratedRows(
        ids=torch.zeros((count, ROW_LENGTH), dtype=torch.long),
        logits=torch.empty((count, ROW_LENGTH, target.shape.vocab), dtype=torch.half),
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        written.ids[row, : len(prompt)] = torch.from_numpy(prompt)
    for start in range(0, count, ROW_BATCH):
        rows = slice(start, start + ROW_BATCH)
        continue_rows(
            target, GeneratedRows(written.ids[rows], written.logits[rows]), lengths[rows], generator
        )
        print(f"written {start + ROW_BATCH}/{count}", flush=True)
    return written


def beginnings(text: TrainingText, count: int, seed: int) -> list[np.ndarray]:
    """Return evaluate.py's kinds of prompts from training files, one in five a document's start."""
    rng = random.Random(seed)  # noqa: S311 - repeatable, no secret
    asked = corpus.prompts(text.library.training, count - count // 5, rng)
    encoded = [np.array(ids.ids[:LONGEST_PROMPT]) for ids in text.tokenizer.encode_batch(asked)]
    for _ in range(count - len(encoded)):
        start = rng.choice(text.tokens.starts)
        encoded.append(text.tokens.ids[start : start + rng.randint(4, 64)])
    return encoded


def continue_rows(
    target: Llama, rows: GeneratedRows, prompts: Tensor, generator: torch.Generator
) -> None:
    """Fill the rows after their prompts."""
    temperatures = torch.tensor(TEMPERATURES).repeat(len(rows.ids) // len(TEMPERATURES))[:, None]
    cache = Cache(target.shape, len(rows.ids), ROW_LENGTH)
    start, end = 0, int(prompts.min())
    while start < ROW_LENGTH:
        logits = target(rows.ids[:, start:end], cache)
        rows.logits[:, start:end] = logits
        if end < ROW_LENGTH:
            picked = pick(logits[:, -1], temperatures, generator)[:, 0]
            rows.ids[:, end] = torch.where(prompts > end, rows.ids[:, end], picked)
        start, end = end, end + 1


def pick(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """Sample from the forty most probable tokens, cut at a total of 0.9, with a temperature per
    row.
    """
    highest, order = logits.topk(TOP_K)
    chances = highest.softmax(-1)
    dropped = chances.cumsum(-1) - chances >= TOP_P
    chances = (highest / temperatures).masked_fill(dropped, -torch.inf).softmax(-1)
    return order.gather(1, torch.multinomial(chances, 1, generator=generator))
