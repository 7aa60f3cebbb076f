"""Each request has an id in its answer, one log line and one count, however it ends."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from specd import core, errors, metrics
from specd.api.interfaces import Monitoring
from specd.api.keys import Keys
from tests.api.fakes import DONE, HELLO, FakeGeneration, FakeRegistry, FakeSettings, client
from tests.waiting import wait_until

ASK = {"model": "plain", "prompt": "secret words"}
CHAT = {"model": "plain", "messages": [{"role": "user", "content": "secret words"}]}
MADE = re.compile(r"req_[0-9a-f]{16}")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "specd")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of each request's log line."""
    return [record.__dict__["fields"] for record in log.records if record.name == "specd.requests"]


async def line(log: pytest.LogCaptureFixture) -> dict[str, Any]:
    [found] = await until(log, 1)
    return found


async def until(log: pytest.LogCaptureFixture, n: int) -> list[dict[str, Any]]:
    """Return the lines once there are `n`; a line may be written after its answer."""
    await wait_until(lambda: len(lines(log)) >= n, every_s=0.001)
    return lines(log)


class Recording(FakeGeneration):
    """Update the request's record as the real generation does."""

    async def generate(self, request: core.GenerateRequest, /) -> Any:
        record = metrics.current_record()
        record.begin_answer("plain:latest")
        async for event in super().generate(request):
            if isinstance(event, core.Done):
                record.done = event
            else:
                record.add_tokens(1)
            yield event


# --------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "method,path,body",
    [
        ("GET", "/", None),
        ("GET", "/health", None),
        ("POST", "/api/generate", ASK),
        ("POST", "/api/generate", ASK | {"stream": False}),
        ("POST", "/api/generate", {"model": "none"}),
        ("POST", "/v1/chat/completions", CHAT | {"stream": True}),
        ("POST", "/v1/chat/completions", {}),
        ("POST", "/v1/messages", CHAT | {"max_tokens": 9}),
        ("POST", "/v1/messages", {}),
        ("GET", "/nowhere", None),
        ("GET", "/api/tags/", None),
        ("PUT", "/api/chat", None),
    ],
)
async def test_every_answer_has_an_id_and_the_log_the_same(
    method: str, path: str, body: object, log: pytest.LogCaptureFixture
) -> None:
    async with client() as http:
        async with http.request(method, path, json=body, allow_redirects=False) as reply:
            await reply.read()
            made = reply.headers["X-Request-Id"]
            assert MADE.fullmatch(made)
            assert (await line(log))["request_id"] == made
            assert reply.headers.get("request-id") == (made if "messages" in path else None)
        log.clear()
        sent = {"X-Request-Id": "my-own.id_1"}
        async with http.request(
            method, path, json=body, headers=sent, allow_redirects=False
        ) as reply:
            assert reply.headers["X-Request-Id"] == "my-own.id_1"
            assert (await line(log))["request_id"] == "my-own.id_1"


@pytest.mark.parametrize("sent", ["x" * 65, "a b", "key=1", 'a"b'])
async def test_an_id_that_cannot_stand_in_a_log_is_replaced(sent: str) -> None:
    async with client() as http, http.get("/", headers={"X-Request-Id": sent}) as reply:
        assert MADE.fullmatch(reply.headers["X-Request-Id"])


async def test_anthropic_s_errors_name_the_request_and_ollama_s_stay_as_they_are() -> None:
    async with client() as http:
        async with http.post("/v1/messages", json={}) as reply:
            assert (await reply.json())["request_id"] == reply.headers["request-id"]
        async with http.post("/api/show", json={"model": "none"}) as reply:
            assert await reply.json() == {"error": "model 'none:latest' not found"}


async def test_log_records_of_a_request_have_its_id(log: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Asking(FakeGeneration):
        async def generate(self, request: core.GenerateRequest, /) -> Any:
            await asyncio.to_thread(lambda: seen.append(metrics.current_request_id()))
            async with asyncio.TaskGroup() as group:
                group.create_task(self.note())
            async for event in super().generate(request):
                yield event

        async def note(self) -> None:
            seen.append(metrics.current_request_id())

    async with client(Asking()) as http, http.post("/api/generate", json=ASK) as reply:
        await reply.read()
        assert seen == [reply.headers["X-Request-Id"]] * 2
        async with http.post("/api/generate", json=ASK) as other:
            await other.read()
            assert seen[2:] == [other.headers["X-Request-Id"]] * 2
    assert metrics.current_request_id() == ""


# --------------------------------------------------------------------------- one line


@pytest.mark.parametrize(
    "path,body,dialect",
    [
        ("/api/generate", ASK, "ollama"),
        ("/v1/completions", ASK, "openai"),
        ("/v1/messages", CHAT | {"max_tokens": 9}, "anthropic"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_is_one_line_without_a_word_of_it(
    path: str, body: dict[str, object], dialect: str, stream: bool, log: pytest.LogCaptureFixture
) -> None:
    sent = body | {"stream": stream}
    async with client(Recording()) as http, http.post(path, json=sent) as reply:
        await reply.read()
    said = await line(log)
    assert (said["dialect"], said["route"], said["status"]) == (dialect, path, 200)
    assert (said["model"], said["finish"], said["client"]) == ("plain:latest", "stop", "127.0.0.1")
    assert said["generated_tokens"] == DONE.usage.n_generated
    assert "error" not in said
    assert "secret" not in log.text
    assert "Hel" not in log.text


@pytest.mark.parametrize(
    "method,path,body,status,error,dialect",
    [
        ("POST", "/api/generate", {"model": "none"}, 404, "ModelNotFound", "ollama"),
        ("POST", "/v1/chat/completions", {}, 400, "InvalidRequest", "openai"),
        ("GET", "/nowhere", None, 404, "NotFound", None),
        ("PUT", "/api/chat", None, 405, "MethodNotAllowed", None),
        ("POST", "/api/me", None, 503, "Unavailable", "ollama"),
        ("POST", "/api/signout", None, 401, "Unauthorized", "ollama"),
    ],
)
async def test_a_refusal_is_one_line_with_its_kind(
    method: str,
    path: str,
    body: object,
    status: int,
    error: str,
    dialect: str | None,
    log: pytest.LogCaptureFixture,
) -> None:
    async with client() as http, http.request(method, path, json=body) as reply:
        assert reply.status == status
    said = await line(log)
    assert (said["status"], said["error"], said.get("dialect")) == (status, error, dialect)
    assert "model" not in said
    assert (said.get("route"), said.get("path")) == ((path, None) if dialect else (None, path))


@pytest.mark.parametrize("path,status", [("/api/embed", 501), ("/api/embeddings", 500)])
async def test_an_embedding_of_a_chat_model_is_not_a_server_error(
    path: str, status: int, log: pytest.LogCaptureFixture
) -> None:
    class Mute(FakeGeneration):
        async def embed(self, request: core.EmbedRequest, /) -> core.Embeddings:
            raise errors.EmbeddingsUnsupported

    sent = {"model": "plain", "input": "x", "prompt": "x"}
    async with client(Mute()) as http, http.post(path, json=sent) as reply:
        assert reply.status == status
    assert (await line(log))["error"] == "EmbeddingsUnsupported"
    [level] = [record.levelno for record in log.records if record.name == "specd.requests"]
    assert level == logging.INFO


async def test_requests_that_a_guard_refuses_are_recorded(log: pytest.LogCaptureFixture) -> None:
    async with client(keys=Keys(("key-0123456789",)), settings=FakeSettings()) as http:
        for headers, status, error in (
            ({"Origin": "https://evil.example"}, 403, "Forbidden"),
            ({"Host": "evil.example"}, 403, "Forbidden"),
            ({"Authorization": "Bearer wrong"}, 401, "Unauthorized"),
        ):
            log.clear()
            async with http.get("/api/tags", headers=headers) as reply:
                assert (reply.status, MADE.fullmatch(reply.headers["X-Request-Id"])) != (200, None)
            said = await line(log)
            assert (said["status"], said["error"], said["route"]) == (status, error, "/api/tags")
        log.clear()
        async with http.get("/api/tags", headers={"X-Api-Key": "key-0123456789"}) as reply:
            assert reply.status == 200
        assert re.fullmatch("[0-9a-f]{8}", (await line(log))["key"])
    assert "key-0123456789" not in log.text


async def test_an_error_in_mid_stream_is_in_the_line_of_a_200(
    log: pytest.LogCaptureFixture,
) -> None:
    broken = Recording(script=(core.Delta(content="a"), errors.EngineCrashed("died: secret")))
    async with client(broken) as http, http.post("/api/generate", json=ASK) as reply:
        await reply.read()
    said = await line(log)
    assert (said["status"], said["error"], said["finish"]) == (200, "EngineCrashed", "error")
    assert said["generated_tokens"] == 1
    assert "secret" not in said.values()


async def test_a_fault_of_ours_is_internal(log: pytest.LogCaptureFixture) -> None:
    broken = Recording(script=(RuntimeError("oops"),))
    async with client(broken) as http, http.post("/api/generate", json=ASK) as reply:
        assert reply.status == 500
    said = await line(log)
    assert (said["status"], said["error"], said["finish"]) == (500, "Internal", "error")


@pytest.mark.parametrize("started", [True, False])
async def test_a_client_that_leaves_has_one_line(
    started: bool, log: pytest.LogCaptureFixture
) -> None:
    waiting = asyncio.Event()
    script = (core.Delta(content="a"), waiting) if started else (waiting,)
    collector = metrics.Metrics()
    async with client(Recording(script=script), monitoring=Monitoring(metrics=collector)) as http:
        asking = asyncio.ensure_future(http.post("/api/generate", json=ASK).__aenter__())
        await waiting.wait()
        if started:
            (await asking).close()
        else:
            asking.cancel()
        said = await line(log)
    assert said["finish"] == "abort"
    assert said["status"] == (200 if started else 499)
    text, _ = collector.scrape(metrics.State(), "")()
    assert b'finished_reason="abort",model_name="plain:latest"} 1.0' in text
    assert b"specd:http_requests_in_flight 0.0" in text


async def test_the_last_of_a_pull_that_failed_is_in_its_line(log: pytest.LogCaptureFixture) -> None:
    script = (core.Progress(status="pulling manifest"), errors.RegistryError("no"))
    async with (
        client(registry=FakeRegistry(script)) as http,
        http.post("/api/pull", json={"model": "x"}) as reply,
    ):
        await reply.read()
    said = await line(log)
    assert (said["status"], said["error"], said["route"]) == (200, "RegistryError", "/api/pull")


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if r.name == "specd.api.error_handling"]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", [errors.StoreError, errors.RegistryUnreachable])
async def test_an_error_of_a_disk_or_a_registry_is_logged_once(
    kind: type[errors.SpecdError], stream: bool, begun: bool, log: pytest.LogCaptureFixture
) -> None:
    said = kind("cannot write the blob sha256:00: No space left on device")
    script = (core.Progress(status="pulling manifest"), said) if begun else (said,)
    body = {"model": "x", "stream": stream}
    async with (
        client(registry=FakeRegistry(script)) as http,
        http.post("/api/pull", json=body) as reply,
    ):
        assert str(said) in await reply.text()
    assert warnings(log) == [str(said)]
    [level] = [
        record.levelno for record in log.records if record.name == "specd.api.error_handling"
    ]
    assert level == logging.WARNING


async def test_the_text_of_a_registry_is_logged_on_one_line_without_tokens(
    log: pytest.LogCaptureFixture,
) -> None:
    said = errors.RegistryError(
        'Get "https://me:pass@r.example/v2/a?_state=token#x": no\nFeb 1 root: ' + "x" * 9000
    )
    async with (
        client(registry=FakeRegistry((said,))) as http,
        http.post("/api/pull", json={"model": "x"}) as reply,
    ):
        await reply.read()
    [sentence] = warnings(log)
    assert sentence.startswith('Get "https://r.example/v2/a": no Feb 1 root: xxx')
    assert len(sentence) == 500


@pytest.mark.parametrize(
    "error", [errors.EngineCrashed("died: secret"), errors.InvalidRequest("secret")]
)
async def test_errors_that_may_quote_a_prompt_are_not_logged(
    error: errors.SpecdError, log: pytest.LogCaptureFixture
) -> None:
    async with (
        client(Recording(script=(error,))) as http,
        http.post("/api/generate", json=ASK) as reply,
    ):
        assert "secret" in await reply.text()
    assert warnings(log) == []
    assert "secret" not in log.text


@pytest.mark.parametrize("started", [True, False])
async def test_a_pull_that_its_client_gave_up_does_not_look_like_a_success(
    started: bool, log: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()

    class Slow(FakeRegistry):
        async def pull(self, model: str, /, *, insecure: bool) -> Any:
            if started:
                yield core.Progress(status="pulling manifest")
            asked.set()
            await asyncio.Event().wait()

    async with client(registry=Slow()) as http:
        pulling = asyncio.ensure_future(http.post("/api/pull", json={"model": "x"}).__aenter__())
        await asked.wait()
        if started:
            (await pulling).close()
        else:
            pulling.cancel()
        said = await line(log)
    assert (said["status"], said["finish"]) == (200 if started else 499, "abort")


async def test_polls_are_logged_at_debug_level_only(log: pytest.LogCaptureFixture) -> None:
    async with client() as http:
        for path in ("/health", "/v1/health", "/ready", "/metrics"):
            async with http.get(path) as reply:
                await reply.read()
        async with http.get("/api/version") as reply:
            await reply.read()
    levels = {
        r.__dict__["fields"]["route"]: r.levelno for r in log.records if "specd.req" in r.name
    }
    assert levels.pop("/api/version") == logging.INFO
    assert set(levels.values()) == {logging.DEBUG}
    assert len(levels) == 4


async def test_requests_of_one_connection_have_different_ids(log: pytest.LogCaptureFixture) -> None:
    async with client(Recording(script=HELLO)) as http:
        for n in range(3):
            headers = {"X-Request-Id": f"n{n}"}
            async with http.post("/api/generate", json=ASK, headers=headers) as reply:
                await reply.read()
        await until(log, 3)
    assert [said["request_id"] for said in lines(log)] == ["n0", "n1", "n2"]
    assert {said["generated_tokens"] for said in lines(log)} == {DONE.usage.n_generated}


async def test_texts_of_clients_are_not_labels() -> None:
    collector = metrics.Metrics()
    async with client(monitoring=Monitoring(metrics=collector)) as http:
        for n in range(20):
            async with http.request("PROPFIND", f"/stranger/{n}") as reply:
                await reply.read()
            async with http.post("/api/show", json={"model": f"stranger-{n}"}) as reply:
                await reply.read()
            async with http.get(f"/v1/models/stranger-{n}") as reply:
                await reply.read()
    text, _ = collector.scrape(metrics.State(), "")()
    assert b"stranger" not in text
    assert b"PROPFIND" not in text
    routes = [line for line in text.splitlines() if line.startswith(b"specd:http_requests_total")]
    assert len(routes) == 3
