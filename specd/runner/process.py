"""One engine process as a state machine: starting → ready → stopping → stopped, or crashed.

`_run` is the only writer of the state.  Others ask it to act and wait for what comes true.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Coroutine, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from specd import core, errors
from specd.ipc import messages
from specd.ipc.codec import BadFrame
from specd.runner.client import Client
from specd.runner.supervisor import ENGINE, Child

log = logging.getLogger(__name__)

T = TypeVar("T")

# Ollama's sentence: clients match on it.
UNEXPECTED_STOP = (
    "model runner has unexpectedly stopped, this may be due to resource limitations"
    " or an internal error, check ollama server logs for details"
)


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"


class Notebook(Protocol):
    """Where what is learned of one pair outlives the engine."""

    async def read(self) -> core.PairHistory | None:
        """What is known of the pair by now; never fails."""

    def write(self, history: core.PairHistory) -> None:
        """Keep it in place of what was written before; returns at once and never fails."""


class Process:
    """load_timeout_s: silence that is allowed while loading.  grace_s: see `Child.end`.

    notebook: None begins with nothing and keeps nothing, as a bench must.
    """

    def __init__(
        self,
        spec: core.EngineSpec,
        *,
        load_timeout_s: float = 300.0,
        grace_s: float = 5.0,
        command: Sequence[str] = ENGINE,
        notebook: Notebook | None = None,
    ) -> None:
        self._spec = spec
        self._notebook = notebook
        self._command = command
        self._load_timeout_s = load_timeout_s
        self._grace_s = grace_s
        self._state = State.STARTING
        self._stop_asked = asyncio.Event()
        self._facts: asyncio.Future[core.EngineFacts] = asyncio.get_running_loop().create_future()
        self._child: Child | None = None
        self._client: Client | None = None
        self._life = asyncio.create_task(self._run())

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
        await asyncio.wait({self._life})
        return self._state

    def stop(self) -> None:
        """Ask for the end, in any state; `ended` tells when it has come."""
        self._stop_asked.set()

    def generate(self, request: core.EngineRequest) -> AsyncGenerator[core.Event, None]:
        """Tokens, then exactly one Done or Failed.  Closing it early frees the slot."""
        assert self._client is not None, "generate before ready"
        return self._client.generate(request)

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        assert self._client is not None, "tokenize before ready"
        return await self._client.tokenize(*pieces, add_bos=add_bos)

    async def embed(self, text: str, *, truncate: bool, n_ctx: int = 0) -> core.Embedding:
        assert self._client is not None, "embed before ready"
        return await self._client.embed(text, truncate=truncate, n_ctx=n_ctx)

    # ----------------------------------------------------------------------- the one writer

    async def _run(self) -> None:
        """The life of the process, from top to bottom."""
        try:
            self._child = child = await Child.start(self._command, self._spec.devices)
        except OSError as error:
            self._facts.set_exception(errors.LoadFailed(f"the engine cannot be started: {error}"))
            self._become(State.CRASHED)
            return
        self._client = client = Client(child.channel)
        try:
            facts = await self._unless_stopped(self._load(child))
            if facts is not None:
                self._become(State.READY)
                self._facts.set_result(facts)
                listening = child.listen(self._listen(child, client))
                # Not cut off by a stop: what it learned is the last thing that an engine says.
                await self._unless_stopped(asyncio.wait({listening}))
        except errors.SpecdError as error:
            self._facts.set_exception(error)
        finally:
            await self._finish(child, client)

    async def _load(self, child: Child) -> core.EngineFacts:
        progress, died = 0.0, False
        history = await self._notebook.read() if self._notebook else None
        try:
            await child.channel.send(messages.Load(self._spec, history))
            while True:
                async with asyncio.timeout(_finite(self._load_timeout_s)):
                    message = await child.channel.receive()
                match message:
                    case messages.LoadProgress(fraction):
                        progress = fraction
                    case messages.Loaded(facts):
                        return facts
                    case messages.LoadRefused(reason, out_of_memory):
                        raise (errors.OutOfMemory if out_of_memory else errors.LoadFailed)(reason)
                    case None:
                        died = True
                        break
                    case _:
                        break
        except TimeoutError:
            raise errors.LoadStalled(
                f"timed out waiting for the engine to start - progress {progress:.2f}"
            ) from None
        except (OSError, BadFrame):
            log.warning("engine %d breaks off while loading", child.pid, exc_info=True)
        await child.kill()
        words = child.last_words()
        # Killed while it took memory, and not by us: the kernel had none left.
        starved = errors.says_out_of_memory(words) or (died and child.was_killed)
        kind = errors.OutOfMemory if starved else errors.LoadFailed
        raise kind(f"engine process has terminated: {words}")

    async def _listen(self, child: Child, client: Client) -> None:
        try:
            while (message := await child.channel.receive()) is not None:
                if not isinstance(message, messages.Learned):
                    client.deliver(message)
                elif self._notebook is not None:
                    self._notebook.write(message.history)
        except BadFrame:
            log.exception("engine %d speaks in riddles", child.pid)

    async def _finish(self, child: Child, client: Client) -> None:
        """Every outstanding request is told and the process is reaped, whatever happened."""
        if not self._facts.done() and not self._stop_asked.is_set():
            self._facts.set_exception(errors.LoadFailed("internal error while loading"))
        asked = self._stop_asked.is_set()
        if asked:
            self._become(State.STOPPING)
            goodbye = "the engine is stopping"
            client.close(core.Failed(kind=core.FailureKind.SHUTDOWN, message=goodbye))
            if not self._facts.done():
                self._facts.set_exception(errors.ShuttingDown(goodbye))
                await child.kill()  # a load that nobody waits for has nothing to save
            child.channel.post(messages.Shutdown())
            await child.end(self._grace_s)
        else:
            loaded = self._facts.done() and self._facts.exception() is None
            await child.kill()
            words = child.last_words()
            if child.was_killed:  # most often by the kernel, which tells nobody why
                words += ", perhaps because the system is out of memory"
            if loaded:
                log.error("engine %d (%s) is gone: %s", child.pid, self._spec.weights, words)
            failed = core.Failed(
                kind=core.FailureKind.CRASHED, message=f"{UNEXPECTED_STOP}: {words}"
            )
            client.close(failed)
        self._become(State.STOPPED if asked else State.CRASHED)

    async def _unless_stopped(self, work: Coroutine[object, object, T]) -> T | None:
        """What `work` returns; None as soon as a stop is asked for, and `work` is dropped."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop_asked.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            stop.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    def _become(self, state: State) -> None:
        log.debug("engine %s: %s → %s", self._spec.weights, self._state, state)
        self._state = state
        if self._facts.done() and not self._facts.cancelled():
            self._facts.exception()  # seen: nobody may be waiting for it any more


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
