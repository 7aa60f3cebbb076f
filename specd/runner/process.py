"""One engine process as a state machine: starting → ready → stopping → stopped, or crashed.

Only `_run` writes the state.  The other methods signal it and wait.
"""

from __future__ import annotations

import asyncio
import logging
import math
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from specd import core, errors
from specd.ipc import messages
from specd.ipc.codec import BadFrame
from specd.runner.client import EngineClient
from specd.runner.engine import Completions, Embedder, Tokenizer
from specd.runner.stall_detector import StallDetector
from specd.runner.supervisor import ENGINE, OUTPUT_TIMEOUT_S, ChildProcess

log = logging.getLogger(__name__)

T = TypeVar("T")

# Ollama's sentence: clients match on it.
UNEXPECTED_STOP = (
    "model runner has unexpectedly stopped, this may be due to resource limitations"
    " or an internal error, check ollama server logs for details"
)

#: Longest time between the closing of its socket and the end of a dying process.
EXIT_TIMEOUT_S = 2.0


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"


class PairHistoryStore(Protocol):
    """The store of one pair's history."""

    async def read(self) -> core.PairHistory | None:
        """Return the pair's history, None if there is none; never fails."""

    def write(self, history: core.PairHistory) -> None:
        """Replace the stored history; return at once and never fail."""


class Process:
    """One engine process, from its start to its end.

    load_timeout_s: longest time without progress while loading.
    timeout_s: longest time without progress while a request is pending.
    grace_s: see `ChildProcess.end`.
    history_store: None starts without history and stores none, as a benchmark needs.
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
        """The id of the running process; None before its start and after its end."""
        is_over = self._state in {State.STOPPED, State.CRASHED}
        return None if self._child is None or is_over else self._child.pid

    @property
    def is_stuck(self) -> bool:
        """Whether the process was given up and still exists: not even SIGKILL ended it."""
        is_over = self._state in {State.STOPPED, State.CRASHED}
        return is_over and self._child is not None and self._child.is_alive

    async def ready(self) -> core.EngineFacts:
        """Wait for the load and return its facts.

        Raises LoadFailed, LoadStalled, or ShuttingDown after `stop`.
        """
        return await asyncio.shield(self._facts)

    async def ended(self) -> State:
        """Wait for the end of the process; return STOPPED or CRASHED."""
        await asyncio.wait({self._run_task})
        return self._state

    def stop(self) -> None:
        """Ask the engine to end, in any state; `ended` waits for it."""
        self._stop_asked.set()

    @property
    def completions(self) -> Completions | None:
        return None if self._spec.embeds else self.client

    @property
    def chats(self) -> None:
        return None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.client

    @property
    def embedder(self) -> Embedder | None:
        return self.client if self._spec.embeds else None

    @property
    def client(self) -> EngineClient:
        """The requests of the process, once it is ready."""
        assert self._client is not None, "the engine is not ready"
        return self._client

    # ----------------------------------------------------------------------- the life cycle

    async def _run(self) -> None:
        """Start, load, run and end the process."""
        try:
            self._child = child = await ChildProcess.start(self._command, self._spec.devices)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread to wait for it
            self._facts.set_exception(errors.LoadFailed(f"cannot start the engine: {error}"))
            self._set_state(State.CRASHED)
            return
        self._client = client = EngineClient(child.channel)
        cause: str | None = ""
        try:
            facts = await self._run_unless_stopped(self._load(child))
            if facts is not None:
                self._set_state(State.READY)
                self._facts.set_result(facts)
                # A stop does not end this reader: the history is an engine's last message.
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
                        cause = "it sent an unexpected message"
                        break
        except _Stalled as stalled:
            log.warning("engine %d stalled while loading: %s", child.pid, stalled)
            timeout = f"timed out waiting for the engine to start - progress {progress:.2f}"
            raise errors.LoadStalled(timeout) from None
        except OSError:
            pass  # it has just died
        except BadFrame as error:
            cause = f"it sent an invalid message: {error}"
        ending, was_killed = await self._reap(child, cause)
        # Killed by another process while it allocated memory: probably by the kernel.
        is_out_of_memory = errors.is_out_of_memory_message(ending) or was_killed
        kind = errors.OutOfMemory if is_out_of_memory else errors.LoadFailed
        raise kind(f"engine process has terminated: {ending}")

    async def _next_while_loading(self, child: ChildProcess) -> messages.ToDaemon | None:
        """Return the next message, None if the engine has ended.  Raises _Stalled."""
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
        """Wait until the engine ends or has to be ended; return why, "" if it ends by itself."""
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
        """Wait until the engine stalls while work is pending; return the cause."""
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
        """Read messages until the end; return "", or why a message could not be read."""

        def deliver(message: messages.ToDaemon) -> None:
            if not isinstance(message, messages.PairHistoryUpdate):
                client.deliver(message)
            elif self._history_store is not None:
                self._history_store.write(message.history)

        try:
            await child.channel.listen(deliver)
        except BadFrame as error:
            return f"it sent an invalid message: {error}"
        return ""

    async def _reap(self, child: ChildProcess, cause: str) -> tuple[str, bool]:
        """End the process; return its last message or `cause`, and whether another killed it.

        cause: "" if its socket is closed, which mostly means that it is dying.
        """
        if not cause and not await child.wait_for_exit(EXIT_TIMEOUT_S):
            cause = "it closed its connection"
        ended_itself = not child.is_alive
        await child.kill()
        message = child.exit_message() if ended_itself or child.is_alive else cause
        return message, ended_itself and child.was_killed

    async def _finish(self, child: ChildProcess, client: EngineClient, cause: str) -> None:
        """Fail all pending requests and reap the process."""
        if not self._facts.done() and not self._stop_asked.is_set():
            self._facts.set_exception(errors.LoadFailed("internal error while loading"))
        asked = self._stop_asked.is_set()
        if asked:
            self._set_state(State.STOPPING)
            stop_message = "the engine is stopping"
            client.close(core.Failed(kind=core.FailureKind.SHUTDOWN, message=stop_message))
            if not self._facts.done():
                self._facts.set_exception(errors.ShuttingDown(stop_message))
                await child.kill()  # an engine that is still loading has nothing to save
            child.channel.send_nowait(messages.Shutdown())
            await child.end(self._grace_s)
        else:
            await self._fail(child, client, cause)
        self._set_state(State.STOPPED if asked else State.CRASHED)

    async def _fail(self, child: ChildProcess, client: EngineClient, cause: str) -> None:
        loaded = self._facts.exception() is None
        ending, was_killed = await self._reap(child, cause)
        if was_killed:  # most often by the kernel, which gives no reason
            ending += ", perhaps because the system is out of memory"
        if loaded:
            log.error("engine %d (%s) has crashed: %s", child.pid, self._spec.weights, ending)
        message = f"{UNEXPECTED_STOP}: {ending}"
        client.close(core.Failed(kind=core.FailureKind.CRASHED, message=message))

    async def _run_unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """Return what `work` returns; cancel it and return None once a stop is requested."""
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
            self._facts.exception()  # marks it as retrieved, in case no caller waits for it


class _Stalled(Exception):
    """A load made no progress; the message says for how long."""
