"""`POST /v1/embeddings`: like `/api/embed`, in OpenAI's format."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from specd import core
from specd.api.body import Body, convert_body, read
from specd.api.embedding_reply import (
    embedding_reply,
    find_embedder,
    json_array,
    normalize,
    parse_texts,
    reserve_vectors,
)
from specd.api.interfaces import Services
from specd.errors import InvalidRequest

_FORMATS: Final = ("float", "base64")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsBody(Body):
    go_name = "openai.EmbedRequest"

    model: str = ""
    input: object = None
    dimensions: int = 0
    encoding_format: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the texts; an empty string counts as one.  Raises InvalidRequest."""
        if self.input in (None, []):
            raise InvalidRequest("invalid input")
        return parse_texts(self.input) or ("",)

    @property
    def wants_base64(self) -> bool:
        """Raises InvalidRequest for an unknown format."""
        if (wanted := self.encoding_format.lower() or "float") not in _FORMATS:
            raise InvalidRequest(
                f"Invalid value for 'encoding_format' = {self.encoding_format}."
                " Supported values: ['float', 'base64']."
            )
        return wanted == "base64"


class EmbeddingsRoute:
    def __init__(self, services: Services) -> None:
        self._generation = services.generation
        self._library = services.library

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, EmbeddingsBody)
        written = _packed if body.wants_base64 else json_array
        texts = await convert_body(request, lambda: body.texts)
        ref = await find_embedder(self._library, body.model)
        core_request = core.EmbedRequest(model=ref, texts=texts, on_vector=reserve_vectors(request))
        found = await self._generation.embed(core_request)
        n_tokens = sum(entry.n_tokens for entry in found.entries)

        def reply() -> Mapping[str, object]:
            vectors = (written(normalize(entry, body.dimensions)) for entry in found.entries)
            return {
                "object": "list",
                "data": [
                    {"object": "embedding", "embedding": vector, "index": index}
                    for index, vector in enumerate(vectors)
                ],
                "model": body.model,
                "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            }

        return await embedding_reply(found, reply)


def _packed(vector: Sequence[float]) -> str:
    """Return the vector as 32-bit little-endian floats in base64."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
