"""The routes for monitoring: `/health`, `/ready`, `/metrics`."""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from specd.api.error_handling import json_reply, routes
from specd.api.interfaces import Monitoring
from specd.api.ollama.errors import error_reply


class HealthRoutes:
    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("GET HEAD", "/health", self.health),
            ("GET HEAD", "/v1/health", self.health),
            ("GET HEAD", "/ready", self.ready),
            ("GET", "/metrics", self.metrics),
        )

    async def health(self, _: web.Request) -> web.Response:
        """Answer as llama-server does; it shows that the event loop runs."""
        return json_reply({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 while requests are accepted, else 503; no model needs to be loaded."""
        if reason := self._monitoring.not_ready_reason():
            return json_reply({"status": "not ready", "reason": reason}, 503)
        return json_reply({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with Prometheus text, or OpenMetrics if the Accept header asks for it."""
        state = await self._monitoring.state()
        accept = request.headers.get(hdrs.ACCEPT, "")
        body, content_type = await asyncio.to_thread(self._monitoring.metrics.scrape(state, accept))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})
