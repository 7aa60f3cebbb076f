"""Shared by the embedding routes: the model, the texts, and the encoding of vectors."""

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
from specd.api.go_format import go_quote
from specd.api.interfaces import Library
from specd.errors import InvalidRequest, ModelNotFound
from specd.go_json_encoder import dump_json

# Above this many numbers, the answer is encoded in a thread.
_MAX_INLINE_NUMBERS: Final = 2**13
#: Decimals of a normalised vector: as fine as a 32-bit float, and a quarter of the digits.
_SCALE: Final = 10.0**9


#: Memory of one number of a vector: a float object and a pointer to it.
_NUMBER_BYTES: Final = 32


class NotPulled(ModelNotFound):
    """An unknown model in a request for embeddings, with Ollama's text."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (f"model {go_quote(name)} not found, try pulling it first",)


async def find_embedder(library: Library, name: str) -> core.ModelRef:
    """Return the model.  Whether it can embed is only known once its engine has loaded it.

    Raises NotPulled, or ModelNotFound for an empty name.
    """
    try:
        return await lookup.find_model(library, name)
    except ModelNotFound as error:
        if not name:
            raise
        raise NotPulled(name) from error


def reserve_vectors(request: web.Request) -> Callable[[int], None]:
    """Return a function that reserves memory for a vector of `n_numbers` numbers.

    That function raises NoRoom if the budget for answers is used up.
    """
    reservation = answer_reservation(request)
    return lambda n_numbers: reservation.grow(n_numbers * _NUMBER_BYTES)


def parse_texts(sent: object) -> tuple[str, ...]:
    """Return the texts of a string or a list of strings; an empty string has none.

    Raises InvalidRequest.
    """
    if sent is None or isinstance(sent, str):
        return (sent,) if sent else ()
    if not isinstance(sent, list) or not all(isinstance(text, str) for text in sent):
        raise InvalidRequest("invalid input type")
    return tuple(sent)


def normalize(embedding: core.Embedding, dimensions: int = 0) -> list[float]:
    """Return the vector scaled to length 1, and cut to `dimensions` unless that is 0.

    Raises InvalidRequest for a vector that is not finite.
    """
    vector = embedding.vector
    if 0 < dimensions < len(vector):
        vector = vector[:dimensions]
    norm = math.hypot(*vector)
    if not math.isfinite(norm):
        raise InvalidRequest("embedding contains NaN or Inf values")
    scale = _SCALE / max(norm, 1e-12)
    return [round(value * scale) / _SCALE for value in vector]


def json_array(vector: Sequence[float]) -> msgspec.Raw:
    """Encode one vector: encoding all of them in one call would hold the GIL throughout."""
    return msgspec.Raw(msgspec.json.encode(vector))


async def embedding_reply(
    found: core.Embeddings, body: Callable[[], Mapping[str, object]]
) -> web.Response:
    """Return `body()` as JSON; encode it in a thread if the vectors are long.

    Texts are encoded like `dump_json` does.
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
