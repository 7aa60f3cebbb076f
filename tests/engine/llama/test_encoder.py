"""Vectors of random embedding models, compared with pooling by hand and with each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from gguf import PoolingType

from specd.core import EngineSpec, ModelMemory
from specd.engine import loader
from specd.engine.backend import DecodeFailed
from specd.engine.llama import library
from specd.engine.llama.model import LlamaModel
from specd.engine.loader import LoadedEncoder
from specd.errors import LoadFailed
from tests import gguf_architectures, gguf_embedders
from tests.gguf_embedders import write_bert, write_decoder, write_t5_encoder
from tests.gguf_files import Shape, write_llama, write_mamba

pytestmark = pytest.mark.native

TEXTS = ("hello there", "a", "the quick brown fox jumps over the lazy dog", "0123 4567, 89!")
LONG = Shape(n_embd=32, n_layer=2, n_head=2, n_ff=64, n_ctx=512)


def load(path: Path, **fields: Any) -> LoadedEncoder:
    """Load with exact attention: otherwise a row depends on the other texts of its pass."""
    spec = EngineSpec(
        weights=str(path),
        embeds=True,
        n_threads=1,
        **{"n_ctx": 512, "flash_attention": False, "kv_cache_type": "f32", **fields},
    )
    return loader.load_encoder(spec, lambda _: None)


def vectors(loaded: LoadedEncoder, *texts: str) -> npt.NDArray[np.float64]:
    """Return the texts' vectors, computed in one pass."""
    tokens = [loaded.vocabulary.tokenize(text, add_bos=True) for text in texts]
    return np.array(loaded.encoder.encode(tokens))


def rounding(loaded: LoadedEncoder) -> float:
    """Return the most that the width of a pass may change a vector by.

    Measured with copies of a text in one pass: kernels for other widths sum in another order.
    """
    found = [1e-5]
    for text in TEXTS:
        [alone] = vectors(loaded, text)
        n_tokens = len(loaded.vocabulary.tokenize(text, add_bos=True))
        copies = [text] * min(loaded.encoder.n_shared // n_tokens, len(TEXTS))
        found.append(4 * float(np.abs(vectors(loaded, *copies) - alone).max()))
    assert max(found) < 1e-3, "the difference is larger than rounding explains"
    return max(found)


def token_vectors(path: Path, tokens: Sequence[int], *, causal: bool) -> npt.NDArray[np.float32]:
    """Return llama.cpp's own vector for each token [n_tokens, n_embd]."""
    model = LlamaModel(str(path), library.start())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 512
    params.n_threads = params.n_threads_batch = 1
    params.embeddings, params.pooling_type = True, llama_cpp.LLAMA_POOLING_TYPE_NONE
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = 0
    context = llama_cpp.llama_init_from_model(model.handle, params)
    llama_cpp.llama_set_causal_attn(context, causal)
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
    n_embd = llama_cpp.llama_model_n_embd_out(model.handle)
    rows = [llama_cpp.llama_get_embeddings_ith(context, i) for i in range(len(tokens))]
    found = np.array([np.ctypeslib.as_array(row, (n_embd,)) for row in rows])
    llama_cpp.llama_free(context)
    model.close()
    return found


POOLED = {
    PoolingType.MEAN: lambda rows: rows.mean(axis=0),
    PoolingType.CLS: lambda rows: rows[0],
    PoolingType.LAST: lambda rows: rows[-1],
}


@pytest.mark.contract("embed.pooling")
@pytest.mark.parametrize("pooling", POOLED)
def test_a_bert_uses_the_pooling_of_its_file(tmp_path: Path, pooling: PoolingType) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=pooling)
    loaded = load(path)
    tokens = loaded.vocabulary.tokenize(TEXTS[2], add_bos=True)
    by_hand = POOLED[pooling](token_vectors(path, tokens, causal=False))
    np.testing.assert_allclose(vectors(loaded, TEXTS[2])[0], by_hand, atol=1e-5)


@pytest.mark.contract("embed.pooling")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pooling", POOLED)
def test_a_decoder_uses_the_pooling_of_its_file(
    tmp_path: Path, pooling: PoolingType, causal: bool
) -> None:
    path = write_decoder(tmp_path / "d.gguf", pooling=pooling, causal=causal)
    loaded = load(path)
    tokens = loaded.vocabulary.tokenize(TEXTS[2], add_bos=True)
    by_hand = POOLED[pooling](token_vectors(path, tokens, causal=causal))
    np.testing.assert_allclose(vectors(loaded, TEXTS[2])[0], by_hand, atol=1e-5)


@pytest.mark.parametrize("pooling", POOLED)
def test_texts_in_a_shared_pass_are_independent(tmp_path: Path, pooling: PoolingType) -> None:
    for path in (
        write_bert(tmp_path / "bert.gguf", pooling=pooling),
        write_decoder(tmp_path / "causal.gguf", pooling=pooling),
        write_decoder(tmp_path / "not.gguf", pooling=pooling, causal=False),
    ):
        loaded = load(path)
        atol = rounding(loaded)
        alone = [vectors(loaded, text)[0] for text in TEXTS]
        together = vectors(loaded, *TEXTS)
        np.testing.assert_allclose(together, alone, atol=atol)
        # Nothing of earlier passes is left over either.
        np.testing.assert_allclose(vectors(loaded, *reversed(TEXTS)), alone[::-1], atol=atol)
        # Of the same lengths, whatever the others say, not a bit is different.
        tokens = [loaded.vocabulary.tokenize(text, add_bos=True) for text in TEXTS]
        for kept, text in enumerate(tokens):
            others = [[9 + (token * 7) % 20 for token in other] for other in tokens]
            found = loaded.encoder.encode([*others[:kept], text, *others[kept + 1 :]])
            assert np.array_equal(found[kept], together[kept])


def test_a_long_text_with_last_pooling_is_read_in_pieces(
    tmp_path: Path,
) -> None:
    path = write_decoder(tmp_path / "last.gguf", pooling=PoolingType.LAST, shape=LONG)
    loaded = load(path, n_batch=32)
    text = "abc " * 70
    tokens = loaded.vocabulary.tokenize(text, add_bos=True)
    assert 32 < len(tokens) < loaded.encoder.n_ctx
    by_hand = token_vectors(path, tokens, causal=True)[-1]
    np.testing.assert_allclose(vectors(loaded, text)[0], by_hand, atol=1e-5)


def test_bidirectional_texts_fit_one_pass(tmp_path: Path) -> None:
    """llama.cpp ends the process over half a text whose attention looks both ways."""
    for path in (
        write_bert(tmp_path / "bert.gguf"),
        write_decoder(tmp_path / "mean.gguf", pooling=PoolingType.MEAN),
        write_decoder(tmp_path / "not.gguf", pooling=PoolingType.LAST, causal=False),
    ):
        small, whole = load(path, n_batch=8), load(path)
        text = "a b c d e f g h i j"
        np.testing.assert_allclose(vectors(small, text), vectors(whole, text), atol=1e-5)


@pytest.mark.parametrize("n_texts", [0, 65])
def test_too_many_tokens_never_reach_native_code(tmp_path: Path, n_texts: int) -> None:
    loaded = load(write_bert(tmp_path / "bert.gguf"))
    with pytest.raises(DecodeFailed):
        loaded.encoder.encode([[2]] * n_texts)
    with pytest.raises(DecodeFailed):
        loaded.encoder.encode([[2] * (loaded.encoder.n_ctx + 1)])
    with pytest.raises(DecodeFailed):
        loaded.encoder.encode([[2], []])


def test_a_text_can_be_as_long_as_the_context(tmp_path: Path) -> None:
    for path in (
        write_bert(tmp_path / "bert.gguf"),
        write_decoder(tmp_path / "last.gguf", pooling=PoolingType.LAST),
    ):
        loaded = load(path)
        assert loaded.encoder.n_ctx == gguf_embedders.SHAPE.n_ctx
        [vector] = loaded.encoder.encode([[7] * loaded.encoder.n_ctx])
        assert np.isfinite(vector).all()


def test_a_short_context_is_kept(tmp_path: Path) -> None:
    for path in (
        write_bert(tmp_path / "bert.gguf"),
        write_decoder(tmp_path / "last.gguf", pooling=PoolingType.LAST),
    ):
        loaded = load(path, n_ctx=4)
        assert loaded.facts.n_ctx == 4
        assert len(loaded.encoder.encode([[7] * 4])) == 1


def test_hybrid_and_windowed_models_are_pooled(tmp_path: Path) -> None:
    for name, write in gguf_architectures.WRITERS.items():
        path = write(tmp_path / f"{name}.gguf", pooling=PoolingType.LAST)
        text = "some words " * 20
        for n_batch in (512, 64):
            loaded = load(path, n_batch=n_batch)
            tokens = loaded.vocabulary.tokenize(text, add_bos=True)
            by_hand = token_vectors(path, tokens, causal=True)[-1]
            np.testing.assert_allclose(vectors(loaded, text)[0], by_hand, atol=1e-4)


def test_the_encoder_half_of_a_t5_is_pooled(tmp_path: Path) -> None:
    loaded = load(write_t5_encoder(tmp_path / "t5.gguf"))
    alone = [vectors(loaded, text)[0] for text in TEXTS]
    assert np.isfinite(alone).all()
    np.testing.assert_allclose(vectors(loaded, *TEXTS), alone, atol=1e-5)


def test_facts_have_the_context_and_the_memory(tmp_path: Path) -> None:
    facts = load(write_bert(tmp_path / "bert.gguf"), n_ctx=64).facts
    assert (facts.n_ctx, facts.n_ctx_train) == (64, 128)
    assert isinstance(facts.target, ModelMemory)
    assert facts.target.total_bytes > 0
    assert facts.drafter is None
    assert facts.no_pair_reason == "embedding_model"


@pytest.mark.parametrize(
    "pooling, reason", [(PoolingType.NONE, "each token"), (PoolingType.RANK, "reranker")]
)
def test_a_model_without_pooled_vectors_is_refused(
    tmp_path: Path, pooling: PoolingType, reason: str
) -> None:
    with pytest.raises(LoadFailed, match=reason):
        load(write_bert(tmp_path / "bert.gguf", pooling=pooling))


def test_a_model_without_pooling_is_refused(tmp_path: Path) -> None:
    for path in (write_llama(tmp_path / "l.gguf"), write_mamba(tmp_path / "m.gguf")):
        with pytest.raises(LoadFailed, match="each token"):
            load(path)
