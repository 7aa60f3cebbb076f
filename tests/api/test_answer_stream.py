"""A collected answer has all deltas and the Done, and its source is closed."""

from __future__ import annotations

import pytest

from specd import core
from specd.api.streaming import collect_answer
from specd.errors import EngineCrashed
from tests.api.fakes import DONE, FakeGeneration, Script, model_ref

REQUEST = core.GenerateRequest(model=model_ref("m"), prompt=core.TextPrompt(text="x"))


async def test_an_error_of_the_source_is_passed_on() -> None:
    generation = FakeGeneration([core.Delta(content="a"), EngineCrashed("gone")])
    with pytest.raises(EngineCrashed, match="gone"):
        await collect_answer(generation.generate(REQUEST))
    assert generation.closed.is_set()


async def test_a_collected_answer_merges_all_deltas() -> None:
    first, second = core.ToolCall(name="f"), core.ToolCall(name="g", index=1)
    pieces: Script = [
        core.Delta(thinking="h"),
        core.Delta(thinking="m", content="a", tool_calls=(first,)),
        core.Delta(tool_calls=(second,)),
        DONE,
    ]
    answer = await collect_answer(FakeGeneration(pieces).generate(REQUEST))
    assert answer.whole == core.Delta(thinking="hm", content="a", tool_calls=(first, second))
    assert answer.done == DONE
