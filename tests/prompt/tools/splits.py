"""Parse a text with every split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count, pairwise
from typing import Any

from specd import core
from specd.prompt.answer_format import AnswerParser
from tests.fast import thinned

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "places": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
TOOLS: tuple[dict[str, Any], ...] = (WEATHER, NOW)


def ids() -> Callable[[], str]:
    """Yield call_00000001, call_00000002, …"""
    numbers = count(1)
    return lambda: f"call_{next(numbers):08}"


@dataclass(frozen=True)
class Answer:
    content: str = ""
    thinking: str = ""
    calls: tuple[core.ToolCall, ...] = ()

    @property
    def names(self) -> list[str]:
        return [call.name for call in self.calls]

    @property
    def called(self) -> list[tuple[str, dict[str, object]]]:
        return [(call.name, dict(call.arguments)) for call in self.calls]


def parse(parser: AnswerParser, pieces: Iterable[str]) -> Answer:
    deltas = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    return Answer(
        "".join(delta.content for delta in deltas),
        "".join(delta.thinking for delta in deltas),
        tuple(call for delta in deltas for call in delta.tool_calls),
    )


def cut(text: str, at: Iterable[int]) -> list[str]:
    places = sorted({min(place, len(text)) for place in at} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


def all_splits(text: str, *, n_cuts: int = 2) -> Iterator[Sequence[str]]:
    """Yield the text character by character, and with every choice of up to that many cuts."""
    yield list(text)
    for n in range(1, n_cuts + 1):
        for places in thinned(combinations(range(1, len(text)), n), 5**n):
            yield cut(text, places)


def parsed(make: Callable[[], AnswerParser], text: str, *, n_cuts: int = 2) -> Answer:
    """Return the parsed text; assert that all splits agree."""
    whole = parse(make(), [text])
    for pieces in all_splits(text, n_cuts=n_cuts):
        assert parse(make(), pieces) == whole, pieces
    return whole
