"""Requests whose model is deleted or replaced between the look-up and the load."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from specd import core, errors
from specd.scheduler import Lease
from tests.test_generation import MODEL, ChatServices, chat

GONE = errors.LoadFailed("cannot load /m/tiny.gguf: failed to open GGUF file")
Act = Callable[[ChatServices], Awaitable[object]]
ACTS: dict[str, Act] = {
    "generate": lambda services: services.ask(chat("x")),
    "load": lambda services: services.generation.load(core.LoadRequest(model=MODEL)),
    "count": lambda services: services.generation.count_tokens(
        core.GenerateRequest(model=MODEL, prompt=chat("x"))
    ),
    "render": lambda services: services.generation.render(
        core.GenerateRequest(model=MODEL, prompt=core.TextPrompt(text="x", context=(1, 2)))
    ),
}


class ChangingServices(ChatServices):
    """Services whose loads fail; each failure makes the next of `models` (or None) the model."""

    def __init__(self, *models: core.ModelRef | None, error: errors.SpecdError = GONE) -> None:
        super().__init__()
        self.models = list(models)
        self.there: core.ModelRef | None = MODEL
        self.error: errors.SpecdError | None = error
        self.looked_up: list[core.ModelRef | None] = []

    def resolve(self, name: str) -> core.ModelRef:
        self.looked_up.append(self.there)
        if self.there is None:
            raise errors.ModelNotFound(name)
        return self.there

    @asynccontextmanager
    async def lease(
        self,
        spec: core.LoadSpec,
        model: core.ModelRef,
        pair: core.Pair,
        keep_alive_s: float | None = None,
    ) -> AsyncIterator[Lease]:
        if self.models:
            self.there = self.models.pop(0)
            assert self.error is not None
            raise self.error
        async with super().lease(spec, model, pair, keep_alive_s) as lease:
            yield lease


NEW = replace(MODEL, version="new")


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
async def test_a_model_that_is_deleted_before_it_is_loaded_is_not_found(act: Act) -> None:
    with pytest.raises(errors.ModelNotFound, match="model 'tiny:latest' not found"):
        await act(ChangingServices(None))


@pytest.mark.parametrize("act", ACTS.values(), ids=list(ACTS))
async def test_a_model_that_is_replaced_before_it_is_loaded_answers_as_the_new_one(
    act: Act,
) -> None:
    services = ChangingServices(NEW, MODEL, NEW)
    await act(services)
    assert services.looked_up == [NEW, MODEL, NEW]


async def test_a_model_that_cannot_be_loaded_and_has_not_changed_is_loaded_once() -> None:
    services = ChangingServices(MODEL)
    with pytest.raises(errors.LoadFailed, match="cannot load"):
        await services.ask(chat("x"))
    assert services.looked_up == [MODEL]


async def test_a_model_that_keeps_changing_ends_in_its_load_error() -> None:
    services = ChangingServices(*[NEW, MODEL] * 50)
    with pytest.raises(errors.LoadFailed):
        await services.ask(chat("x"))
    assert len(services.looked_up) == 9


async def test_any_other_error_is_raised_even_if_the_model_has_changed() -> None:
    services = ChangingServices(NEW, error=errors.QueueFull())
    with pytest.raises(errors.QueueFull):
        await services.ask(chat("x"))
    assert services.looked_up == []
