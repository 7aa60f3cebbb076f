"""Train the demo pair from scratch: python benchmarks/demo_pair/train.py --out DIR.

Needs torch, tokenizers, gguf and numpy.  The target learns the standard library's source.  The
drafter learns the target's distribution, on that source and on text that the target wrote.  Without
the checkpoints, `--from-gguf specd/demo` continues from the published files.
"""

from __future__ import annotations

import argparse
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import corpus
import export
import metrics
import torch
import torch.nn.functional as F
from corpus import Tokens, batches
from distil import ROW_LENGTH, Loss, TrainingText, autocast, drafter_losses, write_text
from model import DRAFTER, TARGET, Llama
from prune import pruned
from torch import Tensor

Figures = dict[str, Any]


@dataclass(frozen=True)
class Phase:
    """A stretch of training on rows of one length."""

    steps: int
    batch: int
    length: int


@dataclass(frozen=True)
class Stage:
    """Phases under one schedule, which may be cut short of its horizon."""

    phases: tuple[Phase, ...]
    horizon: int
    peak: float = 1.0


@dataclass(frozen=True)
class Round:
    """A stage of the drafter's training, on rows that the target writes for it."""

    stage: Stage
    written_rows: int


@dataclass(frozen=True)
class TrainingPlan:
    """The lengths of all stages.

    The target first learns on short rows.  A larger rotary base then extends its positions to the
    whole context, and a few long rows adapt it to that.
    """

    short_rows: Stage
    long_rows: Stage
    drafter: tuple[Round, ...]


FULL = TrainingPlan(
    short_rows=Stage((Phase(1440, 16, 256), Phase(21, 2, 2048)), horizon=1590),
    long_rows=Stage((Phase(24, 2, 2048),), horizon=24, peak=0.15),
    drafter=(
        Round(Stage((Phase(640, 2, 2048),), horizon=640, peak=0.4), written_rows=768),
        Round(Stage((Phase(640, 2, 2048),), horizon=640, peak=0.25), written_rows=1024),
    ),
)
SHORT = TrainingPlan(
    short_rows=Stage((Phase(100, 16, 256),), horizon=110),
    long_rows=Stage((Phase(5, 2, 2048),), horizon=5, peak=0.15),
    drafter=(Round(Stage((Phase(100, 2, 2048),), horizon=100), written_rows=128),),
)
SHORT_ROPE_BASE = 10000.0
KEPT_LAYERS = (0, 2, 3, 4, 5)
MUON_RATE = 0.02
ADAM_RATE = 4e-3
CALIBRATION = Phase(1, 64, 320)


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the embedding and the norms."""
    inner = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in inner}
    outer = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(inner, lr=MUON_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(outer, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate(step: int, steps: int) -> float:
    """Return the rate: a short warm-up, then half a cosine down to a fiftieth."""
    warm = min(1.0, (step + 1) / max(1, steps // 25))
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def optimise(model: Llama, name: str, losses: Iterator[Loss], stage: Stage, save: Path) -> float:
    """Run every step with occasional checkpoints; return the time in seconds."""
    began = saved = time.monotonic()
    chosen = optimizers(model)
    groups = [group for o in chosen for group in o.param_groups]
    starting = [group["lr"] * stage.peak for group in groups]
    for step, loss_of in enumerate(losses):
        for group, full in zip(groups, starting, strict=True):
            group["lr"] = full * rate(step, stage.horizon)
        loss = loss_of()
        for o in chosen:
            o.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in chosen:
            o.step()
        now = time.monotonic()
        if step % 10 == 0:
            print(f"{name} {step} loss {loss.item():.3f} {now - began:.0f} s", flush=True)
        if now - saved > 120:
            torch.save(model.state_dict(), save)
            saved = now
    torch.save(model.state_dict(), save)
    return time.monotonic() - began


def phase_rows(tokens: Tokens, phases: tuple[Phase, ...], seed: int) -> Iterator[Tensor]:
    """Yield the rows of each phase in turn."""
    for index, phase in enumerate(phases):
        source = batches(tokens, phase.batch, phase.length, seed + index)
        for _ in range(phase.steps):
            yield torch.from_numpy(next(source))


def target_losses(model: Llama, rows: Iterator[Tensor]) -> Iterator[Loss]:
    """Yield the next token's cross entropy."""
    for ids in rows:
        yield partial(next_token_loss, model, ids)


def next_token_loss(model: Llama, ids: Tensor) -> Tensor:
    with autocast():
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def describe(model: Llama, stages: tuple[Stage, ...]) -> Figures:
    """Return one model's part of the metrics."""
    phases = [phase for stage in stages for phase in stage.phases]
    return {
        "shape": asdict(model.shape),
        "parameters": model.parameter_count(),
        "stages": [asdict(stage) for stage in stages],
        "steps": sum(phase.steps for phase in phases),
        "tokens_seen": sum(p.steps * p.batch * p.length for p in phases),
    }


def train_short_rows(plan: TrainingPlan, text: TrainingText, save: Path) -> Figures:
    """Train on the library's text with short contexts."""
    torch.manual_seed(corpus.SEED)
    model = Llama(replace(TARGET, rope_base=SHORT_ROPE_BASE))
    losses = target_losses(model, phase_rows(text.tokens, plan.short_rows.phases, corpus.SEED))
    seconds = optimise(model, "target", losses, plan.short_rows, save)
    return {
        "threads": torch.get_num_threads(),
        "short_rows_seconds": round(seconds, 1),
        "short_rope_base": SHORT_ROPE_BASE,
    }


def train_long_rows(
    plan: TrainingPlan, text: TrainingText, start: Path, save: Path
) -> tuple[Llama, float]:
    """Continue with the larger rotary base, on whole contexts."""
    target = export.load(start, TARGET)
    rows = phase_rows(text.tokens, plan.long_rows.phases, corpus.SEED + 5)
    losses = target_losses(target, rows)
    return target, round(optimise(target, "target", losses, plan.long_rows, save), 1)


def train_drafter(
    step: Round, seed: int, drafter: Llama, target: Llama, text: TrainingText, save: Path
) -> Figures:
    """Train on the target's distribution for one round."""
    target.requires_grad_(False)
    began = time.monotonic()
    written = write_text(target, text, step.written_rows, seed)
    writing = time.monotonic() - began
    rows = phase_rows(text.tokens, step.stage.phases, seed + 10)
    losses = drafter_losses(drafter, target, rows, written, seed + 20)
    seconds = optimise(drafter, "drafter", losses, step.stage, save)
    return {
        "written_rows": step.written_rows,
        "row_length": ROW_LENGTH,
        "writing_seconds": round(writing, 1),
        "training_seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
    }


def prepare(out: Path) -> TrainingText:
    """Read the library, train the tokenizer and encode everything."""
    library = corpus.load_corpus()
    tokenizer = corpus.train_tokenizer(library.training)
    tokenizer.save(str(out / "tokenizer.json"))
    tokens, held_out = (
        corpus.encode(tokenizer, corpus.documents(sources, corpus.SEED))
        for sources in (library.training, library.held_out)
    )
    print(f"{len(tokens.ids)} tokens to learn, {len(held_out.ids)} held out", flush=True)
    return TrainingText(library, tokenizer, tokens, held_out)


def environment_facts(text: TrainingText) -> Figures:
    """Return the facts that the figures depend on."""
    return {
        "seed": corpus.SEED,
        "kept_layers": KEPT_LAYERS,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "corpus": {
            "sha256": text.library.sha256,
            "training_files": len(text.library.training),
            "held_out_files": [source.name for source in text.library.held_out],
            "chat_share": corpus.CHAT_SHARE,
            "snippet_share": corpus.SNIPPET_SHARE,
            "training_tokens": len(text.tokens.ids),
            "held_out_tokens": len(text.held_out.ids),
        },
    }


def main() -> None:
    arguments = parse()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)
    plan = SHORT if arguments.short else FULL
    text = prepare(out)
    metrics.update(out / "training.json", environment_facts(text))
    record = out / "training.json"
    if arguments.start <= 0:
        metrics.update(record, train_short_rows(plan, text, out / "short_rows.pt"))
    if arguments.start <= 1:
        target, seconds = train_long_rows(plan, text, out / "short_rows.pt", out / "target.pt")
        stages = (plan.short_rows, plan.long_rows)
        metrics.update(record, {"target": describe(target, stages), "long_rows_seconds": seconds})
        export.export(target, text.tokenizer, "target", out / "target.gguf")
    if arguments.from_gguf:
        target = export.load_gguf(arguments.from_gguf / "target.gguf", TARGET)
    else:
        target = export.load(out / "target.pt", TARGET)
    calibration = next(phase_rows(text.tokens, (CALIBRATION,), corpus.SEED + 7))
    drafter = pruned(target, DRAFTER, KEPT_LAYERS, calibration)
    for index, step in enumerate(plan.drafter):
        save = out / f"drafter-{index}.pt"
        if arguments.start > 2 + index:
            drafter = earlier_drafter(save, arguments.from_gguf)
            continue
        seed = corpus.SEED + 10 + 100 * index
        figures = train_drafter(step, seed, drafter, target, text, save)
        metrics.update(record, {f"drafter_round_{index}": figures})
    stages = tuple(step.stage for step in plan.drafter)
    metrics.update(record, {"drafter": describe(drafter, stages)})
    export.export(drafter, text.tokenizer, "drafter", out / "drafter.gguf")


def earlier_drafter(save: Path, from_gguf: Path | None) -> Llama:
    """Return a round's result: its checkpoint, else the drafter of the GGUF files."""
    if from_gguf and not save.exists():
        return export.load_gguf(from_gguf / "drafter.gguf", DRAFTER)
    return export.load(save, DRAFTER)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--short", action="store_true", help="a few minutes, poor weights")
    parser.add_argument(
        "--start",
        type=int,
        default=0,
        help="take up from files there: 1 short_rows.pt, 2 target.pt, 3 drafter-0.pt",
    )
    parser.add_argument(
        "--from-gguf",
        type=Path,
        help="folder whose target.gguf is the target; its drafter.gguf stands for missing drafters",
    )
    arguments = parser.parse_args()
    if arguments.from_gguf:
        arguments.start = max(2, arguments.start)
    return arguments


if __name__ == "__main__":
    main()
