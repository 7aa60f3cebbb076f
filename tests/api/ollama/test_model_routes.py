"""`/api/create`, `/api/copy`, `/api/delete` and `/api/blobs`, over a real store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from specd.api.interfaces import StoreServices
from specd.core import Message, Progress
from specd.create import CreateRequest
from specd.errors import EngineError, InvalidRequest
from specd.store import AsyncWriter, StoreWriter
from tests.api.fakes import client
from tests.gguf_files import OllamaStore, write_llama

Http = TestClient[web.Request, web.Application]
LINES = (
    Progress(status="parsing GGUF"),
    Progress(status="quantizing F32 model to Q8_0", digest="000", total=9, completed=3),
    Progress(status="success"),
)
PAYLOAD = b"weights" * 1000
DIGEST = f"sha256:{hashlib.sha256(PAYLOAD).hexdigest()}"


@dataclass
class FakeCreator:
    """Play `script`: raise its exceptions; set an Event, then wait forever."""

    script: tuple[Progress | Exception | asyncio.Event, ...] = LINES
    requests: list[CreateRequest] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def create(self, request: CreateRequest, /) -> AsyncGenerator[Progress, None]:
        self.requests.append(request)
        try:
            for line in self.script:
                if isinstance(line, Exception):
                    raise line
                if isinstance(line, asyncio.Event):
                    line.set()
                    await asyncio.Event().wait()
                else:
                    yield line
        finally:
            self.closed.set()


@pytest.fixture
def store(tmp_path: Path) -> OllamaStore:
    return OllamaStore(tmp_path / "models")


@pytest.fixture
def creator() -> FakeCreator:
    return FakeCreator()


@pytest.fixture
async def http(store: OllamaStore, creator: FakeCreator) -> AsyncIterator[Http]:
    store_services = StoreServices(writer=AsyncWriter(StoreWriter(store.root)), creator=creator)
    async with client(store_services=store_services, max_body_bytes=1000) as session:
        yield session


async def answer(http: Http, method: str, path: str, body: object) -> tuple[int, bytes]:
    async with http.request(method, path, json=body) as reply:
        return reply.status, await reply.read()


def error(text: str) -> bytes:
    return json.dumps({"error": text}, separators=(",", ":")).encode()


# --------------------------------------------------------------------------- copy and delete


@pytest.mark.contract("copy.empty", "delete.empty")
async def test_copy_and_delete_answer_nothing(
    http: Http, store: OllamaStore, tmp_path: Path
) -> None:
    digest = store.add("m", weights=write_llama(tmp_path / "m.gguf"))
    copied = await answer(http, "POST", "/api/copy", {"source": "M", "destination": "ns/n:v2"})
    assert copied == (200, b"")
    assert hashlib.sha256(store.manifest_path("ns/n:v2").read_bytes()).hexdigest() == digest
    assert await answer(http, "DELETE", "/api/delete", {"name": "m"}) == (200, b"")
    weights = store.weights_path("ns/n:v2")
    assert weights.exists()
    assert await answer(http, "DELETE", "/api/delete", {"model": "NS/n:v2"}) == (200, b"")
    assert not list((store.root / "blobs").iterdir())
    assert not list((store.root / "manifests").iterdir())


@pytest.mark.contract("copy.errors", "delete.errors")
@pytest.mark.parametrize(
    "path, body, status, text",
    [
        ("copy", {}, 400, 'source "" is invalid'),
        ("copy", {"source": "a b", "destination": "n"}, 400, 'source "a b" is invalid'),
        ("copy", {"source": "m"}, 400, 'destination "" is invalid'),
        ("copy", {"source": "Far", "destination": "n"}, 404, 'model "Far" not found'),
        ("delete", {}, 400, "model is required"),
        ("delete", {"model": "a@b"}, 400, 'name "a@b" is invalid'),
        ("delete", {"name": "Far"}, 404, "model 'Far' not found"),
        ("delete", {"name": "m:cloud"}, 404, "model 'm:cloud' not found"),
        (
            "delete",
            {"name": "m:local:cloud"},
            400,
            'use either :local or :cloud, not both: "m:local:cloud"',
        ),
    ],
)
async def test_errors_of_copy_and_delete(
    http: Http, store: OllamaStore, tmp_path: Path, path: str, body: Any, status: int, text: str
) -> None:
    store.add("m", weights=write_llama(tmp_path / "m.gguf"))
    method = "POST" if path == "copy" else "DELETE"
    assert await answer(http, method, f"/api/{path}", body) == (status, error(text))
    assert store.manifest_path("m").exists()


async def test_the_sign_of_a_model_in_the_cloud_is_deleted_by_its_name(
    http: Http, store: OllamaStore
) -> None:
    for name in ("m:cloud", "m:120b-cloud"):
        store.add(name, weights=None, config={"remote_host": "https://ollama.com:443"})
        assert await answer(http, "DELETE", "/api/delete", {"model": name}) == (200, b"")
    assert not list((store.root / "manifests").iterdir())


@pytest.mark.contract("body.empty")
@pytest.mark.parametrize("path", ["/api/copy", "/api/create"])
async def test_no_body(http: Http, path: str) -> None:
    async with http.post(path) as reply:
        assert (reply.status, await reply.read()) == (400, error("missing request body"))


# --------------------------------------------------------------------------- blobs


@pytest.mark.contract("blobs.head", "blobs.post", "routes.head", "edge.body-limit")
async def test_a_blob_is_uploaded_once(http: Http, store: OllamaStore) -> None:
    path = f"/api/blobs/{DIGEST}"
    async with http.head(path) as reply:
        assert (reply.status, await reply.read()) == (404, b"")
    # Longer than the limit of every other body.
    for status in (201, 200):
        async with http.post(path, data=PAYLOAD) as reply:
            assert (reply.status, await reply.read()) == (status, b"")
    async with http.head(path) as reply:
        assert (reply.status, await reply.read()) == (200, b"")
    assert store.blob_path(DIGEST).read_bytes() == PAYLOAD
    assert len(list((store.root / "blobs").iterdir())) == 1


@pytest.mark.contract("blobs.post", "store.private")
async def test_a_blob_with_another_digest_is_refused(http: Http, store: OllamaStore) -> None:
    async with http.post(f"/api/blobs/{DIGEST}", data=b"others") as reply:
        got = f"sha256:{hashlib.sha256(b'others').hexdigest()}"
        text = f'digest mismatch, expected "{DIGEST}", got "{got}"'
        assert (reply.status, await reply.read()) == (400, error(text))
    assert not list((store.root / "blobs").iterdir())


@pytest.mark.contract("blobs.head", "blobs.post")
@pytest.mark.parametrize("digest", ["sha256:12", "md5:" + "0" * 64, "sha256:" + "g" * 64, "x"])
async def test_a_digest_that_is_none(http: Http, digest: str) -> None:
    async with http.head(f"/api/blobs/{digest}") as reply:
        assert reply.status == 400
    async with http.post(f"/api/blobs/{digest}", data=PAYLOAD) as reply:
        assert (reply.status, await reply.read()) == (400, error("invalid digest format"))


@pytest.mark.contract("store.atomic")
async def test_an_upload_that_breaks_off_leaves_nothing(
    http: Http, store: OllamaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, removed = threading.Event(), threading.Event()
    plain = StoreWriter.staged

    @contextlib.contextmanager
    def watched(writer: StoreWriter) -> Iterator[Path]:
        try:
            with plain(writer) as path:
                begun.set()
                yield path
        finally:
            removed.set()

    async def half() -> AsyncIterator[bytes]:
        yield PAYLOAD[:100]
        await asyncio.Event().wait()

    monkeypatch.setattr(StoreWriter, "staged", watched)
    uploading = asyncio.create_task(http.post(f"/api/blobs/{DIGEST}", data=half()))
    assert await asyncio.to_thread(begun.wait, 30)
    uploading.cancel()
    assert await asyncio.to_thread(removed.wait, 30)
    assert not list((store.root / "blobs").iterdir())


async def test_a_full_disk_is_an_error(
    http: Http, store: OllamaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_path: Path, *_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "replace", full)
    async with http.post(f"/api/blobs/{DIGEST}", data=PAYLOAD) as reply:
        text = f"cannot write the blob {DIGEST}: No space left on device"
        assert (reply.status, await reply.read()) == (500, error(text))
    assert not list((store.root / "blobs").iterdir())


# --------------------------------------------------------------------------- create


@pytest.mark.contract("create.progress", "stream.progress", "stream.default")
async def test_progress_is_streamed_or_only_its_last_line(http: Http, creator: FakeCreator) -> None:
    async with http.post("/api/create", json={"model": "m", "from": "base"}) as reply:
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/x-ndjson"
        assert (await reply.read()).splitlines() == [
            b'{"status":"parsing GGUF"}',
            b'{"status":"quantizing F32 model to Q8_0","digest":"000","total":9,"completed":3}',
            b'{"status":"success"}',
        ]
    body = {"model": "m", "from": "base", "stream": False}
    assert await answer(http, "POST", "/api/create", body) == (200, b'{"status":"success"}')


@pytest.mark.contract("create.fields")
async def test_every_field_is_read(http: Http, creator: FakeCreator) -> None:
    fields = {
        "adapters": {"a": DIGEST},
        "draft_files": {"d": DIGEST},
        "draft_quantize": "Q8_0",
        "template": "t",
        "system": "s",
        "parameters": {"num_ctx": 1},
        "renderer": "r",
        "parser": "p",
        "requires": "0.1",
        "info": {"x": 1},
        "remote_host": "h",
    }
    body = fields | {
        "name": "m",
        "from": "base",
        "files": {"f": None},
        "quantization": "Q4_K_M",
        "license": ["MIT", "", "BSD"],
        "messages": [{"role": "User", "content": "Hi"}],
    }
    await answer(http, "POST", "/api/create", body)
    assert creator.requests == [
        CreateRequest(
            model="m",
            base="base",
            files={"f": ""},
            quantize="Q4_K_M",
            licenses=("MIT", "BSD"),
            messages=(Message(role="user", content="Hi"),),
            **fields,  # type: ignore[arg-type]
        )
    ]


@pytest.mark.contract("create.errors.source", "stream.early-error")
@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_before_the_first_line_has_a_status(
    http: Http, creator: FakeCreator, stream: bool
) -> None:
    creator.script = (InvalidRequest("neither 'from' or 'files' was specified"),)
    status, body = await answer(http, "POST", "/api/create", {"model": "m", "stream": stream})
    assert (status, body) == (400, error("neither 'from' or 'files' was specified"))


@pytest.mark.contract("stream.late-error")
async def test_a_later_error_is_the_last_line(http: Http, creator: FakeCreator) -> None:
    creator.script = (LINES[0], EngineError("quantizing failed"))
    status, body = await answer(http, "POST", "/api/create", {"model": "m", "from": "b"})
    assert (status, body.splitlines()[-1]) == (200, error("quantizing failed"))
    quiet = {"model": "m", "from": "b", "stream": False}
    assert await answer(http, "POST", "/api/create", quiet) == (500, error("quantizing failed"))


@pytest.mark.parametrize(
    "body, status, text",
    [
        ({"model": "m", "from": "x:cloud"}, 403, "ollama cloud is disabled: remote model is"),
        ({"model": "m", "license": 7}, 400, "license must be a string or an array of strings"),
        (
            {"model": "m", "files": ["a"]},
            400,
            "json: cannot unmarshal array into Go struct field CreateRequest.files of type ",
        ),
        (
            {"model": "m", "files": {"a": 1}},
            400,
            "json: cannot unmarshal number into Go struct field CreateRequest.files of type string",
        ),
    ],
)
async def test_bodies_that_are_refused(http: Http, body: Any, status: int, text: str) -> None:
    found = await answer(http, "POST", "/api/create", body)
    assert found[0] == status
    assert json.loads(found[1])["error"].startswith(text)


async def test_a_client_that_leaves_ends_the_work(http: Http, creator: FakeCreator) -> None:
    waiting = asyncio.Event()
    creator.script = (LINES[0], waiting)
    async with http.post("/api/create", json={"model": "m", "from": "b"}) as reply:
        await reply.content.readline()
        await waiting.wait()
        reply.close()
    await creator.closed.wait()
