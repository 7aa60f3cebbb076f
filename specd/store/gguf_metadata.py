"""What a GGUF's header says of a model, in the few words that are worth remembering.

A header of a real model holds megabytes; these facts hold kilobytes, so thousands can be kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specd.store.gguf import MULTIMODAL_PREFIXES, GgufHeader, read_header

#: Names of the infill tokens, today's and those of older files.
_INFILL: Final = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))
#: Tensors that hold a matrix for each expert; the shared ones, `_shexp`, take part in every token.
_EXPERTS: Final = "_exps."
#: Tables of which a token takes a row.
_TABLES: Final = ("per_layer_token_embd.", "position_embd.", "token_types.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufMetadata:
    """chat_template: Jinja; None where the file has none.  file_type: such as Q4_K_M.

    infill: the tokens before the text, before what follows the gap, and before the gap.
    n_active_parameters: those that one token meets; fewer than all where experts take turns.
    read_bytes: of weights, to write one token: without the tables of which it takes a row.
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
    """Raises StoreError."""
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
    """Return whether llama.cpp hears by this projector, as its header says.

    That of Gemma 3n brings an encoder of sounds that mtmd does not know: Ollama leaves it out, too.
    """
    is_gemma3n = projector.text("clip.vision.projector_type") == "gemma3nv"
    return projector.flag("clip.has_audio_encoder") is True and not is_gemma3n


def _read_by_a_token(header: GgufHeader) -> tuple[int, int]:
    """How many parameters take part in one token, and the bytes of those that are read whole."""
    n_experts, n_used = (
        header.arch_integer("expert_count"),
        header.arch_integer("expert_used_count"),
    )
    sparse = 0 < n_used < n_experts
    n_active, n_bytes = 0, 0
    # A model without an output matrix of its own reads its table of tokens as one.
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
    """The quantization's name; empty where the file does not say, or in a way not known here."""
    # Imported late: it brings numpy along, which the daemon's start need not wait for.
    from gguf.constants import LlamaFileType  # noqa: PLC0415

    try:
        name = str(LlamaFileType(header.integer("general.file_type", -1)).name)
    except ValueError:
        return ""
    return name.removeprefix("MOSTLY_").removeprefix("ALL_")


def format_count(n: int) -> str:
    """A number of parameters as Ollama writes it: 8.0B, 751.63M, 37.12K."""
    if n >= 1_000_000_000:
        return f"{n / 1e9:.1f}B"
    if n >= 1_000_000:
        return f"{n / 1e6:.2f}M"
    if n >= 1_000:
        return f"{n / 1e3:.2f}K"
    return str(n)
