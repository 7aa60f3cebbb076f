"""Connect engines with the history: read it at a load, write it while an engine measures.

It also counts the answers that a target gives without a drafter that did not pay.

Runs on the event loop.  Threads read and write the file, many changes at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from specd import core
from specd.pairs.history import History, HistoryKey, PairKey

log = logging.getLogger(__name__)

#: Changes of this time are saved together; a killed daemon loses at most that.
SAVE_EVERY_S: Final = 5.0


class HistoryWriter:
    """The writer of the history for all engines.  machine: from `placement.machine_name`."""

    def __init__(
        self, history: History, machine: str, *, save_every_s: float = SAVE_EVERY_S
    ) -> None:
        self._history = history
        self._machine = machine
        self._save_every_s = save_every_s
        self._closing = asyncio.Event()
        self._saving: asyncio.Task[None] | None = None
        self._counting: set[asyncio.Task[None]] = set()

    def open(self, spec: core.EngineSpec) -> PairHistoryWriter:
        """Return the writer for one engine.  spec: as loaded, complete."""
        return PairHistoryWriter(self, spec)

    async def read(
        self, spec: core.EngineSpec
    ) -> tuple[HistoryKey | None, core.PairHistory | None]:
        """Return key and history; (None, None) if the model's files cannot be read."""
        try:
            key = await asyncio.to_thread(HistoryKey.of, spec, self._machine)
        except OSError as error:
            log.debug("no history of %s: %s", spec.weights, error)
            return None, None
        return key, await asyncio.to_thread(self._history.get, key)

    def write(self, key: HistoryKey, history: core.PairHistory) -> None:
        self._history.put(key, history)
        self._save_soon()

    def count_answer(self, pair: core.Pair, drafter: str | None) -> None:
        """Count an answer for each drafter that waits for its retry; returns at once.

        drafter: weights of the drafter that the engine was loaded with.  That drafter may have been
        found to lose since; then the answer does not count for it.
        """
        waiting = (one for one in pair.skipped_drafters if one.n_answers_left is not None)
        lost = [one for one in waiting if str(one.weights) != drafter]
        if lost and isinstance(pair.target, core.LocalModel):
            counting = asyncio.create_task(self._count_later(pair.target, lost))
            self._counting.add(counting)
            counting.add_done_callback(self._counting.discard)

    async def _count_later(
        self, target: core.LocalModel, lost: Sequence[core.SkippedDrafter]
    ) -> None:
        await asyncio.to_thread(self._count, target, lost)
        self._save_soon()

    def _count(self, target: core.LocalModel, lost: Sequence[core.SkippedDrafter]) -> None:
        for one in lost:
            try:
                key = PairKey.of(target.weights, target.adapters, one.weights, self._machine)
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
            # If that fails, the next change tries again.
            saved = await asyncio.to_thread(self._history.save)

    async def close(self) -> None:
        """Save what is not saved yet."""
        await asyncio.gather(*self._counting)
        self._closing.set()
        if self._saving is not None:
            await self._saving
        await asyncio.to_thread(self._history.save)


class PairHistoryWriter:
    """The history of one engine: the `runner.PairHistoryStore` of its process."""

    def __init__(self, history_writer: HistoryWriter, spec: core.EngineSpec) -> None:
        self._history_writer = history_writer
        self._spec = spec
        self._key: HistoryKey | None = None
        self._known: core.PairHistory | None = None

    async def read(self) -> core.PairHistory | None:
        self._key, self._known = await self._history_writer.read(self._spec)
        return self._known

    def write(self, history: core.PairHistory) -> None:
        if self._key is not None:
            self._history_writer.write(self._key, _over(self._known, history))


def _over(known: core.PairHistory | None, learned: core.PairHistory) -> core.PairHistory:
    """Return `learned` with the known bands that it lacks, as of a drafter that did not load."""
    if known is None or known.device != learned.device:
        return learned
    updated = {(band.drafter, band.band) for band in learned.bands}
    others = (band for band in known.bands if (band.drafter, band.band) not in updated)
    return replace(learned, bands=(*learned.bands, *others))
