"""`specd pull` and `specd push`: their requests and output."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from specd.cli.client import Client
from specd.cli.progress import transfer
from specd.cli.sync_client import DaemonRefused
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
    async with daemon.serve() as url, Client(url) as client:
        for model in ("a", "[b]"):
            await transfer(client, console, "pull", model, insecure=True)
    assert daemon.asked == [
        ("/api/pull", {"model": model, "insecure": True}) for model in ("a", "[b]")
    ]
    assert out.getvalue().count("pulling aaaaaaaaaaaa") == 2
    assert "4.1/4.1 GB" in out.getvalue()
    assert out.getvalue().count("verifying sha256 digest\nsuccess\n") == 2


async def test_a_push_ends_with_the_registrys_error() -> None:
    lines = [{"status": "retrieving manifest"}, {"error": "unauthorized: access denied"}]
    daemon = FakeDaemon({"/api/push": lines})
    console, out = recording_console()
    async with daemon.serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused, match="unauthorized: access denied"):
            await transfer(client, console, "push", "a")
    assert daemon.asked == [("/api/push", {"model": "a"})]
    assert out.getvalue().rstrip() == "retrieving manifest"


async def test_a_connection_closed_in_mid_pull_is_an_error() -> None:
    daemon = FakeDaemon({"/api/pull": [{"status": "pulling manifest"}]})
    console, _ = recording_console()
    async with daemon.serve() as url, Client(url) as client:
        with pytest.raises(DaemonRefused, match="closed the connection before the end"):
            await transfer(client, console, "pull", "a")
