"""A GGUF loaded by llama.cpp, and its vocabulary."""

from __future__ import annotations

import ctypes
import unicodedata
from collections.abc import Callable
from typing import Any

import llama_cpp

from specd.core import TokenId
from specd.engine.llama.device_placement import DEFAULT_PLACEMENT, DevicePlacement
from specd.engine.llama.library import NativeLog
from specd.engine.llama.tokenizer_limits import (
    KINDS,
    MAX_CONTROL_TOKENS,
    ControlSpellings,
    TokenizerStack,
)
from specd.errors import InvalidRequest, LoadFailed

#: llama.cpp's load mode by (use_mmap, use_mlock); use_mmap None: llama.cpp's choice.
_LOAD_MODES = {
    (None, False): llama_cpp.LLAMA_LOAD_MODE_AUTO,
    (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
    (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
    (None, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
}
_PIECE_BYTES = 64
_VALUE_BYTES = 256

#: Attributes of the tokens that llama.cpp searches in a text before it tokenizes the rest.
_CONTROL_ATTRIBUTES = (
    llama_cpp.LLAMA_TOKEN_ATTR_CONTROL
    | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
    | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
)


class LlamaModel:
    """The owner of one `llama_model`; close it after its contexts."""

    def __init__(
        self,
        path: str,
        native_log: NativeLog,
        *,
        placement: DevicePlacement = DEFAULT_PLACEMENT,
        use_mmap: bool | None = None,
        use_mlock: bool = False,
        on_progress: Callable[[float], None] = lambda _: None,
        adapt_params: Callable[[llama_cpp.llama_model_params], object] = lambda _: None,
    ) -> None:
        """Load the file.  Raises LoadFailed with its path and llama.cpp's reason.

        adapt_params: changes the parameters of the load; returns what must outlive the model.
        """
        params = llama_cpp.llama_model_default_params()
        params.load_mode = _LOAD_MODES[use_mmap, use_mlock]
        # Arrays that native code reads; llama.cpp keeps their addresses.
        self._kept_alive = placement.apply_to(params), adapt_params(params)

        def progress(fraction: float, _user_data: object) -> bool:
            on_progress(fraction)
            return True

        # Referenced by native code until the load returns.
        callback = llama_cpp.llama_progress_callback(progress)
        params.progress_callback = callback
        self.handle = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.handle:
            raise native_log.load_error(f"cannot load {path}")
        self.path = path
        self.vocabulary = LlamaVocabulary(
            llama_cpp.llama_model_get_vocab(self.handle), self.metadata("tokenizer.ggml.pre")
        )
        #: LoRA handles; contexts made later apply them, and llama.cpp frees them with the model.
        self.adapters: list[Any] = []
        self.native_log = native_log

    def adapt(self, path: str) -> None:
        """Load a LoRA adapter for this model.  Raises LoadFailed with llama.cpp's reason."""
        adapter = llama_cpp.llama_adapter_lora_init(self.handle, path.encode())
        if not adapter:
            raise self.native_log.load_error(f"cannot apply the adapter {path}")
        if llama_cpp.llama_adapter_get_alora_n_invocation_tokens(adapter):
            # It must apply only after its invocation tokens, but a context applies it everywhere.
            raise LoadFailed(
                f"cannot apply the adapter {path}: activated LoRA adapters are not supported"
            )
        self.adapters.append(adapter)

    @property
    def n_parameters(self) -> int:
        return int(llama_cpp.llama_model_n_params(self.handle))

    @property
    def n_ctx_train(self) -> int:
        """Context length of the training in tokens; 0: unknown.

        llama.cpp returns a length beyond 2^31 - 1 as a negative number.
        """
        return max(int(llama_cpp.llama_model_n_ctx_train(self.handle)), 0)

    @property
    def is_recurrent(self) -> bool:
        """Whether some or all layers keep a recurrent state: recurrent or hybrid models."""
        recurrent = llama_cpp.llama_model_is_recurrent(self.handle)
        return bool(recurrent or llama_cpp.llama_model_is_hybrid(self.handle))

    @property
    def is_stateful_only(self) -> bool:
        """Whether all layers are recurrent and none has attention."""
        return bool(llama_cpp.llama_model_is_recurrent(self.handle))

    @property
    def window(self) -> int:
        """Size of the sliding window in tokens, the current one included; 0: no such layer."""
        return int(llama_cpp.llama_model_n_swa(self.handle))

    @property
    def can_branch(self) -> bool:
        """Whether sequences can share single cells: not with a recurrent state, window or index.

        llama.cpp aborts the process if sequences share part of a cache with an index.
        """
        architecture = self.metadata("general.architecture")
        has_index = self.metadata(f"{architecture}.attention.indexer.head_count")
        return not (self.is_recurrent or self.window or has_index)

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to those before it, as far as the file says."""
        architecture = self.metadata("general.architecture")
        return self.metadata(f"{architecture}.attention.causal") != "false"

    @property
    def has_decoder(self) -> bool:
        return bool(llama_cpp.llama_model_has_decoder(self.handle))

    def metadata(self, key: str) -> str:
        """Return a value of the file as llama.cpp prints it, cut to 255 bytes; "" if none."""
        buffer = ctypes.create_string_buffer(_VALUE_BYTES)
        n = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, _VALUE_BYTES)
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""

    def close(self) -> None:
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


def without_weights(
    params: llama_cpp.llama_model_params, architecture: str, n_vocab: int
) -> object:
    """Set the parameters for a load without weights and without the texts of the vocabulary.

    Reading 128,000 texts takes a second.  n_vocab: 0 reads them.  Returns what native code refers
    to while the model lives.
    """
    params.no_alloc = True
    if n_vocab <= 0:
        return None
    overrides = (llama_cpp.llama_model_kv_override * 3)()  # an empty one ends the list
    kind, size = overrides[0], overrides[1]
    kind.tag, kind.key = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR, b"tokenizer.ggml.model"
    kind.value.val_str = b"none"
    size.tag, size.key = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_INT, f"{architecture}.vocab_size".encode()
    size.value.val_i64 = n_vocab
    params.kv_overrides = overrides
    return overrides


class LlamaVocabulary:
    """The vocabulary of a model.  Any thread may read it (llama.cpp has a test of that)."""

    def __init__(self, handle: object, pre_tokenizer: str = "") -> None:
        """Wrap a `llama_vocab`.  pre_tokenizer: the file's tokenizer.ggml.pre."""
        self._handle = handle
        self.n_vocab = int(llama_cpp.llama_vocab_n_tokens(handle))
        self._pieces: dict[TokenId, bytes] = {}
        self._ends: dict[TokenId, bool] = {}
        #: Made for the first long text.
        self._control_spellings: ControlSpellings | None = None
        self._add_bos = bool(llama_cpp.llama_vocab_get_add_bos(handle))
        kind = llama_cpp.llama_vocab_type(handle)
        self._is_word_piece = kind == llama_cpp.LLAMA_VOCAB_TYPE_WPM
        self._stack: TokenizerStack | None = None
        if kind == llama_cpp.LLAMA_VOCAB_TYPE_BPE:
            # Other kinds have no pre-tokenizer and need the same stack for every text.
            self._stack = TokenizerStack(self._tokenize, pre_tokenizer)

    def begins_with_bos(self) -> bool:
        return self._add_bos

    def tokenize(self, text: str, *, add_bos: bool) -> list[TokenId]:
        """Return the token ids of the text, with control tokens in it recognised.

        Raises InvalidRequest for a text beyond the limits of `tokenizer_limits`.
        """
        self._check_control_tokens(text)
        if self._stack is None:
            return self._tokenize(text, add_bos=add_bos)
        return self._stack.call(text, lambda: self._tokenize(text, add_bos=add_bos))

    def max_runs(self) -> tuple[int | None, ...]:
        """Return the longest allowed run of each of tokenizer_limits.KINDS; None: any length."""
        return self._stack.max_runs() if self._stack is not None else (None,) * len(KINDS)

    def _check_control_tokens(self, text: str) -> None:
        if len(text) <= MAX_CONTROL_TOKENS:
            return
        if self._control_spellings is None:
            self._control_spellings = ControlSpellings.of(
                self.spelling(token).decode(errors="replace")
                for token in range(self.n_vocab)
                if llama_cpp.llama_vocab_get_attr(self._handle, token) & _CONTROL_ATTRIBUTES
            )
        if (n_tokens := self._control_spellings.count(text)) > MAX_CONTROL_TOKENS:
            raise InvalidRequest(
                f"the prompt has {n_tokens} control or user-defined tokens;"
                f" the limit is {MAX_CONTROL_TOKENS}"
            )

    def _tokenize(self, text: str, *, add_bos: bool = False) -> list[TokenId]:
        if self._is_word_piece:
            # llama.cpp keeps only the first letter of a character that decomposes into several, so
            # Korean would lose its vowels.
            text = unicodedata.normalize("NFD", text)
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        while True:
            buffer = (llama_cpp.llama_token * room)()
            n = llama_cpp.llama_tokenize(self._handle, data, len(data), buffer, room, add_bos, True)
            if n >= 0:
                return list(buffer[:n])
            room = -n

    def piece(self, token: TokenId) -> bytes:
        if (known := self._pieces.get(token)) is not None:
            return known
        return self._pieces.setdefault(token, self._bytes(token, special=False))

    def spelling(self, token: TokenId) -> bytes:
        return self._bytes(token, special=True)

    def _bytes(self, token: TokenId, *, special: bool) -> bytes:
        if not 0 <= token < self.n_vocab:
            # Native code would abort the process.
            raise ValueError(f"token {token} is outside the vocabulary of {self.n_vocab}")
        room = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            n = llama_cpp.llama_token_to_piece(self._handle, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def is_eog(self, token: TokenId) -> bool:
        if (known := self._ends.get(token)) is not None:
            return known
        ends = bool(llama_cpp.llama_vocab_is_eog(self._handle, token))
        return self._ends.setdefault(token, ends)
