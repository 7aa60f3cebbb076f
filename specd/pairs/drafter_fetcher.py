"""Pull missing drafters automatically in the background (SPECD_AUTO_PULL_DRAFTS).

If a rule names a drafter for a target that has none, or only one from the local store, that drafter
is pulled.  Pulls run one at a time, each drafter once, and no request waits or fails because of
them.  Whether the drafter fits is checked when the target is paired again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, Protocol

from specd import core
from specd.errors import RegistryUnreachable, SpecdError
from specd.pairs.finder import LOCAL_STORE
from specd.pairs.rules import key_of

log = logging.getLogger(__name__)

#: Wait before an unreachable registry is tried again; it doubles with each failure.
_PAUSE_S: Final = 3600.0


class Pull(Protocol):
    """A function that pulls a model: `registry.Registry.pull`.  Raises SpecdError."""

    def __call__(self, model: str, /) -> AsyncGenerator[core.Progress, None]: ...


@dataclass(slots=True)
class _Fetch:
    """The pull of one drafter.

    targets: the models that it is for, by full name.  outcome: the result for each, a sentence.
    doing: the present state, a sentence; "" if it is over.
    again_at: when it may be tried again, by the clock; None means never.
    """

    name: str
    targets: dict[str, core.LocalModel] = field(default_factory=dict)
    outcome: dict[str, str] = field(default_factory=dict)
    doing: str = ""
    again_at: float | None = None
    n_failures: int = 0


class DrafterFetcher:
    """Pulls missing drafters in the background.

    Call its methods from the event loop; all but `close` return at once.

    pair: finds a target's pair again; it reads files and is called in a thread.
    """

    def __init__(
        self,
        pull: Pull,
        pair: Callable[[core.LocalModel], core.Pair],
        *,
        enabled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pull = pull
        self._pair = pair
        self._enabled = enabled
        self._clock = clock
        self.fetches: dict[str, _Fetch] = {}  # by the rule's name of the drafter, in lower case
        self._queue: deque[_Fetch] = deque()
        self._task: asyncio.Task[None] | None = None

    def enable(self, enabled: bool) -> None:
        """Allow or forbid new pulls; running ones continue."""
        self._enabled = enabled

    async def close(self) -> None:
        """Stop the running pull; a later pull continues where it stopped."""
        self._enabled = False
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def request_drafter(self, pair: core.Pair) -> None:
        """Start to pull the drafter of a target in use, if one is missing."""
        if not self._enabled or not _lacks_chosen_drafter(pair):
            return
        name, target = pair.pull[0], pair.target
        if not isinstance(target, core.LocalModel):
            return
        fetch = self.fetches.setdefault(name.lower(), _Fetch(name))
        if fetch.doing:
            fetch.targets[target.full_name] = target
            return
        is_new = not fetch.outcome
        if is_new or (fetch.again_at is not None and self._clock() >= fetch.again_at):
            self._begin(fetch, target)

    def status_text(self, pair: core.Pair) -> str:
        """Return a sentence about the pull of the pair's missing drafter; "" if there is none."""
        fetch = self.fetches.get(pair.pull[0].lower()) if _lacks_chosen_drafter(pair) else None
        if fetch is None:
            return ""
        return fetch.doing or fetch.outcome.get(pair.target.full_name, "")

    # ----------------------------------------------------------------------- the task

    def _begin(self, fetch: _Fetch, target: core.LocalModel) -> None:
        fetch.doing = f"{fetch.name} is waiting to be pulled."
        fetch.targets, fetch.outcome = {target.full_name: target}, {}
        self._queue.append(fetch)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="auto-pull")

    async def _work(self) -> None:
        while self._queue:
            fetch = self._queue.popleft()
            try:
                await self._fetch(fetch)
                await self._tell(fetch)
            except SpecdError as error:
                self._give_up(fetch, error)
            except Exception as error:
                # A bug with this drafter must not stop the pulls after it.
                log.exception("%s could not be pulled", fetch.name)
                self._give_up(fetch, error)
            finally:
                fetch.doing = ""

    async def _fetch(self, fetch: _Fetch) -> None:
        fetch.doing = f"{fetch.name} is being pulled."
        log.info("%s is being pulled, to draft for %s", fetch.name, ", ".join(_names(fetch)))
        tenths: dict[str, int] = {}
        async with aclosing(self._pull(fetch.name)) as lines:
            async for line in lines:
                if (tenth := _next_tenth(tenths, line)) is not None:
                    log.info("%s: %d0 %% of %.1f GB", fetch.name, tenth, line.total / 1e9)

    async def _tell(self, fetch: _Fetch) -> None:
        """Whether it drafts now; a pull is no promise that the vocabularies agree."""
        fetch.again_at = None
        for key, target in list(fetch.targets.items()):
            pair = await asyncio.to_thread(self._pair, target)
            if pair.drafter is not None and key_of(pair.drafter.name) == key_of(fetch.name):
                fetch.outcome[key] = f"{fetch.name} is installed; it drafts from the next load."
                status_text = "%s is installed; it drafts for %s from its next load"
                log.info(status_text, fetch.name, target.name)
            else:
                why = f"{pair.drafter.name} is." if pair.drafter is not None else pair.detail
                fetch.outcome[key] = f"{fetch.name} is installed but not used: {why}"
                status_text = "%s is installed but not used for %s: %s"
                log.warning(status_text, fetch.name, target.name, why)

    def _give_up(self, fetch: _Fetch, error: Exception) -> None:
        message = f"{fetch.name} could not be pulled: {error}"
        fetch.outcome = dict.fromkeys(fetch.targets, message)
        fetch.again_at = None
        if isinstance(error, RegistryUnreachable):
            pause_s = _PAUSE_S * 2.0**fetch.n_failures
            fetch.n_failures += 1
            fetch.again_at = self._clock() + pause_s
            log.warning("%s; it may be tried again in %.0f h", message, pause_s / 3600)
        elif isinstance(error, SpecdError):
            log.warning("%s", message)


def _lacks_chosen_drafter(pair: core.Pair) -> bool:
    """Return whether a pullable drafter is missing; one from the local store is a stopgap."""
    is_stopgap = pair.drafter is not None and pair.drafter.source == LOCAL_STORE
    return bool(pair.pull) and (pair.reason is core.NoPair.NOT_FOUND or is_stopgap)


def _names(fetch: _Fetch) -> list[str]:
    return [target.name for target in fetch.targets.values()]


def _next_tenth(logged: dict[str, int], line: core.Progress) -> int | None:
    """Return the tenth of its layer, from 1 to 9, that a line is the first to reach, or None.

    logged: the last tenth of each layer; changed here.  The first line of a layer only sets it.
    """
    if not line.total:
        return None
    tenth = line.completed * 10 // line.total
    before = logged.setdefault(line.digest, tenth)
    logged[line.digest] = max(tenth, before)
    return tenth if before < tenth < 10 else None
