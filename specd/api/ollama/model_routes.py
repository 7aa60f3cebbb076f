"""The routes that change the store: copy, delete, blobs, create."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final

from aiohttp import web

from specd.api.body import Mismatch, json_type, read, string
from specd.api.error_handling import routes
from specd.api.go_format import go_quote
from specd.api.interfaces import StoreServices
from specd.api.ollama.errors import error_reply
from specd.api.ollama.registry_routes import progress_reply, refuse_cloud
from specd.api.ollama.schema import CopyBody, DeleteBody, NamedBody, parse_messages
from specd.core import Message
from specd.create import CreateRequest
from specd.errors import InvalidName, InvalidRequest, ModelNotFound, StoreError
from specd.store import Name
from specd.store.name import parse

_CHUNK_BYTES: Final = 1 << 20


class NotFound(ModelNotFound):
    """A missing model or blob, with a text of its own."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.args = (text,)


class ModelRoutes:
    def __init__(self, store_services: StoreServices) -> None:
        self._writer = store_services.writer
        self._creator = store_services.creator

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("POST", "/api/create", self.create),
            ("POST", "/api/copy", self.copy),
            ("DELETE", "/api/delete", self.delete),
            ("HEAD", "/api/blobs/{digest}", self.find_blob),
            ("POST", "/api/blobs/{digest}", self.upload_blob),
        )

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, CreateBody)
        create_request = body.to_request()
        if create_request.base:
            refuse_cloud(create_request.base)
        lines = self._creator.create(create_request)
        return await progress_reply(request, lines, streamed=body.stream)

    async def copy(self, request: web.Request) -> web.Response:
        body = await read(request, CopyBody)
        source = _parse(body.source, f"source {go_quote(body.source)} is invalid")
        target = _parse(body.destination, f"destination {go_quote(body.destination)} is invalid")
        try:
            await self._writer.copy(source, target)
        except ModelNotFound as error:
            raise NotFound(f"model {go_quote(body.source)} not found") from error
        return web.Response()

    async def delete(self, request: web.Request) -> web.Response:
        sent = (await read(request, DeleteBody)).model_name
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
            raise NotFound(f"blob {go_quote(digest)} not found")
        return web.Response()

    async def upload_blob(self, request: web.Request) -> web.Response:
        """Write the body to the store in pieces; the limit of other bodies does not apply."""
        digest = request.match_info["digest"]
        if await self._has_blob(digest):
            return web.Response()
        chunks = request.content.iter_chunked(_CHUNK_BYTES)
        await self._writer.receive(f"sha256:{digest[7:].lower()}", chunks)
        return web.Response(status=201)

    async def _has_blob(self, digest: str) -> bool:
        try:
            return await self._writer.has_blob(digest)
        except StoreError as error:
            raise InvalidRequest("invalid digest format") from error


def _parse(text: str, error_text: str) -> Name:
    """Parse a name; raise InvalidRequest(error_text), or InvalidName for `:local` with `:cloud`."""
    try:
        return parse(text).stored
    except InvalidName as error:
        if str(error).startswith("use either"):
            raise
        raise InvalidRequest(error_text) from error


# --------------------------------------------------------------------------- the body of a create


def _files(value: object) -> dict[str, str]:
    """Return path → digest; a null digest becomes an empty one."""
    if not isinstance(value, dict):
        raise Mismatch(json_type(value), "map[string]string")
    return {path: "" if digest is None else string(digest) for path, digest in value.items()}


def _licenses(value: object) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("license must be a string or an array of strings")
    return tuple(filter(None, texts))


_Files = Annotated[Mapping[str, str], _files]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateBody(NamedBody):
    """quantization: the older name of `quantize`.  The other fields are those of CreateRequest."""

    go_name = "api.CreateRequest"

    stream: bool = True
    base: str = field(default="", metadata={"json": "from"})
    files: Annotated[Mapping[str, str] | None, _files] = None
    adapters: _Files = field(default_factory=dict)
    draft_files: _Files = field(default_factory=dict)
    quantize: str = ""
    quantization: str = ""
    draft_quantize: str = ""
    template: str = ""
    licenses: Annotated[tuple[str, ...], _licenses] = field(
        default=(), metadata={"json": "license"}
    )
    system: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict)
    messages: Annotated[list[Message], parse_messages] = field(default_factory=list)
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)
    remote_host: str = ""

    def to_request(self) -> CreateRequest:
        same = {f.name: getattr(self, f.name) for f in fields(CreateRequest) if f.name != "model"}
        return CreateRequest(
            model=self.model_name,
            **same
            | {
                "quantize": self.quantize or self.quantization,
                "messages": tuple(self.messages),
            },
        )
