"""Fake services that answer from a script, and an aiohttp client of the HTTP routes."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import DummyCookieJar
from aiohttp.test_utils import TestClient, TestServer

from specd import core
from specd.api.app import build_app
from specd.api.body_budget import MAX_BODY_BYTES, MemoryBudget
from specd.api.interfaces import Clock, Monitoring, StoreServices
from specd.api.keys import Keys
from specd.errors import ModelNotFound, Unsupported
from specd.scheduler import Resident
from specd.settings import HostAddress
from specd.store import ModelDetails, ModelInfo, ModelSummary
from specd.store import name as names

LOOPBACK = HostAddress("http", "127.0.0.1", 11434)
WALL_NS = 1_785_585_600_000_000_120  # 2026-08-01T12:00:00.00000012Z
LOCAL = dt.timezone(dt.timedelta(hours=2))
MODIFIED = dt.datetime(2026, 7, 1, 10, 0, 0, 500_000, tzinfo=LOCAL)

STATS = core.SpeculationStats(
    drafter="tiny:latest",
    pair_source="manifest",
    draft_n=8,
    draft_n_accepted=6,
    rounds=2,
    state=core.SpeculationState.ACTIVE,
    speedup=1.75,
    threshold=0.21984,
)
DONE = core.Done(
    reason=core.StopReason.STOP,
    usage=core.Usage(n_prompt=5, n_cached=2, prompt_ns=10, n_generated=7, generate_ns=20),
    speculation=STATS,
    context=(1, 2, 3),
    load_ns=30,
)

Script = Sequence[core.Delta | core.Done | Exception | asyncio.Event]
HELLO: Script = (core.Delta(content="Hel"), core.Delta(content="lo"), DONE)


def model_ref(name: str, *capabilities: str) -> core.LocalModel:
    parsed = names.parse(name)
    return core.LocalModel(
        name=parsed.short,
        full_name=parsed.full,
        digest="a" * 64,
        weights=Path("weights.gguf"),
        capabilities=capabilities or ("completion",),
        architecture="llama",
        projector=Path("mmproj.gguf") if "vision" in capabilities else None,
    )


def summary(name: str, capabilities: tuple[str, ...] = ("completion",)) -> ModelSummary:
    return ModelSummary(
        name=names.parse(name).short,
        digest="a" * 64,
        size_bytes=1234,
        modified_at=MODIFIED,
        details=ModelDetails(
            format="gguf",
            family="llama",
            families=("llama",),
            parameter_size="5M",
            quantization_level="Q8_0",
            context_length=2048,
        ),
        capabilities=capabilities,
    )


def info(name: str) -> ModelInfo:
    return ModelInfo(
        summary=summary(name),
        license="",
        modelfile="# Modelfile\nFROM x",
        parameters="",
        template="{{ messages }}",
        system="Be brief.",
        messages=(core.Message(role="user", content="Hi"),),
        model_info={"general.architecture": "llama", "general.basename": "demo"},
        tensors=(),
        projector_info=None,
        requires="",
    )


class FakeLibrary:
    """Knows the models of `refs`, under any case."""

    def __init__(self, *refs: core.ModelRef) -> None:
        self._refs = {names.parse(ref.name).key: ref for ref in refs}

    def list(self) -> Sequence[ModelSummary]:
        return [summary(ref.name, ref.capabilities) for ref in self._refs.values()]

    def resolve(self, name: str, /) -> core.ModelRef:
        parsed = names.parse(name)
        if parsed.source is names.ModelSource.CLOUD:
            raise Unsupported("not on this machine")
        if parsed.key not in self._refs:
            raise ModelNotFound(parsed.short)
        return self._refs[parsed.key]

    def show(self, name: str, /, *, verbose: bool = False) -> ModelInfo:
        return info(self.resolve(name).name)


@dataclass
class FakeGeneration:
    """Play `script`: raise its exceptions; set an Event, then wait forever.

    vector: what every text is embedded to, or the error that it is.
    drafter: what every model's pair has.
    """

    script: Script = HELLO
    requests: list[core.GenerateRequest] = field(default_factory=list)
    loads: list[tuple[str, Mapping[str, object], float | None]] = field(default_factory=list)
    unloads: list[str] = field(default_factory=list)
    vector: tuple[float, ...] | Exception = (3.0, 0.0, -4.0)
    embeds: list[core.EmbedRequest] = field(default_factory=list)
    drafter: core.Drafter | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(
        self, request: core.GenerateRequest, /
    ) -> AsyncIterator[core.Delta | core.Done]:
        self.requests.append(request)
        try:
            for event in self.script:
                if isinstance(event, Exception):
                    raise event
                if isinstance(event, asyncio.Event):
                    event.set()
                    await asyncio.Event().wait()
                else:
                    yield event
        finally:
            self.closed.set()

    async def embed(self, request: core.EmbedRequest, /) -> core.Embeddings:
        self.embeds.append(request)
        if isinstance(self.vector, Exception):
            raise self.vector
        for _ in request.texts:
            request.on_vector(len(self.vector))
        entries = [
            core.Embedding(vector=self.vector, n_tokens=len(text.split()) + 2)
            for text in request.texts
        ]
        return core.Embeddings(entries=tuple(entries), load_ns=30)

    async def load(self, request: core.LoadRequest, /) -> None:
        self.loads.append((request.model.name, request.options, request.keep_alive_s))

    async def unload(self, model: core.ModelRef, /) -> None:
        self.unloads.append(model.name)

    async def count_tokens(self, request: core.GenerateRequest, /) -> int:
        self.requests.append(request)
        return 42

    async def pair(self, model: core.ModelRef, /) -> core.Pair:
        if self.drafter is None:
            return core.Pair(
                target=model,
                reason=core.NoPair.NOT_FOUND,
                detail="No drafter fits.",
                pull=("tiny:1b",),
            )
        return core.Pair(target=model, drafter=self.drafter, rule="plain*", expected={"code": 1.5})

    async def render(self, request: core.GenerateRequest, /) -> str:
        self.requests.append(request)
        return "<rendered>"


@dataclass
class FakeScheduler:
    loaded: list[Resident] = field(default_factory=list)

    def residents(self) -> Sequence[Resident]:
        return self.loaded


@dataclass
class FakeRegistry:
    """Play `script` for every pull and push; raise its exceptions."""

    script: Sequence[core.Progress | Exception] = (core.Progress(status="success"),)
    asked: list[tuple[str, str, bool]] = field(default_factory=list)

    async def pull(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]:
        async for line in self._play("pull", model, insecure):
            yield line

    async def push(self, model: str, /, *, insecure: bool) -> AsyncIterator[core.Progress]:
        async for line in self._play("push", model, insecure):
            yield line

    async def _play(self, verb: str, model: str, insecure: bool) -> AsyncIterator[core.Progress]:
        self.asked.append((verb, model, insecure))
        for line in self.script:
            if isinstance(line, Exception):
                raise line
            yield line


@dataclass(frozen=True)
class FakeSettings:
    origins: tuple[str, ...] = ()
    host: HostAddress = LOOPBACK


MODELS = (
    model_ref("plain"),
    model_ref("thinker", "completion", "thinking"),
    model_ref("able", "completion", "tools", "insert", "vision", "audio", "thinking"),
    model_ref("embedder", "embedding"),
    model_ref("painter", "image"),
)


def ticking() -> Clock:
    """Wall time stands; each look at the steady clock is 100 ns later."""
    steady = iter(range(0, 10**9, 100))
    return Clock(wall_ns=lambda: WALL_NS, steady_ns=lambda: next(steady))


@asynccontextmanager
async def client(
    generation: FakeGeneration | None = None,
    *,
    models: Sequence[core.ModelRef] = MODELS,
    loaded: Sequence[Resident] = (),
    settings: FakeSettings | None = None,
    registry: FakeRegistry | None = None,
    store_services: StoreServices | None = None,
    keys: Keys | None = None,
    monitoring: Monitoring | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    budget: MemoryBudget | None = None,
    answer_budget: MemoryBudget | None = None,
    drafter_fetch_status: Callable[[core.Pair], str] = lambda _pair: "",
) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    app = build_app(
        generation or FakeGeneration(),
        FakeLibrary(*models),
        FakeScheduler(list(loaded)),
        settings or FakeSettings(),
        registry or FakeRegistry(),
        store_services=store_services,
        keys=keys,
        monitoring=monitoring,
        clock=ticking(),
        max_body_bytes=max_body_bytes,
        budget=budget,
        answer_budget=answer_budget,
        drafter_fetch_status=drafter_fetch_status,
        draw_id=lambda: 42,
    )
    # Like the daemon's own runner, the test server cancels the handler of a client that has gone.
    server = TestServer(app)
    await server.start_server(auto_decompress=False)
    async with TestClient(server, cookie_jar=DummyCookieJar()) as http:
        yield http
