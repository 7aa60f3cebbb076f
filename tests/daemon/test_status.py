"""The metrics, the log and the readiness of a whole daemon."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specd import core
from specd.daemon import status
from specd.daemon.status import Readiness, StatusReporter
from specd.metrics import State
from specd.placement import Cpu, Defaults
from specd.runner import Process
from specd.scheduler import Requirements, Scheduler, SchedulerLoop
from specd.scheduler.runner_ref import as_local
from tests.daemon_process import FAKE_ENGINE, Daemon, running
from tests.gguf_files import OllamaStore, write_llama
from tests.waiting import wait_until

MODEL = {"model_name": "m:latest"}


async def scraped(daemon: Daemon) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    async with daemon.http.get("/metrics") as reply:
        text = await reply.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def value(daemon: Daemon, name: str, **labels: str) -> float | None:
    return (await scraped(daemon)).get((f"specd:{name}", tuple(sorted(labels.items()))))


async def until(
    daemon: Daemon, is_so: Callable[[float | None], bool], name: str, **labels: str
) -> None:
    async def is_reached() -> bool:
        return is_so(await value(daemon, name, **labels))

    await wait_until(is_reached, every_s=0.02)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    return tmp_path


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_request_has_one_json_line(store: Path) -> None:
    with (store / "log").open("wb") as log:
        async with running(
            store,
            engine=FAKE_ENGINE,
            log=log.fileno(),
            SPECD_LOG_FORMAT="json",
            SPECD_SHUTDOWN_GRACE="0s",
        ) as daemon:
            await daemon.answer("classified words")
            async with daemon.generate("classified", model="none") as reply:
                assert reply.status == 404
            async with daemon.http.get("/health") as reply:
                assert reply.status == 200
            async with daemon.generate("hang") as reply:
                await reply.content.readline()
                daemon.process.send_signal(signal.SIGTERM)
                await reply.read()
                cut_off = reply.headers["X-Request-Id"]
            assert await daemon.process.wait() == 0
    lines = logged(store / "log")
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    requests = [line for line in lines if line["logger"] == "specd.requests"]
    said = [(r["route"], r["status"], r.get("error"), r.get("finish")) for r in requests]
    assert said == [
        ("/api/generate", 200, None, "stop"),
        ("/api/generate", 404, "ModelNotFound", None),
        ("/api/generate", 200, "ShuttingDown", "error"),
    ]
    whole, _, broken = requests
    assert (whole["model"], whole["prompt_tokens"], whole["generated_tokens"]) == ("m:latest", 2, 2)
    assert whole["load_ms"] > 0
    assert (broken["request_id"], broken["generated_tokens"]) == (cut_off, 1)
    assert "classified" not in (store / "log").read_text()


async def test_metrics_of_running_and_waiting_requests_loads_and_crashes(store: Path) -> None:
    async with running(store, engine=FAKE_ENGINE) as daemon:
        assert await value(daemon, "model_resident", drafter="", **MODEL) is None
        await daemon.answer("a")
        assert await value(daemon, "model_resident", drafter="", **MODEL) == 1
        assert await value(daemon, "num_requests_running", **MODEL) == 0
        asking = [asyncio.ensure_future(daemon.answer("hang")) for _ in range(3)]
        await until(daemon, lambda n: n == 2, "num_requests_waiting", **MODEL)
        found = await scraped(daemon)
        label = tuple(sorted(MODEL.items()))
        assert found["specd:num_requests_running", label] == 1
        assert found["specd:http_requests_in_flight", ()] == 4  # with the one that asks
        assert found["specd:engine_resident_memory_bytes", label] > 2**20
        assert found["specd:engine_open_fds", label] > 0
        assert found["specd:engine_cpu_seconds_total", label] > 0
        # Each has generated a token, and none has ended.
        await until(daemon, lambda n: n == 1 + 3, "generation_tokens_total", **MODEL)
        for engine in daemon.engines():
            engine.kill()
        for answer in await asyncio.gather(*asking):
            assert "error" in answer[-1]
        await until(daemon, lambda n: n == 1, "engine_crashes_total", **MODEL)
        assert await value(daemon, "model_loads_total", result="ok", **MODEL) == 1
        kinds = {"dialect": "ollama", "kind": "EngineCrashed"}
        assert await value(daemon, "request_errors_total", **kinds) == 3


async def test_ready_from_the_end_of_the_start_to_the_beginning_of_the_stop(store: Path) -> None:
    async with running(store, engine=FAKE_ENGINE, SPECD_SHUTDOWN_GRACE="1h") as daemon:
        async with daemon.http.get("/ready") as reply:
            assert (reply.status, await reply.json()) == (200, {"status": "ready"})
        # The daemon still answers on an open connection.
        async with daemon.generate("hang") as answer:
            await answer.content.readline()
            daemon.process.send_signal(signal.SIGTERM)
            await daemon.told("STOPPING=1")
        assert await daemon.process.wait() == 0


# --------------------------------------------------------------------------- what is read


def a_loop() -> SchedulerLoop:
    machine = Defaults(devices=[], cpu=Cpu(total_bytes=1, available_bytes=1, n_cores=1))
    return SchedulerLoop(
        Scheduler(
            Requirements(fill=machine.fill, min_automatic_ctx=machine.min_ctx),
            max_loaded=1,
            max_queue=1,
            default_keep_alive_s=1.0,
        ),
        lambda spec: Process(as_local(spec)),
        lambda request: core.Placement(spec=request.spec, fits=True),
        lambda _spec, _facts: None,
    )


async def test_a_hanging_driver_is_queried_once_and_delays_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "QUERY_TIMEOUT_S", 0.01)
    n_asked, answers = 0, threading.Event()

    def hangs() -> list[Any]:
        nonlocal n_asked
        n_asked += 1
        answers.wait()
        return []

    readiness = Readiness()
    status_reporter = StatusReporter(a_loop(), readiness, devices=hangs)
    try:
        assert [await status_reporter(), await status_reporter()] == [State(ready=False)] * 2
        readiness.reason = ""
        assert await status_reporter() == State(ready=True)
    finally:
        answers.set()
    assert n_asked == 1


async def test_two_scrapes_at_once_are_both_answered() -> None:
    status_reporter = StatusReporter(a_loop(), Readiness(), devices=list)
    assert (
        list(await asyncio.gather(status_reporter(), status_reporter())) == [State(ready=False)] * 2
    )
