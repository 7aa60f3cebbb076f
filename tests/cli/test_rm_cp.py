"""`specd rm` and `specd cp`: what they ask, and what they say."""

from __future__ import annotations

import asyncio

import pytest

from specd.cli.cp import copy
from specd.cli.responses import DaemonRefused
from specd.cli.rm import delete
from specd.cli.sync_client import SyncClient
from tests.cli.fake_daemon import FakeDaemon


async def test_models_are_unloaded_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    daemon = FakeDaemon({"/api/generate": {}, "/api/delete": None})
    async with daemon.serve() as url:
        await asyncio.to_thread(delete, SyncClient(url), ["a", "[b]"])
    assert daemon.asked[:2] == [
        ("/api/generate", {"model": "a", "keep_alive": 0}),
        ("/api/delete", {"model": "a"}),
    ]
    assert capsys.readouterr().out == "deleted 'a'\ndeleted '[b]'\n"


async def test_a_model_that_cannot_be_loaded_is_deleted_and_a_missing_one_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = {"/api/generate": {"error": "damaged"}, "/api/delete": None}
    async with FakeDaemon(answers, {"/api/generate": 500}).serve() as url:
        await asyncio.to_thread(delete, SyncClient(url), ["a"])
    assert capsys.readouterr().out == "deleted 'a'\n"
    answers |= {"/api/delete": {"error": "model 'a' not found"}}
    daemon = FakeDaemon(answers, {"/api/generate": 404, "/api/delete": 404})
    async with daemon.serve() as url:
        with pytest.raises(DaemonRefused, match="model 'a' not found"):
            await asyncio.to_thread(delete, SyncClient(url), ["a", "b"])
    assert len(daemon.asked) == 2


async def test_a_copy(capsys: pytest.CaptureFixture[str]) -> None:
    daemon = FakeDaemon({"/api/copy": None})
    async with daemon.serve() as url:
        await asyncio.to_thread(copy, SyncClient(url), "a", "b:v1")
    assert daemon.asked == [("/api/copy", {"source": "a", "destination": "b:v1"})]
    assert capsys.readouterr().out == "copied 'a' to 'b:v1'\n"
