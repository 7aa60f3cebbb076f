"""Proxies from the environment."""

from __future__ import annotations

import pytest
from yarl import URL

from specd.registry.sessions import proxy_for
from tests.registry.conftest import Client
from tests.registry.fake_registry import FakeRegistry, digest_of


@pytest.fixture(autouse=True)
def no_proxy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.delenv(name, raising=False)


@pytest.mark.contract("env.proxy")
@pytest.mark.parametrize(
    "url,proxy",
    [
        ("https://registry.ollama.ai/v2/", "http://user:pass@proxy.lan:3128"),
        ("http://plain.example/v2/", None),
        ("https://host.corp.lan/v2/", None),
        ("https://direct.example:8443/v2/", None),
        ("https://localhost:5000/v2/", None),
        ("https://127.0.0.2:5000/v2/", None),
        ("https://[::1]:5000/v2/", None),
        ("https://192.168.0.9/v2/", "http://user:pass@proxy.lan:3128"),
    ],
)
def test_proxy_for_a_url(url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "user:pass@proxy.lan:3128")
    monkeypatch.setenv("NO_PROXY", "corp.lan, direct.example:8443")
    assert proxy_for(URL(url)) == (URL(proxy) if proxy else None)


@pytest.mark.contract("env.proxy")
async def test_a_pull_through_a_proxy(
    client: Client, remote: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", remote.url.replace("http://", "http://me:secret@"))
    remote.add("me/m/x", b"weights")
    await client.pull("http://registry.invalid/me/m:x")
    assert client.writer.has_blob(digest_of(b"weights"))
    assert {seen.host for seen in remote.seen} == {"registry.invalid"}
    assert {seen.headers["Proxy-Authorization"] for seen in remote.seen} == {"Basic bWU6c2VjcmV0"}


@pytest.mark.contract("pull.hf")
@pytest.mark.parametrize("host", ["hf.co", "huggingface.co"])
async def test_hugging_face_is_an_ordinary_registry(
    host: str, client: Client, remote: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", remote.url)
    remote.add("user/Repo-GGUF/Q4_K_M", b"weights")
    await client.pull(f"{host}/user/Repo-GGUF:Q4_K_M")
    assert client.manifests() == {f"manifests/{host}/user/Repo-GGUF/Q4_K_M"}
    assert {seen.host for seen in remote.seen} == {host}
    assert all(seen.headers["User-Agent"].startswith("ollama/") for seen in remote.seen)
