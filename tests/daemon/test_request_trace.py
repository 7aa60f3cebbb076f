"""docs/ARCHITECTURE.md lists the files that a request passes: compared with a real request."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

from tests.daemon_process import ROOT, Daemon, running

#: Packages whose files the page need not list: values, counters, and background tasks.
UNLISTED = (
    "core/",
    "daemon/",
    "engine/backend.py",
    "engine/media.py",
    "errors.py",
    "go_json_encoder.py",
    "metrics/",
    "options.py",
    "placement/",
    "runner/process.py",
    "runner/supervisor.py",
    "sd_notify.py",
    "settings/",
    "daemon_address.py",
    "worker_pool.py",
)


def listed() -> tuple[set[str], set[str]]:
    """Return the files and folders of the page's table, and those of the steps of a load alone."""
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.split("## The life of a request")[1].split("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if re.match(r"\| \d+ \|", row)]
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for _, _, step, files, *_ in rows:
        names["if needed" in step] |= set(re.findall(r"`([\w/]+(?:\.py|/))`", files))
    return names[False], names[True] - names[False]


async def record(daemon: Daemon, folder: Path) -> set[str]:
    """Return the files called in daemon and engine since the last record, and begin anew."""
    names: set[str] = set()
    for pid in (daemon.process.pid, *(engine.pid for engine in daemon.engines())):
        path = folder / str(pid)
        os.mkfifo(path)
        os.kill(pid, signal.SIGUSR2)
        names |= set((await asyncio.to_thread(path.read_text)).split())
        path.unlink()
        os.kill(pid, signal.SIGUSR1)
    return names


def is_in(name: str, places: set[str]) -> bool:
    return any(
        name == place or (place.endswith("/") and name.startswith(place)) for place in places
    )


async def answered(daemon: Daemon, body: dict[str, object]) -> None:
    """Wait for the answer and its log line, which is written before the next request is read."""
    async with daemon.http.post("/api/chat", json=body) as reply:
        await reply.read()
    async with daemon.http.get("/api/version") as reply:
        await reply.read()


async def test_the_page_lists_the_files_that_a_request_passes(tmp_path: Path) -> None:
    path = f"{Path(__file__).with_name('traced')}:{ROOT}"
    chat: dict[str, object] = {
        "model": "specd-demo",
        "messages": [{"role": "user", "content": "hi"}],
    }
    body: dict[str, object] = {**chat, "options": {"num_predict": 24}}
    async with running(tmp_path, PYTHONPATH=path, TRACE_FOLDER=str(tmp_path)) as daemon:
        await answered(daemon, body)
        loaded = await record(daemon, tmp_path)
        await answered(daemon, body)
        called = await record(daemon, tmp_path)
    files, only_to_load = listed()
    passed = {name for name in files if not any(is_in(one, {name}) for one in called)}
    assert passed == set(), "the page lists files that the request did not pass"
    assert {name for name in only_to_load if not any(is_in(one, {name}) for one in loaded)} == set()
    missing = {name for name in called if not is_in(name, files | set(UNLISTED))}
    assert missing == set(), "the request passed files that the page does not list"
