"""The routes that change the store: copy, delete, blobs, create."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from specd.api.error_handling import route
from specd.api.go_format import go_quote
from specd.api.interfaces import StoreServices
from specd.api.lookup import CloudDisabled
from specd.api.ollama import model_schema
from specd.api.ollama.errors import error_reply
from specd.api.ollama.progress import progress_reply
from specd.errors import InvalidName, InvalidRequest, ModelNotFound, StoreError
from specd.store import ModelSource, Name
from specd.store.name import parse

_CHUNK: Final = 1 << 20


class NothingThere(ModelNotFound):
    """Another sentence for what is not found."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.args = (sentence,)


class ModelRoutes:
    def __init__(self, store_services: StoreServices) -> None:
        self._writer = store_services.writer
        self._creator = store_services.creator

    def table(self) -> list[web.RouteDef]:
        rows: list[tuple[str, str, Handler]] = [
            ("POST", "/api/create", self.create),
            ("POST", "/api/copy", self.copy),
            ("DELETE", "/api/delete", self.delete),
            ("HEAD", "/api/blobs/{digest}", self.find_blob),
            ("POST", "/api/blobs/{digest}", self.upload_blob),
        ]
        return [route(method, path, handler, error_reply) for method, path, handler in rows]

    async def create(self, request: web.Request) -> web.StreamResponse:
        create_request, streamed = await model_schema.read_create(request)
        if create_request.base and parse(create_request.base).source is ModelSource.CLOUD:
            raise CloudDisabled("ollama cloud is disabled: remote model is unavailable")
        return await progress_reply(
            request, self._creator.create(create_request), streamed=streamed
        )

    async def copy(self, request: web.Request) -> web.Response:
        sent_source, sent_destination = await model_schema.read_copy(request)
        source = _parse(sent_source, f"source {go_quote(sent_source)} is invalid")
        target = _parse(sent_destination, f"destination {go_quote(sent_destination)} is invalid")
        try:
            await self._writer.copy(source, target)
        except ModelNotFound as error:
            raise NothingThere(f"model {go_quote(sent_source)} not found") from error
        return web.Response()

    async def delete(self, request: web.Request) -> web.Response:
        sent = await model_schema.read_delete(request)
        if not sent:
            raise InvalidRequest("model is required")
        name = _parse(sent, f"name {go_quote(sent)} is invalid")
        try:
            await self._writer.delete(name)
        except ModelNotFound as error:
            raise ModelNotFound(sent) from error
        return web.Response()

    async def find_blob(self, request: web.Request) -> web.Response:
        digest = request.match_info["digest"]
        if not await self._has_blob(digest):
            raise NothingThere(f"blob {go_quote(digest)} not found")
        return web.Response()

    async def upload_blob(self, request: web.Request) -> web.Response:
        """Streamed to disk, so that the limit of other bodies is none here."""
        digest = request.match_info["digest"]
        if await self._has_blob(digest):
            return web.Response()
        chunks = request.content.iter_chunked(_CHUNK)
        await self._writer.receive(f"sha256:{digest[7:].lower()}", chunks)
        return web.Response(status=201)

    async def _has_blob(self, digest: str) -> bool:
        try:
            return await self._writer.has_blob(digest)
        except StoreError as error:
            raise InvalidRequest("invalid digest format") from error


def _parse(text: str, sentence: str) -> Name:
    """Where both `:local` and `:cloud` are said, that is the error; else `sentence` is."""
    try:
        return parse(text).stored
    except InvalidName as error:
        if str(error).startswith("use either"):
            raise
        raise InvalidRequest(sentence) from error
