"""The task that carries out the scheduler's decisions: start and stop engines, grant, refuse."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from specd import core, errors, metrics
from specd.runner import Engine
from specd.scheduler.effects import Effect, Grant, Place, Refuse, Start, Stop
from specd.scheduler.lease import Lease, LoadedEngine
from specd.scheduler.load_times import LoadTimes
from specd.scheduler.model_stats import ModelStats
from specd.scheduler.runner_ref import RunnerPhase, RunnerRef, Waiter
from specd.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

Event = Callable[[float], list[Effect]]  # time → effects
FindPlacement = Callable[[core.PlacementRequest], core.Placement]
RecordUsage = Callable[[core.EngineSpec, core.EngineFacts], None]

#: Events to process before other tasks run: thousands may come at once.
_EVENTS_PER_YIELD = 64
#: Effects to carry out before other tasks run: a granted request renders its prompt.
_EFFECTS_PER_YIELD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A loaded model.

    expires_at: unix seconds, inf for never; an estimate while the model is in use.
    n_users: leases on it at this moment.  pid: of its engine's process on this machine, if any.
    """

    model: core.ModelRef
    pair: core.Pair
    spec: core.LoadSpec
    facts: core.EngineFacts
    expires_at: float
    model_stats: ModelStats = field(default_factory=ModelStats)
    n_users: int = 0
    pid: int | None = None

    @property
    def threshold(self) -> float | None:
        """The acceptance that drafting needs, from the newest answer or as measured at load."""
        known = self.model_stats.threshold
        return self.facts.threshold if known is None else known


class SchedulerLoop:
    """Runs the scheduler's effects on real engines, with real time.

    start_engine: begins to load an engine and returns at once.  clock: monotonic seconds.
    place: returns the placement of an engine (`placement.Placer.place`).
    record_usage: records the memory that a loaded engine took (`placement.Placer.record_usage`).
    Both run in a thread and are waited for at most `timeout_s`, since a driver may hang.
    observer: is notified of loads and unloads.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        start_engine: Callable[[core.LoadSpec], Engine],
        place: FindPlacement,
        record_usage: RecordUsage,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        timeout_s: float = 30.0,
        observer: metrics.SchedulerObserver | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._start_engine = start_engine
        self._find_placement = place
        self._record_usage = record_usage
        self._clock = clock
        self._unix_time = unix_time
        self._timeout_s = timeout_s
        self._observer = observer or metrics.SchedulerObserver()
        self._loads = LoadTimes()
        self._ids = itertools.count(1)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[LoadedEngine]] = {}
        self._running: dict[int, _Running] = {}
        self._given_up: list[tuple[str, Engine]] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self, grace_s: float = 0.0, stop_now: asyncio.Event | None = None) -> None:
        """Refuse all waiters, let running answers end, then stop every engine and wait for it.

        Answers get `grace_s` seconds, or until `stop_now` is set; then they end with SHUTDOWN.
        """
        if self._task is None:
            return
        self._closing = True
        self._inbox.put_nowait(self._scheduler.close)
        stop_now_task = asyncio.ensure_future((stop_now or asyncio.Event()).wait())
        await asyncio.wait(
            {self._task, stop_now_task}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        stop_now_task.cancel()
        self._inbox.put_nowait(self._scheduler.shutdown)
        await self._task
        self._task = None

    @asynccontextmanager
    async def lease(
        self,
        spec: core.LoadSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AsyncIterator[Lease]:
        """Wait for a lease on the model and release it at the end of the block.

        EngineSpec.n_ctx: 0 means automatic.
        Raises QueueFull, ShuttingDown, or the SpecdError with which the load failed.
        """
        waiter = Waiter(
            id=next(self._ids), spec=spec, model=model, pair=pair, keep_alive_s=keep_alive_s
        )
        try:
            lease = Lease(await self._acquire(waiter), partial(self._replace_crashed, waiter))
            try:
                yield lease
            except errors.EngineError as error:
                self._unload_if_out_of_memory(waiter, error)
                raise
        finally:
            self._release(waiter)

    async def _acquire(self, waiter: Waiter) -> LoadedEngine:
        if self._closing:  # the task may have ended, and would never answer
            raise errors.ShuttingDown("server is shutting down")
        granted: asyncio.Future[LoadedEngine] = asyncio.get_running_loop().create_future()
        self._waiting[waiter.id] = granted
        self._inbox.put_nowait(lambda _now: self._scheduler.request(waiter))
        since = self._clock()
        try:
            return await granted
        finally:
            now = self._clock()
            loading_s = self._loads.load_time_between(waiter.key, since, now)
            metrics.current_record().add_wait(now - since, loading_s)

    def _release(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter.id, None)
        self._inbox.put_nowait(lambda now: self._scheduler.release(waiter.id, now))

    async def _replace_crashed(self, waiter: Waiter, crash: errors.SpecdError) -> LoadedEngine:
        """Return a new engine for a waiter whose engine has crashed and ended."""
        name = waiter.model.name
        log.warning("%s: the engine crashed before it answered, trying once more", name)
        self._unload_if_out_of_memory(waiter, crash)
        self._release(waiter)
        return await self._acquire(waiter)

    def _unload_if_out_of_memory(self, waiter: Waiter, error: errors.SpecdError) -> None:
        if waiter.is_local and errors.is_out_of_memory_message(str(error)):
            self._inbox.put_nowait(self._scheduler.ran_out_of_memory)

    def unload(self, model: core.ModelRef) -> None:
        """Unload the model once it is idle; do nothing if it is not loaded."""
        self._inbox.put_nowait(lambda now: self._scheduler.unload(model.key, now))

    def adjust(self, *, max_queue: int, default_keep_alive_s: float) -> None:
        """Change settings while running (see `Scheduler.adjust`)."""
        self._inbox.put_nowait(
            lambda _now: self._scheduler.adjust(
                max_queue=max_queue, default_keep_alive_s=default_keep_alive_s
            )
        )

    def residents(self) -> list[Resident]:
        """Return the loaded models, in the order of their loads."""
        return [
            self._resident(running, running.facts)
            for running in self._running.values()
            if running.facts is not None and running.runner.phase is RunnerPhase.LOADED
        ]

    def waiting(self) -> list[str]:
        """Return the names of the models waited for, one per waiting request."""
        return [str(waiter.model.name) for waiter in self._scheduler.waiting()]

    def stuck(self) -> list[str]:
        """Return the models whose engine cannot be ended, as a driver or a disk hangs.

        Their memory is not free.
        """
        self._given_up = [(name, engine) for name, engine in self._given_up if engine.is_stuck]
        return [name for name, _ in self._given_up]

    def _resident(self, running: _Running, facts: core.EngineFacts) -> Resident:
        runner = running.runner
        left_s = runner.keep_alive_s if runner.users else runner.expires_at - self._clock()
        return Resident(
            model=runner.model,
            pair=runner.pair,
            spec=runner.spec,
            facts=facts,
            expires_at=self._unix_time() + left_s,
            model_stats=running.stats,
            n_users=len(runner.users),
            pid=running.engine.pid,
        )

    # ----------------------------------------------------------------------- the task

    async def _run(self) -> None:
        for n_events in itertools.count(1):
            if n_events % _EVENTS_PER_YIELD == 0:
                await asyncio.sleep(0)
            if self._closing and self._inbox.empty() and not self._watchers:
                return
            event = await self._next_event()
            self._watchers = {watcher for watcher in self._watchers if not watcher.done()}
            try:
                for n_effects, effect in enumerate(event(self._clock()), 1):
                    self._apply(effect)
                    if n_effects % _EFFECTS_PER_YIELD == 0:
                        await asyncio.sleep(0)
            except Exception:
                # A bug: all waiters get an error, the daemon goes on.
                log.exception("the scheduler failed")
                for granted in self._waiting.values():
                    _refuse(granted, _internal_error())

    async def _next_event(self) -> Event:
        left_s = self._scheduler.next_expiry() - self._clock()
        try:
            async with asyncio.timeout(max(left_s, 0.0) if math.isfinite(left_s) else None):
                return await self._inbox.get()
        except TimeoutError:
            return self._scheduler.tick

    def _apply(self, effect: Effect) -> None:
        log.debug("scheduler: %s", effect)
        match effect:
            case Start(runner_id):
                self._start(runner_id)
            case Place():
                self._keep_task(self._place(effect))
            case Stop(runner_id, reason):
                if (running := self._running.get(runner_id)) is not None:
                    self._observer.left(running.runner.model.name, reason)
                    running.engine.stop()
            case Grant(waiter_id, runner_id):
                # A waiter that has gone is not listed any more; its `release` is in the inbox.
                granted = self._waiting.get(waiter_id)
                if granted is not None and not granted.done():
                    granted.set_result(self._running[runner_id].loaded())
            case Refuse(waiter_id, error):
                if isinstance(error, errors.QueueFull):
                    self._observer.refused()
                if (granted := self._waiting.get(waiter_id)) is not None:
                    _refuse(granted, error)

    def _start(self, runner_id: int) -> None:
        runner = self._scheduler.runner(runner_id)
        assert runner is not None, "it has just been started"
        self._loads.load_started(runner.key, self._clock())
        try:
            engine = self._start_engine(runner.spec)
        except Exception:
            log.exception("cannot start an engine for %s", runner.key)
            self._load_failed(runner, _internal_error())
            self._inbox.put_nowait(lambda _now: self._scheduler.ended(runner_id))
        else:
            running = self._running[runner_id] = _Running(runner, engine)
            self._keep_task(self._watch(running))

    def _keep_task(self, work: Coroutine[object, object, None]) -> None:
        self._watchers.add(asyncio.create_task(work))

    async def _place(self, question: Place) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                placement = await asyncio.to_thread(self._find_placement, question.request)
        except errors.SpecdError as failure:
            error = failure
            self._inbox.put_nowait(lambda _now: self._scheduler.placement_failed(question, error))
            return
        except Exception:
            log.exception("cannot find a placement for %s", question.request.spec.weights)
            # Load it as requested: the load itself shows whether it fits.
            placement = core.Placement(spec=question.request.spec, fits=True)
        self._inbox.put_nowait(lambda _now: self._scheduler.placed(question, placement))

    async def _watch(self, running: _Running) -> None:
        """Report the load and the end of an engine to the scheduler."""
        runner, engine = running.runner, running.engine
        try:
            running.facts = await engine.ready()
            took_s = self._loads.load_ended(runner.key, self._clock())
            self._observer.loaded(runner.model.name, took_s)
            self._inbox.put_nowait(lambda now: self._scheduler.loaded(runner.id, now))
            if isinstance(runner.spec, core.EngineSpec):
                self._keep_task(self._record_engine_usage(runner.spec, running.facts))
        except errors.SpecdError as failure:
            self._load_failed(runner, failure)
            engine.stop()
        except Exception as failure:
            log.exception("the load of %s failed unexpectedly", runner.key)
            message = f"the engine could not be started: {type(failure).__name__}"
            self._load_failed(runner, errors.LoadFailed(message))
            engine.stop()
        try:
            await engine.ended()
        except Exception:
            log.exception("the engine of %s did not end as it should", runner.key)
        self._inbox.put_nowait(lambda _now: self._forget(running))

    def _load_failed(self, runner: RunnerRef, error: errors.SpecdError) -> None:
        self._loads.load_ended(runner.key, self._clock())
        if not isinstance(error, errors.ShuttingDown):
            log.warning("%s was not loaded: %s", runner.model.name, error)
            self._observer.load_failed(runner.model.name, error)
        self._inbox.put_nowait(lambda _now: self._scheduler.failed(runner.id, error))

    async def _record_engine_usage(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.to_thread(self._record_usage, spec, facts)
        except Exception:
            log.exception("cannot record the memory that %s took", spec.weights)
        # Wake the loop: `stop` may wait for this task.
        self._inbox.put_nowait(lambda _now: [])

    def _forget(self, running: _Running) -> list[Effect]:
        runner = running.runner
        del self._running[runner.id]
        if running.engine.is_stuck:
            self._given_up.append((runner.model.name, running.engine))
        if runner.phase is RunnerPhase.LOADED:  # it was not stopped
            self._observer.engine_crashed(runner.model.name)
        running.is_forgotten.set()
        return self._scheduler.ended(runner.id)


@dataclass(slots=True)
class _Running:
    """An engine from its start to its end.

    facts: once it is loaded.  is_forgotten: set once the scheduler knows that it has ended.
    """

    runner: RunnerRef
    engine: Engine
    facts: core.EngineFacts | None = None
    stats: ModelStats = field(default_factory=ModelStats)
    is_forgotten: asyncio.Event = field(default_factory=asyncio.Event)

    def loaded(self) -> LoadedEngine:
        assert self.facts is not None, "it is loaded"
        spec = self.runner.spec
        drafter = spec.drafter if isinstance(spec, core.EngineSpec) else None
        return LoadedEngine(self.engine, self.facts, drafter, self._count, self.is_forgotten.wait)

    def _count(self, done: core.Done) -> None:
        self.stats = self.stats.with_answer(done)


def _refuse(granted: asyncio.Future[LoadedEngine], error: errors.SpecdError) -> None:
    if not granted.done():
        granted.set_exception(error)


def _internal_error() -> errors.EngineError:
    return errors.EngineError("internal error of the scheduler")
