"""Write small random GGUF files that llama.cpp loads, damaged ones, and an Ollama store.

All files are deterministic in `seed`: the same arguments give equal files.  So a drafter written
like its target always agrees with it; `noise` makes it agree less often.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, LlamaFileType, TokenType

Array = npt.NDArray[np.float32]

SPECIAL_TOKENS = ("<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")

# The tokenizer adds BOS, so the template leaves it out.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

MERGES = ("t h", "i n", "e r", "th e", "a n", "Ġ t", "Ġt h", "o n", "r e", "Ġ a")


def byte_letters() -> tuple[str, ...]:
    """Return the printable letter for each byte in byte-level BPE (GPT-2's alphabet)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    strangers = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(strangers)) for byte in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A byte-level BPE vocabulary; the special tokens have the last ids before the padding."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    bos: int
    eos: int
    pre: str = "llama-bpe"
    model: str = "gpt2"
    add_bos: bool = True
    add_eos: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def with_padding(self, n: int) -> Vocabulary:
        """Return the vocabulary with n unused ids appended, as in larger models of a family."""
        return replace(
            self,
            tokens=self.tokens + tuple(f"[PAD{i}]" for i in range(n)),
            types=self.types + (int(TokenType.UNUSED),) * n,
        )

    def with_token(self, token_id: int, text: str) -> Vocabulary:
        tokens = list(self.tokens)
        tokens[token_id] = text
        return replace(self, tokens=tuple(tokens))


def byte_vocabulary(
    *, merges: Sequence[str] = MERGES, shuffle_seed: int | None = None, pre: str = "llama-bpe"
) -> Vocabulary:
    """Return a vocabulary of 256 bytes, one token per merge and five special tokens.

    shuffle_seed: permutes all ids but those of the special tokens.
    """
    ordinary = [*byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(len(ordinary))
        ordinary = [ordinary[i] for i in order]
    types = [TokenType.NORMAL] * len(ordinary) + [TokenType.CONTROL] * len(SPECIAL_TOKENS)
    return Vocabulary(
        tokens=(*ordinary, *SPECIAL_TOKENS),
        types=tuple(int(kind) for kind in types),
        merges=tuple(merges),
        bos=len(ordinary),
        eos=len(ordinary) + 1,
        pre=pre,
    )


VOCABULARY = byte_vocabulary()


# ------------------------------------------------------------------------------ whole models


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a model: n_embd is a multiple of n_head, and n_embd / n_head is even."""

    n_embd: int = 32
    n_layer: int = 2
    n_head: int = 4
    n_ff: int = 64
    n_ctx: int = 512


SHAPE = Shape()


class Weights:
    """Draw random matrices whose products keep the variance of their input."""

    def __init__(self, seed: int, noise: float) -> None:
        self._random = np.random.default_rng(seed)
        self._disturbance = np.random.default_rng(seed + 1)
        self._noise = noise

    def matrix(self, rows: int, columns: int, gain: float = 1.0) -> Array:
        weight = self._random.standard_normal((rows, columns))
        if self._noise:
            weight += self._noise * self._disturbance.standard_normal((rows, columns))
        scaled: Array = (gain * weight / np.sqrt(columns)).astype(np.float32)
        return scaled


def write_llama(
    path: Path,
    *,
    vocabulary: Vocabulary = VOCABULARY,
    shape: Shape = SHAPE,
    seed: int = 0,
    noise: float = 0.0,
    chat_template: str | None = CHAT_TEMPLATE,
    architecture: str = "llama",
    file_type: int = LlamaFileType.ALL_F32,
    extra: Mapping[str, int | bool | str | float] | None = None,
    tensors: Mapping[str, Array] | None = None,
) -> Path:
    """Write a random llama whose greedy text varies and does not end; return its path.

    noise: 0 keeps the weights of `seed`; with 0.1 the model sometimes disagrees, with 1 mostly.
    extra: further metadata, by full key.  tensors: replacements of random tensors, by name.
    """
    weights = Weights(seed, noise)
    writer = GGUFWriter(path, architecture)
    add_general(writer, path.stem, file_type)
    _add_attention_shape(writer, shape)
    add_vocabulary(writer, vocabulary, chat_template)
    _add_extra(writer, extra or {})
    drawn: dict[str, Array] = {
        "token_embd.weight": weights.matrix(len(vocabulary), shape.n_embd),
        "output_norm.weight": np.ones(shape.n_embd, np.float32),
        "output.weight": output_matrix(weights, vocabulary, shape.n_embd),
    }
    for layer in range(shape.n_layer):
        drawn |= _llama_block(weights, shape, f"blk.{layer}.")
    return _finish(writer, {**drawn, **(tensors or {})}, path)


def write_mamba(
    path: Path, *, vocabulary: Vocabulary = VOCABULARY, n_embd: int = 32, seed: int = 0
) -> Path:
    """Write a random mamba of two layers: its recurrent state cannot be rewound by a few tokens."""
    n_state, n_conv, n_rank, n_inner = 8, 4, 4, 2 * n_embd
    weights = Weights(seed, 0.0)
    writer = GGUFWriter(path, "mamba")
    add_general(writer, path.stem)
    writer.add_context_length(512)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(2)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer, vocabulary, CHAT_TEMPLATE)
    tensors: dict[str, Array] = {
        "token_embd.weight": weights.matrix(len(vocabulary), n_embd),
        "output_norm.weight": np.ones(n_embd, np.float32),
        "output.weight": output_matrix(weights, vocabulary, n_embd),
    }
    for layer in range(2):
        block = f"blk.{layer}."
        tensors |= {
            block + "attn_norm.weight": np.ones(n_embd, np.float32),
            block + "ssm_in.weight": weights.matrix(2 * n_inner, n_embd),
            block + "ssm_conv1d.weight": weights.matrix(n_inner, n_conv),
            block + "ssm_conv1d.bias": np.zeros(n_inner, np.float32),
            block + "ssm_x.weight": weights.matrix(n_rank + 2 * n_state, n_inner),
            block + "ssm_dt.weight": weights.matrix(n_inner, n_rank),
            block + "ssm_dt.bias": np.zeros(n_inner, np.float32),
            block + "ssm_a": -np.ones((n_inner, n_state), np.float32),
            block + "ssm_d": np.ones(n_inner, np.float32),
            block + "ssm_out.weight": weights.matrix(n_embd, n_inner),
        }
    return _finish(writer, tensors, path)


def write_vocabulary(path: Path, *, architecture: str, vocabulary: Vocabulary = VOCABULARY) -> Path:
    """Write a file without weights, for loads of the vocabulary only; return its path."""
    writer = GGUFWriter(path, architecture)
    add_general(writer, path.stem)
    add_vocabulary(writer, vocabulary, None)
    return _finish(writer, {}, path)


def write_unknown_architecture(path: Path) -> Path:
    """Write a well-formed file of an architecture that llama.cpp does not know."""
    return write_llama(path, architecture="gargantua")


def _llama_block(weights: Weights, shape: Shape, block: str) -> dict[str, Array]:
    n_embd, n_ff = shape.n_embd, shape.n_ff
    return {
        block + "attn_norm.weight": np.ones(n_embd, np.float32),
        block + "attn_q.weight": weights.matrix(n_embd, n_embd),
        block + "attn_k.weight": weights.matrix(n_embd, n_embd),
        block + "attn_v.weight": weights.matrix(n_embd, n_embd),
        block + "attn_output.weight": weights.matrix(n_embd, n_embd),
        block + "ffn_norm.weight": np.ones(n_embd, np.float32),
        block + "ffn_gate.weight": weights.matrix(n_ff, n_embd),
        block + "ffn_up.weight": weights.matrix(n_ff, n_embd),
        block + "ffn_down.weight": weights.matrix(n_embd, n_ff),
    }


def output_matrix(weights: Weights, vocabulary: Vocabulary, n_embd: int) -> Array:
    output = weights.matrix(len(vocabulary), n_embd, gain=3.0)
    silent = [i for i, kind in enumerate(vocabulary.types) if kind != int(TokenType.NORMAL)]
    output[silent] = 0.0  # A logit of 0 is never the largest of hundreds of logits.
    return output


def add_general(writer: GGUFWriter, name: str, file_type: int = LlamaFileType.ALL_F32) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(file_type)


def _add_attention_shape(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    writer.add_rope_freq_base(10_000.0)


def add_vocabulary(writer: GGUFWriter, vocabulary: Vocabulary, chat_template: str | None) -> None:
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types([TokenType(kind) for kind in vocabulary.types])
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_eos_token(vocabulary.add_eos)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def _add_extra(writer: GGUFWriter, extra: Mapping[str, int | bool | str | float]) -> None:
    for key, value in extra.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)


def _finish(writer: GGUFWriter, tensors: Mapping[str, Array], path: Path) -> Path:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# ---------------------------------------------------------------------------- damaged files


def write_truncated(path: Path, *, keep: float = 0.5) -> Path:
    """Write a truncated file: keep=0.9 loses weights, keep=0.05 ends inside the metadata."""
    write_llama(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    return path


def write_bad_magic(path: Path) -> Path:
    write_llama(path)
    path.write_bytes(b"GGML" + path.read_bytes()[4:])
    return path


def write_huge_counts(path: Path, *, n_tensors: int = 2**62, n_values: int = 2**62) -> Path:
    """Write a header whose counts are larger than any file."""
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values) + bytes(64))
    return path


def write_huge_array(path: Path, *, n_elements: int = 2**60) -> Path:
    """Write one metadata array of strings with a wrong length."""
    key = b"tokenizer.ggml.tokens"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
    path.write_bytes(header + struct.pack("<IIQ", 9, 8, n_elements) + bytes(256))
    return path


# ------------------------------------------------------------------------------ Ollama's store

_MEDIA = "application/vnd.ollama.image."
_MANIFEST_MEDIA = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_MEDIA = "application/vnd.docker.container.image.v1+json"


class OllamaStore:
    """Write manifests and blobs below `root` as Ollama does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True, exist_ok=True)
        (root / "manifests").mkdir(exist_ok=True)

    def add(
        self,
        name: str,
        *,
        weights: Path | None,
        draft: Path | None = None,
        params: Mapping[str, object] | None = None,
        system: str | None = None,
        template: str | None = None,
        messages: Sequence[Mapping[str, object]] | None = None,
        license: str | Sequence[str] = (),  # noqa: A002  Ollama's word
        projector: Path | None = None,
        adapter: Path | None = None,
        config: Mapping[str, object] | None = None,
        parent: str | None = None,
        modified: float | None = None,
    ) -> str:
        """Store a model and return its digest: 64 hex digits, the hash of the manifest.

        config: overrides of the default config.  modified: Unix time of the manifest file.
        """
        layers = [
            *self._file_layers(
                parent, model=weights, draft=draft, projector=projector, adapter=adapter
            ),
            *self._text_layers(template, system, params, messages, license),
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_MEDIA,
            "config": self._layer(_CONFIG_MEDIA, _json(_PLAIN_CONFIG | dict(config or {}))),
            "layers": layers,
        }
        data = _json(manifest) + b"\n"
        path = self.manifest_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if modified is not None:
            os.utime(path, (modified, modified))
        return hashlib.sha256(data).hexdigest()

    def manifest_path(self, name: str) -> Path:
        """Return the path of the manifest of `[[host/]namespace/]model[:tag]`."""
        path, _, tag = name.partition(":")
        parts = path.split("/")
        full = ["registry.ollama.ai", "library"][: 3 - len(parts)] + parts
        return self.root.joinpath("manifests", *full, tag or "latest")

    def blob_path(self, digest: str) -> Path:
        """Return the path of a blob; `sha256:` before the digest is optional."""
        return self.root / "blobs" / f"sha256-{digest.removeprefix('sha256:')}"

    def weights_path(self, name: str, kind: str = "model") -> Path:
        """Return the blob of the first layer of that kind (model, draft, projector)."""
        manifest = json.loads(self.manifest_path(name).read_bytes())
        layer = next(e for e in manifest["layers"] if e["mediaType"] == _MEDIA + kind)
        return self.blob_path(layer["digest"])

    def _file_layers(self, parent: str | None, **files: Path | None) -> list[dict[str, Any]]:
        present = ((kind, path) for kind, path in files.items() if path is not None)
        layers = [self._layer(_MEDIA + kind, path.read_bytes()) for kind, path in present]
        if parent is not None:
            layers[0]["from"] = parent
        return layers

    def _text_layers(
        self,
        template: str | None,
        system: str | None,
        params: Mapping[str, object] | None,
        messages: Sequence[Mapping[str, object]] | None,
        licenses: str | Sequence[str],
    ) -> list[dict[str, Any]]:
        texts: list[tuple[str, bytes]] = []
        if template is not None:
            texts.append(("template", template.encode()))
        if system is not None:
            texts.append(("system", system.encode()))
        if params is not None:
            texts.append(("params", _json(params)))
        if messages is not None:
            texts.append(("messages", _json(messages)))
        each = [licenses] if isinstance(licenses, str) else licenses
        texts.extend(("license", text.encode()) for text in each)
        return [self._layer(_MEDIA + kind, data) for kind, data in texts]

    def _layer(self, media_type: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        self.blob_path(digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


_PLAIN_CONFIG: dict[str, object] = {
    "model_format": "gguf",
    "model_family": "llama",
    "model_families": ["llama"],
    "model_type": "37.12K",
    "file_type": "F32",
    "architecture": "amd64",
    "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": []},
}


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
