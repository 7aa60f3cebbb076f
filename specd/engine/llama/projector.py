"""The projector: turns images and sounds into embeddings, by llama.cpp's multimodal library."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf import GGUFReader
from llama_cpp import mtmd_cpp

from specd.core import TokenId, is_audio
from specd.engine import audio, images
from specd.engine.backend import DecodeFailed
from specd.engine.llama.device_placement import DEFAULT_PLACEMENT, DevicePlacement
from specd.engine.llama.library import Buffer, BufferUse
from specd.engine.llama.model import LlamaModel
from specd.engine.media import Media, Part, Plane, Positions, Rows
from specd.errors import InvalidRequest, LoadFailed

#: Models that can locate objects in an image, and the fewest tokens for an image that this needs.
_EXACT, _EXACT_TOKENS = ("qwen2vl", "qwen3vl", "qwen3vlmoe"), 1024
#: Kinds whose embeddings depend on the position in the prompt, and the most images of a prompt.
_PLACED = {"hunyuanvl": 1, "deepseek4v": 0}
_DIMENSIONS = ("t", "y", "x", "z")


class LlamaProjector:
    """The owner of one `mtmd_context`, made for one model; after creation, one thread uses it."""

    def __init__(
        self,
        path: str,
        model: LlamaModel,
        *,
        n_ctx: int,
        n_threads: int = 0,
        placement: DevicePlacement = DEFAULT_PLACEMENT,
        flash_attention: bool | None = None,
    ) -> None:
        """Load the projector.  Raises LoadFailed with the path and llama.cpp's reason.

        n_ctx: tokens of a slot; images are scaled down to take at most half of them if possible.
        """
        native_log = model.native_log
        mtmd_cpp.mtmd_helper_log_set(native_log.callback, ctypes.c_void_p(0))
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu = placement.is_on_gpu
        params.device = placement.first_device()
        params.print_timings = False
        if model.metadata("general.architecture") in _EXACT:
            params.image_min_tokens = min(_EXACT_TOKENS, n_ctx // 4)
        if flash_attention is False:
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if n_threads > 0:
            params.n_threads = n_threads
        n_buffers = len(native_log.buffers)
        handle = mtmd_cpp.mtmd_init_from_file(path.encode(), model.handle, params)
        if not handle:
            raise native_log.load_error(f"cannot load the projector {path}")
        self._handle = handle
        scratch = native_log.buffers[n_buffers:]
        # The library logs its scratch buffers, not its weights, which are on the same device.
        where = scratch[0].name if scratch else "CPU"
        native_log.buffers.append(Buffer(where, BufferUse.EXTRAS, Path(path).stat().st_size))
        self._n_ctx = n_ctx
        self.width = int(llama_cpp.llama_model_n_embd_inp(model.handle))
        self.max_files = _PLACED.get(_kind(path))
        if self.max_files == 0:
            raise LoadFailed(f"cannot load the projector {path}: its kind is not supported")
        self._has_planes = bool(mtmd_cpp.mtmd_decode_use_mrope(handle))
        self._has_vision = bool(mtmd_cpp.mtmd_support_vision(handle))
        self._has_audio = bool(mtmd_cpp.mtmd_support_audio(handle))

    @property
    def is_causal(self) -> bool:
        """Whether the tokens of an image attend only to those before them."""
        return not mtmd_cpp.mtmd_decode_use_non_causal(self._handle, None)

    def parts(self, data: bytes, n_ctx: int = 0) -> Sequence[Part]:
        key = hashlib.sha256(data).digest()
        if is_audio(data):
            return self._parts(self._audio_bitmap(data), key)
        if not self._has_vision:
            raise InvalidRequest("this model does not support image input")
        pixels = images.read(data)
        parts = self._parts(_bitmap(pixels), key)
        n_tokens = sum(part.n_tokens for part in parts if isinstance(part, Media))
        most = max((n_ctx or self._n_ctx) // 2, 1)
        if n_tokens > most:
            # Scale the image down.  Models with a fixed number of tokens ignore the size.
            parts = self._parts(_bitmap(pixels.downscaled(most / n_tokens)), key + most.to_bytes(8))
        return parts

    def encode(self, media: Media) -> Rows:
        source = media.source
        assert isinstance(source, _Chunk)
        if mtmd_cpp.mtmd_encode_chunk(self._handle, source.pointer) != 0:
            raise DecodeFailed("llama.cpp could not encode the image")
        address = mtmd_cpp.mtmd_get_output_embd(self._handle)
        return np.ctypeslib.as_array(address, shape=(media.n_tokens, self.width)).copy()

    def close(self) -> None:
        if self._handle:
            mtmd_cpp.mtmd_free(self._handle)
            self._handle = None

    def _audio_bitmap(self, data: bytes) -> Any:
        if not self._has_audio:
            raise InvalidRequest("this model does not support audio input")
        data = audio.check_audio(data)
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        options = mtmd_cpp.mtmd_helper_init_opt_default()
        wrapper = mtmd_cpp.mtmd_helper_bitmap_init_from_buf_wrapper(
            self._handle, buffer, len(data), False, options
        )
        if not wrapper.bitmap:
            raise InvalidRequest("a sound cannot be read: it is not WAV, MP3 or FLAC")
        n_samples = mtmd_cpp.mtmd_bitmap_get_n_bytes(wrapper.bitmap) // 4
        if n_samples < mtmd_cpp.mtmd_get_audio_sample_rate(self._handle) // 10:
            # The library would abort the process on a single sample.
            mtmd_cpp.mtmd_bitmap_free(wrapper.bitmap)
            raise InvalidRequest("a sound is too short: it lasts less than a tenth of a second")
        return wrapper.bitmap

    def _parts(self, bitmap: Any, key: bytes) -> Sequence[Part]:
        """Return the parts of an image or sound, and free its bitmap."""
        part = mtmd_cpp.mtmd_input_part(None, bitmap)
        parts = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * 1)(ctypes.pointer(part))
        chunks = _Chunks()
        try:
            code = mtmd_cpp.mtmd_tokenize_from_parts(self._handle, chunks.handle, parts, 1, False)
        finally:
            mtmd_cpp.mtmd_bitmap_free(bitmap)
        if code != 0:
            raise InvalidRequest(f"this model cannot read an image or sound (code {code})")
        return list(self._iter_media(chunks, key))

    def _iter_media(self, chunks: _Chunks, key: bytes) -> Iterator[Part]:
        for at, chunk in enumerate(chunks):
            kind = mtmd_cpp.mtmd_input_chunk_get_type(chunk.pointer)
            if kind == mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_TEXT:
                yield from _text_tokens(chunk)
            else:
                yield self._media(chunk, kind, key + at.to_bytes(4))

    def _media(self, chunk: _Chunk, kind: int, key: bytes) -> Media:
        pointer = chunk.pointer
        n_tokens = int(mtmd_cpp.mtmd_input_chunk_get_n_tokens(pointer))
        return Media(
            token=-1 - int.from_bytes(hashlib.sha256(key).digest()[:7]),
            n_tokens=n_tokens,
            n_positions=int(mtmd_cpp.mtmd_input_chunk_get_n_pos(pointer)),
            plane=_plane(pointer, kind, n_tokens) if self._has_planes else None,
            is_causal=not mtmd_cpp.mtmd_decode_use_non_causal(self._handle, pointer),
            source=chunk,
        )


class _Chunks:
    """An `mtmd_input_chunks`; it is freed when no chunk of it is referenced any more."""

    def __init__(self) -> None:
        self.handle = mtmd_cpp.mtmd_input_chunks_init()
        weakref.finalize(self, mtmd_cpp.mtmd_input_chunks_free, self.handle)

    def __iter__(self) -> Iterator[_Chunk]:
        for at in range(mtmd_cpp.mtmd_input_chunks_size(self.handle)):
            yield _Chunk(self, mtmd_cpp.mtmd_input_chunks_get(self.handle, at))


class _Chunk:
    def __init__(self, owner: _Chunks, pointer: Any) -> None:
        self._owner = owner
        self.pointer = pointer


def _text_tokens(chunk: _Chunk) -> list[TokenId]:
    n = ctypes.c_size_t()
    tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_text(chunk.pointer, ctypes.byref(n))
    return list(tokens[: n.value])


def _plane(chunk: Any, kind: int, n_tokens: int) -> Plane:
    """Return the positions of an image, which are linear in its start: two starts give them."""
    if kind != mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE:
        steps = np.tile(np.arange(n_tokens, dtype=np.int32), (4, 1))
        return Plane(steps, np.ones_like(steps))
    tokens = mtmd_cpp.mtmd_input_chunk_get_tokens_image(chunk)
    origin = _positions(tokens, 0, n_tokens)
    return Plane(origin, _positions(tokens, 1, n_tokens) - origin)


def _positions(tokens: Any, begin: int, n_tokens: int) -> Positions:
    found = (mtmd_cpp.mtmd_decoder_pos * n_tokens)()
    mtmd_cpp.mtmd_helper_image_get_decoder_pos(tokens, begin, found)
    return np.array([[getattr(at, d) for at in found] for d in _DIMENSIONS], np.int32)


def _bitmap(pixels: images.Pixels) -> Any:
    data = (ctypes.c_uint8 * len(pixels.data)).from_buffer_copy(pixels.data)
    return mtmd_cpp.mtmd_bitmap_init(pixels.width, pixels.height, data)


def _kind(path: str) -> str:
    """Return the projector's type; "" if it has one type for images and one for sounds."""
    field = GGUFReader(path).fields.get("clip.projector_type")
    return str(field.contents()) if field is not None else ""
