"""`specd rm` and `specd cp`: what they ask, and what they say."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specd.cli.client import Client, DaemonRefused
from specd.cli.cp import _cp
from specd.cli.rm import _rm
from tests.cli.fake_daemon import FakeDaemon


def paper() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


async def test_models_are_unloaded_and_deleted() -> None:
    daemon = FakeDaemon({"/api/generate": {}, "/api/delete": None})
    console, out = paper()
    async with daemon.serve() as url:
        await _rm(Client(url), console, ["a", "[b]"])
    assert daemon.asked[:2] == [
        ("/api/generate", {"model": "a", "keep_alive": 0}),
        ("/api/delete", {"model": "a"}),
    ]
    assert out.getvalue() == "deleted 'a'\ndeleted '[b]'\n"


async def test_a_model_that_cannot_be_loaded_is_deleted_and_a_missing_one_is_told() -> None:
    answers = {"/api/generate": {"error": "damaged"}, "/api/delete": None}
    console, out = paper()
    async with FakeDaemon(answers, {"/api/generate": 500}).serve() as url:
        await _rm(Client(url), console, ["a"])
    assert out.getvalue() == "deleted 'a'\n"
    answers |= {"/api/delete": {"error": "model 'a' not found"}}
    daemon = FakeDaemon(answers, {"/api/generate": 404, "/api/delete": 404})
    async with daemon.serve() as url:
        with pytest.raises(DaemonRefused, match="model 'a' not found"):
            await _rm(Client(url), console, ["a", "b"])
    assert len(daemon.asked) == 2


async def test_a_copy() -> None:
    daemon = FakeDaemon({"/api/copy": None})
    console, out = paper()
    async with daemon.serve() as url:
        await _cp(Client(url), console, "a", "b:v1")
    assert daemon.asked == [("/api/copy", {"source": "a", "destination": "b:v1"})]
    assert out.getvalue() == "copied 'a' to 'b:v1'\n"
