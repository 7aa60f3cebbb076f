"""A registry in memory over real HTTP, with configurable faults."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
MODEL = "application/vnd.ollama.image.model"

#: Answers one request for the blob's bytes `data` from `start` in a faulty way.
Fault = Callable[[web.Request, bytes, int], Awaitable[web.StreamResponse]]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer(data: bytes, media: str = MODEL) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest_of(data), "size": len(data)}


@dataclass(frozen=True, slots=True)
class Seen:
    """One request.  range: the header's value; empty without one."""

    method: str
    path: str
    query: dict[str, str]
    host: str
    range: str
    authorization: str
    headers: dict[str, str]


@dataclass
class FakeRegistry:
    """A registry with a list of faults for each kind of request.

    faults: each request for bytes takes one; further requests are answered normally.
    manifest_faults, token_faults, location_faults, commit_faults: likewise for requests of
    manifests, tokens and blob locations, and for the last request of an upload, which takes effect
    nevertheless.

    storage: blobs are on another host (another name of this one), as at Ollama's registry.
    token: required by all requests; `/token` returns it if `admits` allows, or token_answer.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    manifest_faults: deque[Fault] = field(default_factory=deque)
    token_faults: deque[Fault] = field(default_factory=deque)
    location_faults: deque[Fault] = field(default_factory=deque)
    commit_faults: deque[Fault] = field(default_factory=deque)
    token_answer: str = ""
    storage: bool = False
    ranges: bool = True
    token: str = ""
    realm: str = ""
    admits: Callable[[web.Request], bool] = lambda _: True
    seen: list[Seen] = field(default_factory=list)
    uploads: dict[str, bytearray] = field(default_factory=dict)
    url: str = ""

    def add(self, model: str, *layers: bytes, config: bytes = b"{}") -> bytes:
        """Add a model `namespace/model/tag` with these layers; return its manifest."""
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": layer(config, CONFIG),
                "layers": [layer(data) for data in layers],
            }
        ).encode()
        self.blobs |= {digest_of(data): data for data in (*layers, config)}
        self.manifests[model] = manifest
        return manifest

    def name(self, model: str) -> str:
        """Return the name to pull, `http://host/namespace/model:tag`, of `namespace/model/tag`."""
        namespace, short, tag = model.split("/")
        return f"{self.url}/{namespace}/{short}:{tag}"

    def fetches(self, data: bytes) -> list[str]:
        """Return the requested ranges of the blob."""
        wanted = digest_of(data)
        return [
            seen.range
            for seen in self.seen
            if seen.method == "GET" and wanted in seen.path and seen.range != "bytes=0-0"
        ]

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeRegistry]:
        app = web.Application(client_max_size=2**30, middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/token", self._token),
                web.get("/storage/{digest}", self._bytes),
                web.put("/storage/{upload}/{offset}", self._store),
                web.get("/v2/{ns}/{model}/manifests/{tag}", self._manifest),
                web.put("/v2/{ns}/{model}/manifests/{tag}", self._put_manifest),
                web.route("*", "/v2/{ns}/{model}/blobs/{digest:sha256.*}", self._blob),
                web.post("/v2/{ns}/{model}/blobs/uploads/", self._begin),
                web.get("/v2/{ns}/{model}/blobs/uploads/{id}", self._status),
                web.patch("/v2/{ns}/{model}/blobs/uploads/{id}", self._patch),
                web.put("/v2/{ns}/{model}/blobs/uploads/{id}", self._commit),
            ]
        )
        # A stalled answer ends with its client or with the server.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            scheme = "https" if tls else "http"
            self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            await runner.cleanup()

    # ------------------------------------------------------------------ tokens

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        headers = request.headers
        self.seen.append(
            Seen(
                request.method,
                request.path,
                dict(request.query),
                request.host,
                headers.get("Range", ""),
                headers.get("Authorization", ""),
                dict(headers),
            )
        )
        allowed = not self.token or headers.get("Authorization") == f"Bearer {self.token}"
        if request.path.startswith("/v2/") and not allowed:
            realm = self.realm or f"{self.url}/token"
            challenge = f'Bearer realm="{realm}",service="fake",scope="repository:a:pull repo:b:*"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return await handler(request)

    async def _token(self, request: web.Request) -> web.StreamResponse:
        if self.token_faults:
            return await self.token_faults.popleft()(request, b"promised", 0)
        if not self.admits(request):
            return web.Response(status=401, text="who are you")
        return web.Response(text=self.token_answer or json.dumps({"access_token": self.token}))

    # ------------------------------------------------------------------ pull

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        if self.manifest_faults:
            return await self.manifest_faults.popleft()(request, b"promised", 0)
        found = self.manifests.get("/".join(request.match_info.values()))
        if found is None:
            return web.Response(status=404, text='{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        return web.Response(body=found, content_type=MANIFEST)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        digest = request.match_info["digest"]
        if digest not in self.blobs:
            return web.Response(status=404)
        if request.method == "HEAD":
            return web.Response(headers={"Content-Length": str(len(self.blobs[digest]))})
        if self.storage:
            url = f"{self.url.replace('127.0.0.1', 'localhost')}/storage/{digest}?signed=%2F"
            raise web.HTTPTemporaryRedirect(url)
        return await self._bytes(request)

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        data = self.blobs[request.match_info["digest"]]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        assert wanted is not None
        start, end = int(wanted[1]), int(wanted[2]) + 1
        if self.location_faults and (start, end) == (0, 1):
            return await self.location_faults.popleft()(request, b"promised", 0)
        if self.faults and (start, end) != (0, 1):
            return await self.faults.popleft()(request, data[start:end], start)
        if not self.ranges:
            return web.Response(body=data)
        said = f"bytes {start}-{end - 1}/{len(data)}"
        return web.Response(status=206, body=data[start:end], headers={"Content-Range": said})

    # ------------------------------------------------------------------ push

    async def _begin(self, request: web.Request) -> web.Response:
        if request.query.get("from") == "known/model":
            self.blobs[request.query["mount"]] = b"mounted"
            return web.Response(status=201)
        upload = str(len(self.uploads))
        self.uploads[upload] = bytearray()
        return self._next(request, upload, status=202)

    def _next(self, request: web.Request, upload: str, *, status: int) -> web.Response:
        path = f"/v2/{request.match_info['ns']}/{request.match_info['model']}/blobs/uploads"
        end = max(0, len(self.uploads[upload]) - 1)
        state = f"{path}/{upload}?state=a%2Fb{len(self.uploads[upload])}"
        headers = {"Location": state, "Range": f"0-{end}"}
        return web.Response(status=status, headers=headers)

    async def _status(self, request: web.Request) -> web.Response:
        upload = request.match_info["id"]
        if upload not in self.uploads:
            return web.Response(status=404)
        return self._next(request, upload, status=204)

    async def _patch(self, request: web.Request) -> web.StreamResponse:
        upload = request.match_info["id"]
        said = re.fullmatch(r"(\d+)-(\d+)", request.headers["Content-Range"])
        assert said is not None
        if self.storage:
            url = f"{self.url.replace('127.0.0.1', 'localhost')}/storage/{upload}/{said[1]}"
            response = self._next(request, upload, status=307)
            response.headers["Docker-Upload-Location"] = response.headers["Location"]
            response.headers["Location"] = url
            return response
        if self.faults:
            return await self.faults.popleft()(request, await request.read(), int(said[1]))
        if int(said[1]) != len(self.uploads[upload]):
            return web.Response(status=416)
        self.uploads[upload] += await request.read()
        return self._next(request, upload, status=202)

    async def _store(self, request: web.Request) -> web.StreamResponse:
        data, offset = await request.read(), int(request.match_info["offset"])
        if self.faults:
            return await self.faults.popleft()(request, data, offset)
        whole = self.uploads[request.match_info["upload"]]
        whole.extend(bytes(max(0, offset + len(data) - len(whole))))
        whole[offset : offset + len(data)] = data
        return web.Response()

    async def _commit(self, request: web.Request) -> web.StreamResponse:
        upload = request.match_info["id"]
        if upload not in self.uploads:
            return web.Response(status=404)
        data = bytes(self.uploads.pop(upload))
        if digest_of(data) != request.query["digest"]:
            return web.Response(status=400, text="DIGEST_INVALID")
        self.blobs[request.query["digest"]] = data
        if self.commit_faults:
            return await self.commit_faults.popleft()(request, b"promised", 0)
        return web.Response(status=201)

    async def _put_manifest(self, request: web.Request) -> web.Response:
        self.manifests["/".join(request.match_info.values())] = await request.read()
        return web.Response(status=201)


# --------------------------------------------------------------------------- faults


def status(code: int, text: str = "", **headers: str) -> Fault:
    async def answer(_: web.Request, _data: bytes, _start: int) -> web.StreamResponse:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        return web.Response(status=code, text=text, headers=named)

    return answer


def cut(n: int) -> Fault:
    """Send n bytes, then drop the connection."""

    async def answer(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        response = await _promised(request, data)
        await response.write(data[:n])
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


def stall(n: int, stalled: asyncio.Event, code: int = 206) -> Fault:
    """Send n bytes, set the event, and stall."""

    async def answer(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        response = await _promised(request, data, code)
        await response.write(data[:n])
        stalled.set()
        await asyncio.Event().wait()
        return response

    return answer


def silent(heard: asyncio.Event) -> Fault:
    """Set the event when the request arrives, and never answer it."""

    async def answer(_: web.Request, _data: bytes, _start: int) -> web.StreamResponse:
        heard.set()
        await asyncio.Event().wait()
        raise AssertionError

    return answer


def then(event: asyncio.Event) -> Fault:
    """Answer normally once the event is set."""

    async def answer(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        response = await _promised(request, data)
        await event.wait()
        await response.write(data)
        return response

    return answer


def at(offset: int) -> Fault:
    """Send the right bytes with the wrong range."""

    async def answer(_: web.Request, data: bytes, _start: int) -> web.StreamResponse:
        said = f"bytes {offset}-{offset + len(data) - 1}/*"
        return web.Response(status=206, body=data, headers={"Content-Range": said})

    return answer


def damaged(request: web.Request, data: bytes, start: int) -> Awaitable[web.StreamResponse]:
    """Send the right number of wrong bytes."""

    async def answer() -> web.StreamResponse:
        response = await _promised(request, data)
        await response.write(bytes(byte ^ 1 for byte in data))
        return response

    return answer()


async def _promised(request: web.Request, data: bytes, code: int = 206) -> web.StreamResponse:
    response = web.StreamResponse(status=code)
    response.content_length = len(data)
    await response.prepare(request)
    return response
