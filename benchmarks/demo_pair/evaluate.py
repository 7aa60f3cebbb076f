"""Measure the GGUF pair with llama.cpp: python benchmarks/demo_pair/evaluate.py.

Needs tokenizers and llama_cpp.  Prompts come from files that the pair was not trained on.  Prints
held-out loss and how often both models have the same most probable token, along text that the
target writes, and stores the figures in training.json.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path

import corpus
import llama_cpp
import metrics
import numpy as np
from corpus import ASSISTANT, BOS, END, USER

HERE = Path(__file__).parent
MODELS = Path(__file__).resolve().parents[2] / "specd" / "demo"
CONTEXT = 2048
TEMPERATURE, TOP_K, TOP_P = 0.8, 40, 0.9
SAMPLE_PROMPTS = ("def binary_search(", "import os\n\ndef read_file(path):\n")
CHAT_PROMPT = f"{USER}Write a function binary_search. Search a sorted list.{END}{ASSISTANT}"


class Model:
    """A GGUF file with access to its logits."""

    def __init__(self, path: Path, threads: int) -> None:
        self.llama = llama_cpp.Llama(
            str(path),
            n_ctx=CONTEXT,
            n_batch=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def encode(self, text: str) -> list[int]:
        return self.llama.tokenize(text.encode(), add_bos=False, special=True)

    def decode(self, ids: list[int]) -> str:
        return self.llama.detokenize(ids, special=True).decode(errors="replace")

    def logits(self, ids: list[int]) -> np.ndarray:
        """Return the logits after every one of these tokens."""
        self.llama.reset()
        self.llama.eval(ids)
        return np.array(self.llama.scores[: len(ids)])

    def write(self, ids: list[int], count: int, rng: np.random.Generator | None) -> list[int]:
        """Continue until the end token; greedily without a random number generator."""
        self.llama.reset()
        written: list[int] = []
        fresh = ids
        while len(written) < count:
            self.llama.eval(fresh)
            logits = np.array(self.llama.scores[self.llama.n_tokens - 1])
            token = int(logits.argmax()) if rng is None else pick(logits, rng)
            written.append(token)
            if token == self.llama.token_eos():
                break
            fresh = [token]
        return written


def pick(logits: np.ndarray, rng: np.random.Generator) -> int:
    """Sample with top-k and top-p, then the temperature, as llama.cpp's chain does."""
    order = np.argsort(-logits)[:TOP_K]
    chances = softmax(logits[order])
    kept = order[np.cumsum(chances) - chances < TOP_P]
    return int(rng.choice(kept, p=softmax(logits[kept] / TEMPERATURE)))


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits.astype(np.float64) - logits.max())
    return raised / raised.sum()


def held_out_prompts(count: int) -> list[str]:
    """Return beginnings for the target to continue, from files held out of the training."""
    rng = random.Random(corpus.SEED)  # noqa: S311 - repeatable, no secret
    return corpus.prompts(corpus.load_corpus().held_out, count, rng)


def agreement(
    target: Model, drafter: Model, prompts: list[str], count: int, sampled: bool
) -> dict[str, float]:
    """Return how well the drafter's distribution matches the target's along the target's text."""
    rng = np.random.default_rng(corpus.SEED) if sampled else None
    same: list[np.ndarray] = []
    for prompt in prompts:
        ids = target.encode(prompt)
        whole = ids + target.write(ids, count, rng)
        ours, theirs = drafter.logits(whole[:-1]), target.logits(whole[:-1])
        same.append((ours.argmax(1) == theirs.argmax(1))[len(ids) - 1 :])
    positions = np.concatenate(same)
    return {"argmax_agreement": float(positions.mean()), "positions": len(positions)}


def held_out_loss(model: Model) -> metrics.HeldOut:
    """Return the cross entropy over the held-out documents, in whole contexts."""
    texts = corpus.documents(corpus.load_corpus().held_out, corpus.SEED)
    ids = [token for text in texts for token in model.encode(text)]
    losses = []
    for start in range(0, len(ids) - CONTEXT, CONTEXT):
        row = ids[start : start + CONTEXT + 1]
        logits = model.logits(row[:-1]).astype(np.float64)
        highest = logits.max(1, keepdims=True)
        total = np.log(np.exp(logits - highest).sum(1)) + highest[:, 0]
        losses.append(total - logits[np.arange(CONTEXT), row[1:]])
    by_position = np.mean(losses, axis=0)
    return metrics.HeldOut(
        tokens=len(losses) * CONTEXT,
        loss=float(by_position.mean()),
        loss_by_position=[float(part.mean()) for part in np.split(by_position, 8)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the GGUF files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128, help="written after each prompt")
    arguments = parser.parse_args()
    target, drafter = (
        Model(arguments.models / f"{role}.gguf", arguments.threads)
        for role in ("target", "drafter")
    )
    prompts = held_out_prompts(arguments.prompts)
    figures = {
        "prompts": arguments.prompts,
        "tokens_per_prompt": arguments.tokens,
        "greedy": agreement(target, drafter, prompts, arguments.tokens, sampled=False),
        "sampled": agreement(target, drafter, prompts, arguments.tokens, sampled=True)
        | {"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P},
        "target_held_out": asdict(held_out_loss(target)),
        "drafter_held_out": asdict(held_out_loss(drafter)),
    }
    print(json.dumps(figures, indent=2))
    for prompt in (*SAMPLE_PROMPTS, CHAT_PROMPT):
        for role, model in (("target", target), ("drafter", drafter)):
            ids = model.encode(BOS + prompt)
            print(f"--- {role}, greedy\n{model.decode(ids + model.write(ids, 160, None))}")
    folder = HERE if arguments.models == MODELS else arguments.models
    metrics.update(folder / "training.json", {"gguf": figures})


if __name__ == "__main__":
    main()
