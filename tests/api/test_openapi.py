"""docs/api/openapi.yaml matches the code: routes, fields of bodies, answers."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import fields
from itertools import cycle
from pathlib import Path
from types import FunctionType
from typing import Any, cast

import jsonschema
import pytest
import requests
import schemathesis
import yaml
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis import GenerationMode, checks
from schemathesis.schemas import APIOperation

from specd import core, errors
from specd.api import body as bodies
from specd.api.app import build_app
from specd.api.interfaces import StoreServices
from specd.api.openai.responses import body as items
from specd.core import Progress
from specd.create import CreateRequest
from specd.options import Options
from specd.scheduler import Resident
from specd.store import AsyncWriter, StoreWriter
from tests.api.fakes import (
    DONE,
    HELLO,
    MODELS,
    FakeGeneration,
    FakeLibrary,
    FakeRegistry,
    FakeScheduler,
    FakeSettings,
    Script,
    client,
    ticking,
)

Json = dict[str, Any]

SPEC: Json = yaml.safe_load((Path(__file__).parents[2] / "docs/api/openapi.yaml").read_text())
METHODS = ("get", "head", "post", "delete")
OPERATIONS = [
    (method, path) for path, entry in SPEC["paths"].items() for method in METHODS if method in entry
]
CALL = core.ToolCall(name="look", arguments={"b": 1, "a": [None]}, id="call_1")
ENTRY = core.TokenLogprob(
    token="a",
    bytes=(97,),
    logprob=-1.0,
    top=(core.TopLogprob(token="a", bytes=(97,), logprob=-1.0),),
)
CUT = core.Done(reason=core.StopReason.LENGTH, usage=core.Usage(), speculation=DONE.speculation)
SCRIPTS: tuple[Script, ...] = (
    HELLO,
    (
        core.Delta(thinking="hm"),
        core.Delta(content="a", logprobs=(ENTRY,)),
        core.Delta(tool_calls=(CALL,)),
        DONE,
    ),
    (CUT,),
    (errors.QueueFull(),),
    (errors.ContextLengthExceeded(9, 8),),
    (core.Delta(content="a"), errors.EngineCrashed("model runner has unexpectedly stopped")),
    (core.Delta(thinking="h", content="a", tool_calls=(CALL, CALL)), CUT),
    (errors.LoadFailed("not a GGUF"),),
    (errors.InvalidOption('option "top_k" must be of type integer'),),
)
STEPS: tuple[tuple[Progress | Exception, ...], ...] = (
    (Progress(status="pulling manifest"), Progress(status="success")),
    (Progress(status="pulling a", digest="sha256:a", total=9, completed=3), errors.StoreError("x")),
    (errors.InvalidName("invalid model name"),),
    (errors.EngineError("no"),),
)


# --------------------------------------------------------------------------- the file itself


def test_it_is_openapi() -> None:
    validate(SPEC)


async def test_every_route_is_described_and_every_description_is_a_route(tmp_path: Path) -> None:
    async with client(store_services=store_services(tmp_path)) as http:
        assert http.app is not None
        routed = {
            (route.method.lower(), route.resource.canonical)
            for route in http.app.router.routes()
            if route.resource is not None
        }
    assert routed == set(OPERATIONS)


def test_every_option_is_described() -> None:
    assert {entry.name for entry in fields(Options)} == set(named(SPEC, "Options")["properties"])


# --------------------------------------------------------------------------- fields of bodies


def named(spec: Json, name: str) -> Json:
    found: Json = spec["components"]["schemas"][name]
    return found


def resolved(node: Json) -> Json:
    """Return the node that a reference points to."""
    while "$ref" in node:
        found: Any = SPEC
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        node = found
    return node


def properties(node: Json) -> Json:
    """Return the properties of all objects that a value, or an item of it, may be."""
    node = resolved(node)
    found: Json = dict(node.get("properties", {}))
    for choice in [*node.get("anyOf", ()), *([node["items"]] if "items" in node else ())]:
        found |= properties(choice)
    return found


def fields_of(codec: object) -> bodies.Fields | None:
    """Return the fields of the struct that a codec reads, also through lists and helpers."""
    if not isinstance(codec, FunctionType) or not codec.__module__.startswith("specd.api"):
        return None
    cells = [cell.cell_contents for cell in codec.__closure__ or ()]
    names = [codec.__globals__[n] for n in codec.__code__.co_names if n in codec.__globals__]
    for found in (*cells, *names):
        if isinstance(found, dict) and found and all(map(callable, found.values())):
            return found
    return next((f for f in map(fields_of, (*cells, *names)) if f is not None), None)


def compare(where: str, read: bodies.Fields, node: Json) -> Iterator[str]:
    """Yield a line per field that is read but not described, or described but not read."""
    described = properties(node)
    yield from (f"{where}.{name}: not described" for name in read.keys() - described.keys())
    yield from (f"{where}.{name}: not read" for name in described.keys() - read.keys())
    for name in read.keys() & described.keys():
        nested = None if read[name] is items.read_input else fields_of(read[name])
        if nested is not None:
            yield from compare(f"{where}.{name}", nested, described[name])


def sent(method: str, path: str) -> Json:
    """Return the media types of a request's body."""
    body = resolved(SPEC["paths"][path][method].get("requestBody", {}))
    found: Json = body.get("content", {})
    return found


async def test_every_field_of_a_body_is_described_and_every_description_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bodies.Fields] = []

    def decode(value: object, fields: bodies.Fields, go_name: str) -> Json:
        read.append(fields)
        return {}

    monkeypatch.setattr(bodies, "decode", decode)
    faults: list[str] = []
    async with client(store_services=store_services(tmp_path)) as http:
        for method, path in OPERATIONS:
            read.clear()
            async with http.request(method, path, json={}):
                pass
            media = sent(method, path)
            assert bool(read) == ("application/json" in media), path
            for found in read:
                faults += compare(path, found, media["application/json"]["schema"])
    assert faults == []


def test_every_item_of_a_responses_input_is_described() -> None:
    described = {
        entry["properties"]["type"].get("const", "message"): set(entry["properties"]) - {"type"}
        for entry in named(SPEC, "InputItem")["anyOf"]
    }
    read = {kind: set(fields_of(reader) or ()) for kind, reader in items.ITEM_READERS.items()}
    assert described == read
    part = properties(named(SPEC, "InputPart"))
    assert set(part) == set(items.CONTENT_PART)


# --------------------------------------------------------------------------- answers


class Playing(FakeGeneration):
    """Each answer is the next of SCRIPTS."""

    def __init__(self) -> None:
        super().__init__()
        self._scripts = cycle(SCRIPTS)

    async def generate(
        self, request: core.GenerateRequest, /
    ) -> AsyncIterator[core.Delta | core.Done]:
        self.script = next(self._scripts)
        async for event in super().generate(request):
            yield event


class DrafterFetcher(FakeRegistry):
    """Each pull and push is the next of STEPS."""

    def __init__(self) -> None:
        super().__init__()
        self._scripts = cycle(STEPS)

    async def _play(self, verb: str, model: str, insecure: bool) -> AsyncIterator[Progress]:
        self.script = next(self._scripts)
        async for line in super()._play(verb, model, insecure):
            yield line


class Creating:
    """Each create is the next of STEPS."""

    def __init__(self) -> None:
        self._scripts = cycle(STEPS)

    async def create(self, _: CreateRequest, /) -> AsyncIterator[Progress]:
        for line in next(self._scripts):
            if isinstance(line, Exception):
                raise line
            yield line


MEMORY = core.ModelMemory(device="CUDA0", total_bytes=100, vram_bytes=80)


def resident(drafter: core.ModelMemory | None) -> Resident:
    facts = core.EngineFacts(
        n_ctx=4096, n_ctx_train=4096, n_vocab=9, target=MEMORY, drafter=drafter
    )
    return Resident(
        model=MODELS[0],
        pair=core.Pair(target=MODELS[0], reason=core.NoPair.NOT_FOUND, detail="No drafter fits."),
        spec=core.EngineSpec(weights="x"),
        facts=facts,
        expires_at=math.inf,
    )


def store_services(folder: Path) -> StoreServices:
    return StoreServices(writer=AsyncWriter(StoreWriter(folder / "models")), creator=Creating())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The app, served from a thread, for clients that know no asyncio."""
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()

    async def serve() -> web.AppRunner:
        app = build_app(
            Playing(),
            FakeLibrary(*MODELS),
            FakeScheduler([resident(None), resident(MEMORY)]),
            FakeSettings(),
            DrafterFetcher(),
            store_services=store_services(tmp_path_factory.mktemp("store")),
            clock=ticking(),
        )
        runner = web.AppRunner(app, handler_cancellation=True, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    runner = asyncio.run_coroutine_threadsafe(serve(), loop).result()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()


def answered(node: object, seen: set[str]) -> None:
    """Names of the schemas that answers use."""
    if isinstance(node, dict):
        name = str(node.get("$ref", "")).partition("/schemas/")[2]
        if name and name not in seen:
            seen.add(name)
            answered(named(SPEC, name), seen)
        for value in node.values():
            answered(value, seen)
    elif isinstance(node, list):
        for value in node:
            answered(value, seen)


def close(node: object) -> None:
    """Forbid properties that an object's schema does not name, in place."""
    if isinstance(node, dict):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            close(value)
    elif isinstance(node, list):
        for value in node:
            close(value)


@functools.cache
def strict() -> Json:
    """Return the file with strict answer schemas, and with a fixed set of model names."""
    spec = copy.deepcopy(SPEC)
    names: set[str] = set()
    for entry in spec["paths"].values():
        for method in METHODS:
            answered(entry.get(method, {}).get("responses", {}), names)
            close(entry.get(method, {}).get("responses", {}))
    answered(spec["components"]["responses"], names)
    close(spec["components"]["responses"])
    for name in names:
        close(named(spec, name))
    known = [ref.name for ref in MODELS]
    spec["components"]["schemas"]["ModelName"] = {
        "type": ["string", "null"],
        "enum": [*known, "Able", "absent", "a b", "x:cloud", "", None],
    }
    return spec


@functools.cache
def operations() -> Mapping[tuple[str, str], APIOperation[Any, Any, Any, Any]]:
    schema = schemathesis.openapi.from_dict(copy.deepcopy(strict()))
    found = (cast("Any", result).ok() for result in schema.get_all_operations())
    return {(op.method, op.path): op for op in found}


def pieces(text: str, kind: str) -> Iterator[Any]:
    """Return the values of an answer; check the framing of a stream."""
    if kind == "application/json":
        yield json.loads(text)
    elif kind == "application/x-ndjson":
        *lines, rest = text.split("\n")
        assert rest == ""
        yield from map(json.loads, lines)
    elif kind == "text/event-stream":
        *events, rest = text.split("\n\n")
        assert rest == ""
        for event in events:
            *name, data = event.split("\n")
            shown = data.removeprefix("data: ")
            value: Any = shown if shown == "[DONE]" else json.loads(shown)
            assert not name or name == [f"event: {value['type']}"]
            yield value


def check(method: str, path: str, status: int, kind: str, text: str) -> None:
    """Check every line of an answer against the file.  kind: its content type."""
    assert "internal error" not in text
    described = strict()["paths"][path][method]["responses"][str(status)]
    if "$ref" in described:
        described = strict()["components"]["responses"][described["$ref"].rpartition("/")[2]]
    kind = kind.partition(";")[0]
    media = described.get("content", {}).get(kind, {})
    schema = media.get("x-each-line") or media.get("x-each-event") or media.get("schema")
    if schema is not None:
        validator = jsonschema.Draft202012Validator(schema | {"components": strict()["components"]})
        for value in pieces(text, kind):
            validator.validate(value)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("method, path", OPERATIONS)
def test_every_answer_matches_its_description(
    url: str, method: str, path: str, mode: GenerationMode
) -> None:
    operation = operations()[method, path]

    @settings(
        max_examples=10,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # report failures unreduced: shrinking takes minutes
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def conforms(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy(generation_mode=mode))
        response = case.call(base_url=url, session=session)
        case.validate_response(
            response,
            checks=[
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
            ],
        )
        [kind] = response.headers.get("content-type", [""])
        check(method, path, response.status_code, kind, response.text)

    with requests.Session() as session:
        if mode is GenerationMode.POSITIVE or "application/json" in sent(method, path):
            conforms()


CHAT = {"model": "able", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}
ANSWERED: dict[str, Json] = {
    "/api/generate": {"model": "able", "prompt": "x", "logprobs": True},
    "/api/chat": CHAT,
    "/api/pull": {"model": "able"},
    "/api/push": {"model": "able"},
    "/api/create": {"model": "new", "from": "able"},
    "/v1/chat/completions": CHAT | {"stream_options": {"include_usage": True}},
    "/v1/completions": {"model": "able", "prompt": "x", "stream_options": {"include_usage": True}},
    "/v1/responses": {"model": "able", "input": "x", "tools": [{"type": "function", "name": "f"}]},
    "/v1/messages": CHAT,
}
#: Bodies that are not JSON: the fields and the file of a form.
FORMS = {"/v1/audio/transcriptions": ({"model": "able"}, ("a.wav", b"RIFF\0\0\0\0WAVE"))}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [*ANSWERED, *FORMS])
def test_every_course_of_an_answer_is_as_described(url: str, path: str, stream: bool) -> None:
    if path in FORMS:
        fields, file = FORMS[path]
        body: Json = {"data": fields | {"stream": str(stream)}, "files": {"file": file}}
    else:
        body = {"json": ANSWERED[path] | {"stream": stream}}
    statuses, kinds = set(), set()
    with requests.Session() as session:
        for _ in range(max(len(SCRIPTS), len(STEPS))):
            response = session.post(url + path, **body)
            kind = response.headers["Content-Type"]
            check("post", path, response.status_code, kind, response.text)
            statuses.add(response.status_code)
            kinds.add(kind.partition(";")[0])
    assert {200, 400, 500} <= statuses
    assert ("application/json" in kinds, len(kinds)) == (True, 1 + stream)
