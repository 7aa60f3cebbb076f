"""Builds the aiohttp application from the dialects' routes."""

from __future__ import annotations

import random
from collections.abc import Callable

from aiohttp import web

from specd import core
from specd.api import middleware
from specd.api.anthropic.routes import AnthropicRoutes
from specd.api.body_budget import (
    MAX_BODY_BYTES,
    MemoryBudget,
    budget_middleware,
    make_answer_budget,
)
from specd.api.health import HealthRoutes
from specd.api.interfaces import (
    Clock,
    Generation,
    Library,
    Monitoring,
    Registry,
    Scheduler,
    Services,
    Settings,
    StoreServices,
)
from specd.api.keys import Keys, require_key
from specd.api.ollama.embed_routes import EmbedRoutes
from specd.api.ollama.model_routes import ModelRoutes
from specd.api.ollama.registry_routes import RegistryRoutes
from specd.api.ollama.routes import OllamaRoutes
from specd.api.openai.routes import OpenAIRoutes
from specd.api.request_recorder import EARLY_ERRORS, EarlyErrors, record_requests, request_headers
from specd.settings import is_loopback


def build_app(
    generation: Generation,
    library: Library,
    scheduler: Scheduler,
    settings: Settings,
    registry: Registry,
    *,
    store_services: StoreServices | None = None,
    keys: Keys | None = None,
    origins: middleware.Origins | None = None,
    monitoring: Monitoring | None = None,
    clock: Clock | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    budget: MemoryBudget | None = None,
    answer_budget: MemoryBudget | None = None,
    drafter_fetch_status: Callable[[core.Pair], str] = lambda _pair: "",
    draw_id: Callable[[], int] = lambda: random.randrange(999),  # noqa: S311 - a label, no secret
) -> web.Application:
    """Return the application with all routes and middlewares.

    store_services: None leaves out the routes that change the store.
    keys: clients must send one of them; None requires none.
    origins: web pages that may call; None uses those of the settings.
    monitoring: metrics and state; None counts without showing any state.
    drafter_fetch_status: returns a sentence about the pull of a missing drafter, or "".
    Run it with `handler_cancellation`, to notice clients that leave before the first byte; and
    without `auto_decompress`, because `read_fields` decompresses bodies.
    """
    services = Services(
        generation=generation,
        library=library,
        scheduler=scheduler,
        clock=clock or Clock(),
        drafter_fetch_status=drafter_fetch_status,
    )
    origins = origins or middleware.Origins(settings.origins)
    keys, monitoring = keys or Keys(), monitoring or Monitoring()
    dialects: dict[str, str] = {}
    guards = [middleware.host_guard()] if is_loopback(settings.host.host) else []
    app = web.Application(
        middlewares=(
            record_requests(monitoring.metrics, keys, dialects),
            middleware.cors(origins),
            *guards,
            require_key(keys),
            budget_middleware(budget or MemoryBudget(), answer_budget or make_answer_budget()),
            middleware.handle_unrouted,
        ),
        client_max_size=max_body_bytes,
    )
    app[EARLY_ERRORS] = EarlyErrors(monitoring.metrics)
    app.on_response_prepare.append(middleware.response_headers(origins))
    app.on_response_prepare.append(request_headers())
    ollama = [*OllamaRoutes(services).table(), *EmbedRoutes(services).table()]
    if store_services is not None:
        ollama += ModelRoutes(store_services).table()
    for dialect, table in {
        "ollama": [*ollama, *RegistryRoutes(registry).table()],
        "openai": OpenAIRoutes(services, draw_id).table(),
        "anthropic": AnthropicRoutes(services).table(),
        "outside": HealthRoutes(monitoring).table(),
    }.items():
        for added in app.add_routes(table):
            assert added.resource is not None
            dialects[added.resource.canonical] = dialect
    return app
