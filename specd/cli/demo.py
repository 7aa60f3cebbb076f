"""Implement `specd demo`: measure the demo pair with speculation off and on.

demo_report.py calculates the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Annotated

import typer
from rich.console import Console

from specd.cli.client import Client, daemon_client
from specd.cli.demo_report import PromptComparison, TimedAnswer, report_table, verdict
from specd.cli.formatting import make_console
from specd.cli.responses import DaemonRefused, DaemonUnreachable
from specd.cli.temporary_daemon import temporary_daemon

MODEL = "specd-demo"

# The first lines of Python files: the demo pair was trained on Python only.
PROMPTS = (
    "def binary_search(",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class TestParser(unittest.TestCase):\n    def test_empty(self):\n",
    "async def fetch(self, url):\n    try:\n",
)


def demo(
    tokens: Annotated[int, typer.Option(min=1, max=1500, help="Tokens per answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.8,
    seed: Annotated[int, typer.Option(min=0)] = 42,
    repeats: Annotated[int, typer.Option(min=1, help="Runs per mode; the median counts.")] = 3,
) -> None:
    options = {"num_predict": tokens, "temperature": temperature, "seed": seed}
    demonstration = DemoComparison(make_console(), options, repeats)
    asyncio.run(demonstration.run(daemon_client()))


class DemoComparison:
    """A comparison of both modes: every prompt with one seed, `repeats` times each."""

    def __init__(self, console: Console, options: Mapping[str, float], repeats: int) -> None:
        self._console = console
        self._options = options
        self._repeats = repeats

    async def run(self, client: Client, prompts: Sequence[str] = PROMPTS) -> None:
        """Run the comparison.  client: of a running daemon, used if it has the demo pair."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            if not await _has_demo(client):
                self._console.print("Starting a separate daemon for the demo ...")
                url = await stack.enter_async_context(temporary_daemon())
                client = await stack.enter_async_context(Client(url))
            await self._warm_up(client, prompts[0])
            comparisons = [
                await self._compare(client, number, prompt) for number, prompt in enumerate(prompts)
            ]
        self._console.print(report_table(comparisons, self._options))
        self._console.print()
        for sentence in verdict(comparisons):
            self._console.print(sentence, markup=False)

    async def _warm_up(self, client: Client, prompt: str) -> None:
        """Load both models and fill both caches, so that no measurement includes that time."""
        for speculative in (False, True):
            await self._ask(client, prompt, speculative=speculative, show=False)

    async def _compare(self, client: Client, number: int, prompt: str) -> PromptComparison:
        """Compare both modes in alternating order, because a CPU may get slower as it heats up."""
        runs: dict[bool, list[TimedAnswer]] = {False: [], True: []}
        shown = number % 2 == 1
        self._console.print(f"── {number + 1}, {_mode_name(speculative=shown)}", style="cyan")
        for repeat in range(self._repeats):
            first = shown ^ (repeat % 2 == 1)
            for speculative in (first, not first):
                show = repeat == 0 and speculative is shown
                run = await self._ask(client, prompt, speculative=speculative, show=show)
                runs[speculative].append(run)
        comparison = PromptComparison(prompt, plain_runs=runs[False], speculative_runs=runs[True])
        self._console.print(f"── {comparison.words}\n", style="cyan", markup=False)
        return comparison

    async def _ask(
        self, client: Client, prompt: str, *, speculative: bool, show: bool
    ) -> TimedAnswer:
        options = {**self._options} if speculative else {**self._options, "draft_num_predict": 0}
        # Raw: the demo pair continues a file, it does not answer a question.
        body = {"model": MODEL, "prompt": prompt, "raw": True, "options": options}
        text: list[str] = []
        part = {}
        if show:
            self._console.print(prompt, end="", style="bold", markup=False, soft_wrap=True)
        async with aclosing(client.stream("/api/generate", body)) as parts:
            async for part in parts:
                text.append(part.get("response", ""))
                if show:
                    self._console.print(text[-1], end="", markup=False, soft_wrap=True)
        if show:
            self._console.print()
        return TimedAnswer.of("".join(text), part)


def _mode_name(*, speculative: bool) -> str:
    return "with speculation" if speculative else "plain"


async def _has_demo(client: Client) -> bool:
    """Return False if no daemon answers, or if it has no demo pair (e.g. Ollama)."""
    try:
        await client.post("/api/show", {"model": MODEL})
    except (DaemonUnreachable, DaemonRefused):
        return False
    return True
