"""Vectors on the wire."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specd import core
from specd.api.embedding_reply import embedding_reply, json_array, normalize

numbers = st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)


@given(st.lists(numbers, min_size=1, max_size=50), st.integers(-1, 60))
def test_a_normalised_vector_has_length_one_and_its_direction(
    vector: list[float], dimensions: int
) -> None:
    found = normalize(core.Embedding(vector=tuple(vector), n_tokens=1), dimensions)
    kept = vector[:dimensions] if dimensions > 0 else vector
    assert len(found) == len(kept)
    if any(kept):
        assert math.isclose(math.hypot(*found), 1, abs_tol=1e-7)
        np.testing.assert_allclose(found, np.array(kept) / np.linalg.norm(kept), atol=1e-9)
    else:
        assert found == kept


def test_numbers_are_as_short_as_a_32_bit_float_needs() -> None:
    [number, _] = normalize(core.Embedding(vector=(1.0, 3.0), n_tokens=1))
    assert repr(number) == "0.316227766"


async def test_texts_beside_vectors_are_escaped_as_go_does() -> None:
    body = {"model": "<é&>", "embeddings": [json_array([0.5, -1.0])], "n": 7}
    reply = await embedding_reply(core.Embeddings(entries=(), load_ns=0), lambda: body)
    assert reply.body == (
        '{"model":"\\u003cé\\u0026\\u003e","embeddings":[[0.5,-1.0]],"n":7}'.encode()
    )
