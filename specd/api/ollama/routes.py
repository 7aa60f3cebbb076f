"""The routes `/` and `/api/*`; the handlers check in Ollama's order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

import specd
from specd import core, options
from specd.api import lookup
from specd.api.body import convert_body, read
from specd.api.body_budget import answer_reservation
from specd.api.error_handling import aclosing, json_reply, routes
from specd.api.interfaces import Services
from specd.api.ollama import schema
from specd.api.ollama.convert import (
    ChatWriter,
    GenerateWriter,
    Json,
    Writer,
    chat_request,
    generate_request,
)
from specd.api.ollama.errors import error_line, error_reply
from specd.api.ollama.models import show_object, tags_object
from specd.api.ollama.running_models import pair_object, ps_object, resident_details
from specd.api.streaming import NDJSON, collect_answer, stream
from specd.errors import InvalidRequest, SpecdError
from specd.go_json_encoder import dump_json
from specd.store import ModelInfo


class OllamaRoutes:
    def __init__(self, services: Services) -> None:
        self._generation = services.generation
        self._library = services.library
        self._scheduler = services.scheduler
        self._clock = services.clock
        self._fetch_status = services.drafter_fetch_status

    def table(self) -> list[web.RouteDef]:
        return routes(
            error_reply,
            ("GET HEAD", "/", self.alive),
            ("GET HEAD", "/api/version", self.version),
            ("GET", "/api/status", self.status),
            ("GET HEAD", "/api/tags", self.tags),
            ("GET", "/api/ps", self.ps),
            ("POST", "/api/show", self.show),
            ("POST", "/api/generate", self.generate),
            ("POST", "/api/chat", self.chat),
        )

    # ------------------------------------------------------------------ the daemon and its models

    async def alive(self, _: web.Request) -> web.Response:
        return web.Response(text="Ollama is running")

    async def version(self, _: web.Request) -> web.Response:
        return json_reply({"version": specd.OLLAMA_API_VERSION, "specd_version": specd.__version__})

    async def status(self, _: web.Request) -> web.Response:
        return json_reply({"cloud": {"disabled": True, "source": "config"}})

    async def tags(self, _: web.Request) -> web.Response:
        return json_reply(tags_object(await asyncio.to_thread(self._library.list)))

    async def ps(self, _: web.Request) -> web.Response:
        residents = self._scheduler.residents()
        details = (
            await asyncio.to_thread(resident_details, self._library, residents) if residents else {}
        )
        return json_reply(ps_object(residents, details, self._clock.wall_ns(), self._fetch_status))

    async def show(self, request: web.Request) -> web.Response:
        body = await read(request, schema.ShowBody)
        name = body.model_name
        if not name:
            raise InvalidRequest("model is required")
        if body.verbose:
            # A header may have 256 MiB, and takes several times as much memory here.
            return await answer_reservation(request).budget.run(
                lambda: self._show(request, body, name)
            )
        return await self._show(request, body, name)

    async def _show(self, request: web.Request, body: schema.ShowBody, name: str) -> web.Response:
        info = await lookup.find_info(self._library, name, verbose=body.verbose)
        # Copilot looks its model up by this key, under the name that it sent.
        copilot = request.headers.get("User-Agent", "").startswith("GitHubCopilotChat/")
        basename, pair = name if copilot else "", await self._pair(info)
        shown = show_object(info, system=body.system, basename=basename, pair=pair)
        if not body.verbose:
            return json_reply(shown)
        return await asyncio.to_thread(json_reply, shown)

    async def _pair(self, info: ModelInfo) -> Json | None:
        """Return the model's pair; None for a remote model, or if its weights are missing."""
        try:
            model = await asyncio.to_thread(self._library.resolve, info.summary.name)
        except SpecdError:
            return None
        pair = await self._generation.pair(model)
        loaded = (one for one in self._scheduler.residents() if one.model.name == model.name)
        return pair_object(pair, self._fetch_status, next(loaded, None))

    # ------------------------------------------------------------------ inference

    async def generate(self, request: web.Request) -> web.StreamResponse:
        started_ns = self._clock.steady_ns()
        body = await read(request, schema.GenerateBody)
        lookup.check_top_logprobs(body.top_logprobs)
        ref = await lookup.find_model(self._library, body.model)
        writer = GenerateWriter(body.model)
        if not body.prompt and body.keep_alive == 0:
            return await self._unload(ref, writer)
        _check_generate(body, ref)
        if not body.prompt:
            return await self._load(body, ref, writer)
        if body.images and not body.debug_render_only:
            lookup.require_images(ref)
        core_request = await convert_body(request, lambda: generate_request(body, ref))
        return await self._answer(request, body, core_request, writer, started_ns)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        started_ns = self._clock.steady_ns()
        body = await read(request, schema.ChatBody)
        lookup.check_top_logprobs(body.top_logprobs)
        if not body.model:
            raise InvalidRequest("model is required")
        ref = await lookup.find_model(self._library, body.model)
        writer = ChatWriter(body.model)
        if not body.messages and body.keep_alive == 0:
            return await self._unload(ref, writer)
        _check_chat(body, ref)
        if not body.messages:
            return await self._load(body, ref, writer)
        if any(message.images for message in body.messages) and not body.debug_render_only:
            lookup.require_images(ref)
        core_request = await convert_body(request, lambda: chat_request(body, ref))
        return await self._answer(request, body, core_request, writer, started_ns)

    async def _unload(self, ref: core.ModelRef, writer: Writer) -> web.Response:
        await self._generation.unload(ref)
        return json_reply(writer.idle("unload", self._clock.wall_ns()))

    async def _load(
        self, body: schema.InferenceBody, ref: core.ModelRef, writer: Writer
    ) -> web.Response:
        await self._generation.load(
            core.LoadRequest(
                model=ref, options=options.parse(body.options), keep_alive_s=body.keep_alive
            )
        )
        return json_reply(writer.idle("load", self._clock.wall_ns()))

    async def _answer(
        self,
        request: web.Request,
        body: schema.InferenceBody,
        core_request: core.GenerateRequest,
        writer: Writer,
        started_ns: int,
    ) -> web.StreamResponse:
        if body.debug_render_only:
            prompt = await self._generation.render(core_request)
            return json_reply(writer.rendered(prompt, core_request.n_images, self._clock.wall_ns()))
        if body.stream:
            lines = self._lines(core_request, writer, started_ns)
            return await stream(request, lines, content_type=NDJSON, error_piece=error_line)
        answer = await collect_answer(self._generation.generate(core_request))
        return json_reply(self._last(writer, answer.done, started_ns, answer.whole))

    async def _lines(
        self, core_request: core.GenerateRequest, writer: Writer, started_ns: int
    ) -> AsyncIterator[bytes]:
        async with aclosing(self._generation.generate(core_request)) as events:
            async for event in events:
                if isinstance(event, core.Done):
                    yield dump_json(self._last(writer, event, started_ns, core.Delta())) + b"\n"
                else:
                    yield dump_json(writer.piece(event, self._clock.wall_ns())) + b"\n"

    def _last(self, writer: Writer, done: core.Done, started_ns: int, unsent: core.Delta) -> Json:
        total_ns = self._clock.steady_ns() - started_ns
        return writer.last(done, self._clock.wall_ns(), total_ns, unsent)


def _check_generate(body: schema.GenerateBody, ref: core.ModelRef) -> None:
    if "image" in ref.capabilities:
        raise InvalidRequest("image generation models are not currently supported")
    if body.raw and (body.template or body.system or body.context):
        raise InvalidRequest("raw mode does not support template, system, or context")
    lookup.require_thinking(ref, body.model, body.think)
    lookup.require_completion(ref, body.model, "generate")
    if body.suffix:
        lookup.require_capability(ref, "insert")


def _check_chat(body: schema.ChatBody, ref: core.ModelRef) -> None:
    lookup.require_thinking(ref, body.model, body.think)
    lookup.require_completion(ref, body.model, "chat")
    if body.tools:
        lookup.require_capability(ref, "tools")
