"""One engine process as a state machine: starting → ready → stopping → stopped, or crashed.

`_run` is the only writer of the state.  Others ask it to act and wait for what comes true.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, Coroutine, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from specd import core, errors
from specd.ipc import messages
from specd.ipc.codec import BadFrame
from specd.runner.client import EngineClient
from specd.runner.stall_detector import StallDetector
from specd.runner.supervisor import ENGINE, OUTPUT_TIMEOUT_S, ChildProcess

log = logging.getLogger(__name__)

T = TypeVar("T")

# Ollama's sentence: clients match on it.
UNEXPECTED_STOP = (
    "model runner has unexpectedly stopped, this may be due to resource limitations"
    " or an internal error, check ollama server logs for details"
)

#: Between the end of its socket and that of a process that dies.
EXIT_TIMEOUT_S = 2.0


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"


class PairHistoryStore(Protocol):
    """Where what is learned of one pair outlives the engine."""

    async def read(self) -> core.PairHistory | None:
        """What is known of the pair by now; never fails."""

    def write(self, history: core.PairHistory) -> None:
        """Keep it in place of what was written before; returns at once and never fails."""


class Process:
    """load_timeout_s: silence that is allowed while loading.  timeout_s: how long an engine that
    owes something may make no step.  grace_s: see `ChildProcess.end`.

    notebook: None begins with nothing and keeps nothing, as a bench must.
    """

    def __init__(
        self,
        spec: core.EngineSpec,
        *,
        load_timeout_s: float = 300.0,
        timeout_s: float = math.inf,
        grace_s: float = 5.0,
        command: Sequence[str] = ENGINE,
        history_store: PairHistoryStore | None = None,
    ) -> None:
        self._spec = spec
        self._history_store = history_store
        self._command = command
        self._load_timeout_s = load_timeout_s
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._state = State.STARTING
        self._stop_asked = asyncio.Event()
        self._facts: asyncio.Future[core.EngineFacts] = asyncio.get_running_loop().create_future()
        self._child: ChildProcess | None = None
        self._client: EngineClient | None = None
        self._run_task = asyncio.create_task(self._run())

    @property
    def state(self) -> State:
        return self._state

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def is_stuck(self) -> bool:
        """Its process was given up and is still there: not even SIGKILL ends it."""
        is_over = self._state in {State.STOPPED, State.CRASHED}
        return is_over and self._child is not None and self._child.is_alive

    async def ready(self) -> core.EngineFacts:
        """Facts once it is loaded.  LoadFailed, LoadStalled, or ShuttingDown after `stop`."""
        return await asyncio.shield(self._facts)

    async def ended(self) -> State:
        """STOPPED or CRASHED, once the process is gone."""
        await asyncio.wait({self._run_task})
        return self._state

    def stop(self) -> None:
        """Ask for the end, in any state; `ended` tells when it has come."""
        self._stop_asked.set()

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        """Started and Tokens, then exactly one Done or Failed.  Closing it early frees the slot."""
        assert self._client is not None, "generate before ready"
        return self._client.generate(request)

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        assert self._client is not None, "tokenize before ready"
        return await self._client.tokenize(*pieces, add_bos=add_bos)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        assert self._client is not None, "detokenize before ready"
        return await self._client.detokenize(tokens)

    async def embed(self, text: str, *, truncate: bool, n_ctx: int | None = None) -> core.Embedding:
        assert self._client is not None, "embed before ready"
        return await self._client.embed(text, truncate=truncate, n_ctx=n_ctx)

    # ----------------------------------------------------------------------- the one writer

    async def _run(self) -> None:
        """The life of the process, from top to bottom."""
        try:
            self._child = child = await ChildProcess.start(self._command, self._spec.devices)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread to wait for it
            self._facts.set_exception(errors.LoadFailed(f"the engine cannot be started: {error}"))
            self._set_state(State.CRASHED)
            return
        self._client = client = EngineClient(child.channel)
        cause: str | None = ""
        try:
            facts = await self._run_unless_stopped(self._load(child))
            if facts is not None:
                self._set_state(State.READY)
                self._facts.set_result(facts)
                # Not cut off by a stop: what it learned is the last thing that an engine says.
                listening = child.listen(self._listen(child, client))
                cause = await self._run_unless_stopped(self._wait_for_end(child, client, listening))
        except errors.SpecdError as error:
            self._facts.set_exception(error)
        finally:
            await self._finish(child, client, cause or "")

    async def _load(self, child: ChildProcess) -> core.EngineFacts:
        progress, cause = 0.0, ""
        history = await self._history_store.read() if self._history_store else None
        try:
            await child.channel.send(messages.Load(self._spec, history))
            while True:
                message = await self._next_while_loading(child)
                match message:
                    case messages.LoadProgress(fraction):
                        progress = fraction
                    case messages.Loaded(facts):
                        return facts
                    case messages.LoadRefused(reason, out_of_memory):
                        raise (errors.OutOfMemory if out_of_memory else errors.LoadFailed)(reason)
                    case None:
                        break
                    case _:
                        cause = "it speaks out of turn"
                        break
        except _Stalled as still:
            log.warning("engine %d does not load: %s", child.pid, still)
            said = f"timed out waiting for the engine to start - progress {progress:.2f}"
            raise errors.LoadStalled(said) from None
        except OSError:
            pass  # it has just died
        except BadFrame as error:
            cause = f"its words cannot be read: {error}"
        words, was_killed = await self._reap(child, cause)
        # Killed while it took memory, and not by us: the kernel had none left.
        is_out_of_memory = errors.is_out_of_memory_message(words) or was_killed
        kind = errors.OutOfMemory if is_out_of_memory else errors.LoadFailed
        raise kind(f"engine process has terminated: {words}")

    async def _next_while_loading(self, child: ChildProcess) -> messages.ToDaemon | None:
        """What it says next, None where it has gone.  Raises _Stalled."""
        stall_detector = StallDetector(self._load_timeout_s, child.is_stopped)
        receiving = asyncio.ensure_future(child.channel.receive())
        leaving = asyncio.ensure_future(child.wait_for_exit())
        try:
            while not receiving.done():
                first = {receiving, leaving}
                await asyncio.wait(
                    first, timeout=stall_detector.check_interval_s, return_when=FIRST_COMPLETED
                )
                if leaving.done():  # a grandchild may hold the socket open for ever
                    await asyncio.wait({receiving}, timeout=OUTPUT_TIMEOUT_S)
                    break
                if cause := stall_detector.check(has_progressed=receiving.done()):
                    raise _Stalled(cause)
            return receiving.result() if receiving.done() else None
        finally:
            receiving.cancel()
            leaving.cancel()
            await asyncio.gather(receiving, leaving, return_exceptions=True)

    async def _wait_for_end(
        self, child: ChildProcess, client: EngineClient, listening: asyncio.Task[str]
    ) -> str:
        """Wait for it: why the engine is to be ended, "" where it ends by itself."""
        leaving = asyncio.ensure_future(child.wait_for_exit())
        watching = asyncio.ensure_future(self._watch(child, client))
        try:
            first = {listening, leaving, watching}
            await asyncio.wait(first, return_when=FIRST_COMPLETED)
            if leaving.done():
                return ""
            return listening.result() if listening.done() else watching.result()
        finally:
            leaving.cancel()
            watching.cancel()
            await asyncio.gather(leaving, watching, return_exceptions=True)

    async def _watch(self, child: ChildProcess, client: EngineClient) -> str:
        """Why it is given up, once it owes something and does not move."""
        stall_detector = StallDetector(self._timeout_s, child.is_stopped)
        if math.isinf(self._timeout_s):
            await child.wait_for_exit()
        while True:
            await client.wait_for_pending_work()
            n_signs_of_life = client.n_signs_of_life
            await asyncio.sleep(stall_detector.check_interval_s)
            has_progressed = (
                client.n_signs_of_life != n_signs_of_life or not client.has_pending_work
            )
            if cause := stall_detector.check(has_progressed=has_progressed):
                return cause
            if not has_progressed:
                client.ping()

    async def _listen(self, child: ChildProcess, client: EngineClient) -> str:
        """Until it says no more, or ("why") nothing that can be understood."""

        def deliver(message: messages.ToDaemon) -> None:
            if not isinstance(message, messages.PairHistoryUpdate):
                client.deliver(message)
            elif self._history_store is not None:
                self._history_store.write(message.history)

        try:
            await child.channel.listen(deliver)
        except BadFrame as error:
            return f"its words cannot be read: {error}"
        return ""

    async def _reap(self, child: ChildProcess, cause: str) -> tuple[str, bool]:
        """Its last words, or why it was ended; and whether another than we killed it.

        why: "" where its end of the socket is closed, and it is dying, as a rule.
        """
        if not cause and not await child.wait_for_exit(EXIT_TIMEOUT_S):
            cause = "it closed its connection"
        ended_itself = not child.is_alive
        await child.kill()
        words = child.exit_message() if ended_itself or child.is_alive else cause
        return words, ended_itself and child.was_killed

    async def _finish(self, child: ChildProcess, client: EngineClient, cause: str) -> None:
        """Every outstanding request is told and the process is reaped, whatever happened."""
        if not self._facts.done() and not self._stop_asked.is_set():
            self._facts.set_exception(errors.LoadFailed("internal error while loading"))
        asked = self._stop_asked.is_set()
        if asked:
            self._set_state(State.STOPPING)
            stop_message = "the engine is stopping"
            client.close(core.Failed(kind=core.FailureKind.SHUTDOWN, message=stop_message))
            if not self._facts.done():
                self._facts.set_exception(errors.ShuttingDown(stop_message))
                await child.kill()  # a load that nobody waits for has nothing to save
            child.channel.send_nowait(messages.Shutdown())
            await child.end(self._grace_s)
        else:
            await self._fail(child, client, cause)
        self._set_state(State.STOPPED if asked else State.CRASHED)

    async def _fail(self, child: ChildProcess, client: EngineClient, cause: str) -> None:
        loaded = self._facts.exception() is None
        words, was_killed = await self._reap(child, cause)
        if was_killed:  # most often by the kernel, which tells nobody why
            words += ", perhaps because the system is out of memory"
        if loaded:
            log.error("engine %d (%s) is gone: %s", child.pid, self._spec.weights, words)
        message = f"{UNEXPECTED_STOP}: {words}"
        client.close(core.Failed(kind=core.FailureKind.CRASHED, message=message))

    async def _run_unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """What `work` returns; None as soon as a stop is asked for, and `work` is dropped."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _set_state(self, state: State) -> None:
        log.debug("engine %s: %s → %s", self._spec.weights, self._state, state)
        self._state = state
        if self._facts.done() and not self._facts.cancelled():
            self._facts.exception()  # seen: nobody may be waiting for it any more


class _Stalled(Exception):
    """Nothing moves in a load; in words."""
