"""Define an hour of a busy home server: the clients, their requests and the kills of engines.

Sixteen clients send about 4,900 requests.  Each client sends its requests at random moments, one
after the other, as often on average as its row says.  Played in ten minutes, everything comes six
times as fast.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.soak import request_mix
from benchmarks.soak.request_mix import SoakRequest

HOUR_S: Final = 3600.0
#: The minutes in which the hour is played.
PLAYED_MINUTES: Final = 10.0
#: Kills of engines in an hour.
KILLS: Final = 12
#: The pair's engine is killed and reloaded only in this first share of the hour.
UNSETTLED: Final = 0.4
_STREAMED: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A kind of client.  per_hour: its requests.  leaves: the share of answers that it abandons."""

    name: str
    what: str
    n: int
    per_hour: int
    request_mix: Callable[[], tuple[SoakRequest, ...]]
    leaves: float = 0.0


ROLES: Final = (
    Role(
        name="editor",
        what="completes code, raw; often interrupted",
        n=3,
        per_hour=360,
        request_mix=request_mix.editor,
        leaves=0.3,
    ),
    Role(
        name="chat window",
        what="chats with either model, streamed or whole",
        n=4,
        per_hour=120,
        request_mix=request_mix.chat_window,
        leaves=0.1,
    ),
    Role(
        name="OpenAI agent",
        what="chat completions and responses, some as JSON",
        n=2,
        per_hour=300,
        request_mix=request_mix.openai_agent,
        leaves=0.05,
    ),
    Role(
        name="Anthropic agent",
        what="long messages, tokens counted first",
        n=2,
        per_hour=300,
        request_mix=request_mix.anthropic_agent,
        leaves=0.05,
    ),
    Role(
        name="search index",
        what="embeds documents, alone and in batches",
        n=1,
        per_hour=600,
        request_mix=request_mix.search_index,
    ),
    Role(
        name="home automation",
        what="JSON, free and by a schema",
        n=1,
        per_hour=240,
        request_mix=request_mix.automation,
    ),
    Role(
        name="dashboard",
        what="tags, ps, show, version",
        n=1,
        per_hour=720,
        request_mix=request_mix.dashboard,
    ),
    Role(
        name="careless script",
        what="requests that must be refused",
        n=1,
        per_hour=180,
        request_mix=request_mix.careless,
    ),
    Role(
        name="administrator",
        what="loads, unloads, other contexts",
        n=1,
        per_hour=180,
        request_mix=request_mix.administrator,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a client.

    due_s: since the start.  leaves_after: events that the client reads before it leaves.  0 is
    before the first byte, after `patience_s`; None waits for the end.
    """

    due_s: float
    role: str
    ask: SoakRequest
    streamed: bool
    leaves_after: int | None = None
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of an engine.  draw: 0 to 1, selects one of those that may be killed."""

    due_s: float
    draw: float
    spares_pair: bool


def roles_for_clients(n_clients: int) -> list[Role]:
    """Return a role for each client; after sixteen the list starts again."""
    each = [role for role in ROLES for _ in range(role.n)]
    return list(itertools.islice(itertools.cycle(each), n_clients))


def request_schedule(role: Role, seed: str, play_s: float, speed: float) -> Iterator[Turn]:
    """Yield one client's requests.  speed: hours played per hour."""
    draw = random.Random(seed)  # noqa: S311 - the same hour every time
    pool = role.request_mix()
    due_s = 0.0
    while (due_s := due_s + draw.expovariate(role.per_hour * speed / HOUR_S)) < play_s:
        ask = draw.choice(pool)
        streamed = ask.can_stream and draw.random() < _STREAMED
        leaves = draw.random() < role.leaves
        after = draw.choice((0, 1, draw.randrange(1, 30)))
        yield Turn(
            due_s=due_s,
            role=role.name,
            ask=ask,
            streamed=streamed,
            leaves_after=(after if streamed else 0) if leaves else None,
            patience_s=draw.random() * 0.5,
        )


def kill_schedule(seed: str, play_s: float, speed: float) -> list[Kill]:
    draw = random.Random(seed)  # noqa: S311 - the same hour every time
    n = max(1, round(KILLS * play_s * speed / HOUR_S))
    return [
        Kill(
            due_s := play_s * (number + draw.random()) / n,
            draw.random(),
            spares_pair=due_s > UNSETTLED * play_s,
        )
        for number in range(n)
    ]


def seeded_requests(roles: list[Role]) -> list[SoakRequest]:
    """Return each request with a reproducible answer once."""
    found = {ask.key: ask for role in roles for ask in role.request_mix() if ask.is_seeded}
    return list(found.values())
