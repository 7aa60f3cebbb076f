"""Progress lines of a pull, and the store after its success, failure or cancellation."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from specd import core
from specd.errors import InvalidName, RegistryError, ShuttingDown, StoreError
from specd.registry.download import STALL_S, DigestMismatch
from specd.registry.remote import BODY_TIMEOUT_S, RESPONSE_TIMEOUT_S
from specd.store import name as names
from tests.registry.conftest import Client
from tests.registry.fake_registry import (
    MANIFEST,
    FakeRegistry,
    Fault,
    at,
    cut,
    damaged,
    digest_of,
    layer,
    stall,
    status,
    then,
)
from tests.registry.test_partial import as_ollama_writes

Clients = Callable[[str], Client]

#: Three parts in ten spans.
WEIGHTS = random.Random(1).randbytes(9500)
SYSTEM = b"Be brief."
CONFIG = b'{"model_format":"gguf"}'


@pytest.fixture
def name(remote: FakeRegistry) -> str:
    remote.add("me/m/latest", WEIGHTS, SYSTEM, config=CONFIG)
    return remote.name("me/m/latest")


def done(data: bytes) -> core.Progress:
    digest = digest_of(data)
    return core.Progress(
        status=f"pulling {digest[7:19]}", digest=digest, total=len(data), completed=len(data)
    )


ENDING = [
    core.Progress(status="verifying sha256 digest"),
    core.Progress(status="writing manifest"),
    core.Progress(status="success"),
]


def assert_whole(client: Client, remote: FakeRegistry) -> None:
    """Assert that the store holds exactly the model, byte for byte."""
    blobs = (WEIGHTS, SYSTEM, CONFIG)
    for data in blobs:
        assert client.writer.blob_path(digest_of(data)).read_bytes() == data
    host = remote.url.removeprefix("http://")
    manifest = f"manifests/{host}/me/m/latest"
    paths = {f"blobs/{digest_of(data).replace(':', '-')}" for data in blobs}
    assert client.files() == {manifest, *paths}
    assert (client.root / manifest).read_bytes() == remote.manifests["me/m/latest"]


@pytest.mark.contract("pull.sequence", "pull.headers", "pull.no-redirect")
async def test_the_lines_of_a_pull(client: Client, remote: FakeRegistry, name: str) -> None:
    lines = await client.pull(name)
    assert lines[0] == core.Progress(status="pulling manifest")
    finished = [line for line in lines if line.total and line.completed == line.total]
    assert finished == [done(WEIGHTS), done(SYSTEM), done(CONFIG)]
    assert lines[-3:] == ENDING
    assert_whole(client, remote)
    assert client.timers.slept.count(1.0) == len(client.timers.slept), "nothing failed"
    assert remote.seen[0].headers["Accept"] == MANIFEST
    assert remote.seen[0].headers["User-Agent"].startswith("ollama/")


@pytest.mark.contract("pull.cached")
async def test_a_stored_blob_is_not_fetched_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    await client.pull(name)
    remote.seen.clear()
    assert await client.pull(name) == [
        core.Progress(status="pulling manifest"),
        *(done(data) for data in (WEIGHTS, SYSTEM, CONFIG)),
        *ENDING,
    ]
    assert [seen.path for seen in remote.seen] == ["/v2/me/m/manifests/latest"]


async def test_a_model_is_found_again_ignoring_case(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    await client.pull(name)
    host, _, rest = name.rpartition("/me/")
    assert (await client.pull(f"{host}/ME/{rest.upper()}"))[-1] == core.Progress(status="success")


async def test_a_truncated_blob_is_fetched_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    await client.pull(name)
    client.writer.blob_path(digest_of(WEIGHTS)).write_bytes(WEIGHTS[:100])
    await client.pull(name)
    assert_whole(client, remote)


@pytest.mark.contract("pull.sequence")
async def test_a_newer_version_removes_blobs_that_only_the_old_one_used(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.add("me/m/latest", WEIGHTS, b"Be long.", config=CONFIG)
    await client.pull(name)
    remote.add("me/m/latest", WEIGHTS, SYSTEM, config=CONFIG)
    lines = await client.pull(name)
    assert [line.status for line in lines[-3:]] == [
        "writing manifest",
        "removing unused layers",
        "success",
    ]
    assert_whole(client, remote)


@pytest.mark.contract("pull.ranges", "pull.redirect")
async def test_storage_on_another_host_gets_no_token(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.storage, remote.token = True, "secret"
    await client.pull(name)
    assert_whole(client, remote)
    fetched = [seen for seen in remote.seen if seen.path.startswith("/storage/")]
    assert sorted(remote.fetches(WEIGHTS)) == sorted(
        f"bytes={start}-{min(start + 1000, end) - 1}"
        for part, end in ((0, 4000), (4000, 8000), (8000, 9500))
        for start in range(part, end, 1000)
    )
    assert all(seen.host.startswith("localhost:") for seen in fetched)
    assert not any(seen.authorization for seen in fetched)
    located = [seen for seen in remote.seen if "/blobs/" in seen.path]
    assert {seen.authorization for seen in located} == {"Bearer secret"}
    assert len(located) == 3, "one request for each blob"


async def test_a_server_without_ranges_is_read_over_one_connection(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.ranges = False
    await client.pull(name)
    assert_whole(client, remote)


async def test_a_server_that_stops_supporting_ranges(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    await client.pull_until(name, lambda line: line.completed >= 0 and bool(line.total))
    remote.ranges = False
    await client.pull(name)
    assert_whole(client, remote)


@pytest.mark.contract("pull.ranges")
@pytest.mark.parametrize(
    "fault",
    [
        cut(0),
        cut(500),
        status(500),
        status(503, "busy"),
        status(408),
        status(403, "expired"),
        status(429, Retry_After="7"),
    ],
)
async def test_temporary_errors_are_retried(
    client: Client, remote: FakeRegistry, name: str, fault: Fault
) -> None:
    remote.faults.extend([fault] * 4)
    await client.pull(name)
    assert_whole(client, remote)


async def test_a_cut_connection_is_resumed(client: Client, remote: FakeRegistry, name: str) -> None:
    remote.faults.append(cut(400))
    await client.pull(name)
    assert_whole(client, remote)
    starts = {int(wanted[6:].split("-")[0]) for wanted in remote.fetches(WEIGHTS)}
    assert [start for start in sorted(starts) if start % 1000] == [
        start for start in sorted(starts) if start % 1000 == 400
    ]


async def test_retry_after_is_respected(client: Client, remote: FakeRegistry, name: str) -> None:
    remote.faults.append(status(429, Retry_After="7"))
    await client.pull(name)
    assert 7.0 in client.timers.slept


@pytest.mark.contract("pull.retries", "pull.refusal")
async def test_six_failures_in_a_row_end_the_pull(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.faults.extend([status(500, "broken")] * 1000)
    with pytest.raises(RegistryError, match="max retries exceeded: 500: broken"):
        await client.pull(name)
    assert {1.0, 2.0, 4.0, 8.0, 16.0} <= set(client.timers.slept)
    assert not client.manifests()


@pytest.mark.contract("pull.refusal")
async def test_a_permanent_refusal_ends_the_pull_at_once(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.faults.extend([status(451, "not in your country")] * 1000)
    with pytest.raises(RegistryError, match="451: not in your country"):
        await client.pull(name)
    assert not client.manifests()


async def watched(pull: asyncio.Task[Any], client: Client, seconds: float) -> None:
    """Expire the watches of that length until the pull ends."""
    while not pull.done():
        await asyncio.wait({pull}, timeout=0.05)
        client.timers.expire(seconds)
    await pull


@pytest.mark.contract("pull.ranges")
@pytest.mark.parametrize("code", [206, 500, 403])
async def test_a_stalled_connection_is_replaced(
    client: Client, remote: FakeRegistry, name: str, code: int
) -> None:
    stalled = asyncio.Event()
    remote.faults.append(stall(300, stalled, code))
    pull = asyncio.create_task(client.pull(name))
    await stalled.wait()
    await watched(pull, client, STALL_S)
    assert_whole(client, remote)


async def test_a_registry_that_stalls_at_the_redirect_is_asked_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    stalled = asyncio.Event()
    remote.location_faults.append(stall(3, stalled, 503))
    pull = asyncio.create_task(client.pull(name))
    await stalled.wait()
    await watched(pull, client, STALL_S)
    assert_whole(client, remote)


async def test_a_stalled_small_answer_is_requested_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    stalled = asyncio.Event()
    remote.manifest_faults.append(stall(3, stalled, 200))
    pull = asyncio.create_task(client.pull(name))
    await stalled.wait()
    await watched(pull, client, RESPONSE_TIMEOUT_S + BODY_TIMEOUT_S)
    assert_whole(client, remote)


async def test_failures_with_progress_do_not_add_up(client: Client, remote: FakeRegistry) -> None:
    remote.add("me/m/x", SYSTEM, config=SYSTEM)
    remote.faults.extend([cut(1)] * (len(SYSTEM) - 1))
    await client.pull(remote.name("me/m/x"))
    assert client.writer.blob_path(digest_of(SYSTEM)).read_bytes() == SYSTEM


async def test_bytes_of_another_range_are_refused(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.faults.extend([at(7)] * 1000)
    with pytest.raises(RegistryError, match="the registry sent bytes 7-"):
        await client.pull(name)
    assert not client.manifests()


async def test_blobs_shared_with_a_running_pull_are_not_removed(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.add("me/other/x", WEIGHTS)
    await client.pull(remote.name("me/other/x"))
    stalled, go = asyncio.Event(), asyncio.Event()

    async def later(request: web.Request, data: bytes, start: int) -> web.StreamResponse:
        stalled.set()
        return await then(go)(request, data, start)

    remote.faults.append(later)
    pull = asyncio.create_task(client.pull(name))
    await stalled.wait()
    client.writer.delete(names.parse(remote.name("me/other/x")))
    go.set()
    await pull
    assert_whole(client, remote)


async def test_an_expired_url_is_requested_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.storage = True
    remote.faults.append(status(403, "Request has expired"))
    await client.pull(name)
    assert_whole(client, remote)
    of_weights = [s for s in remote.seen if s.path.endswith(f"/blobs/{digest_of(WEIGHTS)}")]
    assert len(of_weights) == 2


@pytest.mark.contract("pull.digest")
async def test_a_wrong_digest_leaves_nothing_behind(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.faults.append(damaged)
    with pytest.raises(DigestMismatch) as raised:
        await client.pull(name)
    want = f"digest mismatch, file must be downloaded again: want {digest_of(WEIGHTS)}, got sha256:"
    assert str(raised.value).startswith(want)
    assert client.files() == set()
    await client.pull(name)
    assert_whole(client, remote)


async def test_a_damaged_resumed_download_starts_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    client.writer.prepare()
    path = client.writer.partial_path(digest_of(WEIGHTS))
    as_ollama_writes(path, len(WEIGHTS), (0, 5000, 5000), (5000, 4500, 1200))
    lines = await client.pull(name)
    assert lines[-3:] == ENDING
    assert_whole(client, remote)


@pytest.mark.contract("pull.resume")
async def test_a_cancelled_pull_keeps_its_bytes(
    clients: Clients, remote: FakeRegistry, name: str
) -> None:
    first, stalled = clients("store"), asyncio.Event()
    remote.faults.extend([stall(700, stalled)] * 10)
    await first.pull_until(name, lambda line: line.completed >= 6800)
    assert not first.manifests()
    kept = {path for path in first.files() if "-partial" in path}
    assert len(kept) == 4, "the bytes, and the state of three parts"
    remote.faults.clear()
    remote.seen.clear()
    again = clients("store")  # a restarted daemon
    await again.pull(name)
    assert_whole(again, remote)
    fetched = sum(
        int(end) - int(start) + 1
        for start, end in (wanted[6:].split("-") for wanted in remote.fetches(WEIGHTS))
    )
    # The bytes from the start of each part count: 700 in each of three parts.
    assert fetched == len(WEIGHTS) - 3 * 700


@pytest.mark.contract("pull.shared")
async def test_pulls_of_one_model_share_its_download(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    go = asyncio.Event()
    remote.faults.extend([then(go)] * 10)
    pulls = [asyncio.create_task(client.pull(name)) for _ in range(3)]
    while len(remote.fetches(WEIGHTS)) < 10:
        await asyncio.wait(pulls, timeout=0.01)
    go.set()
    for lines in await asyncio.gather(*pulls):
        assert lines[-3:] == ENDING
    assert len(remote.fetches(WEIGHTS)) == 10
    assert_whole(client, remote)


@pytest.mark.contract("pull.shared")
async def test_the_download_stops_when_its_last_client_leaves(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    go, stalled = asyncio.Event(), asyncio.Event()
    remote.faults.extend([stall(100, stalled)] * 5 + [then(go)] * 5)
    pulls = [asyncio.create_task(client.pull(name)) for _ in range(2)]
    await stalled.wait()
    pulls[0].cancel()
    await asyncio.wait({pulls[0]})
    assert "download" in {task.get_name().split()[0] for task in asyncio.all_tasks()}
    pulls[1].cancel()
    await asyncio.wait({pulls[1]})
    assert "download" not in {task.get_name().split()[0] for task in asyncio.all_tasks()}
    remote.faults.clear()
    await client.pull(name)
    assert_whole(client, remote)


async def test_a_pull_that_begins_while_the_last_one_is_cancelled(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    stalled = asyncio.Event()
    remote.faults.extend([stall(100, stalled)] * 10)
    leaving = asyncio.create_task(client.pull(name))
    await stalled.wait()
    remote.faults.clear()
    leaving.cancel()
    lines = await client.pull(name)
    assert lines[-3:] == ENDING
    await asyncio.wait({leaving})
    assert_whole(client, remote)


async def test_two_stores_do_not_share_downloads(
    clients: Clients, remote: FakeRegistry, name: str
) -> None:
    one, other = clients("one"), clients("other")
    await asyncio.gather(one.pull(name), other.pull(name))
    assert_whole(one, remote)
    assert_whole(other, remote)


async def test_two_daemons_do_not_write_the_same_partial_file(
    clients: Clients, remote: FakeRegistry, name: str
) -> None:
    one, other, stalled = clients("store"), clients("store"), asyncio.Event()
    remote.faults.extend([stall(100, stalled)] * 10)
    pull = asyncio.create_task(one.pull(name))
    await stalled.wait()
    with pytest.raises(StoreError, match="another process is downloading"):
        await other.pull(name)
    pull.cancel()
    await asyncio.wait({pull})


async def test_closing_the_registry_ends_pulls_with_shutting_down(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    stalled = asyncio.Event()
    remote.faults.extend([stall(100, stalled)] * 10)
    pull = asyncio.create_task(client.pull(name))
    await stalled.wait()
    await client.registry.close()
    with pytest.raises(ShuttingDown):
        await pull


async def test_a_full_disk_is_detected_before_the_download(
    client: Client, remote: FakeRegistry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9531))
    with pytest.raises(StoreError, match="no space left on device"):
        await client.pull(name)
    assert remote.fetches(WEIGHTS) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9532))
    await client.pull(name)
    assert_whole(client, remote)


async def test_a_disk_that_fills_up_keeps_the_bytes(
    client: Client, remote: FakeRegistry, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if offset >= 4000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(StoreError, match="no space left on device"):
            await client.pull(name)
    assert not client.manifests()
    await client.pull(name)
    assert_whole(client, remote)


async def test_an_empty_blob_and_a_manifest_without_sizes(
    client: Client, remote: FakeRegistry
) -> None:
    remote.add("me/m/x", WEIGHTS, b"")
    manifest = json.loads(remote.manifests["me/m/x"])
    for entry in manifest["layers"]:
        del entry["size"]
    remote.manifests["me/m/x"] = json.dumps(manifest).encode()
    await client.pull(remote.name("me/m/x"))
    assert client.writer.blob_path(digest_of(b"")).read_bytes() == b""
    assert client.writer.blob_path(digest_of(WEIGHTS)).read_bytes() == WEIGHTS


async def test_a_manifest_with_a_wrong_size_is_refused(
    client: Client, remote: FakeRegistry
) -> None:
    remote.add("me/m/x", WEIGHTS)
    manifest = json.loads(remote.manifests["me/m/x"])
    manifest["layers"][0]["size"] = 9000
    remote.manifests["me/m/x"] = json.dumps(manifest).encode()
    with pytest.raises(RegistryError, match="has 9500 bytes, but the manifest says 9000"):
        await client.pull(remote.name("me/m/x"))
    assert not client.manifests()


@pytest.mark.contract("pull.unknown")
async def test_an_unknown_model_is_an_error(client: Client, remote: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match=r"^pull model manifest: file does not exist$"):
        await client.pull(remote.name("me/none/latest"))
    assert client.files() == set()


@pytest.mark.parametrize(
    "manifest,said",
    [
        (b"<html>", "the registry's answer is not a manifest"),
        (b'{"manifests":[]}', "the registry has a list of images under this name, not a model"),
        (b'{"fsLayers":[]}', "the registry's manifest is not the manifest of a model"),
        (
            json.dumps(
                {
                    "config": layer(b"{}", "application/vnd.docker.container.image.v1+json"),
                    "layers": [layer(b"x", "application/vnd.docker.image.rootfs.diff.tar.gzip")],
                }
            ).encode(),
            "the registry has an image of another kind under this name, no model",
        ),
    ],
)
async def test_an_image_that_is_no_model_is_refused_before_the_download(
    client: Client, remote: FakeRegistry, manifest: bytes, said: str
) -> None:
    remote.manifests["me/image/latest"] = manifest
    with pytest.raises(RegistryError) as raised:
        await client.pull(remote.name("me/image/latest"))
    assert str(raised.value) == f"pull model manifest: {said}"
    assert client.files() == set()


async def test_a_digest_that_is_a_path_is_refused(client: Client, remote: FakeRegistry) -> None:
    evil = layer(b"x") | {"digest": "sha256:../../../../etc/passwd"}
    manifest = {"config": layer(b"{}"), "layers": [evil]}
    remote.manifests["me/m/x"] = json.dumps(manifest).encode()
    with pytest.raises(StoreError, match="is not a digest"):
        await client.pull(remote.name("me/m/x"))


@pytest.mark.contract("pull.insecure")
async def test_plain_http_needs_insecure(client: Client, remote: FakeRegistry) -> None:
    with pytest.raises(RegistryError, match=r"^insecure protocol http$"):
        await anext(client.registry.pull(remote.name("me/m/latest")))


async def test_the_error_of_a_registry_without_tls_mentions_insecure(
    client: Client, remote: FakeRegistry
) -> None:
    lines = client.registry.pull(remote.name("me/m/latest").replace("http:", "https:"))
    await anext(lines)
    with pytest.raises(RegistryError, match=r"a registry over plain HTTP needs `insecure`$"):
        await anext(lines)


async def test_a_redirect_to_an_invalid_url_is_refused(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.faults.extend([status(302, Location="http://[")] * 100)
    with pytest.raises(RegistryError, match="a redirect to an invalid URL"):
        await client.pull(name)


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
async def test_a_redirect_to_another_protocol_is_refused(
    client: Client, remote: FakeRegistry, name: str, target: str
) -> None:
    remote.manifest_faults.extend([status(302, Location=target)] * 100)
    with pytest.raises(RegistryError, match=r"is not followed|to nowhere"):
        await client.pull(name)
    remote.manifest_faults.clear()
    remote.faults.extend([status(302, Location=target)] * 100)
    with pytest.raises(RegistryError, match=r"is not followed|to nowhere"):
        await client.pull(name)
    assert client.manifests() == set()


async def test_a_busy_registry_is_asked_again(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.manifest_faults.extend([status(503), cut(0)])
    await client.pull(name)
    assert_whole(client, remote)
    assert client.timers.slept[:2] == [1.0, 2.0]


async def test_a_registry_that_stays_busy_is_an_error(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.manifest_faults.extend([status(503, "busy", Retry_After="900")] * 3)
    with pytest.raises(RegistryError, match=r"^pull model manifest: 503: busy$"):
        await client.pull(name)
    assert client.timers.slept == [60.0, 60.0]


async def test_a_manifest_may_be_on_another_host(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    moved = f"{remote.url.replace('127.0.0.1', 'localhost')}/v2/me/m/manifests/latest"
    remote.manifest_faults.append(status(307, Location=moved))
    await client.pull(name)
    assert_whole(client, remote)


async def test_the_number_of_redirects_is_limited(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    remote.manifest_faults.extend([status(302, Location="/v2/me/m/manifests/latest")] * 100)
    with pytest.raises(RegistryError, match="more than 10 redirects"):
        await client.pull(name)


@pytest.mark.contract("pull.names")
async def test_an_invalid_name_fails_before_any_request(client: Client) -> None:
    with pytest.raises(InvalidName, match="invalid model name"):
        await anext(client.registry.pull("a b"))


async def test_an_unreachable_registry_is_an_error(client: Client, unused_tcp_port: int) -> None:
    with pytest.raises(RegistryError, match="pull model manifest: GET http"):
        await client.pull(f"http://127.0.0.1:{unused_tcp_port}/me/m")


async def test_a_pull_keeps_the_case_of_the_name_on_disk(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    await client.pull(name)
    remote.add("Me/M/Latest", WEIGHTS, SYSTEM, config=CONFIG)
    await client.pull(remote.name("Me/M/Latest"))
    assert len(client.manifests()) == 1
    path = client.writer.manifest_path(names.parse(name))
    assert path.relative_to(client.root) == Path(*client.manifests())


@pytest.mark.contract("pull.resume")
async def test_ollamas_partial_download_is_resumed(
    client: Client, remote: FakeRegistry, name: str
) -> None:
    client.writer.prepare()
    path = client.writer.partial_path(digest_of(WEIGHTS))
    # Two parts instead of three: another version may use other sizes.
    as_ollama_writes(path, len(WEIGHTS), (0, 5000, 5000), (5000, 4500, 1200))
    with path.open("r+b") as file:
        file.write(WEIGHTS[:6200])
    await client.pull(name)
    assert_whole(client, remote)
    assert min(int(wanted[6:].split("-")[0]) for wanted in remote.fetches(WEIGHTS)) == 6200
