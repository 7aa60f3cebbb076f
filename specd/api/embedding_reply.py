"""What the dialects' embedding routes share: the texts, their model, vectors on the wire."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from aiohttp import web

from specd import core
from specd.api import lookup
from specd.api.body_budget import answer_reservation
from specd.api.go_format import dump_json, go_quote
from specd.api.interfaces import Library
from specd.errors import InvalidRequest, ModelNotFound

# More numbers are normalised and written in a thread.
_MAX_INLINE_NUMBERS: Final = 2**13
#: Decimals of a normalised vector: as fine as a 32-bit float, and a quarter of the digits.
_SCALE: Final = 10.0**9


#: Bytes of a number of a vector: a float, and a place in a tuple.
_NUMBER_BYTES: Final = 32


class NotPulled(ModelNotFound):
    """Ollama's words for an unknown model, where vectors are asked of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (f"model {go_quote(name)} not found, try pulling it first",)


async def find_embedder(library: Library, name: str) -> core.ModelRef:
    """Any model: whether it can embed is its engine's to say, after an empty input is loaded."""
    try:
        return await lookup.find_model(library, name)
    except ModelNotFound as error:
        if not name:
            raise
        raise NotPulled(name) from error


def reserve_vectors(request: web.Request) -> Callable[[int], None]:
    """Return what counts a vector, of so many numbers, in the request's share of all answers.

    Raises NoRoom where nothing is left.
    """
    reservation = answer_reservation(request)
    return lambda n_numbers: reservation.grow(n_numbers * _NUMBER_BYTES)


def parse_texts(sent: object) -> tuple[str, ...]:
    """Of a text or a list of texts; none of an empty text alone.  Raises InvalidRequest."""
    if sent is None or isinstance(sent, str):
        return (sent,) if sent else ()
    if not isinstance(sent, list) or not all(isinstance(text, str) for text in sent):
        raise InvalidRequest("invalid input type")
    return tuple(sent)


def normalize(embedding: core.Embedding, dimensions: int = 0) -> list[float]:
    """A vector of length 1, cut to so many dimensions where it has more.  Raises InvalidRequest."""
    vector = embedding.vector
    if 0 < dimensions < len(vector):
        vector = vector[:dimensions]
    norm = math.hypot(*vector)
    if not math.isfinite(norm):
        raise InvalidRequest("embedding contains NaN or Inf values")
    scale = _SCALE / max(norm, 1e-12)
    return [round(value * scale) / _SCALE for value in vector]


def json_array(vector: Sequence[float]) -> msgspec.Raw:
    """A vector written by itself: while all are written at once, nothing else would run."""
    return msgspec.Raw(msgspec.json.encode(vector))


async def embedding_reply(
    found: core.Embeddings, body: Callable[[], Mapping[str, object]]
) -> web.Response:
    """Like `json_reply` of `body()`, which normalises the vectors, without keeping others waiting.

    Texts are written as `dump` does.
    """
    is_long = sum(len(entry.vector) for entry in found.entries) > _MAX_INLINE_NUMBERS
    return web.Response(
        body=await asyncio.to_thread(_encode_json, body) if is_long else _encode_json(body),
        headers={"Content-Type": "application/json; charset=utf-8"},
    )


def _encode_json(body: Callable[[], Mapping[str, object]]) -> bytes:
    fields = body().items()
    written = {k: msgspec.Raw(dump_json(v)) if isinstance(v, str) else v for k, v in fields}
    return msgspec.json.encode(written)
