"""Pushes to a registry that takes the bytes itself, and to one that redirects to storage."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

import pytest
from aiohttp import web

from specd import core
from specd.errors import InvalidName, RegistryError, StoreError
from specd.registry.transfer_context import Sizes
from specd.registry.upload import STALL_S
from specd.store import name as names
from tests.registry.conftest import Client
from tests.registry.fake_registry import (
    FakeRegistry,
    Fault,
    digest_of,
    layer,
    silent,
    stall,
    status,
)

WEIGHTS = random.Random(2).randbytes(9500)
SYSTEM = b"Be brief."


def stored(client: Client, remote: FakeRegistry, *, parent: str = "") -> str:
    """Store a model for the client; return its name."""
    for data in (WEIGHTS, SYSTEM, b"{}"):
        client.writer.put(data)
    layers = [layer(WEIGHTS) | {"from": parent}, layer(SYSTEM)]
    manifest = {"config": layer(b"{}"), "layers": layers}
    name = remote.name("me/m/latest")
    client.writer.publish(names.parse(name), json.dumps(manifest).encode() + b"\n")
    return name


def assert_arrived(client: Client, remote: FakeRegistry, name: str) -> None:
    path = client.writer.manifest_path(names.parse(name))
    assert remote.manifests["me/m/latest"] == path.read_bytes(), "same bytes, same digest"
    assert {digest_of(data) for data in (WEIGHTS, SYSTEM, b"{}")} == set(remote.blobs)
    assert remote.blobs[digest_of(WEIGHTS)] == WEIGHTS
    assert remote.seen[-1].headers["Content-Type"].endswith("manifest.v2+json")


def done(data: bytes) -> core.Progress:
    digest = digest_of(data)
    return core.Progress(
        status=f"pushing {digest[7:19]}", digest=digest, total=len(data), completed=len(data)
    )


@pytest.mark.contract("push.sequence", "push.parts")
@pytest.mark.parametrize("storage", [False, True])
async def test_the_lines_of_a_push(client: Client, remote: FakeRegistry, storage: bool) -> None:
    remote.storage = storage
    name = stored(client, remote)
    lines = await client.push(name)
    assert lines[0] == core.Progress(status="retrieving manifest")
    finished = [line for line in lines if line.total and line.completed == line.total]
    assert finished == [done(WEIGHTS), done(SYSTEM), done(b"{}")]
    assert [line.status for line in lines[-2:]] == ["pushing manifest", "success"]
    assert_arrived(client, remote, name)
    assert client.timers.slept == [], "nothing failed"


@pytest.mark.contract("push.parts")
async def test_parts_are_sent_in_order(client: Client, remote: FakeRegistry) -> None:
    await client.push(stored(client, remote))
    patches = [seen for seen in remote.seen if seen.method == "PATCH"]
    ranges = [seen.headers["Content-Range"] for seen in patches]
    assert ranges[:3] == ["0-3999", "4000-7999", "8000-9499"]
    assert {seen.headers["X-Redirect-Uploads"] for seen in patches} == {"1"}


@pytest.mark.contract("push.parts")
async def test_the_commit_has_the_digest_and_the_etag(client: Client, remote: FakeRegistry) -> None:
    await client.push(stored(client, remote))
    said = [seen.query for seen in remote.seen if "etag" in seen.query]
    sums = b"".join(
        hashlib.md5(WEIGHTS[start : start + 4000], usedforsecurity=False).digest()
        for start in (0, 4000, 8000)
    )
    etag = f"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-3"
    assert said[0] == {"state": "a/b9500", "digest": digest_of(WEIGHTS), "etag": etag}


@pytest.mark.contract("push.mount")
async def test_a_blob_that_the_registry_has_is_not_sent(
    client: Client, remote: FakeRegistry
) -> None:
    name = stored(client, remote)
    await client.push(name)
    remote.seen.clear()
    lines = await client.push(name)
    assert [line for line in lines if line.total] == [done(WEIGHTS), done(SYSTEM), done(b"{}")]
    assert [seen.method for seen in remote.seen] == ["HEAD"] * 3 + ["PUT"]


@pytest.mark.contract("push.mount")
async def test_a_layer_of_a_known_model_is_mounted(client: Client, remote: FakeRegistry) -> None:
    await client.push(stored(client, remote, parent="known/model:x"))
    assert remote.blobs[digest_of(WEIGHTS)] == b"mounted"


@pytest.mark.parametrize("storage", [False, True])
@pytest.mark.parametrize("fault", [status(500), status(429), status(503)])
async def test_temporary_errors_are_retried(
    client: Client, remote: FakeRegistry, storage: bool, fault: Fault
) -> None:
    remote.storage = storage
    remote.faults.extend([fault] * 5)
    name = stored(client, remote)
    await client.push(name)
    assert_arrived(client, remote, name)
    assert client.timers.slept


async def test_a_lost_upload_starts_again(client: Client, remote: FakeRegistry) -> None:
    async def forget(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        remote.uploads.clear()
        remote.uploads["another"] = bytearray()
        return await status(404)(request, data, start)

    remote.faults.append(forget)
    name = stored(client, remote)
    await client.push(name)
    assert_arrived(client, remote, name)


async def test_bytes_that_arrived_are_not_sent_again(client: Client, remote: FakeRegistry) -> None:
    async def half(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        remote.uploads["0"] += data[:1500]
        return await status(502)(request, data, start)

    remote.faults.append(half)
    name = stored(client, remote)
    await client.push(name)
    assert_arrived(client, remote, name)
    patches = [s.headers["Content-Range"] for s in remote.seen if s.method == "PATCH"]
    assert patches[:3] == ["0-3999", "1500-5499", "5500-9499"]


@pytest.mark.parametrize("storage", [False, True])
async def test_a_refusal_ends_the_push(client: Client, remote: FakeRegistry, storage: bool) -> None:
    remote.storage = storage
    remote.faults.extend([status(400, "too large")] * 100)
    with pytest.raises(RegistryError, match="400: too large"):
        await client.push(stored(client, remote))
    assert remote.manifests == {}


async def test_six_failures_in_a_row_end_the_push(client: Client, remote: FakeRegistry) -> None:
    remote.faults.extend([status(500)] * 100)
    with pytest.raises(RegistryError, match="max retries exceeded: 500"):
        await client.push(stored(client, remote))
    assert client.timers.slept == [1.0, 2.0, 4.0, 8.0, 16.0]


async def test_closing_the_generator_ends_the_push(client: Client, remote: FakeRegistry) -> None:
    heard = asyncio.Event()
    remote.faults.append(silent(heard))
    async with aclosing(client.registry.push(stored(client, remote), insecure=True)) as lines:
        await anext(lines)
        await anext(lines)
        await heard.wait()
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("upload")]


@pytest.mark.contract("push.sequence")
async def test_a_push_of_a_missing_model_is_an_error(client: Client, remote: FakeRegistry) -> None:
    lines = client.registry.push(remote.name("me/m/x"), insecure=True)
    assert (await anext(lines)).status == "retrieving manifest"
    assert (await anext(lines)).status == "couldn't retrieve manifest"
    with pytest.raises(StoreError, match=r"open .*: no such file or directory"):
        await anext(lines)
    assert remote.seen == []


async def test_the_built_in_model_cannot_be_pushed(client: Client, remote: FakeRegistry) -> None:
    with pytest.raises(StoreError, match="specd-demo:latest is built in and cannot be pushed"):
        await client.push("specd-demo")
    assert remote.seen == []


async def test_a_model_with_a_damaged_blob_is_not_pushed(
    client: Client, remote: FakeRegistry
) -> None:
    name = stored(client, remote)
    client.writer.blob_path(digest_of(SYSTEM)).write_bytes(b"cut")
    with pytest.raises(StoreError, match="is missing or damaged"):
        await client.push(name)
    assert remote.seen == []


@pytest.mark.parametrize("fault", [silent, partial(stall, 3, code=503)])
async def test_a_stalled_push_fails(
    client: Client, remote: FakeRegistry, fault: Callable[[asyncio.Event], Fault]
) -> None:
    heard = asyncio.Event()
    remote.faults.append(fault(heard))
    name = stored(client, remote)
    push = asyncio.create_task(client.push(name))
    await heard.wait()
    while not push.done():
        client.timers.expire(STALL_S)
        await asyncio.wait({push}, timeout=0.05)
    await push
    assert_arrived(client, remote, name)


async def test_an_upload_is_not_repeated_when_only_the_commits_answer_is_lost(
    client: Client, remote: FakeRegistry
) -> None:
    remote.commit_faults.append(status(502))
    name = stored(client, remote)
    await client.push(name)
    assert_arrived(client, remote, name)
    n_uploads = [seen.method for seen in remote.seen].count("POST")
    assert n_uploads == 3, "one for each layer"


def test_upload_parts_are_a_64th_of_100_mb_to_1_gb() -> None:
    assert [Sizes().upload_part(total) for total in (1, 64 * 2 * 10**8, 10**12)] == [
        10**8,
        2 * 10**8,
        10**9,
    ]


@pytest.mark.parametrize("has_models", [False, True])
async def test_a_host_too_long_for_a_file_name_is_an_invalid_name(
    client: Client, remote: FakeRegistry, has_models: bool
) -> None:
    if has_models:
        stored(client, remote)
    with pytest.raises(InvalidName, match="a part of it has 300 characters") as raised:
        await client.push(f"{'a' * 300}/me/m:latest")
    assert str(client.writer.root) not in str(raised.value)
