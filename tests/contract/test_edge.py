"""Contract 1.1 and 8: routes, methods, origins and hosts, at a daemon on loopback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import specd
from tests.contract.conftest import ContractClient
from tests.daemon_process import FAKE_ENGINE, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON_UTF8 = "application/json; charset=utf-8"


# --------------------------------------------------------------------------- routes


@pytest.mark.contract("routes.root", "routes.specd-version", "routes.head")
async def test_the_daemon_answers_its_heartbeat(contract_client: ContractClient) -> None:
    for method, body in (("GET", b"Ollama is running"), ("HEAD", b"")):
        async with contract_client.daemon.http.request(method, "/") as reply:
            assert (reply.status, await reply.read()) == (200, body)
            assert reply.headers["Content-Type"].startswith("text/plain")
            assert reply.headers["Server"] == f"specd/{specd.__version__}"


@pytest.mark.contract("routes.version", "routes.specd-version", "routes.head")
async def test_the_version_is_one_that_clients_accept(contract_client: ContractClient) -> None:
    found = (await contract_client.get("/api/version")).json
    level = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", found["version"])
    assert level is not None
    assert tuple(map(int, level.groups())) >= (0, 6, 4)
    assert found["specd_version"] == specd.__version__
    for path in ("/api/version", "/api/tags"):
        async with contract_client.daemon.http.head(path) as reply:
            assert (reply.status, await reply.read()) == (200, b"")


@pytest.mark.contract("routes.status")
async def test_the_cloud_is_disabled(contract_client: ContractClient) -> None:
    reply = await contract_client.get("/api/status")
    assert (reply.status, reply.type) == (200, JSON_UTF8)
    assert reply.json["cloud"]["disabled"] is True
    assert reply.json["cloud"]["source"] in {"none", "env", "config", "both"}


@pytest.mark.contract("routes.me", "routes.signout", "routes.web")
@pytest.mark.parametrize(
    "method, path, status, text",
    [
        ("POST", "/api/me", 503, "account unavailable"),
        ("POST", "/api/signout", 401, "you are not currently signed in"),
        ("DELETE", "/api/user/keys/abc", 401, "you are not currently signed in"),
        (
            "POST",
            "/api/experimental/web_search",
            403,
            "ollama cloud is disabled: web search is unavailable",
        ),
        (
            "POST",
            "/api/experimental/web_fetch",
            403,
            "ollama cloud is disabled: web fetch is unavailable",
        ),
    ],
)
async def test_there_is_no_account(
    contract_client: ContractClient, method: str, path: str, status: int, text: str
) -> None:
    async with contract_client.daemon.http.request(method, path) as reply:
        assert (reply.status, await reply.json()) == (status, {"error": text})
        assert reply.headers["Content-Type"] == JSON_UTF8


@pytest.mark.contract("routes.recommendations")
async def test_recommendations_are_a_list(contract_client: ContractClient) -> None:
    reply = await contract_client.get("/api/experimental/model-recommendations")
    assert (reply.status, reply.json) == (200, {"recommendations": []})


@pytest.mark.contract("routes.not-found", "routes.not-routed")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        *("/api/tokenize", "/api/nothing", "/API/tags"),
        *("/v1/images/generations", "/v1/images/edits"),
        *("/v1/audio/speech", "/v1/audio/translations"),
    ],
)
async def test_unknown_paths_are_404(
    contract_client: ContractClient, method: str, path: str
) -> None:
    async with contract_client.daemon.http.request(method, path) as reply:
        assert (reply.status, await reply.text()) == (404, "404 page not found")
        assert reply.headers["Content-Type"].startswith("text/plain")


@pytest.mark.contract("routes.wrong-method", "routes.head")
@pytest.mark.parametrize(
    "method, path",
    [
        *(("HEAD", path) for path in ("/api/ps", "/api/status", "/api/chat", "/v1/models")),
        *(("GET", path) for path in ("/api/chat", "/api/pull", "/v1/messages", "/api/delete")),
        *(("PUT", path) for path in ("/", "/api/tags", "/api/blobs/sha256:0")),
        ("POST", "/api/delete"),
        ("DELETE", "/api/tags"),
        ("POST", "/api/version"),
    ],
)
async def test_a_wrong_method_is_405(
    contract_client: ContractClient, method: str, path: str
) -> None:
    async with contract_client.daemon.http.request(method, path) as reply:
        expected = "" if method == "HEAD" else "405 method not allowed"
        assert (reply.status, await reply.text()) == (405, expected)
        assert reply.headers["Content-Type"].startswith("text/plain")


@pytest.mark.contract("routes.trailing-slash")
@pytest.mark.parametrize(
    "method, path, status",
    [("GET", "/api/tags", 301), ("POST", "/api/chat", 307), ("DELETE", "/api/delete", 307)],
)
async def test_a_trailing_slash_is_taken_off(
    contract_client: ContractClient, method: str, path: str, status: int
) -> None:
    session = contract_client.daemon.http
    async with session.request(method, f"{path}/", allow_redirects=False) as reply:
        assert (reply.status, reply.headers["Location"]) == (status, path)


# --------------------------------------------------------------------------- origins and hosts


@pytest.mark.contract("edge.origins")
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_a_strange_page_gets_nothing(contract_client: ContractClient, method: str) -> None:
    headers = {"Origin": "https://evil.example"}
    for path in ("/", "/api/tags", "/nowhere"):
        async with contract_client.daemon.http.request(method, path, headers=headers) as reply:
            assert (reply.status, await reply.read()) == (403, b"")


@pytest.mark.contract("edge.origins", "edge.vary")
@pytest.mark.parametrize(
    "origin",
    [
        *(f"{scheme}://{host}{port}" for scheme in ("http", "https") for host in (
            "localhost", "127.0.0.1", "0.0.0.0") for port in ("", ":1234")),
        "app://x",
        "file://",
        "tauri://localhost",
        "vscode-webview://x",
        "vscode-file://y",
        "",
    ],
)  # fmt: skip
async def test_pages_of_this_machine_may_call(contract_client: ContractClient, origin: str) -> None:
    reply = await contract_client.get("/api/tags", **({"Origin": origin} if origin else {}))
    assert reply.status == 200
    async with contract_client.daemon.http.get(
        "/", headers={"Origin": origin} if origin else {}
    ) as answer:
        assert answer.headers.get("Access-Control-Allow-Origin") == (origin or None)
        assert answer.headers.get("Vary") == ("Origin" if origin else None)
        assert "Access-Control-Allow-Credentials" not in answer.headers


@pytest.mark.contract("edge.preflight")
async def test_a_preflight(contract_client: ContractClient) -> None:
    headers = {"Origin": "http://localhost:3000", "Access-Control-Request-Method": "POST"}
    async with contract_client.daemon.http.options("/api/chat", headers=headers) as reply:
        assert (reply.status, await reply.read()) == (204, b"")
        allowed = reply.headers["Access-Control-Allow-Methods"].split(",")
        assert allowed == ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        assert reply.headers["Access-Control-Max-Age"] == "43200"
        assert "Access-Control-Allow-Credentials" not in reply.headers
        named = {name.lower() for name in reply.headers["Access-Control-Allow-Headers"].split(",")}
    stainless = {
        *("arch", "async", "custom-poll-interval", "helper-method", "lang", "os"),
        *("package-version", "poll-helper", "retry-count", "runtime", "runtime-version", "timeout"),
    }
    ollamas = {
        *("authorization", "content-type", "user-agent", "accept", "x-requested-with"),
        *("openai-beta", *(f"x-stainless-{name}" for name in stainless)),
    }
    anthropics = {
        *("x-api-key", "anthropic-version", "anthropic-beta"),
        "anthropic-dangerous-direct-browser-access",
    }
    assert named == ollamas | anthropics


@pytest.mark.contract("edge.host", "edge.order")
async def test_a_strange_host_gets_nothing(contract_client: ContractClient) -> None:
    for path in ("/", "/api/tags", "/nowhere"):
        reply = await contract_client.get(path, Host="evil.example")
        assert (reply.status, reply.body) == (403, b"")
    for host in ("localhost", "box.local", "a.localhost", "b.internal", "192.168.1.9", "[::1]:1"):
        assert (await contract_client.get("/", Host=host)).status == 200
    # The origin is checked before the host, so this 403 has the CORS header.
    headers = {"Host": "evil.example", "Origin": "http://localhost"}
    async with contract_client.daemon.http.get("/", headers=headers) as answer:
        assert (answer.status, await answer.read()) == (403, b"")
        assert answer.headers["Access-Control-Allow-Origin"] == "http://localhost"


@pytest.mark.contract("edge.any-host", "edge.wildcard")
async def test_on_all_interfaces_any_name_will_do(tmp_path: Path) -> None:
    origins = "https://*.example,http://exact"
    async with running(
        tmp_path, engine=FAKE_ENGINE, OLLAMA_HOST="0.0.0.0:0", OLLAMA_ORIGINS=origins
    ) as daemon:
        url = f"http://127.0.0.1:{daemon.url.rpartition(':')[2]}/"
        for headers, status in (
            ({"Host": "any.example"}, 200),
            ({"Origin": "https://a.b.example"}, 200),
            ({"Origin": "http://exact"}, 200),
            ({"Origin": "http://exact.not"}, 403),
        ):
            async with daemon.http.get(url, headers=headers) as reply:
                assert reply.status == status


@pytest.mark.contract("edge.wildcard")
async def test_a_star_is_everyone(tmp_path: Path) -> None:
    async with (
        running(tmp_path, engine=FAKE_ENGINE, OLLAMA_ORIGINS="*") as daemon,
        daemon.http.get("/", headers={"Origin": "https://any.where"}) as reply,
    ):
        assert reply.status == 200
        assert reply.headers["Access-Control-Allow-Origin"] == "*"


@pytest.mark.contract("edge.no-auth")
async def test_keys_are_optional_and_ignored(contract_client: ContractClient) -> None:
    for headers in ({}, {"Authorization": "Bearer anything"}, {"x-api-key": "anything"}):
        assert (await contract_client.get("/api/tags", **headers)).status == 200
