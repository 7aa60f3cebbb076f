"""The routes to pull and push, and those for Ollama's cloud, which specd never contacts."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from specd import core
from specd.api.body import read
from specd.api.error_handling import aclosing, json_reply, routes
from specd.api.go_format import omit_empty
from specd.api.interfaces import Registry
from specd.api.lookup import CloudDisabled
from specd.api.ollama.errors import error_line, error_reply
from specd.api.ollama.schema import PullBody, PushBody
from specd.api.streaming import NDJSON, stream
from specd.errors import InvalidName, InvalidRequest, Unavailable
from specd.go_json_encoder import dump_json
from specd.store import ModelSource
from specd.store import name as names


class RegistryRoutes:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("POST", "/api/pull", self.pull),
            ("POST", "/api/push", self.push),
            ("POST", "/api/me", self.me),
            ("POST", "/api/signout", self.signout),
            ("DELETE", "/api/user/keys/{key}", self.signout),
            ("GET", "/api/experimental/model-recommendations", self.recommendations),
            ("POST", "/api/experimental/web_search", self.web_search),
            ("POST", "/api/experimental/web_fetch", self.web_fetch),
        )

    async def pull(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, PullBody)
        if not body.model_name:
            raise InvalidName("invalid model name")
        refuse_cloud(body.model_name)
        lines = self._registry.pull(body.model_name, insecure=body.insecure)
        return await progress_reply(request, lines, streamed=body.stream)

    async def push(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, PushBody)
        if not body.model_name:
            raise InvalidRequest("model is required")
        refuse_cloud(body.model_name)
        lines = self._registry.push(body.model_name, insecure=body.insecure)
        return await progress_reply(request, lines, streamed=body.stream)

    # ------------------------------------------------------------------ ollama.com

    async def me(self, _: web.Request) -> web.Response:
        raise Unavailable("account unavailable")

    async def signout(self, _: web.Request) -> web.Response:
        return json_reply({"error": "you are not currently signed in"}, 401)

    async def recommendations(self, _: web.Request) -> web.Response:
        return json_reply({"recommendations": []})

    async def web_search(self, _: web.Request) -> web.Response:
        raise CloudDisabled("ollama cloud is disabled: web search is unavailable")

    async def web_fetch(self, _: web.Request) -> web.Response:
        raise CloudDisabled("ollama cloud is disabled: web fetch is unavailable")


def refuse_cloud(model: str) -> None:
    """Raise CloudDisabled for a model of ollama.com's cloud."""
    if names.parse(model).source is ModelSource.CLOUD:
        raise CloudDisabled("ollama cloud is disabled: remote model is unavailable")


async def progress_reply(
    request: web.Request, lines: AsyncIterator[core.Progress], *, streamed: bool
) -> web.StreamResponse:
    """Send the lines.  An error after the first line is sent as the last line, others are raised.

    A client that disconnects closes `lines`.
    """
    if streamed:
        return await stream(request, _pieces(lines), content_type=NDJSON, error_piece=error_line)
    last = core.Progress(status="")
    async with aclosing(lines) as progress:
        async for line in progress:
            last = line
    return json_reply(_progress_object(last))


async def _pieces(lines: AsyncIterator[core.Progress]) -> AsyncIterator[bytes]:
    async with aclosing(lines) as progress:
        async for line in progress:
            yield dump_json(_progress_object(line)) + b"\n"


def _progress_object(line: core.Progress) -> dict[str, object]:
    return {"status": line.status} | omit_empty(
        digest=line.digest, total=line.total, completed=line.completed
    )
