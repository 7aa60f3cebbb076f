"""Every answer ends in one Done or one error, and its source is closed."""

from __future__ import annotations

import pytest

from specd import core
from specd.api.answer_stream import answer_events, collect_answer
from specd.errors import EngineCrashed, EngineError
from tests.api.fakes import DONE, FakeGeneration, Script

REQUEST = core.GenerateRequest(model="m", prompt=core.TextPrompt(text="x"))


async def test_empty_deltas_are_dropped_and_done_comes_when_the_source_has_ended() -> None:
    generation = FakeGeneration([core.Delta(), core.Delta(content="a"), DONE])
    seen = []
    async for event in answer_events(generation, REQUEST):
        seen.append(event)
        assert generation.closed.is_set() == isinstance(event, core.Done)
    assert seen == [core.Delta(content="a"), DONE]


async def test_a_source_without_an_end_is_an_error() -> None:
    with pytest.raises(EngineError, match="unexpectedly stopped"):
        await collect_answer(FakeGeneration([core.Delta(content="a")]), REQUEST)


async def test_an_error_of_the_source_is_passed_on() -> None:
    generation = FakeGeneration([core.Delta(content="a"), EngineCrashed("gone")])
    with pytest.raises(EngineCrashed, match="gone"):
        await collect_answer(generation, REQUEST)
    assert generation.closed.is_set()


async def test_a_whole_answer_is_all_deltas_in_one() -> None:
    first, second = core.ToolCall(name="f"), core.ToolCall(name="g", index=1)
    pieces: Script = [
        core.Delta(thinking="h"),
        core.Delta(thinking="m", content="a", tool_calls=(first,)),
        core.Delta(tool_calls=(second,)),
        DONE,
    ]
    answer = await collect_answer(FakeGeneration(pieces), REQUEST)
    assert answer.whole == core.Delta(thinking="hm", content="a", tool_calls=(first, second))
    assert answer.done == DONE
