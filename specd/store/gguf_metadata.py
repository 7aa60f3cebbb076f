"""The part of a GGUF header that specd caches for each model.

A header can take megabytes; this metadata takes kilobytes, so thousands can stay in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.gguf import MULTIMODAL_PREFIXES, GgufHeader, read_header

#: Metadata names of the infill tokens: current, then older files'.
_INFILL: Final = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))
#: Part of the name of tensors with one matrix per expert; every token uses the shared `_shexp`.
_EXPERTS: Final = "_exps."
#: Name prefixes of tables from which a token reads one row.
_TABLES: Final = ("per_layer_token_embd.", "position_embd.", "token_types.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMetadata:
    """Metadata of one GGUF file.

    chat_template: Jinja; None if the file has none.  file_type: such as Q4_K_M.
    infill: the tokens before the prefix, before the suffix, and before the middle.
    n_active_parameters: parameters used per token; fewer than all for a mixture of experts.
    read_bytes: bytes of weights read per generated token, without tables of which it reads a row.
    """

    architecture: str
    n_ctx_train: int
    n_embd: int
    n_parameters: int
    file_type: str
    chat_template: str | None
    bos_token: str
    eos_token: str
    has_pooling: bool
    has_vision: bool
    has_audio: bool
    infill: tuple[str, str, str] | None = None
    n_active_parameters: int = 0
    read_bytes: int = 0


def read_metadata(path: Path) -> GgufMetadata:
    """Read a file's metadata.  Raises StoreError."""
    return metadata_of(read_header(path))


def metadata_of(header: GgufHeader) -> GgufMetadata:
    n_active, read_bytes = _read_by_a_token(header)
    return GgufMetadata(
        architecture=header.architecture,
        n_ctx_train=header.arch_integer("context_length"),
        n_embd=header.arch_integer("embedding_length"),
        n_parameters=header.parameter_count,
        file_type=_file_type(header),
        chat_template=header.text("tokenizer.chat_template") or None,
        bos_token=header.token("tokenizer.ggml.bos_token_id"),
        eos_token=header.token("tokenizer.ggml.eos_token_id"),
        has_pooling=f"{header.architecture}.pooling_type" in header.values,
        has_vision=f"{header.architecture}.vision.block_count" in header.values,
        has_audio=f"{header.architecture}.audio.block_count" in header.values,
        infill=_infill(header),
        n_active_parameters=n_active,
        read_bytes=read_bytes,
    )


def has_audio_encoder(projector: GgufHeader) -> bool:
    """Return whether llama.cpp can encode sounds with this projector.

    Gemma 3n's projector has an audio encoder that mtmd does not support; Ollama ignores it, too.
    """
    is_gemma3n = projector.text("clip.vision.projector_type") == "gemma3nv"
    return projector.flag("clip.has_audio_encoder") is True and not is_gemma3n


def _read_by_a_token(header: GgufHeader) -> tuple[int, int]:
    """Return the number of parameters used per token, and the bytes of weights read for it."""
    n_experts, n_used = (
        header.arch_integer("expert_count"),
        header.arch_integer("expert_used_count"),
    )
    sparse = 0 < n_used < n_experts
    n_active, n_bytes = 0, 0
    # A model without an output matrix uses its token embeddings as one, and reads them whole.
    ties = all(tensor.name != "output.weight" for tensor in header.tensors)
    tables = _TABLES if ties else (*_TABLES, "token_embd.")
    for tensor in header.tensors:
        if tensor.name.startswith(MULTIMODAL_PREFIXES):
            continue
        share, of = (n_used, n_experts) if sparse and _EXPERTS in tensor.name else (1, 1)
        n_active += math.prod(tensor.shape) * share // of
        if not tensor.name.startswith(tables):
            n_bytes += tensor.n_bytes * share // of
    return n_active, n_bytes


def _infill(header: GgufHeader) -> tuple[str, str, str] | None:
    for names in _INFILL:
        before, after, gap = (header.token(f"tokenizer.ggml.{name}_token_id") for name in names)
        if before and after and gap:
            return before, after, gap
    return None


def _file_type(header: GgufHeader) -> str:
    """Return the quantization's name; empty if the file has none or an unknown one."""
    # Imported late: it imports numpy, which would slow down the daemon's start.
    from gguf.constants import LlamaFileType  # noqa: PLC0415

    try:
        name = str(LlamaFileType(header.integer("general.file_type", -1)).name)
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def format_count(n: int) -> str:
    """Return a number of parameters in Ollama's format: 8.0B, 751.63M, 37.12K."""
    if n >= 1_000_000_000:
        return f"{n / 1e9:.1f}B"
    if n >= 1_000_000:
        return f"{n / 1e6:.2f}M"
    if n >= 1_000:
        return f"{n / 1e3:.2f}K"
    return str(n)
