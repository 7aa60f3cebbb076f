"""A server with OpenAI's chat API, which repeats the last message word by word."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class EchoServer:
    """requests: the bodies received.  left: set once a client has left an answer."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.chat)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        last = body["messages"][-1]["content"]
        if last == "fail":
            return web.json_response({"error": {"message": "out of cake"}}, status=500)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        words = last.split()
        try:
            for word in words:
                await response.write(_event({"choices": [{"delta": {"content": f"{word} "}}]}))
                if word == "hang":
                    await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        usage = {"prompt_tokens": len(words), "completion_tokens": len(words)}
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
        await response.write(_event(end) + b"data: [DONE]\n\n")
        return response


def _event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
