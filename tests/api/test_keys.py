"""SPECD_API_KEYS: accepted keys, and the errors without one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from specd.api.keys import Keys
from tests.api.fakes import FakeSettings, client

KEY, OTHER = "sk-first-key-0123456789", "sk-second-key-987654321"
PLAIN = {"model": "plain", "prompt": "x", "stream": False}


def bearer(key: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"Authorization": f"{scheme} {key}"}


def sending(headers: Mapping[str, str]) -> web.Request:
    return make_mocked_request("GET", "/", headers)


@pytest.mark.parametrize(
    "sent",
    [
        bearer(KEY),
        bearer(OTHER),
        bearer(KEY, "bearer"),
        bearer(KEY, "BEARER"),
        bearer(f"  {KEY} "),
        {"x-api-key": KEY},
        {"X-API-KEY": OTHER},
        {"x-api-key": "wrong", **bearer(KEY)},
        {"x-api-key": KEY, **bearer("none")},
    ],
)
async def test_a_request_with_a_key_is_answered(sent: Mapping[str, str]) -> None:
    async with (
        client(keys=Keys((KEY, OTHER))) as http,
        http.post("/api/generate", json=PLAIN, headers=sent) as reply,
    ):
        assert reply.status == 200
        assert (await reply.json())["done"] is True


@pytest.mark.parametrize(
    "sent",
    [
        {},
        bearer(""),
        bearer("none"),
        bearer(KEY[:-1]),
        bearer(KEY + "0"),
        bearer(KEY.upper()),
        bearer(f"{KEY} {OTHER}"),
        bearer(f"{KEY},{OTHER}"),
        bearer(KEY, "Basic"),
        bearer(KEY, "Token"),
        {"Authorization": KEY},
        {"Authorization": f"Bearer{KEY}"},
        {"Cookie": f"key={KEY}"},
        {"Proxy-Authorization": f"Bearer {KEY}"},
        {"x-api-key": ""},
        bearer("ключ\udcff"),
    ],
)
async def test_a_request_without_a_key_is_refused(sent: Mapping[str, str]) -> None:
    async with client(keys=Keys((KEY, OTHER))) as http:
        for method, path in (
            ("POST", "/api/generate"),
            ("GET", "/api/tags"),
            ("DELETE", "/api/delete"),
            ("GET", f"/api/version?key={KEY}"),
            ("POST", "/"),
            ("GET", "/nowhere"),
            ("OPTIONS", "/api/tags"),
        ):
            async with http.request(method, path, headers=sent) as reply:
                assert reply.status == 401, (method, path)
                assert reply.headers["WWW-Authenticate"] == "Bearer"
                assert KEY not in await reply.text()


@pytest.mark.parametrize("target", ["*", "//", "http://localhost"])
@pytest.mark.parametrize("sent, status", [("", b"401"), (f"X-Api-Key: {KEY}\r\n", b"404")])
async def test_a_target_that_is_not_a_path_is_refused_with_ollama_s_error(
    target: str, sent: str, status: bytes
) -> None:
    raw = f"OPTIONS {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{sent}\r\n"
    async with client(keys=Keys((KEY,)), settings=FakeSettings()) as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(raw.encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.split()[1] == status
    if not sent:
        assert body == b'{"error":"unauthorized: a valid API key is required"}'


@pytest.mark.parametrize(
    "path, error",
    [
        ("/api/chat", "unauthorized: a valid API key is required"),
        (
            "/v1/chat/completions",
            {
                "message": "unauthorized: a valid API key is required",
                "type": "invalid_request_error",
                "param": None,
                "code": "invalid_api_key",
            },
        ),
        (
            "/v1/messages",
            {
                "type": "authentication_error",
                "message": "unauthorized: a valid API key is required",
            },
        ),
    ],
)
async def test_the_refusal_has_the_form_of_its_dialect(path: str, error: object) -> None:
    async with client(keys=Keys((KEY,))) as http, http.post(path, data=b"no json") as reply:
        assert (reply.status, (await reply.json())["error"]) == (401, error)


@pytest.mark.parametrize("method, path", [("GET", "/"), ("HEAD", "/")])
async def test_public_paths_need_no_key(method: str, path: str) -> None:
    async with client(keys=Keys((KEY,))) as http, http.request(method, path) as reply:
        assert reply.status == 200


async def test_a_preflight_needs_no_key_and_a_page_may_read_the_refusal() -> None:
    page = {"Origin": "http://localhost:3000"}
    asks = page | {"Access-Control-Request-Method": "POST"}
    async with client(keys=Keys((KEY,))) as http:
        async with http.options("/v1/chat/completions", headers=asks) as reply:
            assert reply.status == 204
            assert "Authorization" in reply.headers["Access-Control-Allow-Headers"]
        async with http.post("/v1/chat/completions", json={}, headers=page) as reply:
            assert reply.status == 401
            assert reply.headers["Access-Control-Allow-Origin"] == page["Origin"]


async def test_a_key_opens_no_foreign_origin_or_host() -> None:
    async with client(keys=Keys((KEY,))) as http:
        for strange in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            async with http.get("/api/tags", headers=strange | bearer(KEY)) as reply:
                assert (reply.status, await reply.read()) == (403, b"")


@pytest.mark.contract("edge.no-auth")
async def test_without_keys_everybody_is_answered() -> None:
    async with client(settings=FakeSettings()) as http:
        for sent in ({}, bearer("anything")):
            async with http.get("/api/tags", headers=sent) as reply:
                assert reply.status == 200


async def test_keys_are_replaced_while_the_daemon_runs() -> None:
    keys = Keys((KEY,))
    async with client(keys=keys) as http:

        async def status(key: str) -> int:
            async with http.get("/api/tags", headers=bearer(key)) as reply:
                return reply.status

        assert (await status(KEY), await status(OTHER)) == (200, 401)
        keys.replace([OTHER])
        assert (await status(KEY), await status(OTHER)) == (401, 200)
        keys.replace([])
        assert (await status(KEY), await status("none")) == (200, 200)


def test_the_identifier_of_a_client_does_not_reveal_its_key() -> None:
    keys, others = Keys((KEY, OTHER)), Keys((KEY,))
    first = keys.client(sending(bearer(KEY)))
    assert first == keys.client(sending({"x-api-key": KEY}))
    assert first.startswith("key=")
    assert len(first) == len("key=") + 8
    assert first != keys.client(sending({"x-api-key": OTHER}))
    assert first != others.client(sending({"x-api-key": KEY}))  # another daemon's salt
    keys.replace([KEY])
    assert first == keys.client(sending({"x-api-key": KEY}))
    assert keys.client(sending({"x-api-key": OTHER})) == ""
    assert Keys().client(sending({"x-api-key": KEY})) == ""


def test_a_key_stands_in_no_attribute() -> None:
    keys: Any = Keys((KEY,))
    assert KEY not in repr(keys) + repr(vars(keys))


async def test_no_log_holds_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "specd")
    async with client(keys=Keys((KEY,))) as http:
        for sent in (bearer(KEY), bearer("sk-wrong-key-5555555"), {"x-api-key": KEY}):
            async with http.post("/api/generate", data="{", headers=sent) as reply:
                assert reply.status in {400, 401}
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("specd")]
    assert not [line for line in ours if KEY in line or "sk-wrong-key" in line]
