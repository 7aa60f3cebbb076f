"""Write a transformers llama and a LoRA for it, and print their answers: FOLDER PROMPT N.

Runs in the converter's environment.  FOLDER/model and FOLDER/lora get what people download; the
last line of output is JSON: the greedy text of N tokens without the adapter, and with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sentencepiece
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer

N_STEPS = 80
RANK, ALPHA = 4, 16.0
CONFIG = LlamaConfig(
    vocab_size=400,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=1,
    eos_token_id=2,
)


def write_tokenizer(folder: Path, text: str) -> LlamaTokenizer:
    source = folder / "text"
    source.write_text(text)
    sentencepiece.SentencePieceTrainer.train(
        input=str(source),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=CONFIG.vocab_size,
        model_type="bpe",
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        minloglevel=2,
        num_threads=1,
    )
    source.unlink()
    (folder / "tokenizer.vocab").unlink()
    return LlamaTokenizer(str(folder / "tokenizer.model"), legacy=True)


def train(model: LlamaForCausalLM, tokens: torch.Tensor) -> None:
    """Train a few steps, so that the answers are words and no two tokens nearly tie."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(N_STEPS):
        rows = torch.stack([tokens[i : i + 64] for i in range(step * 97, step * 97 + 512, 64)])
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def answer(model: LlamaForCausalLM, tokenizer: LlamaTokenizer, prompt: str, n: int) -> str:
    ids = torch.tensor([[1, *tokenizer(prompt, add_special_tokens=False).input_ids]])
    whole = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, pad_token_id=0
    )[0].tolist()
    told = tokenizer.decode(whole, skip_special_tokens=True)
    assert told.startswith(prompt), told
    return told[len(prompt) :]


def write_adapter(model: LlamaForCausalLM, folder: Path) -> None:
    """Write a LoRA as peft does, and merge it into the model."""
    folder.mkdir()
    tensors = {}
    for name, weights in model.named_parameters():
        if not name.endswith(("q_proj.weight", "v_proj.weight")):
            continue
        rows, columns = weights.shape
        a, b = torch.randn(RANK, columns) * 0.2, torch.randn(rows, RANK) * 0.2
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        with torch.no_grad():
            weights.add_(ALPHA / RANK * b @ a)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "nobody/nothing",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main(folder: Path, prompt: str, n: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    (folder / "model").mkdir()
    text = Path(torch.__file__).with_name("functional.py").read_text()[:60_000]
    tokenizer = write_tokenizer(folder / "model", text)
    model = LlamaForCausalLM(CONFIG)
    train(model, torch.tensor(tokenizer(text, add_special_tokens=False).input_ids))
    model.eval().save_pretrained(folder / "model")
    plain = answer(model, tokenizer, prompt, n)
    write_adapter(model, folder / "lora")
    print(json.dumps({"plain": plain, "adapted": answer(model, tokenizer, prompt, n)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
