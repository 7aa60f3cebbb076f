"""`specd demo`: the demo pair with speculation off and on, side by side, measured now.

The mathematics of the table lives in demo_report.py.
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

# Beginnings of Python files: the demo pair knows the look of nothing else.
PROMPTS = (
    "def binary_search(",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "class TestParser(unittest.TestCase):\n    def test_empty(self):\n",
    "async def fetch(self, url):\n    try:\n",
)


def demo(
    tokens: Annotated[int, typer.Option(min=1, max=1500, help="Tokens of each answer.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0)] = 0.8,
    seed: Annotated[int, typer.Option(min=0)] = 42,
    repeats: Annotated[int, typer.Option(min=1, help="Runs each way; the median counts.")] = 3,
) -> None:
    options = {"num_predict": tokens, "temperature": temperature, "seed": seed}
    demonstration = DemoComparison(make_console(), options, repeats)
    asyncio.run(demonstration.run(daemon_client()))


class DemoComparison:
    """Asks every prompt both ways with one seed, `repeats` times each, and compares."""

    def __init__(self, console: Console, options: Mapping[str, float], repeats: int) -> None:
        self._console = console
        self._options = options
        self._repeats = repeats

    async def run(self, client: Client, prompts: Sequence[str] = PROMPTS) -> None:
        """client: of the daemon to ask first; one without the demo is left alone."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(client)
            if not await _has_demo(client):
                self._console.print("Starting a daemon of its own for the demo ...")
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
        """Load both models and fill the caches of both ways, so that neither pays for it."""
        for speculative in (False, True):
            await self._ask(client, prompt, speculative=speculative, show=False)

    async def _compare(self, client: Client, number: int, prompt: str) -> PromptComparison:
        """Both ways in alternating order, so that a machine warming up favours neither."""
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
        # Raw: the demo continues a file, and is not asked a question.
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
    """False where nobody answers, and where a daemon (Ollama, say) does not know the demo."""
    try:
        await client.post("/api/show", {"model": MODEL})
    except (DaemonUnreachable, DaemonRefused):
        return False
    return True
