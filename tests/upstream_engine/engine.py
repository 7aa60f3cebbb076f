"""An engine that answers chats over HTTP, with neither weights nor tokens nor placement here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import aiohttp

from specd import core
from specd.runner import ChatRequest, Chats, Engine


class HttpUpstream:
    """An OpenAI-compatible server with one model.

    url: of its API.  started, n_stopped: the engines of ours that used it.
    """

    name = "echo"

    def __init__(self, url: str) -> None:
        self._url = url
        self.started: list[core.UpstreamSpec] = []
        self.n_stopped = 0

    def models(self) -> Iterable[core.UpstreamModel]:
        yield core.UpstreamModel(
            name="parrot:latest",
            full_name="parrot:latest",
            digest="",
            capabilities=("completion", "tools"),
            n_ctx_train=8192,
            engine=self.name,
            upstream_name="parrot-70b",
        )

    def start(self, spec: core.UpstreamSpec, /) -> Engine:
        self.started.append(spec)
        return HttpEngine(self, self._url)


class HttpEngine:
    """One use of the server, from the first request until its keep-alive is over."""

    completions = tokenizer = embedder = None
    is_stuck = False
    pid = None

    def __init__(self, upstream: HttpUpstream, url: str) -> None:
        self._upstream = upstream
        self._url = url
        self._stopped = asyncio.Event()
        self._session = aiohttp.ClientSession()

    @property
    def chats(self) -> Chats:
        return self

    async def ready(self) -> core.EngineFacts:
        return core.EngineFacts(
            n_ctx=8192,
            n_ctx_train=8192,
            n_vocab=0,
            target=core.ModelMemory(device=self._upstream.name, total_bytes=0, vram_bytes=0),
            steering=core.Steering.NONE,
        )

    def stop(self) -> None:
        self._upstream.n_stopped += 1
        self._stopped.set()

    async def ended(self) -> None:
        await self._stopped.wait()
        await self._session.close()

    async def chat(
        self, request: ChatRequest, /
    ) -> AsyncGenerator[core.Delta | core.Done | core.Failed, None]:
        body = {
            "model": request.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "temperature": request.options.temperature,
        }
        async with self._session.post(f"{self._url}/v1/chat/completions", json=body) as reply:
            if reply.status != 200:
                message = (await reply.json())["error"]["message"]
                yield core.Failed(kind=core.FailureKind.ENGINE, message=message)
                return
            while line := await self._next_line(reply.content):
                if line.startswith(b"data: {"):
                    for event in _events(json.loads(line.removeprefix(b"data: "))):
                        yield event
            yield core.Failed(kind=core.FailureKind.SHUTDOWN, message="the engine is stopping")

    async def _next_line(self, content: aiohttp.StreamReader) -> bytes:
        """Return the next line; b"" once the engine is asked to stop."""
        reading = asyncio.ensure_future(content.readline())
        stopping = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()
            stopping.cancel()


def _events(event: dict[str, Any]) -> Iterator[core.Delta | core.Done]:
    if text := event["choices"][0]["delta"].get("content"):
        yield core.Delta(content=text)
    if usage := event.get("usage"):
        yield core.Done(
            reason=core.StopReason.STOP,
            usage=core.Usage(
                n_prompt=usage["prompt_tokens"], n_generated=usage["completion_tokens"]
            ),
            speculation=core.SpeculationStats(),
        )
