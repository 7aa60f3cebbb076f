"""A target of real size, padded from a small model, that gives the small model's text.

Time and memory are those of a dense model with that many parameters.

- Q8_0 keeps every weight of the small model exactly.
- Q4_0 does too, as a sum of three parts.  The vocabulary's matrices stay in Q8_0, as in most files
  called Q4_0 (0.8 % of the bytes of a padded demo target of 1 B).
- F16 rounds each weight to 11 bits, and its kernels do not round inputs to 8 bits.  The text may
  differ from the small model's where two tokens are almost equally likely.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from specd.bench import padding
from specd.bench.gguf_cache import atomic_output, cached_file, copy_metadata, open_gguf
from specd.bench.padding import LlamaShape, scaled
from specd.bench.quantized_blocks import FileType, Noise
from specd.errors import StoreError

#: Part of a cached file's name; raise it when the contents for a shape change.
_FORMAT = 2

TensorPlan = list[padding.Matrix | padding.Norm]
Progress = Callable[[float], None]

_F32 = gguf.GGMLQuantizationType.F32


def write_synthetic(
    source: Path,
    destination: Path,
    n_parameters: int,
    progress: Progress = lambda _: None,
    *,
    file_type: FileType = FileType.Q8_0,
) -> LlamaShape:
    """Write the padded model and return its shape.  progress: receives the written share, 0 to 1.

    Raises StoreError where the source is not a dense Llama in Q8_0 or the result cannot be written.
    """
    reader = open_gguf(source)
    small = read_shape(reader, source)
    large = scaled(padding.padded_shape(small, file_type), n_parameters)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    plan = [*padding.plan(small, large, file_type)]
    _refuse_what_is_not_planned(source, tensors, plan)
    with atomic_output(destination, sum(entry.n_bytes for entry in plan)) as path:
        _write(path, reader, small, large, plan, progress, file_type)
    return large


def cached(
    source: Path,
    n_parameters: int,
    progress: Progress = lambda _: None,
    *,
    file_type: FileType = FileType.Q8_0,
) -> Path:
    """Return the cached padded model of that size and type, written on first use."""
    small = read_shape(open_gguf(source), source)
    large = scaled(padding.padded_shape(small, file_type), n_parameters)
    sizes = f"{large.n_embd}x{large.n_layers}x{large.n_ff}"
    return cached_file(
        source,
        f"{sizes}-{file_type}-v{_FORMAT}",
        lambda path: write_synthetic(source, path, n_parameters, progress, file_type=file_type),
    )


def parse_count(text: str) -> int:
    """Return the number of parameters in `1e9`, `1b`, `350M` or `1000000`.  Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kmb]?)", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a number of parameters; try 1b or 350m")
    count = int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2]])
    if count <= 0:
        raise ValueError("the number of parameters must be positive")
    return count


def read_shape(reader: Any, source: Path) -> LlamaShape:
    """Return the shape of a dense Llama.  Raises StoreError for every other architecture."""

    def value(key: str, default: int | None = None) -> int:
        field = reader.get_field(key)
        found = field.contents() if field is not None else default
        if not isinstance(found, int):
            raise StoreError(f"{source}: metadata has no number under {key}")
        return found

    architecture = reader.get_field("general.architecture")
    if architecture is None or architecture.contents() != "llama":
        raise StoreError(f"{source}: only a llama can be padded")
    n_embd = value("llama.embedding_length")
    n_heads = value("llama.attention.head_count")
    return LlamaShape(
        n_embd=n_embd,
        n_layers=value("llama.block_count"),
        n_ff=value("llama.feed_forward_length"),
        n_heads=n_heads,
        n_kv_heads=value("llama.attention.head_count_kv", n_heads),
        head_dim=value("llama.attention.key_length", n_embd // n_heads),
        n_vocab=len(reader.get_field("tokenizer.ggml.tokens").data),
        has_output=any(tensor.name == "output.weight" for tensor in reader.tensors),
    )


# --------------------------------------------------------------------------- the file


def _refuse_what_is_not_planned(source: Path, tensors: dict[str, Any], plan: TensorPlan) -> None:
    planned = {entry.source: entry for entry in plan if entry.source is not None}
    if unknown := tensors.keys() - planned.keys():
        raise StoreError(f"{source}: only a plain dense llama can be padded: {min(unknown)}")
    if missing := planned.keys() - tensors.keys():
        raise StoreError(f"{source}: the weight {min(missing)} is missing")
    for name, entry in planned.items():
        wanted = "Q8_0" if isinstance(entry, padding.Matrix) else "F32"
        if (found := tensors[name].tensor_type.name) != wanted:
            raise StoreError(f"{source}: {name} must be {wanted}, it is {found}")


def _write(
    path: Path,
    reader: Any,
    small: LlamaShape,
    large: LlamaShape,
    plan: TensorPlan,
    progress: Progress,
    file_type: FileType,
) -> None:
    """Write one tensor at a time, so that memory holds only the largest."""
    inner = padding.padded_shape(small, file_type)
    writer = gguf.GGUFWriter(path, "llama")
    try:
        _add_metadata(writer, reader, inner, large, plan, file_type)
        for entry in plan:
            kind = entry.file_type.ggml if isinstance(entry, padding.Matrix) else _F32
            writer.add_tensor_info(entry.name, entry.shape, np.int8, entry.n_bytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        sources = {tensor.name: tensor.data for tensor in reader.tensors}
        noise = {each: Noise(each) for each in {file_type, file_type.vocabulary}}
        for i, entry in enumerate(plan):
            source = sources.get(entry.source)
            if isinstance(entry, padding.Matrix):
                writer.write_tensor_data(padding.fill_matrix(entry, noise[entry.file_type], source))
            else:
                writer.write_tensor_data(padding.gains(entry, source, inner))
            progress((i + 1) / len(plan))
    finally:
        writer.close()


def _add_metadata(
    writer: Any,
    reader: Any,
    inner: LlamaShape,
    large: LlamaShape,
    plan: TensorPlan,
    file_type: FileType,
) -> None:
    """Copy the source's metadata, tokenizer and template included, and set sizes and name."""
    count, text = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING
    sizes = {
        "embedding_length": large.n_embd,
        "block_count": large.n_layers,
        "feed_forward_length": large.n_ff,
        "attention.head_count": large.n_heads,
        "attention.head_count_kv": large.n_kv_heads,
        "attention.key_length": large.head_dim,
        "attention.value_length": large.head_dim,
    }
    eps_key = "llama.attention.layer_norm_rms_epsilon"
    replaced = {f"llama.{key}": (value, count) for key, value in sizes.items()} | {
        eps_key: (
            reader.get_field(eps_key).contents() * inner.n_embd / large.n_embd,
            gguf.GGUFValueType.FLOAT32,
        ),
        "general.name": (
            f"{_text(reader, 'general.name')} (synthetic {large.label} {file_type}, padded)",
            text,
        ),
        "general.description": (_description(plan, file_type), text),
        "general.size_label": (large.label, text),
        "general.file_type": (file_type.file_type, count),
    }
    replaced_keys = {"general.architecture", "general.alignment", *replaced}
    copied = {key for key in reader.fields if not key.startswith("GGUF.")} - replaced_keys
    copy_metadata(writer, reader, copied)
    for key, (value, kind) in replaced.items():
        writer.add_key_value(key, value, kind)


def _description(plan: TensorPlan, file_type: FileType) -> str:
    """Return a description: how weights are kept, and the share of bytes of another type."""
    n_bytes = sum(entry.n_bytes for entry in plan)
    n_others = n_bytes - sum(
        entry.n_bytes
        for entry in plan
        if isinstance(entry, padding.Matrix) and entry.file_type is file_type
    )
    how = {
        FileType.Q8_0: "as it was",
        FileType.Q4_0: "exactly, as the sum of three Q4_0 weights",
        FileType.F16: "rounded to F16",
    }
    return (
        f"A small model padded with zeros and noise; each weight of it is kept {how[file_type]}."
        f" {100 * n_others / n_bytes:.2g} % of the bytes are not {file_type}."
    )


def _text(reader: Any, key: str) -> str:
    field = reader.get_field(key)
    return str(field.contents()) if field is not None else "a model"
