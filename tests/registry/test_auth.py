"""Tokens: requested with and without a signature, and sent only to the registry."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from specd import core
from specd.errors import RegistryError
from specd.registry.authentication import text_to_sign
from specd.registry.remote import BODY_TIMEOUT_S, RESPONSE_TIMEOUT_S
from tests.registry.conftest import Client
from tests.registry.fake_registry import FakeRegistry, digest_of, stall, status

WEIGHTS = bytes(range(256)) * 20


def signed_by(folder: Path) -> Callable[[web.Request], bool]:
    """Return a check that a request has the signature of the key in that folder."""

    def admits(request: web.Request) -> bool:
        public, _, signature = request.headers.get("Authorization", "").partition(":")
        line = (folder / "id_ed25519.pub").read_text()
        key = load_ssh_public_key(line.encode())
        assert isinstance(key, Ed25519PublicKey)
        url = f"http://{request.host}{request.raw_path}"
        try:
            key.verify(base64.b64decode(signature), text_to_sign(url).encode())  # type: ignore[arg-type]
        except InvalidSignature:
            return False
        return line.split()[1] == public

    return admits


@pytest.mark.contract("pull.auth")
async def test_a_private_model_is_pulled_with_the_users_key(
    client: Client, remote: FakeRegistry
) -> None:
    assert client.keys is not None
    remote.token, remote.admits = "secret", signed_by(client.keys)
    remote.add("me/m/x", WEIGHTS)
    lines = await client.pull(remote.name("me/m/x"))
    assert lines[-1] == core.Progress(status="success")
    asked = [seen for seen in remote.seen if seen.path == "/token"]
    assert len(asked) == 1, "one token serves the whole pull"


async def test_a_token_server_may_refuse_the_signature(
    client: Client, remote: FakeRegistry
) -> None:
    remote.token = "anybody"
    remote.admits = lambda request: "Authorization" not in request.headers
    remote.add("me/m/x", WEIGHTS)
    await client.pull(remote.name("me/m/x"))


@pytest.mark.contract("pull.anonymous")
async def test_a_user_without_a_home_asks_without_a_key(
    tmp_path: Path, remote: FakeRegistry
) -> None:
    client = Client(tmp_path / "store", None)
    remote.token = "anybody"
    remote.add("me/m/x", WEIGHTS)
    await client.pull(remote.name("me/m/x"))
    assert {seen.authorization for seen in remote.seen if seen.path == "/token"} == {""}
    await client.registry.close()


async def test_an_unusable_key_is_ignored(client: Client, remote: FakeRegistry) -> None:
    assert client.keys is not None
    client.keys.mkdir()
    (client.keys / "id_ed25519").write_text("damaged")
    remote.token = "anybody"
    remote.add("me/m/x", WEIGHTS)
    await client.pull(remote.name("me/m/x"))


async def test_a_refused_token_is_reported(client: Client, remote: FakeRegistry) -> None:
    remote.token, remote.admits = "secret", lambda _: False
    remote.add("me/m/x", WEIGHTS)
    with pytest.raises(RegistryError, match="unauthorized: access denied: who are you"):
        await client.pull(remote.name("me/m/x"))


@pytest.mark.contract("pull.auth")
@pytest.mark.parametrize("answer", ["<html>", "[]", "{}", '{"token":""}', '{"token":"a\\nb"}'])
async def test_a_token_server_that_gives_no_token(
    answer: str, client: Client, remote: FakeRegistry
) -> None:
    remote.token, remote.token_answer = "secret", answer
    remote.add("me/m/x", WEIGHTS)
    with pytest.raises(RegistryError, match="the token server's answer"):
        await client.pull(remote.name("me/m/x"))


async def test_an_unreachable_realm_is_reported(client: Client, remote: FakeRegistry) -> None:
    remote.token, remote.realm = "secret", f"{remote.url}/none"
    remote.add("me/m/x", WEIGHTS)
    with pytest.raises(RegistryError, match="404: no token server"):
        await client.pull(remote.name("me/m/x"))


async def test_a_realm_on_another_host_gets_no_signature(
    client: Client, remote: FakeRegistry
) -> None:
    remote.token = "secret"
    remote.realm = f"{remote.url.replace('127.0.0.1', 'localhost')}/token"
    remote.add("me/m/x", WEIGHTS)
    with pytest.raises(RegistryError, match="does not match original host"):
        await client.pull(remote.name("me/m/x"))
    assert not any(seen.path == "/token" for seen in remote.seen)


async def test_a_stalled_token_server_is_asked_again(client: Client, remote: FakeRegistry) -> None:
    stalled = asyncio.Event()
    remote.token = "secret"
    remote.token_faults.append(stall(3, stalled, 200))
    remote.add("me/m/x", WEIGHTS)
    pull = asyncio.create_task(client.pull(remote.name("me/m/x")))
    await stalled.wait()
    while not pull.done():
        await asyncio.wait({pull}, timeout=0.05)
        client.timers.expire(RESPONSE_TIMEOUT_S + BODY_TIMEOUT_S)
    await pull


async def test_an_expired_token_is_replaced(client: Client, remote: FakeRegistry) -> None:
    remote.token = "old"
    remote.add("me/m/x", WEIGHTS)

    async def expire(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        remote.token = "new"
        return await status(503)(request, data, start)

    remote.faults.append(expire)
    await client.pull(remote.name("me/m/x"))
    assert client.writer.has_blob(digest_of(WEIGHTS))
    assert [seen.path for seen in remote.seen].count("/token") == 2
