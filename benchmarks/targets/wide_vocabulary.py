"""Write a tiny pair with a vocabulary of 131,072 tokens, to measure a round outside its passes.

Both models predict one successor for each token, with near certainty.  The text is a walk through
the ordinary ASCII tokens of the tokenizer, and every draft is accepted whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specd.bench.gguf_cache import atomic_output, cached_file, copy_metadata, open_gguf
from specd.bench.quantized_blocks import FileType

N_VOCAB = 1 << 17
#: Part of a cached file's name; raise it if the same donor gives another file.
_FORMAT = 1
_N_EMBD = 64
_N_FF = 128
_N_HEADS = 2
_N_CTX = 8192
#: Deviation of the layers' outputs: not zero, but too small to change the prediction.
_LAYER_DEVIATION = 0.002
#: The right successor's logit; the others have a standard deviation of an eighth of it.
_LOGIT = 40.0

FloatArray = npt.NDArray[np.float32]


def wide_vocabulary_pair(donor: Path) -> tuple[Path, Path]:
    """Return the target (4 layers) and the drafter (1 layer), 19 MB each, cached.

    donor: its tokenizer is padded with unused tokens; a byte-level BPE, as the demo's.  Raises
    StoreError for a donor that is not a GGUF, or a pair that cannot be written.
    """
    reader = open_gguf(donor)

    def file(role: str, n_layers: int) -> Path:
        return cached_file(
            donor, f"wide-{role}-v{_FORMAT}", lambda path: _write(path, reader, role, n_layers)
        )

    return file("target", 4), file("drafter", 1)


def _write(destination: Path, reader: Any, role: str, n_layers: int) -> None:
    n_bytes = 2 * N_VOCAB * _N_EMBD * FileType.Q8_0.block_bytes // 32 + 4 * N_VOCAB * 16
    with atomic_output(destination, n_bytes) as path:
        writer = gguf.GGUFWriter(path, "llama")
        try:
            _add_metadata(writer, role, n_layers)
            walk = _add_vocabulary(writer, reader)
            _add_tensors(writer, walk, n_layers)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def _add_metadata(writer: Any, role: str, n_layers: int) -> None:
    writer.add_name(f"wide vocabulary {role}")
    writer.add_file_type(FileType.Q8_0.file_type)
    writer.add_vocab_size(N_VOCAB)
    writer.add_context_length(_N_CTX)
    writer.add_embedding_length(_N_EMBD)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    writer.add_head_count_kv(_N_HEADS)
    writer.add_rope_dimension_count(_N_EMBD // _N_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)


def _add_vocabulary(writer: Any, reader: Any) -> npt.NDArray[np.intp]:
    """Add the donor's vocabulary, padded; return the ids with ASCII text in random order."""
    padded = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type"}
    copy_metadata(writer, reader, {k for k in reader.fields if k.startswith("tokenizer.")} - padded)
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    types = reader.get_field("tokenizer.ggml.token_type").contents()
    n_unused = N_VOCAB - len(tokens)
    writer.add_token_list(tokens + [f"<|unused_{i}|>" for i in range(n_unused)])
    writer.add_token_types(types + [gguf.TokenType.UNUSED] * n_unused)
    said = [
        i
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == gguf.TokenType.NORMAL and token.replace("Ġ", " ").isascii()
    ]
    return np.random.default_rng(0).permutation(np.array(said))


def _add_tensors(writer: Any, walk: npt.NDArray[np.intp], n_layers: int) -> None:
    random = np.random.default_rng(1)

    def add(name: str, values: npt.NDArray[np.floating[Any]]) -> None:
        if values.ndim == 1:
            writer.add_tensor(name, values.astype(np.float32))
        else:
            blocks = gguf.quants.quantize(values.astype(np.float32), FileType.Q8_0.ggml)
            writer.add_tensor(name, blocks, raw_dtype=FileType.Q8_0.ggml)

    embedding, output = _successors(random, walk)
    add("token_embd.weight", embedding)
    add("output_norm.weight", np.ones(_N_EMBD))
    add("output.weight", output)
    sizes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (_N_EMBD, _N_EMBD))
    sizes |= {
        "ffn_gate": (_N_FF, _N_EMBD),
        "ffn_up": (_N_FF, _N_EMBD),
        "ffn_down": (_N_EMBD, _N_FF),
    }
    for layer in range(n_layers):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", np.ones(_N_EMBD))
        for name, size in sizes.items():
            adds = name in {"attn_output", "ffn_down"}
            deviation = _LAYER_DEVIATION if adds else _N_EMBD**-0.5
            add(f"blk.{layer}.{name}.weight", random.normal(0.0, deviation, size))


def _successors(
    random: np.random.Generator, walk: npt.NDArray[np.intp]
) -> tuple[FloatArray, FloatArray]:
    """Return embedding and output, [N_VOCAB, _N_EMBD] each; a token of the walk follows each token.

    Output rows of all other tokens are random, so that a row of logits has the usual shape.
    """
    embedding, output = (_directions(random) for _ in range(2))
    output[np.roll(walk, -1)] = embedding[walk]
    # Any other token at the prompt's end is embedded as a token of the walk.
    others = np.setdiff1d(np.arange(N_VOCAB), walk)
    embedding[others] = embedding[walk[others % len(walk)]]
    return embedding, output * (_LOGIT / _N_EMBD)


def _directions(random: np.random.Generator) -> FloatArray:
    """Return random rows of mean square 1."""
    rows = random.standard_normal((N_VOCAB, _N_EMBD), dtype=np.float32)
    rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True))
    return rows
