"""What list, ps and show print."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from specd.cli import list_, ps, show
from specd.cli.client import Client
from specd.cli.words import expiry_words, past_words, span_words
from tests.cli.fake_daemon import FakeDaemon

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
DIGEST = "0123456789abcdef" * 4


def paper() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "seconds,words",
    [
        (0.2, "less than a second"),
        (1, "1 second"),
        (59, "59 seconds"),
        (3600, "1 hour"),
        (3 * 86400, "3 days"),
        (15 * 86400, "2 weeks"),
        (800 * 86400, "2 years"),
    ],
)
def test_spans_are_said_in_their_largest_unit(seconds: float, words: str) -> None:
    assert span_words(timedelta(seconds=seconds)) == words


def test_timestamps_are_said_as_ollama_says_them() -> None:
    assert past_words("2026-11-21T10:00:00.123456789Z", NOW) == "1 hour ago"
    assert past_words("", NOW) == ""
    assert expiry_words("2026-11-21T13:04:30+01:00", NOW) == "4 minutes from now"
    assert expiry_words("2026-11-21T11:59:59Z", NOW) == "Stopping..."
    assert expiry_words("2318-01-01T00:00:00Z", NOW) == "Forever"


async def test_list_has_a_line_per_model() -> None:
    model = {
        "name": "llama3.2:1b",
        "digest": DIGEST,
        "size": 1_300_000_000,
        "modified_at": "2020-01-01T00:00:00Z",
    }
    console = paper()
    async with FakeDaemon({"/api/tags": {"models": [model]}}).serve() as url:
        await list_._list(Client(url), console)
    header, line = text_of(console).splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert line.startswith("llama3.2:1b    0123456789ab    1.3 GB")
    assert line.rstrip().endswith("years ago")


async def test_ps_names_the_drafter_or_the_reason_for_none() -> None:
    common = {"digest": DIGEST, "size": 1000, "context_length": 4096, "expires_at": "2318-01-01"}
    drafter = {"name": "small:1b", "size": 100}
    models = [
        {**common, "name": "a:1", "size_vram": 1000, "specd": {"drafter": drafter}},
        {**common, "name": "b:1", "size_vram": 250, "specd": {"reason": "vocabulary_differs"}},
        {**common, "name": "c:1", "size_vram": 0},
    ]
    console = paper()
    async with FakeDaemon({"/api/ps": {"models": models}}).serve() as url:
        await ps._ps(Client(url), console)
    _, paired, refused, foreign = text_of(console).splitlines()
    assert "100% GPU" in paired
    assert paired.rstrip().endswith("small:1b")
    assert "75%/25% CPU/GPU" in refused
    assert refused.rstrip().endswith("none (vocabulary_differs)")
    assert "100% CPU" in foreign


def test_show_leaves_out_what_is_not_known() -> None:
    answer = {
        "details": {"parameter_size": "1.2B", "quantization_level": "Q8_0"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
        "capabilities": ["completion", "tools"],
        "parameters": 'stop "<|end|>"\n',
    }
    assert show.sections(answer) == [
        (
            "Model",
            [
                "architecture        llama",
                "parameters          1.2B",
                "context length      131072",
                "quantization        Q8_0",
            ],
        ),
        ("Capabilities", ["completion", "tools"]),
        ("Parameters", ['stop "<|end|>"']),
    ]
