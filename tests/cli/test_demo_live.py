"""`specd demo` with a real daemon, the demo pair and llama.cpp."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specd.cli.client import Client
from specd.cli.demo import DemoComparison


@pytest.mark.native
@pytest.mark.timeout(180)
async def test_the_demo_starts_a_daemon_and_measures_both_modes() -> None:
    out = io.StringIO()
    options = {"num_predict": 24, "temperature": 0.8, "seed": 1}
    demonstration = DemoComparison(Console(file=out, width=120), options, repeats=1)
    # No daemon listens on port 1, so the demo has to start its own.
    await demonstration.run(Client("http://127.0.0.1:1"), ["import os\n"])
    text = out.getvalue()
    assert "Starting a separate daemon" in text
    assert "num_predict 24, temperature 0.8, seed 1; median of 1" in text
    row = next(line for line in text.splitlines() if line.startswith("│ import os"))
    plain, speculative = (float(cell) for cell in row.strip("│").split("│")[1:3])
    assert plain > 0
    assert speculative > 0
    assert "the plain speed" in text
