"""A daemon with prepared answers over real HTTP, which records the requests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Json = dict[str, Any]


@dataclass
class FakeDaemon:
    """answers: path → one object, or a list of them for a stream; a status of its own by `status`.

    The answer under a path may also be a function of the request's body.
    """

    answers: Mapping[str, Any]
    status: Mapping[str, int] = field(default_factory=dict)
    asked: list[tuple[str, Json]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path, body))
        answer = self.answers[request.path]
        if callable(answer):
            answer = answer(body)
        status = self.status.get(request.path, 200)
        if not isinstance(answer, list):
            return web.json_response(answer, status=status)
        return await self._stream(request, answer)

    async def _stream(self, request: web.Request, parts: Sequence[Json]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for part in parts:
            await response.write(json.dumps(part).encode() + b"\n")
        return response

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str, None]:
        """Yield its URL."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")
