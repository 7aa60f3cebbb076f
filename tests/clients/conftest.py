"""A daemon over the real engine, with the demo pair and a model that never ends by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, write_llama


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """Yield a daemon with the demo pair and "endless", which has random weights and no drafter."""
    OllamaStore(tmp_path / "models").add("endless", weights=write_llama(tmp_path / "endless.gguf"))
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        yield daemon
