"""Write MODEL_CARD.md from the figures in training.json: python benchmarks/demo_pair/card.py."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODELS = Path(__file__).resolve().parents[2] / "specd" / "demo"

CARD = """\
# specd demo pair

Two tiny language models of Python source, to try, test and measure speculative decoding without
a download. `target.gguf` is the target and `drafter.gguf` its draft model. They are a
demonstration: they imitate Python's standard library and know nothing else. Their code does not
work, and greedy decoding tends to end in a loop.

| | target | drafter |
|---|---:|---:|
| parameters | {target[parameters]:,} | {drafter[parameters]:,} |
| file, bytes (Q8_0) | {sizes[target]:,} | {sizes[drafter]:,} |
| layers / width / heads / feed-forward | {target_shape} | {drafter_shape} |
| training steps | {target[steps]:,} | {drafter[steps]:,} |
| tokens seen, at most | {target[tokens_seen]:,} | {drafter[tokens_seen]:,} |
| training time, s | {target_seconds:,.0f} | {drafter_seconds:,.0f} |
| held-out loss, nats a token | {target_loss:.3f} | {drafter_loss:.3f} |

Both have the llama architecture with tied embeddings, a context of {target[shape][context]:,}
tokens and one vocabulary: byte-level BPE of {target[shape][vocab]:,} tokens with all 256 bytes,
split as `llama-bpe`. Special tokens: `<|bos|>` 0, `<|end|>` 1 (end of text and of turn),
`<|system|>` 2, `<|user|>` 3, `<|assistant|>` 4. The tokenizer adds `<|bos|>`; the chat template
leaves it out.

## Agreement

How often both models have the same most probable token, along text that the target wrote after
{gguf[prompts]} prompts from held-out files, at most {gguf[tokens_per_prompt]} tokens each:

| the target's text | agreement | positions |
|---|---:|---:|
| greedy | {greedy[argmax_agreement]:.1%} | {greedy[positions]:,} |
| temperature {sampled[temperature]}, top-k {sampled[top_k]}, top-p {sampled[top_p]} \
| {sampled[argmax_agreement]:.1%} | {sampled[positions]:,} |

Held-out loss by position in the context, in eighths of {target[shape][context]:,} tokens:

| | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 |
|---|---:|---:|---:|---:|---:|---:|---:|---:|
| target | {target_positions} |
| drafter | {drafter_positions} |

llama.cpp measured these figures with the GGUF files. To repeat this, with Python {python}:

    python benchmarks/demo_pair/evaluate.py

## Training

    python benchmarks/demo_pair/train.py --out DIR

- Text: the source of the standard library of the Python that runs the script, without tests,
  generated tables and bundled wheels; {corpus[training_files]} files for training and
  {held_out_count} held out. Python {python}, SHA-256 of the text
  `{corpus[sha256]}`.
- About {chat_share:.0%} of the text is chats made from the library's documented functions,
  {snippet_share:.0%} single functions, the rest whole files: {corpus[training_tokens]:,} tokens
  in all.
- Seed {seed}, PyTorch {torch}, CPU threads: {threads} for the target, {drafter_threads} for the
  drafter; bfloat16 arithmetic with float32 weights.
  Another processor may round differently and give slightly different weights.
- Muon for the blocks' matrices, AdamW for the embedding and the norms, cosine schedules.
- Target: {short_rows}, with a rotary base of {short_rope_base:,.0f}; then {long_rows}, with the
  final base of {target[shape][rope_base]:,.0f}, to adapt to the whole context.
- Drafter: starts as layers {kept} of the target in the GGUF file (`--from-gguf`), each with its
  {drafter[shape][hidden]} most active hidden units along the library's text. Their outgoing
  weights are refitted to replace the removed units. The layers were chosen by
  60-step trials, measured on other prompts from the held-out files. Then {drafter_rows}; one
  step in six used the library's text, the others as many tokens of rows of {row_length} that
  the target wrote ({written_rows} rows, in {writing_seconds:,.0f} s). The rows start with
  parts of files, heads of functions and questions in the chat template, none of them held out,
  and continue greedily or at temperature 0.8 or 1. The loss is the KL divergence
  from the target's distribution at temperature 1, plus half of that at 0.5.
- The stages ran one after another, each from the checkpoint before it (`--start`), on two cores
  with other work, so the times are upper bounds. The target's first stage stops before
  the end of its learning-rate schedule of {target[stages][0][horizon]:,} steps.

`benchmarks/demo_pair/` in the repository has the recipe. Its `training.json` holds every figure
above and the held-out files; `card.py` writes this page from it.

## Licence

The text is Python's standard library, under the PSF-2.0 licence. The weights are given under the
same licence.
"""


def shape(figures: dict[str, Any]) -> str:
    return " / ".join(str(figures["shape"][key]) for key in ("layers", "width", "heads", "hidden"))


def listed(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last


def rows(stage: dict[str, Any]) -> str:
    parts = (f"{p['steps']} steps of {p['batch']} × {p['length']}" for p in stage["phases"])
    return " and ".join(parts) + " tokens"


def positions(held_out: dict[str, Any]) -> str:
    return " | ".join(f"{loss:.2f}" for loss in held_out["loss_by_position"])


def card(figures: dict[str, Any]) -> str:
    target, drafter, gguf = figures["target"], figures["drafter"], figures["gguf"]
    rounds = [figures[f"drafter_round_{index}"] for index in range(len(drafter["stages"]))]
    page = CARD.format(
        **figures,
        sizes={role: (MODELS / f"{role}.gguf").stat().st_size for role in ("target", "drafter")},
        target_shape=shape(target),
        drafter_shape=shape(drafter),
        target_seconds=figures["short_rows_seconds"] + figures["long_rows_seconds"],
        drafter_seconds=sum(r["training_seconds"] + r["writing_seconds"] for r in rounds),
        short_rows=rows(target["stages"][0]),
        long_rows=rows(target["stages"][1]),
        drafter_rows=", then ".join(map(rows, drafter["stages"])),
        drafter_threads=rounds[0]["threads"],
        row_length=rounds[0]["row_length"],
        written_rows=listed([r["written_rows"] for r in rounds]),
        writing_seconds=sum(r["writing_seconds"] for r in rounds),
        kept=listed(figures["kept_layers"]),
        target_loss=gguf["target_held_out"]["loss"],
        drafter_loss=gguf["drafter_held_out"]["loss"],
        target_positions=positions(gguf["target_held_out"]),
        drafter_positions=positions(gguf["drafter_held_out"]),
        greedy=gguf["greedy"],
        sampled=gguf["sampled"],
        held_out_count=len(figures["corpus"]["held_out_files"]),
        chat_share=figures["corpus"]["chat_share"],
        snippet_share=figures["corpus"]["snippet_share"],
    )
    return "\n\n".join(reflowed(block) for block in page.split("\n\n"))


def reflowed(block: str) -> str:
    """Return a paragraph or a list with lines of even length; anything else unchanged."""
    if block.startswith(("#", "|", "    ")):
        return block
    items = ("\n" + block).split("\n- ") if block.startswith("- ") else [block]
    indent = "  " if block.startswith("- ") else ""
    texts = (" ".join(item.split()) for item in items if item.strip())
    start = "- " if indent else ""
    return "\n".join(
        textwrap.fill(start + text, 99, subsequent_indent=indent, break_on_hyphens=False)
        for text in texts
    )


if __name__ == "__main__":
    recorded = json.loads((HERE / "training.json").read_text())
    (MODELS / "MODEL_CARD.md").write_text(card(recorded).rstrip() + "\n")
