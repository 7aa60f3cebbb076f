"""`specd rm` and `specd cp`: their requests and output."""

from __future__ import annotations

import asyncio

import pytest

from specd.cli.cp import copy
from specd.cli.rm import delete
from specd.cli.sync_client import DaemonRefused, SyncClient
from tests.cli.fake_daemon import FakeDaemon


async def test_rm_unloads_and_deletes_models(capsys: pytest.CaptureFixture[str]) -> None:
    daemon = FakeDaemon({"/api/generate": {}, "/api/delete": None})
    async with daemon.serve() as url:
        await asyncio.to_thread(delete, SyncClient(url), ["a", "[b]"])
    assert daemon.asked[:2] == [
        ("/api/generate", {"model": "a", "keep_alive": 0}),
        ("/api/delete", {"model": "a"}),
    ]
    assert capsys.readouterr().out == "deleted 'a'\ndeleted '[b]'\n"


async def test_rm_deletes_a_model_that_cannot_be_unloaded_and_reports_a_missing_one(
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


async def test_cp_copies_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    daemon = FakeDaemon({"/api/copy": None})
    async with daemon.serve() as url:
        await asyncio.to_thread(copy, SyncClient(url), "a", "b:v1")
    assert daemon.asked == [("/api/copy", {"source": "a", "destination": "b:v1"})]
    assert capsys.readouterr().out == "copied 'a' to 'b:v1'\n"
