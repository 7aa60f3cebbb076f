"""The daemon's state for `/ready` and `/metrics`: readiness, loaded models, engine processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import psutil

from specd import metrics
from specd.placement import Device
from specd.scheduler import Resident, SchedulerLoop

# A GPU driver may hang: after this time the answer leaves out devices and processes.
QUERY_TIMEOUT_S: Final = 1.0

_MachineState = tuple[tuple[metrics.Process, ...], tuple[metrics.Device, ...]]


class Readiness:
    """The readiness of the daemon.

    reason: why requests are not accepted; "" while they are.
    """

    def __init__(self) -> None:
        self.reason = "starting"

    def __call__(self) -> str:
        return self.reason


class StatusReporter:
    """A reader of the daemon's state at the time of a scrape.

    devices: lists the GPUs; it blocks, so it runs in a thread.
    """

    def __init__(
        self,
        scheduler: SchedulerLoop,
        readiness: Readiness,
        *,
        devices: Callable[[], list[Device]],
    ) -> None:
        self._scheduler = scheduler
        self._readiness = readiness
        self._devices = devices
        self._query: asyncio.Task[_MachineState] | None = None

    async def __call__(self) -> metrics.State:
        processes, devices = await self._query_machine()
        return metrics.State(
            ready=not self._readiness.reason,
            n_stuck=len(self._scheduler.stuck()),
            loaded=tuple(map(_loaded_model, self._scheduler.residents())),
            waiting=tuple(self._scheduler.waiting()),
            processes=processes,
            devices=devices,
        )

    async def _query_machine(self) -> _MachineState:
        """Return processes and devices; both are empty while the query hangs.

        Only one query runs at a time.
        """
        if self._query is None or self._query.done():
            models = {r.pid: r.model.name for r in self._scheduler.residents() if r.pid is not None}
            self._query = asyncio.create_task(asyncio.to_thread(self._read_machine, models))
        query = self._query
        await asyncio.wait({query}, timeout=QUERY_TIMEOUT_S)
        return query.result() if query.done() else ((), ())

    def _read_machine(self, models: Mapping[int, str]) -> _MachineState:
        processes = tuple(_processes(models))
        devices = tuple(
            metrics.Device(
                name=device.name,
                id=device.id,
                free_bytes=device.free_bytes,
                total_bytes=device.total_bytes,
            )
            for device in self._devices()
        )
        return processes, devices


def _processes(models: Mapping[int, str]) -> Iterator[metrics.Process]:
    """Yield the state of each engine process that still runs.

    models: process id → name of the model that it serves.
    """
    for pid, model in models.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                yield metrics.Process(
                    model=model,
                    rss_bytes=process.memory_info().rss,
                    n_fds=process.num_fds(),
                    cpu_s=times.user + times.system,
                )
        except psutil.Error:
            continue


def _loaded_model(resident: Resident) -> metrics.LoadedModel:
    facts, spec, model_stats = resident.facts, resident.spec, resident.model_stats
    last = model_stats.last
    drafter = spec.drafter_name if facts.drafter is not None else ""
    memory = [
        (part, device, n_bytes)
        for part, usage in (("target", facts.target), ("drafter", facts.drafter))
        if usage is not None
        for device, n_bytes in usage.by_device or ((usage.device, usage.total_bytes),)
    ]
    return metrics.LoadedModel(
        model=resident.model.name,
        drafter=drafter or (last.drafter if last is not None and last.drafter else ""),
        n_users=resident.n_users,
        n_slots=spec.n_slots,
        n_ctx=facts.n_ctx,
        memory=tuple(memory),
        gain=model_stats.gain,
        threshold=resident.threshold,
        plain_tokens_per_s=facts.plain_tokens_per_s,
    )
