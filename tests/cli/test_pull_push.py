"""`specd pull` and `specd push`: what they ask, and what they show."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specd.cli.client import Client
from specd.cli.pull import _pull
from specd.cli.push import _push
from specd.cli.responses import DaemonRefused
from tests.cli.fake_daemon import FakeDaemon

LAYER = {"digest": f"sha256:{'a' * 64}", "total": 4_100_000_000}


def recording_console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=120), out


async def test_a_pull_shows_its_layers_and_its_steps() -> None:
    lines = [
        {"status": "pulling manifest"},
        {"status": "pulling aaaaaaaaaaaa", **LAYER},
        {"status": "pulling aaaaaaaaaaaa", **LAYER, "completed": LAYER["total"]},
        {"status": "verifying sha256 digest"},
        {"status": "success"},
    ]
    daemon = FakeDaemon({"/api/pull": lines})
    console, out = recording_console()
    async with daemon.serve() as url:
        await _pull(Client(url), console, ["a", "[b]"], insecure=True)
    assert daemon.asked == [
        ("/api/pull", {"model": model, "insecure": True}) for model in ("a", "[b]")
    ]
    assert out.getvalue().count("pulling aaaaaaaaaaaa") == 2
    assert "4.1/4.1 GB" in out.getvalue()
    assert out.getvalue().count("verifying sha256 digest\nsuccess\n") == 2


async def test_a_push_ends_with_what_the_registry_says() -> None:
    lines = [{"status": "retrieving manifest"}, {"error": "unauthorized: access denied"}]
    daemon = FakeDaemon({"/api/push": lines})
    console, out = recording_console()
    async with daemon.serve() as url:
        with pytest.raises(DaemonRefused, match="unauthorized: access denied"):
            await _push(Client(url), console, "a", insecure=False)
    assert daemon.asked == [("/api/push", {"model": "a"})]
    assert out.getvalue().rstrip() == "retrieving manifest"


async def test_a_daemon_that_ends_in_mid_pull_has_not_succeeded() -> None:
    daemon = FakeDaemon({"/api/pull": [{"status": "pulling manifest"}]})
    console, _ = recording_console()
    async with daemon.serve() as url:
        with pytest.raises(DaemonRefused, match="closed the connection before the end"):
            await _pull(Client(url), console, ["a"], insecure=False)
