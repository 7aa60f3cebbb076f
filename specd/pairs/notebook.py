"""What one engine reads from the history when it loads, and writes to it while it learns.

It also counts the answers that are given without a drafter that lost.

Lives on the event loop; the file's work is done in threads, and for many pages together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specd import core
from specd.pairs.history import History, Key
from specd.pairs.retries import PairKey
from specd.store.identity import identities_of, identity_of

log = logging.getLogger(__name__)

#: Lessons of so long are saved together; what a killed daemon loses at most.
SAVE_EVERY_S: Final = 5.0


class Notebooks:
    """machine: `placement.machine_name`."""

    def __init__(
        self, history: History, machine: str, *, save_every_s: float = SAVE_EVERY_S
    ) -> None:
        self._history = history
        self._machine = machine
        self._save_every_s = save_every_s
        self._closing = asyncio.Event()
        self._saving: asyncio.Task[None] | None = None
        self._counting: set[asyncio.Task[None]] = set()

    def open(self, spec: core.EngineSpec) -> Notebook:
        """For one engine; `spec` as it is loaded, with nothing left open."""
        return Notebook(self, spec)

    async def read(self, spec: core.EngineSpec) -> tuple[Key | None, core.PairHistory | None]:
        """No key, and so nothing to write under, where the model's files cannot be seen."""
        try:
            key = await asyncio.to_thread(Key.of, spec, self._machine)
        except OSError as error:
            log.debug("nothing is kept of %s: %s", spec.weights, error)
            return None, None
        return key, await asyncio.to_thread(self._history.get, key)

    def write(self, key: Key, history: core.PairHistory) -> None:
        self._history.put(key, history)
        self._save_soon()

    def count_answer(self, pair: core.Pair, drafter: str | None) -> None:
        """Count an answer for each drafter that waits for its retry; returns at once.

        drafter: weights of the drafter that the engine was loaded with.  That drafter may have been
        found to lose since; then the answer does not count for it.
        """
        waiting = (one for one in pair.passed_over if one.n_answers_left is not None)
        if lost := [one for one in waiting if str(one.weights) != drafter]:
            counting = asyncio.create_task(self._count_later(pair.target, lost))
            self._counting.add(counting)
            counting.add_done_callback(self._counting.discard)

    async def _count_later(self, target: core.ModelRef, lost: Sequence[core.PassedOver]) -> None:
        await asyncio.to_thread(self._count, target, lost)
        self._save_soon()

    def _count(self, target: core.ModelRef, lost: Sequence[core.PassedOver]) -> None:
        for one in lost:
            try:
                key = PairKey(
                    identity_of(target.weights),
                    identity_of(one.weights),
                    self._machine,
                    identities_of(target.adapters),
                )
            except OSError as error:
                log.debug("no answer is counted for %s: %s", one.weights, error)
            else:
                self._history.count_answer(key, one.n_retries)

    def _save_soon(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_later())

    async def _save_later(self) -> None:
        saved = True
        while saved and not self._history.is_saved:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._save_every_s):
                    await self._closing.wait()
            # Where it fails, the next lesson tries again.
            saved = await asyncio.to_thread(self._history.save)

    async def close(self) -> None:
        """Save what is not saved yet."""
        await asyncio.gather(*self._counting)
        self._closing.set()
        if self._saving is not None:
            await self._saving
        await asyncio.to_thread(self._history.save)


class Notebook:
    """What `runner.Process` asks of one."""

    def __init__(self, notebooks: Notebooks, spec: core.EngineSpec) -> None:
        self._notebooks = notebooks
        self._spec = spec
        self._key: Key | None = None
        self._known: core.PairHistory | None = None

    async def read(self) -> core.PairHistory | None:
        self._key, self._known = await self._notebooks.read(self._spec)
        return self._known

    def write(self, history: core.PairHistory) -> None:
        if self._key is not None:
            self._notebooks.write(self._key, _over(self._known, history))


def _over(known: core.PairHistory | None, learned: core.PairHistory) -> core.PairHistory:
    """`learned`, with what it does not speak of: a drafter that did not load this time."""
    if known is None or known.device != learned.device:
        return learned
    spoken = {(band.drafter, band.band) for band in learned.bands}
    silent = (band for band in known.bands if (band.drafter, band.band) not in spoken)
    return replace(learned, bands=(*learned.bands, *silent))
