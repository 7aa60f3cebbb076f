"""One answer of the generation package, for the dialects: as a stream or collected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from specd import core
from specd.api.error_handling import aclosing
from specd.api.interfaces import Generation
from specd.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedAnswer:
    """A complete answer.  whole: all deltas merged.  done: how it ended."""

    whole: core.Delta
    done: core.Done


async def answer_events(
    generation: Generation, request: core.GenerateRequest
) -> AsyncIterator[core.Delta | core.Done]:
    """Yield the deltas that are not empty, then one Done.

    The Done comes after the source has ended, so that a client that has seen it finds the slot
    free.  Raises SpecdError, also if the source ends without a Done.
    """
    done: core.Done | None = None
    async with aclosing(generation.generate(request)) as events:
        async for event in events:
            if isinstance(event, core.Done):
                done = event
            elif event != core.Delta():
                yield event
    if done is None:
        raise EngineError("model runner has unexpectedly stopped")
    yield done


async def collect_answer(generation: Generation, request: core.GenerateRequest) -> CollectedAnswer:
    deltas: list[core.Delta] = []
    async with aclosing(answer_events(generation, request)) as events:
        async for event in events:
            if isinstance(event, core.Done):
                return CollectedAnswer(whole=_merge_deltas(deltas), done=event)
            deltas.append(event)
    raise AssertionError("answer_events ends in a Done or an error")


def _merge_deltas(deltas: list[core.Delta]) -> core.Delta:
    return core.Delta(
        content="".join(delta.content for delta in deltas),
        thinking="".join(delta.thinking for delta in deltas),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
    )
