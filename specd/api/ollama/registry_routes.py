"""Pull and push, and what Ollama asks of its own cloud, where specd never goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from specd.api.body import Fields, boolean, read_fields, string
from specd.api.error_handling import json_reply, route
from specd.api.go_format import dump_json
from specd.api.interfaces import Registry
from specd.api.lookup import CloudDisabled
from specd.api.ollama.errors import error_reply
from specd.api.ollama.progress import progress_reply
from specd.errors import InvalidName, InvalidRequest, Unavailable
from specd.store import ModelSource
from specd.store import name as names

_FIELDS: Final[Fields] = {"model": string, "name": string, "insecure": boolean, "stream": boolean}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """`name` is the older spelling of `model`, which the `ollama` command still sends."""

    model: str = ""
    name: str = ""
    insecure: bool = False
    stream: bool = True

    @property
    def model_name(self) -> str:
        return self.model or self.name


class RegistryRoutes:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def table(self) -> list[web.RouteDef]:
        rows: list[tuple[str, str, Handler]] = [
            ("POST", "/api/pull", self.pull),
            ("POST", "/api/push", self.push),
            ("POST", "/api/me", self.me),
            ("POST", "/api/signout", self.signout),
            ("DELETE", "/api/user/keys/{key}", self.signout),
            ("GET", "/api/experimental/model-recommendations", self.recommendations),
            ("POST", "/api/experimental/web_search", self.web_search),
            ("POST", "/api/experimental/web_fetch", self.web_fetch),
        ]
        return [route(method, path, handler, error_reply) for method, path, handler in rows]

    async def pull(self, request: web.Request) -> web.StreamResponse:
        body = _Body(**await read_fields(request, "api.PullRequest", _FIELDS))
        if not body.model_name:
            raise InvalidName("invalid model name")
        _refuse_cloud(body.model_name)
        lines = self._registry.pull(body.model_name, insecure=body.insecure)
        return await progress_reply(request, lines, streamed=body.stream)

    async def push(self, request: web.Request) -> web.StreamResponse:
        body = _Body(**await read_fields(request, "api.PushRequest", _FIELDS))
        if not body.model_name:
            raise InvalidRequest("model is required")
        _refuse_cloud(body.model_name)
        lines = self._registry.push(body.model_name, insecure=body.insecure)
        return await progress_reply(request, lines, streamed=body.stream)

    # ------------------------------------------------------------------ ollama.com

    async def me(self, _: web.Request) -> web.Response:
        raise Unavailable("account unavailable")

    async def signout(self, _: web.Request) -> web.Response:
        return web.Response(
            status=401,
            body=dump_json({"error": "you are not currently signed in"}),
            headers={"Content-Type": "application/json; charset=utf-8"},
        )

    async def recommendations(self, _: web.Request) -> web.Response:
        return json_reply({"recommendations": []})

    async def web_search(self, _: web.Request) -> web.Response:
        raise CloudDisabled("ollama cloud is disabled: web search is unavailable")

    async def web_fetch(self, _: web.Request) -> web.Response:
        raise CloudDisabled("ollama cloud is disabled: web fetch is unavailable")


def _refuse_cloud(model: str) -> None:
    if names.parse(model).source is ModelSource.CLOUD:
        raise CloudDisabled("ollama cloud is disabled: remote model is unavailable")
