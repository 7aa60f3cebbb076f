"""The lines and bars of a pull, a push or a create."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from specd.cli.progress import show_progress

PULL: list[dict[str, Any]] = [
    {"status": "pulling manifest"},
    {"status": "pulling aaaaaaaaaaaa", "digest": "sha256:a", "total": 2000},
    {"status": "pulling aaaaaaaaaaaa", "digest": "sha256:a", "total": 2000, "completed": 2000},
    {"status": "verifying sha256 digest"},
    {"status": "verifying sha256 digest"},
    {"status": "success"},
]


async def shown(lines: list[dict[str, Any]], error: Exception | None = None) -> list[str]:
    async def told() -> AsyncIterator[dict[str, Any]]:
        for line in lines:
            yield line
        if error is not None:
            raise error

    screen = io.StringIO()
    await show_progress(Console(file=screen, width=80), told())
    return [line.split("━")[0].strip() for line in screen.getvalue().splitlines() if line.strip()]


async def test_the_last_status_is_the_last_line() -> None:
    assert await shown(PULL) == [
        "pulling manifest",
        "pulling aaaaaaaaaaaa",
        "verifying sha256 digest",
        "success",
    ]


async def test_a_long_sentence_is_one_line() -> None:
    sentence = f"using existing layer sha256:{'0' * 64}"
    assert await shown([{"status": sentence}]) == [sentence]


async def test_an_error_stops_the_bars_and_is_raised() -> None:
    with pytest.raises(RuntimeError, match="cut"):
        await shown(PULL[:2], RuntimeError("cut"))
