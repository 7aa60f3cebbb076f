"""Play the clients' requests, and record the outcome of each."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp

from benchmarks.soak.dialects import BadResponse, Reading, events_of, whole
from benchmarks.soak.request_mix import SoakRequest
from benchmarks.soak.traffic import Turn

#: Longer than any request takes; a request without an end is found after this time.
_FORGOTTEN_S = 120.0
_numbers = itertools.count(1)


class End(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # with a status, before anything was sent
    FAILED = "failed"  # with the event that says so
    LEFT = "left"  # by the client
    BROKEN = "broken"  # any other end, which is a bug


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one request.

    Times are seconds on the monotonic clock.  detail: the error or the reason of a refusal.
    id: the request's id in the daemon's log.
    """

    id: str
    role: str
    ask: SoakRequest
    streamed: bool
    end: End
    status: int
    n_ends: int
    text: str
    began_s: float
    ended_s: float
    first_byte_s: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ClientSummary:
    """A client's total.  behind_s: its largest delay.  n_unplayed: turns that were not played."""

    behind_s: float
    n_unplayed: int


@dataclass(slots=True)
class _Asked:
    """One request while it runs."""

    turn: Turn
    id: str = field(default_factory=lambda: f"soak-{next(_numbers)}")
    began_s: float = field(default_factory=time.monotonic)
    first_byte_s: float | None = None
    status: int = 0
    reading: Reading = field(default_factory=Reading)

    def outcome(self, end: End, detail: str = "") -> Outcome:
        reading = self.reading
        return Outcome(
            id=self.id,
            role=self.turn.role,
            ask=self.turn.ask,
            streamed=self.turn.streamed,
            end=end,
            status=self.status,
            n_ends=reading.n_ends,
            text=reading.text or "".join(reading.parts),
            began_s=self.began_s,
            ended_s=time.monotonic(),
            first_byte_s=self.first_byte_s,
            detail=detail or reading.error,
        )


async def play_client(
    url: str, turns: Iterable[Turn], began_s: float, outcomes: list[Outcome], *, most_s: float
) -> ClientSummary:
    """Play one client's turns in order; turns after `most_s` are not played."""
    behind_s, n_unplayed = 0.0, 0
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as http:
        for turn in turns:
            wait_s = began_s + turn.due_s - time.monotonic()
            if time.monotonic() > began_s + most_s:
                n_unplayed += 1
                continue
            behind_s = max(behind_s, -wait_s)
            await asyncio.sleep(max(0.0, wait_s))
            outcomes.append(await ask(http, turn))
    return ClientSummary(behind_s, n_unplayed)


async def ask(http: aiohttp.ClientSession, turn: Turn) -> Outcome:
    """Send one request, and read until its end or until its client leaves."""
    asked = _Asked(turn)
    leaves_at_once = turn.leaves_after == 0
    try:
        async with asyncio.timeout(turn.patience_s if leaves_at_once else _FORGOTTEN_S):
            return await _answer(http, asked)
    except TimeoutError:
        if leaves_at_once:
            return asked.outcome(End.LEFT)
        return asked.outcome(End.BROKEN, f"no end within {_FORGOTTEN_S:.0f} s")
    except aiohttp.ClientError as error:
        return asked.outcome(End.BROKEN, f"{type(error).__name__}: {error}")
    except (BadResponse, KeyError, TypeError, ValueError) as error:
        return asked.outcome(End.BROKEN, f"not of its dialect: {error!r}")


async def _answer(http: aiohttp.ClientSession, asked: _Asked) -> Outcome:
    turn = asked.turn
    body = turn.ask.body(streamed=turn.streamed)
    async with http.request(
        "GET" if body is None else "POST",
        turn.ask.path,
        data=body,
        headers={"X-Request-Id": asked.id, "Content-Type": "application/json"},
    ) as response:
        asked.first_byte_s = time.monotonic()
        asked.status = response.status
        if turn.streamed and response.status == 200:
            return await _streamed(response, asked)
        asked.reading = whole(turn.ask.dialect, response.status, await response.read())
        if response.status == 200:
            return asked.outcome(End.DONE)
        return asked.outcome(End.REFUSED)


async def _streamed(response: aiohttp.ClientResponse, asked: _Asked) -> Outcome:
    turn, reading = asked.turn, asked.reading
    sse = response.content_type == "text/event-stream"
    async for line in response.content:
        event = events_of(line, sse=sse)
        if event is None:
            continue
        reading.take(turn.ask.dialect, event)
        if reading.n_events == turn.leaves_after and not reading.n_ends:
            response.close()
            return asked.outcome(End.LEFT)
    if reading.n_ends != 1 or reading.n_late:
        words = f"{reading.n_ends} ends, {reading.n_late} events behind the first"
        return asked.outcome(End.BROKEN, words)
    return asked.outcome(End.FAILED if reading.error else End.DONE)
