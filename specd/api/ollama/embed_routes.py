"""The routes `/api/embed` and `/api/embeddings`, the older one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import web

from specd import core, options
from specd.api.body import convert_body, read
from specd.api.embedding_reply import (
    embedding_reply,
    find_embedder,
    json_array,
    normalize,
    parse_texts,
    reserve_vectors,
)
from specd.api.error_handling import json_reply, routes
from specd.api.go_format import omit_empty
from specd.api.interfaces import Services
from specd.api.ollama.errors import error_reply
from specd.api.ollama.schema import EmbedBody, EmbeddingBody, EmbeddingsBody
from specd.errors import EmbeddingsUnsupported, InvalidRequest, SpecdError


class EmbedRoutes:
    def __init__(self, services: Services) -> None:
        self._generation = services.generation
        self._library = services.library
        self._clock = services.clock

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("POST", "/api/embed", self.embed),
            ("POST", "/api/embeddings", self.embeddings),
        )

    async def embed(self, request: web.Request) -> web.Response:
        started_ns = self._clock.steady_ns()
        body = await read(request, EmbedBody)
        texts = await convert_body(request, lambda: parse_texts(body.input))
        ref = await find_embedder(self._library, body.model)
        if not texts:
            await self._load(ref, body)
            return json_reply({"model": body.model, "embeddings": []})
        core_request = _request(request, ref, body, texts, truncate=body.truncate)
        found = await self._generation.embed(core_request)

        def reply() -> Mapping[str, object]:
            vectors = [json_array(normalize(entry, body.dimensions)) for entry in found.entries]
            return {"model": body.model, "embeddings": vectors} | omit_empty(
                total_duration=self._clock.steady_ns() - started_ns,
                load_duration=found.load_ns,
                prompt_eval_count=sum(entry.n_tokens for entry in found.entries),
            )

        return await embedding_reply(found, reply)

    async def embeddings(self, request: web.Request) -> web.Response:
        body = await read(request, EmbeddingsBody)
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await find_embedder(self._library, body.model)
        if not body.prompt:
            await self._load(ref, body)
            return json_reply({"embedding": []})
        try:
            found = await self._generation.embed(_request(request, ref, body, (body.prompt,)))
        except EmbeddingsUnsupported as error:
            raise SpecdError(str(error)) from error  # 500 on this route
        return await embedding_reply(
            found, lambda: {"embedding": json_array(_legacy_vector(found.entries[0], ref))}
        )

    async def _load(self, ref: core.ModelRef, body: EmbeddingBody) -> None:
        """Load the model for an empty input, or unload it if `keep_alive` is 0."""
        if body.keep_alive == 0:
            await self._generation.unload(ref)
        else:
            await self._generation.load(
                core.LoadRequest(
                    model=ref,
                    options=options.parse(body.options),
                    keep_alive_s=body.keep_alive,
                )
            )


def _request(
    request: web.Request,
    ref: core.ModelRef,
    body: EmbeddingBody,
    texts: tuple[str, ...],
    *,
    truncate: bool = True,
) -> core.EmbedRequest:
    return core.EmbedRequest(
        model=ref,
        texts=texts,
        on_vector=reserve_vectors(request),
        options=options.parse(body.options),
        keep_alive_s=body.keep_alive,
        truncate=truncate,
    )


def _legacy_vector(embedding: core.Embedding, ref: core.ModelRef) -> list[float]:
    """Return the older route's vector; for some models it is not normalised.

    Users have stored such vectors, so they must stay comparable.
    """
    is_raw = ref.architecture in {"nomic-bert", "nomic-bert-moe"} or (
        # No WordPiece: BGE-M3 and its like.
        ref.architecture == "bert" and ref.eos_token == "</s>"  # noqa: S105 - no password
    )
    if is_raw and all(map(math.isfinite, embedding.vector)):
        return list(embedding.vector)
    return normalize(embedding)
