"""The cost of truncating a chat to its context: rendered turns and tokenized characters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from specd import core, errors
from specd.generation import Generation
from specd.prompt import render_in_process
from specd.prompt.renderer import Job
from specd.settings import Settings
from tests.test_generation import ALTERNATING, MODEL, ChatServices, WordEngine

SPACED = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"


class CountingEngine(WordEngine):
    """n_characters: of all texts that it tokenized."""

    def __init__(self, *events: core.Event) -> None:
        super().__init__(*events)
        self.n_characters = 0

    async def tokenize(self, *pieces: str | core.Image, add_bos: bool) -> list[int]:
        self.n_characters += sum(len(piece) for piece in pieces if isinstance(piece, str))
        return await super().tokenize(*pieces, add_bos=add_bos)


class CountingServices(ChatServices):
    """n_rendered: turns in all prompts together.  n_prompts: renderings."""

    def __init__(self, template: str, *, n_ctx: int) -> None:
        super().__init__(model=replace(MODEL, chat_template=template), n_ctx=n_ctx)
        self.engine = self.counting = CountingEngine(core.Token(text="hi"), *self.engine.events[1:])
        self.n_rendered = self.n_prompts = 0
        self.generation = Generation(
            self, self, self, Settings(), random_seed=lambda: 7, render_jinja=self._render
        )

    def _render(self, job: Job) -> str:
        self.n_prompts += 1
        self.n_rendered += len(job.messages)
        return render_in_process(job)

    def _prompt(self, messages: Sequence[core.Message]) -> str:
        assert self.model.chat_template is not None
        return render_in_process(
            Job(template=self.model.chat_template, messages=tuple(messages), bos_token="<s>")
        )

    def cut_as_ollama_does(self, messages: Sequence[core.Message]) -> str:
        """Return the prompt, dropping one more old turn at a time until it fits."""
        asked = max(i for i, turn in enumerate(messages) if turn.role == "user")
        for n_gone in range(len(messages)):
            left = [
                turn
                for i, turn in enumerate(messages)
                if i >= n_gone or turn.role == "system" or i == asked
            ]
            try:
                prompt = self._prompt(left)
            except errors.InvalidRequest:
                continue
            if len(prompt.split()) <= self.facts.n_ctx:
                return prompt
        return prompt


def turns(*contents: str) -> tuple[core.Message, ...]:
    return tuple(
        core.Message(role="assistant" if i % 2 else "user", content=text)
        for i, text in enumerate(contents)
    )


def honest(n: int) -> tuple[core.Message, ...]:
    """Return a system message, then short questions and long, sometimes very long answers."""
    draw = random.Random(13)
    words = [
        "the",
        "a",
        "of",
        "context",
        "tokens",
        "speculative",
        "x==1",
        "drafting",
        "12345",
        "antidisestablishment",
    ]
    lengths = [draw.choice((3, 8, 20) if i % 2 == 0 else (40, 150, 900)) for i in range(n)]
    contents = [" ".join(draw.choices(words, k=length)) for length in lengths]
    return (core.Message(role="system", content="be brief"), *turns(*contents))


async def test_a_chat_of_30000_turns_is_rendered_once_and_only_its_end_again() -> None:
    n, n_ctx = 30_000, 4096
    services = CountingServices(SPACED, n_ctx=n_ctx)
    asked = await services.asked(core.ChatPrompt(messages=turns(*("a" * n))))
    (prompt,) = asked.prompt
    assert isinstance(prompt, str)
    assert len(prompt.split()) == n_ctx - 1  # two words for each turn, one opens the answer
    assert services.n_rendered < 1.5 * n
    assert services.counting.n_characters < 8 * len(prompt)


@pytest.mark.parametrize(
    "template, n_ctx",
    [(SPACED, 20_000), (SPACED, 80_000), (ALTERNATING, 70_000)],
    ids=["short", "long", "a user first"],
)
async def test_a_chat_of_500_turns_is_truncated_as_by_a_linear_search(
    template: str, n_ctx: int
) -> None:
    messages = honest(500)
    services = CountingServices(template, n_ctx=n_ctx)
    asked = await services.asked(core.ChatPrompt(messages=messages))
    assert asked.prompt == (services.cut_as_ollama_does(messages),)
    assert services.n_rendered < 5 * len(messages)
    assert services.counting.n_tokenized <= 6
    assert services.counting.n_characters < 4 * sum(len(turn.content) for turn in messages)


async def test_a_chat_of_one_more_turn_than_fits_is_rendered_twice() -> None:
    services = CountingServices(SPACED, n_ctx=999)
    await services.asked(core.ChatPrompt(messages=turns(*["word"] * 500)))
    assert services.n_prompts <= 3
    assert services.counting.n_tokenized <= 2
