"""Implement `specd demo`: measure the demo pair with speculation off and on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Annotated, Self

import typer
from rich.console import Console
from rich.table import Table

from specd.cli.client import Client, daemon_client
from specd.cli.formatting import make_console
from specd.cli.sync_client import DaemonRefused, DaemonUnreachable, Json
from specd.cli.temporary_daemon import temporary_daemon

MODEL = "specd-demo"
# Two runs on a busy machine can differ by this much.
_NOISE = 0.03
# Drafted tokens per answer token; an answer with fewer was plain apart from a few probes.
_NEGLIGIBLE_GAIN = 0.05
_SMALL = "The demo model is too small to gain: use `specd bench` to measure speed"

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
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="Temperature.")] = 0.8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every answer.")] = 42,
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


# --------------------------------------------------------------------------- report


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer: its text, and the engine's token count and time."""

    text: str
    n_tokens: int
    seconds: float
    speculation: Json = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, final: Json) -> Self:
        seconds = final.get("eval_duration", 0) / 1e9
        return cls(text, final.get("eval_count", 0), seconds, final.get("speculation") or {})

    @property
    def speed(self) -> float:
        """Return tokens per second, 0 if nothing was measured."""
        return self.n_tokens / self.seconds if self.seconds else 0.0

    @property
    def drafted(self) -> int:
        return int(self.speculation.get("draft_n", 0))

    @property
    def accepted(self) -> int:
        return int(self.speculation.get("draft_n_accepted", 0))


@dataclass(frozen=True, slots=True)
class PromptComparison:
    """The answers to one prompt, equally many in each mode, with one seed."""

    prompt: str
    plain_runs: Sequence[TimedAnswer]
    speculative_runs: Sequence[TimedAnswer]

    @property
    def plain(self) -> TimedAnswer:
        return _median(self.plain_runs)

    @property
    def speculative(self) -> TimedAnswer:
        return _median(self.speculative_runs)

    @property
    def same_text(self) -> bool:
        return len({run.text for run in (*self.plain_runs, *self.speculative_runs)}) == 1

    @property
    def words(self) -> str:
        return (
            f"plain {self.plain.speed:.1f} tokens/s,"
            f" with speculation {self.speculative.speed:.1f} tokens/s, {_text_sentence(self)}"
        )


def _median(runs: Sequence[TimedAnswer]) -> TimedAnswer:
    """Return the run of median speed."""
    return sorted(runs, key=lambda run: run.speed)[len(runs) // 2]


def _text_sentence(comparison: PromptComparison) -> str:
    if comparison.same_text:
        return "same text"
    texts = [run.text for run in (*comparison.plain_runs, *comparison.speculative_runs)]
    columns = enumerate(zip(*texts, strict=False))
    shortest = min(map(len, texts))
    n_same = next((i for i, letters in columns if len(set(letters)) > 1), shortest)
    return f"the texts differ after {n_same} characters"


def total(runs: Sequence[TimedAnswer]) -> TimedAnswer:
    """Return the sum of all tokens and times, so that long answers weigh more."""
    speculation = {
        "draft_n": sum(run.drafted for run in runs),
        "draft_n_accepted": sum(run.accepted for run in runs),
    }
    n_tokens, seconds = sum(run.n_tokens for run in runs), sum(run.seconds for run in runs)
    return TimedAnswer("", n_tokens, seconds, speculation)


def report_table(comparisons: Sequence[PromptComparison], options: Mapping[str, object]) -> Table:
    settings = ", ".join(f"{name} {value}" for name, value in options.items())
    n_runs = max((len(item.plain_runs) for item in comparisons), default=0)
    table = Table(title=f"specd-demo: {settings}; median of {n_runs}", title_justify="left")
    table.add_column("prompt", no_wrap=True, overflow="ellipsis", max_width=28)
    for header in ("plain\ntokens/s", "speculative\ntokens/s", "drafted", "accepted"):
        table.add_column(header, justify="right")
    table.add_column("same text")
    for item in comparisons:
        name = item.prompt.strip().splitlines()[0]
        same = "yes" if item.same_text else "no"
        table.add_row(name, *_cells(item.plain, item.speculative), same)
    plain = total([item.plain for item in comparisons])
    speculative = total([item.speculative for item in comparisons])
    same = "yes" if all(item.same_text for item in comparisons) else "no"
    table.add_section()
    table.add_row("all", *_cells(plain, speculative), same, style="bold")
    return table


def _cells(plain: TimedAnswer, speculative: TimedAnswer) -> tuple[str, str, str, str]:
    drafted, accepted = speculative.drafted, speculative.accepted
    share = f"{accepted} ({accepted / drafted:.0%})" if drafted else "0"
    return f"{plain.speed:.1f}", f"{speculative.speed:.1f}", str(drafted), share


def verdict(comparisons: Sequence[PromptComparison]) -> list[str]:
    """Return the sentences that explain the table."""
    plain = total([item.plain for item in comparisons]).speed
    drafting = total([item.speculative for item in comparisons])
    ratio = drafting.speed / plain if plain else 1.0
    # Hardly any drafts: a difference in speed is noise.
    hardly = drafting.drafted < _NEGLIGIBLE_GAIN * drafting.n_tokens
    sentences = [_rarely_drafted(ratio) if hardly else _gain(ratio)]
    sentences += _controller_sentence([item.speculative.speculation for item in comparisons])
    if not all(item.same_text for item in comparisons):
        sentences.append(
            "Texts may differ where two tokens are almost equally likely: a wider pass of the"
            " target rounds a little differently (docs/speculation.md)."
        )
    return sentences


def _rarely_drafted(ratio: float) -> str:
    return (
        f"Speculation does not pay here, so almost all decoding was plain ({ratio:.2f} times"
        f" the plain speed). {_SMALL}."
    )


def _gain(ratio: float) -> str:
    if ratio > 1 + _NOISE:
        return f"Speculation paid: {ratio:.2f} times the plain speed."
    if ratio >= 1 - _NOISE:
        return f"Speculation made no difference here ({ratio:.2f} times the plain speed). {_SMALL}."
    return (
        f"Speculation did not pay here: {ratio:.2f} times the plain speed. Drafting took longer"
        f" than it saved. {_SMALL}."
    )


def _controller_sentence(runs: Sequence[Json]) -> list[str]:
    """Return sentences that say whether drafting was off at the end of a run, and why."""
    idle = [run for run in runs if run.get("state") in {"parked", "off"}]
    if not idle:
        return []
    groups = Counter((str(run["state"]), _reason(run)) for run in idle)
    return [
        f"In {n} of {len(runs)} answers speculation was {_STATES[state]} (state: {state}"
        + (f", {reason})." if reason else ").")
        for (state, reason), n in groups.items()
    ]


_STATES = {"parked": "switched off by the controller", "off": "off from the start"}


def _reason(run: Json) -> str:
    return ": ".join(str(run[key]) for key in ("reason", "detail") if run.get(key))
