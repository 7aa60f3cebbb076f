"""Write small random multimodal projectors that mtmd reads, and images and sounds for them.

Each turns an image or a sound into a few embeddings for a `gguf_files.write_llama` of the same
width.  The embeddings are large enough to change the answer.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType
from PIL import Image

from tests.gguf_files import SHAPE, Array, Weights

N_EMBD, N_LAYER, N_HEAD, N_FF = 32, 2, 2, 48


def picture(seed: int = 0, size: tuple[int, int] = (24, 24), kind: str = "PNG") -> bytes:
    """Return an image file of coloured noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def sound(seed: int = 0, seconds: float = 1.0) -> bytes:
    """Return a WAV file of noise."""
    samples = np.random.default_rng(seed).normal(0, 8000, int(16_000 * seconds)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def write_llava(
    path: Path,
    *,
    width: int = SHAPE.n_embd,
    seed: int = 0,
    image_size: int = 16,
    tiles: Sequence[int] = (),
    projector_type: str = "mlp",
) -> Path:
    """Write a projector with 16 embeddings per picture, decoded with causal attention.

    tiles: widths and heights of the grids that a larger picture is cut to; an overview is added.
    """
    weights = Weights(seed, 0.0)
    writer = _begin(path, projector_type, image_size=image_size, width=width)
    if tiles:
        writer.add_array("clip.vision.image_grid_pinpoints", list(tiles))
    tensors = _vision(weights, (image_size // 4) ** 2) | _layers(weights)
    tensors |= {
        "mm.0.weight": weights.matrix(width, N_EMBD),
        "mm.0.bias": np.zeros(width, np.float32),
        "mm.2.weight": weights.matrix(width, width, gain=3.0),
        "mm.2.bias": np.zeros(width, np.float32),
    }
    return _finish(writer, tensors, path)


def write_gemma3_projector(path: Path, *, width: int = SHAPE.n_embd, seed: int = 0) -> Path:
    """Write a projector with 16 embeddings per picture, decoded with bidirectional attention."""
    weights = Weights(seed, 0.0)
    writer = _begin(path, "gemma3", image_size=32, width=width)
    writer.add_uint32("clip.vision.projector.scale_factor", 2)
    tensors = _vision(weights, 64) | _layers(weights)
    tensors |= {
        "v.post_ln.weight": np.ones(N_EMBD, np.float32),
        "v.post_ln.bias": np.zeros(N_EMBD, np.float32),
        "mm.input_projection.weight": weights.matrix(N_EMBD, width, gain=3.0),
        "mm.soft_emb_norm.weight": np.ones(N_EMBD, np.float32),
    }
    return _finish(writer, tensors, path)


def write_qwen2vl_projector(path: Path, *, width: int = SHAPE.n_embd, seed: int = 0) -> Path:
    """Write a projector with one embedding per 16 by 16 pixels, at positions in two dimensions."""
    weights = Weights(seed, 0.0)
    writer = _begin(path, "qwen2vl_merger", image_size=64, width=width, patch_size=8)
    tensors = _layers(weights)
    tensors |= {
        "v.patch_embd.weight": _convolution(weights, 8),
        "v.patch_embd.weight.1": _convolution(weights, 8),
        "v.post_ln.weight": np.ones(N_EMBD, np.float32),
        "v.post_ln.bias": np.zeros(N_EMBD, np.float32),
        "mm.0.weight": weights.matrix(4 * N_EMBD, 4 * N_EMBD),
        "mm.0.bias": np.zeros(4 * N_EMBD, np.float32),
        "mm.2.weight": weights.matrix(width, 4 * N_EMBD, gain=3.0),
        "mm.2.bias": np.zeros(width, np.float32),
    }
    return _finish(writer, tensors, path)


def write_ultravox(path: Path, *, width: int = SHAPE.n_embd, seed: int = 0) -> Path:
    """Write a projector with 30 embeddings for each 30 seconds of sound."""
    n_mel, n_stacked = 80, 50
    weights = Weights(seed, 0.0)
    writer = _writer(path, "ultravox", "audio", width)
    writer.add_uint32("clip.audio.num_mel_bins", n_mel)
    writer.add_uint32("clip.audio.projector.stack_factor", n_stacked)
    tensors = _layers(weights, "a")
    for layer in range(N_LAYER):
        del tensors[f"a.blk.{layer}.attn_k.bias"]
    for at, n_channels in ((1, n_mel), (2, N_EMBD)):
        kernel = weights.matrix(N_EMBD, 3 * n_channels, gain=2.0)
        tensors[f"a.conv1d.{at}.weight"] = kernel.reshape(N_EMBD, n_channels, 3)
        tensors[f"a.conv1d.{at}.bias"] = np.zeros((N_EMBD, 1), np.float32)
    tensors |= {
        "a.position_embd.weight": weights.matrix(1500, N_EMBD),
        "a.post_ln.weight": np.ones(N_EMBD, np.float32),
        "a.post_ln.bias": np.zeros(N_EMBD, np.float32),
        "mm.a.norm_pre.weight": np.ones(N_EMBD * n_stacked, np.float32),
        "mm.a.mlp.1.weight": weights.matrix(2 * N_EMBD, N_EMBD * n_stacked),
        "mm.a.norm_mid.weight": np.ones(N_EMBD, np.float32),
        "mm.a.mlp.2.weight": weights.matrix(width, N_EMBD, gain=3.0),
    }
    return _finish(writer, tensors, path)


def _begin(
    path: Path, projector_type: str, *, image_size: int, width: int, patch_size: int = 4
) -> GGUFWriter:
    writer = _writer(path, projector_type, "vision", width)
    writer.add_uint32("clip.vision.image_size", image_size)
    writer.add_uint32("clip.vision.patch_size", patch_size)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    return writer


def _writer(path: Path, projector_type: str, sense: str, width: int) -> GGUFWriter:
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_name(path.stem)
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_string("clip.projector_type", projector_type)
    writer.add_bool(f"clip.has_{sense}_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for key, value in {
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "block_count": N_LAYER,
        "projection_dim": width,
        "attention.head_count": N_HEAD,
    }.items():
        writer.add_uint32(f"clip.{sense}.{key}", value)
    writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", 1e-5)
    return writer


def _convolution(weights: Weights, patch_size: int) -> Array:
    flat = weights.matrix(N_EMBD, 3 * patch_size**2, gain=2.0)
    return flat.reshape(N_EMBD, 3, patch_size, patch_size)


def _vision(weights: Weights, n_patches: int) -> dict[str, Array]:
    return {
        "v.patch_embd.weight": _convolution(weights, 4),
        "v.patch_embd.bias": np.zeros(N_EMBD, np.float32),
        "v.position_embd.weight": weights.matrix(n_patches, N_EMBD),
    }


def _layers(weights: Weights, prefix: str = "v") -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    for layer in range(N_LAYER):
        block = f"{prefix}.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            tensors[f"{block}{name}.weight"] = weights.matrix(N_EMBD, N_EMBD)
            tensors[f"{block}{name}.bias"] = np.zeros(N_EMBD, np.float32)
        for name in ("ln1", "ln2"):
            tensors[f"{block}{name}.weight"] = np.ones(N_EMBD, np.float32)
            tensors[f"{block}{name}.bias"] = np.zeros(N_EMBD, np.float32)
        tensors[f"{block}ffn_up.weight"] = weights.matrix(N_FF, N_EMBD)
        tensors[f"{block}ffn_up.bias"] = np.zeros(N_FF, np.float32)
        tensors[f"{block}ffn_down.weight"] = weights.matrix(N_EMBD, N_FF)
        tensors[f"{block}ffn_down.bias"] = np.zeros(N_EMBD, np.float32)
    return tensors


def _finish(writer: GGUFWriter, tensors: Mapping[str, Array], path: Path) -> Path:
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
