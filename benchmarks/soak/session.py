"""Run one soak: every answer alone, then the hour, then stop the daemon."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import psutil

from benchmarks.soak import traffic
from benchmarks.soak.clients import End, Outcome, ask, play_client
from benchmarks.soak.daemon_monitor import DraftingStats, monitor_daemon
from benchmarks.soak.request_log import count_active_requests
from benchmarks.soak.request_mix import OTHER, PAIR, VECTORS, SoakRequest
from benchmarks.soak.resource_monitor import EVERY_S, ResourceMonitor, Sample
from benchmarks.soak.soak_daemon import SoakDaemon
from benchmarks.soak.traffic import HOUR_S, PLAYED_MINUTES, Kill, Role, Turn

#: Most seconds until unloaded engines have ended.
_GONE_S = 30.0
#: A slow machine may take this many times as long for the hour.
_MOST = 1.5
#: Most seconds until requests of a killed engine fail, and in which new ones may reach it.
KILL_ECHO_S = 2.0


class NotServed(Exception):
    """The daemon fails without any load, so a soak is pointless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakConfig:
    """The settings of a soak.  speed: hours played per hour."""

    minutes: float = PLAYED_MINUTES
    n_clients: int = 16
    seed: int = 0

    @property
    def play_s(self) -> float:
        return self.minutes * 60

    @property
    def speed(self) -> float:
        return HOUR_S / (PLAYED_MINUTES * 60)


@dataclass(frozen=True, slots=True)
class Killed:
    at_s: float
    model: str


@dataclass(slots=True, kw_only=True)
class SoakRecord:
    """The record of a soak.  probes: seconds since the epoch, milliseconds; −1 is no answer.

    n_under_way: requests that the daemon still counts as active after all clients have left.
    idle_before, idle_after: the daemon without a client and an engine.
    cpu_s: over the hour, of the daemon, of all its processes, of this process, and of the machine.
    """

    config: SoakConfig
    alone: dict[str, Outcome] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    kills: list[Killed] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    drafting: DraftingStats = field(default_factory=DraftingStats)
    probes: list[tuple[float, float]] = field(default_factory=list)
    idle_before: Sample | None = None
    idle_after: Sample | None = None
    played_s: float = 0.0
    behind_s: float = 0.0
    n_unplayed: int = 0
    cpu_share: dict[str, float] = field(default_factory=dict)
    n_under_way: int = 0
    exit_status: int | None = None
    n_left_processes: int = 0
    n_left_files: int = 0


async def soak(
    soak_daemon: SoakDaemon, config: SoakConfig, say: Callable[[str], None]
) -> SoakRecord:
    record = SoakRecord(config=config)
    resource_monitor = ResourceMonitor(soak_daemon)
    roles = traffic.roles_for_clients(config.n_clients)
    alone = traffic.seeded_requests(roles)
    say(f"{len(alone)} answers alone")
    record.alone = await _record_references(soak_daemon, alone)
    record.idle_before = await _wait_until_idle(soak_daemon, resource_monitor)
    resource_monitor.samples.clear()
    say(f"{config.minutes:g} minutes with {config.n_clients} clients")
    async with _probing(soak_daemon, record):
        await _play_traffic(soak_daemon, resource_monitor, roles, record, say)
    record.samples = list(resource_monitor.samples)
    record.idle_after = await _wait_until_idle(soak_daemon, resource_monitor)
    async with aiohttp.ClientSession(soak_daemon.url) as http:
        record.n_under_way = await count_active_requests(http)
    say("stopping")
    await _stop_daemon(soak_daemon, record)
    return record


async def _record_references(
    soak_daemon: SoakDaemon, request_mix: Sequence[SoakRequest]
) -> dict[str, Outcome]:
    """Return each request's answer without load.  Raises NotServed if one is wrong."""
    found = {}
    async with aiohttp.ClientSession(soak_daemon.url) as http:
        for each in request_mix:
            outcome = await ask(http, Turn(due_s=0.0, role="", ask=each, streamed=False))
            if outcome.status != each.expected or outcome.end is End.BROKEN:
                raise NotServed(f"{each.key[:200]}: {outcome.status} {outcome.detail}")
            found[each.key] = outcome
    return found


async def _wait_until_idle(soak_daemon: SoakDaemon, resource_monitor: ResourceMonitor) -> Sample:
    """Wait until the daemon has no engine and no client.  Raises TimeoutError if engines stay."""
    async with aiohttp.ClientSession(soak_daemon.url) as http:
        for model in (PAIR, OTHER):
            async with http.post("/api/generate", json={"model": model, "keep_alive": 0}) as reply:
                await reply.read()
        fields = {"model": VECTORS, "input": "a", "keep_alive": 0}
        async with http.post("/api/embed", json=fields) as reply:
            await reply.read()
    async with asyncio.timeout(_GONE_S):
        while (await asyncio.to_thread(resource_monitor.read)).engines:  # noqa: ASYNC110 - polls /proc
            await asyncio.sleep(EVERY_S / 4)
    await asyncio.sleep(EVERY_S)  # the last connection's end, and the engine's pipes
    return await asyncio.to_thread(resource_monitor.read)


async def _play_traffic(
    soak_daemon: SoakDaemon,
    resource_monitor: ResourceMonitor,
    roles: Sequence[Role],
    record: SoakRecord,
    say: Callable[[str], None],
) -> None:
    config = record.config
    began_s = time.monotonic()
    cpu = _Cpu(soak_daemon)
    async with asyncio.TaskGroup() as beside:
        watching = beside.create_task(
            monitor_daemon(soak_daemon, resource_monitor, record.drafting, say)
        )
        killing = beside.create_task(_kill(resource_monitor, record, began_s))
        played = await asyncio.gather(
            *(
                play_client(
                    soak_daemon.url,
                    traffic.request_schedule(
                        role, f"{config.seed}/{n}", config.play_s, config.speed
                    ),
                    began_s,
                    record.outcomes,
                    most_s=_MOST * config.play_s,
                )
                for n, role in enumerate(roles)
            )
        )
        record.behind_s = max(each.behind_s for each in played)
        record.n_unplayed = sum(each.n_unplayed for each in played)
        await asyncio.sleep(max(0.0, began_s + config.play_s - time.monotonic()))
        watching.cancel()
        killing.cancel()
    record.played_s = time.monotonic() - began_s
    record.cpu_share = cpu.shares()


async def _kill(resource_monitor: ResourceMonitor, record: SoakRecord, began_s: float) -> None:
    config = record.config
    for kill in traffic.kill_schedule(f"{config.seed}/kills", config.play_s, config.speed):
        await asyncio.sleep(max(0.0, began_s + kill.due_s - time.monotonic()))
        while (model := _kill_one(resource_monitor, kill, record)) is None:  # noqa: ASYNC110 - polls /proc
            await asyncio.sleep(EVERY_S / 2)
        record.kills.append(Killed(time.monotonic(), model))


def _kill_one(resource_monitor: ResourceMonitor, kill: Kill, record: SoakRecord) -> str | None:
    """Kill an engine that has answered; return its model, None if there is none to kill.

    The daemon takes a kill during a load for a lack of memory, and then unloads other models.
    """
    models = [PAIR, OTHER, VECTORS][kill.spares_pair :]
    random.Random(kill.draw).shuffle(models)  # noqa: S311 - the same hour every time
    for model in models:
        try:
            engine = resource_monitor.engine(model)
            if engine is not None and _has_answered(engine, model, record):
                engine.send_signal(signal.SIGKILL)
                return model
        except psutil.NoSuchProcess:
            continue
    return None


def _has_answered(engine: psutil.Process, model: str, record: SoakRecord) -> bool:
    """Return whether the engine has answered.  Raises psutil.NoSuchProcess."""
    born_s = time.monotonic() - (time.time() - engine.create_time())
    return any(
        outcome.ask.model == model and outcome.end is End.DONE and outcome.began_s > born_s
        for outcome in reversed(record.outcomes)
    )


async def _stop_daemon(soak_daemon: SoakDaemon, record: SoakRecord) -> None:
    children = psutil.Process(soak_daemon.pid).children(recursive=True)
    record.exit_status = await soak_daemon.stop()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, timeout=_GONE_S)
    record.n_left_processes = len(alive)
    record.n_left_files = sum(1 for _ in soak_daemon.scratch.rglob("*"))


@asynccontextmanager
async def _probing(soak_daemon: SoakDaemon, record: SoakRecord) -> AsyncIterator[None]:
    host, _, port = soak_daemon.url.removeprefix("http://").rpartition(":")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.soak.latency_probe",
        host,
        port,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    hearing = asyncio.create_task(_hear(process.stdout, record))
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await hearing
        await process.wait()


async def _hear(lines: asyncio.StreamReader, record: SoakRecord) -> None:
    async for line in lines:
        at_s, took_ms = line.split()
        record.probes.append((float(at_s), float(took_ms)))


class _Cpu:
    """Processor time since creation, as shares of all processors."""

    def __init__(self, soak_daemon: SoakDaemon) -> None:
        self._daemon = psutil.Process(soak_daemon.pid)
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        times = psutil.cpu_times()
        own = psutil.Process().cpu_times()
        daemon = self._daemon.cpu_times()
        return {
            "machine": sum(times) - times.idle - getattr(times, "iowait", 0.0),
            "daemon": daemon.user + daemon.system,
            "clients": own.user + own.system,
            "clock": time.monotonic() * (psutil.cpu_count() or 1),
        }

    def shares(self) -> dict[str, float]:
        now = self._read()
        clock = now["clock"] - self._before["clock"]
        return {
            name: (now[name] - self._before[name]) / clock
            for name in ("machine", "daemon", "clients")
        }
