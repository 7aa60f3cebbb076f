"""Joins the dialects into one aiohttp application."""

from __future__ import annotations

import random
from collections.abc import Callable

from aiohttp import web

from specd import core
from specd.api import middleware
from specd.api.anthropic.routes import AnthropicRoutes
from specd.api.health import HealthRoutes
from specd.api.keys import Keys, key_guard
from specd.api.ollama.embed_routes import EmbedRoutes
from specd.api.ollama.model_routes import ModelRoutes
from specd.api.ollama.registry_routes import RegistryRoutes
from specd.api.ollama.routes import OllamaRoutes
from specd.api.openai.routes import OpenAIRoutes
from specd.api.ports import (
    Clock,
    Generation,
    Library,
    Outside,
    Registry,
    Rooms,
    Scheduler,
    Settings,
    Workshop,
)
from specd.api.requests import UNSEEN, Unseen, request_headers, watch
from specd.api.room import MAX_BODY_BYTES, Room, answer_room, shared
from specd.settings import is_loopback


def build_app(
    generation: Generation,
    library: Library,
    scheduler: Scheduler,
    settings: Settings,
    registry: Registry,
    *,
    workshop: Workshop | None = None,
    keys: Keys | None = None,
    origins: middleware.Origins | None = None,
    outside: Outside | None = None,
    clock: Clock | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    room: Room | None = None,
    answers: Room | None = None,
    efforts: Callable[[core.Pair], str] = lambda _pair: "",
    draw_id: Callable[[], int] = lambda: random.randrange(999),  # noqa: S311 - a label, no secret
) -> web.Application:
    """All routes and rules; without a workshop nothing changes the store.

    keys: of which a client must send one; None asks for none.
    origins: which web pages may call; None is as the settings say.
    outside: what whoever watches the daemon is told; None counts all the same.
    efforts: what is being done about a missing drafter, a sentence or "".
    Run it with `handler_cancellation`, or a client that leaves before the first byte goes
    unnoticed; and without `auto_decompress`, for a compressed body is unfolded by who reads it.
    """
    rooms = Rooms(
        generation=generation,
        library=library,
        scheduler=scheduler,
        clock=clock or Clock(),
        efforts=efforts,
    )
    origins = origins or middleware.Origins(settings.origins)
    keys, outside = keys or Keys(), outside or Outside()
    dialects: dict[str, str] = {}
    guards = [middleware.host_guard()] if is_loopback(settings.host.host) else []
    app = web.Application(
        middlewares=(
            watch(outside.metrics, keys, dialects),
            middleware.cors(origins),
            *guards,
            key_guard(keys),
            shared(room or Room(), answers or answer_room()),
            middleware.no_route,
        ),
        client_max_size=max_body_bytes,
    )
    app[UNSEEN] = Unseen(outside.metrics)
    app.on_response_prepare.append(middleware.response_headers(origins))
    app.on_response_prepare.append(request_headers())
    ollama = [*OllamaRoutes(rooms).table(), *EmbedRoutes(rooms).table()]
    if workshop is not None:
        ollama += ModelRoutes(workshop).table()
    for dialect, table in {
        "ollama": [*ollama, *RegistryRoutes(registry).table()],
        "openai": OpenAIRoutes(rooms, draw_id).table(),
        "anthropic": AnthropicRoutes(rooms).table(),
        "outside": HealthRoutes(outside).table(),
    }.items():
        for added in app.add_routes(table):
            assert added.resource is not None
            dialects[added.resource.canonical] = dialect
    return app
