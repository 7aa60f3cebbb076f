"""The one task that acts on the scheduler's decisions: start and stop engines, grant, refuse."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from specd import core, errors, metrics
from specd.scheduler.effects import Effect, Grant, Place, Refuse, Start, Stop
from specd.scheduler.lease import Engine, Lease
from specd.scheduler.loads import Loads
from specd.scheduler.runner import Phase, Runner, Waiter
from specd.scheduler.scheduler import Scheduler
from specd.scheduler.tally import Tally

log = logging.getLogger(__name__)

Event = Callable[[float], list[Effect]]  # time → what to do
FindPlace = Callable[[core.PlacementRequest], core.Placement]
Learn = Callable[[core.EngineSpec, core.EngineFacts], None]

#: Events in a row before everything else has its turn: thousands may come at once.
_AT_ONCE = 64
#: Each has a prompt to render, and somebody else's stream goes on meanwhile.
_WOKEN_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A loaded model.  expires_at: unix seconds, inf for never; an estimate while it is in use.

    n_users: who has the right to use it at this moment.
    """

    model: core.ModelRef
    pair: core.Pair
    spec: core.EngineSpec
    facts: core.EngineFacts
    expires_at: float
    tally: Tally = field(default_factory=Tally)
    n_users: int = 0

    @property
    def threshold(self) -> float | None:
        """Acceptance that drafting needs: as in the newest answer, or as measured at load."""
        known = self.tally.threshold
        return self.facts.threshold if known is None else known


class SchedulerLoop:
    """start_engine: begins to load and returns at once.  clock: monotonic seconds.

    place: where an engine would lie (`placement.Fit.place`).  learn: is told what one took once it
    is loaded (`placement.Fit.learn`).  Both are called in a thread, and waited for no longer than
    `patience_s`: a driver may hang.  observer: is told what becomes of models.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        start_engine: Callable[[core.EngineSpec], Engine],
        place: FindPlace,
        learn: Learn,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_time: Callable[[], float] = time.time,
        patience_s: float = 30.0,
        observer: metrics.Observer | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._start_engine = start_engine
        self._find_place = place
        self._learn = learn
        self._clock = clock
        self._unix_time = unix_time
        self._patience_s = patience_s
        self._observer = observer or metrics.Observer()
        self._loads = Loads()
        self._ids = itertools.count(1)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[Lease]] = {}
        self._engines: dict[int, Engine] = {}
        self._facts: dict[int, core.EngineFacts] = {}
        self._tallies: dict[int, Tally] = {}
        self._given_up: list[tuple[str, Engine]] = []
        self._watchers: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self, grace_s: float = 0.0, hurry: asyncio.Event | None = None) -> None:
        """Refuse who waits, let running answers end, stop every engine; returns when none is left.

        Answers get `grace_s` seconds, or until `hurry` is set; then they end with SHUTDOWN.
        """
        if self._task is None:
            return
        self._closing = True
        self._inbox.put_nowait(self._scheduler.close)
        hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
        await asyncio.wait(
            {self._task, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurried.cancel()
        self._inbox.put_nowait(self._scheduler.shutdown)
        await self._task
        self._task = None

    @asynccontextmanager
    async def lease(
        self,
        spec: core.EngineSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AsyncIterator[Lease]:
        """The model, loaded; released at the end of the block, or when the caller stops waiting.

        spec.n_ctx 0 is automatic.  Raises QueueFull, ShuttingDown, or why the load failed.
        """
        if self._closing:
            raise errors.ShuttingDown("server is shutting down")
        waiter = Waiter(
            id=next(self._ids), spec=spec, model=model, pair=pair, keep_alive_s=keep_alive_s
        )
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[waiter.id] = granted
        self._inbox.put_nowait(lambda _now: self._scheduler.request(waiter))
        try:
            lease = await self._granted(waiter, granted)
            try:
                yield lease
            except errors.EngineError as error:
                if errors.says_out_of_memory(str(error)):
                    self._inbox.put_nowait(self._scheduler.starved)
                raise
        finally:
            del self._waiting[waiter.id]
            self._inbox.put_nowait(lambda now: self._scheduler.leave(waiter.id, now))

    async def _granted(self, waiter: Waiter, granted: asyncio.Future[Lease]) -> Lease:
        since = self._clock()
        try:
            return await granted
        finally:
            now = self._clock()
            loading_s = self._loads.within(waiter.weights, since, now)
            metrics.current().waited(now - since, loading_s)

    def unload(self, model: core.ModelRef) -> None:
        """Let it go once it is idle; nothing happens where it is not loaded."""
        self._inbox.put_nowait(lambda now: self._scheduler.unload(str(model.weights), now))

    def adjust(self, *, max_queue: int, default_keep_alive_s: float) -> None:
        """What a user may change meanwhile (see `Scheduler.adjust`)."""
        self._inbox.put_nowait(
            lambda _now: self._scheduler.adjust(
                max_queue=max_queue, default_keep_alive_s=default_keep_alive_s
            )
        )

    def residents(self) -> list[Resident]:
        """The loaded models, in the order of their loads."""
        return [
            self._resident(runner, self._facts[runner.id])
            for runner in self._scheduler.runners()
            if runner.phase is Phase.LOADED
        ]

    def waiting(self) -> list[str]:
        """The model's name, once for each request that waits to have it loaded."""
        return [str(waiter.model.name) for waiter in self._scheduler.waiting()]

    def stuck(self) -> list[str]:
        """Models whose engine was to end and does not, whatever is done: a driver or a disk hangs.

        What they hold of the memory is not free.
        """
        self._given_up = [(name, engine) for name, engine in self._given_up if engine.is_stuck]
        return [name for name, _ in self._given_up]

    def _resident(self, runner: Runner, facts: core.EngineFacts) -> Resident:
        left_s = runner.keep_alive_s if runner.users else runner.expires_at - self._clock()
        return Resident(
            model=runner.model,
            pair=runner.pair,
            spec=runner.spec,
            facts=facts,
            expires_at=self._unix_time() + left_s,
            tally=self._tallies.get(runner.id, Tally()),
            n_users=len(runner.users),
        )

    def _lease(self, runner_id: int) -> Lease:
        def count(done: core.Done) -> None:
            self._tallies[runner_id] = self._tallies.get(runner_id, Tally()).plus(done)

        [spec] = (r.spec for r in self._scheduler.runners() if r.id == runner_id)
        return Lease(self._facts[runner_id], self._engines[runner_id], count, spec.drafter)

    # ----------------------------------------------------------------------- the one task

    async def _run(self) -> None:
        for n_events in itertools.count(1):
            if n_events % _AT_ONCE == 0:
                await asyncio.sleep(0)
            if self._closing and self._inbox.empty() and not self._watchers:
                return
            event = await self._next_event()
            self._watchers = {watcher for watcher in self._watchers if not watcher.done()}
            try:
                for n_effects, effect in enumerate(event(self._clock()), 1):
                    self._act(effect)
                    if n_effects % _WOKEN_AT_ONCE == 0:
                        await asyncio.sleep(0)
            except Exception:
                # A fault of ours: those who wait are told, the daemon lives.
                log.exception("the scheduler failed")
                for granted in self._waiting.values():
                    _refuse(granted, _fault())

    async def _next_event(self) -> Event:
        left_s = self._scheduler.next_expiry() - self._clock()
        try:
            async with asyncio.timeout(max(left_s, 0.0) if math.isfinite(left_s) else None):
                return await self._inbox.get()
        except TimeoutError:
            return self._scheduler.tick

    def _act(self, effect: Effect) -> None:
        log.debug("scheduler: %s", effect)
        match effect:
            case Start(runner_id, spec):
                self._start(runner_id, spec)
            case Place():
                self._keep(self._place(effect))
            case Stop(runner_id, why):
                self._tell_of(runner_id, lambda name: self._observer.left(name, why))
                if (engine := self._engines.get(runner_id)) is not None:
                    engine.stop()
            case Grant(waiter_id, runner_id):
                # Who has gone is not listed any more, and its `leave` is in the inbox.
                granted = self._waiting.get(waiter_id)
                if granted is not None and not granted.done():
                    granted.set_result(self._lease(runner_id))
            case Refuse(waiter_id, error):
                if isinstance(error, errors.QueueFull):
                    self._observer.refused()
                if (granted := self._waiting.get(waiter_id)) is not None:
                    _refuse(granted, error)

    def _start(self, runner_id: int, spec: core.EngineSpec) -> None:
        self._loads.begins(spec.weights, self._clock())
        try:
            engine = self._engines[runner_id] = self._start_engine(spec)
        except Exception:
            log.exception("no engine can be started for %s", spec.weights)
            self._has_failed(runner_id, _fault())
            self._inbox.put_nowait(lambda _now: self._forget(runner_id))
        else:
            self._keep(self._watch(runner_id, spec, engine))

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        self._watchers.add(asyncio.create_task(work))

    async def _place(self, question: Place) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                placement = await asyncio.to_thread(self._find_place, question.request)
        except errors.SpecdError as failure:
            error = failure
            self._inbox.put_nowait(lambda _now: self._scheduler.unplaceable(question, error))
            return
        except Exception:
            log.exception("where %s would lie is not known", question.request.spec.weights)
            # As it was asked for: the load itself will tell.
            placement = core.Placement(spec=question.request.spec, fits=True)
        self._inbox.put_nowait(lambda _now: self._scheduler.placed(question, placement))

    async def _watch(self, runner_id: int, spec: core.EngineSpec, engine: Engine) -> None:
        """Tell the scheduler what becomes of an engine."""
        try:
            facts = self._facts[runner_id] = await engine.ready()
            took_s = self._loads.ends(spec.weights, self._clock())
            self._tell_of(runner_id, lambda name: self._observer.loaded(name, took_s))
            self._inbox.put_nowait(lambda now: self._scheduler.loaded(runner_id, now))
            self._keep(self._tell(spec, facts))
        except errors.SpecdError as failure:
            self._has_failed(runner_id, failure)
        except Exception:
            log.exception("how the load of %s went is not known", spec.weights)
            self._has_failed(runner_id, _fault())
            engine.stop()
        await engine.ended()
        self._inbox.put_nowait(lambda _now: self._forget(runner_id))

    def _tell_of(self, runner_id: int, tell: Callable[[str], None]) -> None:
        """tell: is given the model's name."""
        for runner in self._scheduler.runners():
            if runner.id == runner_id:
                tell(runner.model.name)

    def _has_failed(self, runner_id: int, error: errors.SpecdError) -> None:
        def tell(name: str) -> None:
            log.warning("%s was not loaded: %s", name, error)
            self._observer.load_failed(name, error)

        for runner in self._scheduler.runners():
            if runner.id == runner_id:
                self._loads.ends(runner.weights, self._clock())
        if not isinstance(error, errors.ShuttingDown):
            self._tell_of(runner_id, tell)
        self._inbox.put_nowait(lambda _now: self._scheduler.failed(runner_id, error))

    async def _tell(self, spec: core.EngineSpec, facts: core.EngineFacts) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.to_thread(self._learn, spec, facts)
        except Exception:
            log.exception("what %s took is not learned", spec.weights)
        self._inbox.put_nowait(
            lambda _now: []
        )  # whoever ends wakes the loop, which may wait for it

    def _forget(self, runner_id: int) -> list[Effect]:
        engine = self._engines.pop(runner_id, None)
        if engine is not None and engine.is_stuck:
            names = [r.model.name for r in self._scheduler.runners() if r.id == runner_id]
            self._given_up += [(name, engine) for name in names]
        self._facts.pop(runner_id, None)
        self._tallies.pop(runner_id, None)
        if any(r.id == runner_id and r.phase is Phase.LOADED for r in self._scheduler.runners()):
            self._tell_of(runner_id, self._observer.crashed)  # nobody told it to go
        return self._scheduler.ended(runner_id)


def _refuse(granted: asyncio.Future[Lease], error: errors.SpecdError) -> None:
    if not granted.done():
        granted.set_exception(error)


def _fault() -> errors.EngineError:
    return errors.EngineError("internal error of the scheduler")
