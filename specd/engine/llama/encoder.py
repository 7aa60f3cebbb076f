"""An embedding model: texts as sequences of one pass, pooled as its GGUF says.

llama.cpp aborts the process on some inputs, which this module prevents: passes larger than the
batch, parts of a text with bidirectional attention, positions beyond the model's embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import llama_cpp
import numpy as np

from specd.core import TokenId
from specd.engine.backend import Batch, DecodeFailed
from specd.engine.llama.model import LlamaModel
from specd.engine.llama.native import NativeContext, context_params, make_context
from specd.errors import LoadFailed

#: Most texts of one pass.
MAX_TEXTS: Final = 64
#: Limits on a text that must be read in one pass: always allowed, in tokens (Ollama's batch for
#: embeddings), and for longer texts of models without a head, in bytes of logits.  llama.cpp
#: allocates logits for every row of a pass, although none are used.
MIN_WHOLE, MAX_LOGITS_BYTES = 2048, 4 * 2**30

_NO_VECTOR: Final = {
    llama_cpp.LLAMA_POOLING_TYPE_NONE: "it gives a vector for each token and none for a text",
    llama_cpp.LLAMA_POOLING_TYPE_RANK: "it is a reranker, which scores pairs of texts",
}


class LlamaEncoder(NativeContext):
    """A `llama_context` for embeddings, with no state between calls, used by one thread."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        n_ctx: int,
        n_batch: int,
        n_threads: int = 0,
        flash_attention: bool | None = None,
        kv_cache_type: str = "f16",
    ) -> None:
        """Create the context.  Raises LoadFailed, also if the model gives no vector for a text.

        n_ctx: most tokens of a text.  n_batch: most tokens of several texts in one pass.
        """
        self._model = model
        params = context_params(
            n_threads=n_threads, flash_attention=flash_attention, kv_cache_type=kv_cache_type
        )
        params.embeddings = True
        has_memory, pooling = _probe(model, params)
        if pooling in _NO_VECTOR:
            raise LoadFailed(f"{model.path} cannot embed text: {_NO_VECTOR[pooling]}")
        self._encodes = bool(llama_cpp.llama_model_has_encoder(model.handle))
        has_head = has_memory and not self._encodes
        ends = has_head and model.is_causal and pooling == llama_cpp.LLAMA_POOLING_TYPE_LAST
        if not ends:
            n_rows = MAX_LOGITS_BYTES // (4 * model.vocabulary.n_vocab)
            n_ctx = min(n_ctx, max(n_batch, MIN_WHOLE, 0 if has_head else n_rows))
        self.n_ctx = n_ctx
        self.n_shared = min(n_batch, n_ctx)
        # If only the last token is pooled, in a causal model, a text may be read in pieces.
        self._n_pass = self.n_shared if ends else n_ctx
        # llama.cpp splits recurrent models' passes by sequence, so several texts gain nothing.
        self.n_texts = 1 if model.is_recurrent else min(MAX_TEXTS, self.n_shared)
        # llama.cpp reserves a pass with equal rows for each text, and aborts on a remainder if it
        # pools, so the number of rows is a multiple of the number of texts.
        n_rows = -(-self._n_pass // self.n_texts) * self.n_texts
        params.n_ctx, params.n_seq_max = max(n_ctx, n_rows), self.n_texts
        params.n_batch = params.n_ubatch = n_rows
        super().__init__(model, params)
        self._memory = llama_cpp.llama_get_memory(self.handle)
        self._n_embd = int(llama_cpp.llama_model_n_embd_out(model.handle))

    def encode(self, texts: Sequence[Sequence[TokenId]]) -> list[tuple[float, ...]]:
        """Return one vector per text.  Raises DecodeFailed, after which the next call may work."""
        n_tokens = sum(map(len, texts))
        room = self.n_ctx if len(texts) == 1 else self.n_shared
        if not 0 < len(texts) <= self.n_texts or not all(texts) or n_tokens > room:
            raise DecodeFailed(f"{len(texts)} texts of {n_tokens} tokens do not fit in a pass")
        rows = [(sequence, *row) for sequence, text in enumerate(texts) for row in enumerate(text)]
        try:
            for begin in range(0, n_tokens, self._n_pass):
                self._pass(rows[begin : begin + self._n_pass])
            return [self._vector(sequence) for sequence in range(len(texts))]
        finally:
            if self._memory:
                llama_cpp.llama_memory_clear(self._memory, False)

    def _pass(self, rows: Sequence[tuple[int, int, TokenId]]) -> None:
        """Run one pass.  rows: (sequence, position, token)."""
        batch = Batch()
        for sequence, position, token in rows:
            # llama.cpp needs all rows as outputs if it pools.
            batch.add(token, position, sequence, wants_logits=True)
        self._batch.fill(batch, batch.slots)
        run = llama_cpp.llama_encode if self._encodes else llama_cpp.llama_decode
        code = run(self.handle, self._batch.native)
        if code != 0:
            raise DecodeFailed(f"llama.cpp could not encode the batch (code {code})")

    def _vector(self, sequence: int) -> tuple[float, ...]:
        pooled = llama_cpp.llama_get_embeddings_seq(self.handle, sequence)
        if not pooled:
            raise DecodeFailed(f"text {sequence} of the pass has no vector")
        return tuple(np.ctypeslib.as_array(pooled, (self._n_embd,)).tolist())


def _probe(model: LlamaModel, wanted: llama_cpp.llama_context_params) -> tuple[bool, int]:
    """Return whether the model has a cache, and its pooling type; only a context knows them."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max = 256, 1
    params.n_batch = params.n_ubatch = 32
    params.embeddings, params.flash_attn_type = True, wanted.flash_attn_type
    with model.native_log.restored():
        handle = make_context(model, params)
    try:
        has_memory = bool(llama_cpp.llama_get_memory(handle))
        return has_memory, int(llama_cpp.llama_pooling_type(handle))
    finally:
        llama_cpp.llama_free(handle)
