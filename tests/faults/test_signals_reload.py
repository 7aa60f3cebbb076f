"""SIGHUP: what changes at once, what waits for a restart, and what never changes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specd.daemon.reload import apply_settings
from specd.settings import Settings, is_live
from tests.daemon_process import FAKE_ENGINE, Daemon, ended, running
from tests.gguf_files import OllamaStore, write_llama

TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Service:
    """A daemon that was started with a file of settings."""

    daemon: Daemon
    file: Path
    log: Path

    async def reload(self, *lines: str) -> str:
        """Write the lines to the settings file and send SIGHUP; return what the daemon logs."""
        before = len(self.log.read_bytes())
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.daemon.process.send_signal(signal.SIGHUP)
        await self.daemon.told("RELOADING=1")
        await self.daemon.told("READY=1")
        return self.log.read_bytes()[before:].decode()


@contextlib.asynccontextmanager
async def service(tmp_path: Path, *lines: str, **variables: str) -> AsyncIterator[Service]:
    """Yield a running daemon.  lines: its settings file, also set as environment variables."""
    store = OllamaStore(tmp_path / "models")
    for name in ("m", "other"):
        store.add(name, weights=write_llama(tmp_path / f"{name}.gguf", chat_template=None))
    file = tmp_path / "specd.env"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = dict(line.split("=", 1) for line in lines) | variables
    with (tmp_path / "log").open("wb") as log:
        async with running(
            tmp_path, engine=FAKE_ENGINE, log=log.fileno(), SPECD_ENV_FILE=str(file), **given
        ) as daemon:
            yield Service(daemon, file, tmp_path / "log")


async def status(daemon: Daemon, **headers: str) -> int:
    async with daemon.http.get("/api/tags", headers=headers) as response:
        return int(response.status)


async def test_settings_change_without_closing_a_connection(tmp_path: Path) -> None:
    async with (
        service(tmp_path, "OLLAMA_KEEP_ALIVE=1h") as it,
        it.daemon.generate("hang") as response,
    ):
        page = {"Origin": "https://page.example"}
        assert await status(it.daemon, **page) == 403
        said = await it.reload(
            "OLLAMA_ORIGINS=https://page.example",
            "SPECD_API_KEYS=a-key-that-nobody-guesses",
            "OLLAMA_KEEP_ALIVE=0",
            "OLLAMA_SPECULATIVE_DECODE=0",
        )
        assert said == ""
        assert await status(it.daemon, **page) == 401
        key = {"Authorization": "Bearer a-key-that-nobody-guesses"}
        assert await status(it.daemon, **page, **key) == 200
        it.daemon.http.headers.update(key)
        assert (await it.daemon.answer("a"))[-1]["done"]
        assert json.loads(await response.content.readline())["response"] == "last words"
        assert not response.content.at_eof()
        async with it.daemon.http.post("/api/show", json={"model": "m"}) as shown:
            assert (await shown.json())["specd"]["reason"] == "disabled_by_user"


async def test_deleting_the_line_of_the_keys_does_not_remove_the_keys(tmp_path: Path) -> None:
    async with service(
        tmp_path, "SPECD_API_KEYS=a-key-that-nobody-guesses", OLLAMA_HOST="0.0.0.0:0"
    ) as it:
        assert await status(it.daemon) == 401
        assert "SPECD_API_KEYS is no longer in" in await it.reload("SPECD_APIKEYS=a-key-misspelt")
        assert "did you mean SPECD_API_KEYS?" in it.log.read_text()
        assert await status(it.daemon) == 401
        it.file.unlink()
        it.daemon.process.send_signal(signal.SIGHUP)
        await it.daemon.told("RELOADING=1")
        await it.daemon.told("READY=1")
        assert "nothing changed" in it.log.read_text()
        assert await status(it.daemon) == 401
        assert "everyone who can reach" in await it.reload("SPECD_API_KEYS=")
        assert "WARNING: open to strangers" in await it.daemon.told("STATUS=")
        assert await status(it.daemon) == 200


@pytest.mark.system
async def test_a_variable_set_outside_the_file_does_not_change(tmp_path: Path) -> None:
    async with service(tmp_path, OLLAMA_ORIGINS="https://a.example") as it:
        said = await it.reload("OLLAMA_ORIGINS=https://b.example")
        assert "OLLAMA_ORIGINS was not set by" in said
        assert await status(it.daemon, Origin="https://b.example") == 403
        assert await status(it.daemon, Origin="https://a.example") == 200


@pytest.mark.system
async def test_a_setting_that_needs_a_restart_is_logged_at_every_reload(tmp_path: Path) -> None:
    async with service(tmp_path) as it:
        for _ in range(2):
            said = await it.reload("OLLAMA_NUM_PARALLEL=4", "OLLAMA_DEBUG=0")
            assert "OLLAMA_NUM_PARALLEL has changed; restart specd to apply it" in said
        assert await it.reload("OLLAMA_DEBUG=0") == ""


@pytest.mark.parametrize(
    "lines, sentence",
    [
        (["SPECD_SHUTDOWN_GRACE=soon"], "SPECD_SHUTDOWN_GRACE='soon' must be a duration"),
        (["SPECD_API_KEYS=short"], "SPECD_API_KEYS must be keys separated by commas"),
    ],
    ids=["a duration", "a key"],
)
async def test_an_invalid_value_refuses_the_whole_reload(
    tmp_path: Path, lines: list[str], sentence: str
) -> None:
    async with service(tmp_path) as it:
        said = await it.reload("OLLAMA_ORIGINS=https://page.example", *lines)
        assert f"nothing changed: {sentence}" in said
        assert "short" not in said
        assert await status(it.daemon, Origin="https://page.example") == 403
        await it.reload("OLLAMA_ORIGINS=https://page.example")
        assert await status(it.daemon, Origin="https://page.example") == 200


@pytest.mark.system
async def test_an_invalid_pairs_file_refuses_the_reload_and_a_valid_one_is_applied(
    tmp_path: Path,
) -> None:
    pairs = tmp_path / "pairs.toml"
    pairs.write_text("")
    async with service(tmp_path, SPECD_PAIRS=str(pairs)) as it:
        pairs.write_text("[[pair]]\ntarget = 7\n")
        said = await it.reload("OLLAMA_ORIGINS=https://page.example")
        assert f"nothing changed: the pairs file {pairs} is wrong" in said
        assert await status(it.daemon, Origin="https://page.example") == 403
        pairs.write_text('[[pair]]\ntarget = "m*"\ndrafters = []\nreason = "I say so."\n')
        assert await it.reload("OLLAMA_ORIGINS=https://page.example") == ""
        assert await status(it.daemon, Origin="https://page.example") == 200
        async with it.daemon.http.post("/api/show", json={"model": "m"}) as shown:
            assert "I say so." in (await shown.json())["specd"]["detail"]


@pytest.mark.system
async def test_the_queue_limit_changes_while_requests_wait(tmp_path: Path) -> None:
    busy = {"error": "server busy, please try again.  maximum pending requests exceeded"}
    async with (
        service(tmp_path, "OLLAMA_MAX_QUEUE=2", OLLAMA_MAX_LOADED_MODELS="1") as it,
        it.daemon.generate("hang") as in_the_way,
        asyncio.TaskGroup() as asking,
    ):
        await in_the_way.content.readline()
        waiting: set[asyncio.Task[list[dict[str, Any]]]] = set()

        async def refused_after(n: int) -> None:
            """Assert that the first request is refused when n others already wait."""
            while len(waiting) <= n:
                asked = it.daemon.answer("a", model="other", stream=False)
                waiting.add(asking.create_task(asked))
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [[busy]]
            waiting.clear()
            waiting.update(rest)

        await refused_after(3)  # the head of the queue does not count
        await it.reload("OLLAMA_MAX_QUEUE=5")
        await refused_after(6)
        await it.reload("OLLAMA_MAX_QUEUE=1")
        await refused_after(6)
        for task in waiting:
            task.cancel()


@pytest.mark.system
async def test_many_signals_cause_one_reload_at_a_time(tmp_path: Path) -> None:
    async with service(tmp_path) as it:
        for n in range(50):
            it.file.write_text(f"OLLAMA_MAX_QUEUE={n}\n", encoding="utf-8")
            it.daemon.process.send_signal(signal.SIGHUP)
        await it.daemon.told("READY=1")
        assert (await it.daemon.answer("a"))[-1]["done"]
        it.daemon.process.send_signal(signal.SIGTERM)
        it.daemon.process.send_signal(signal.SIGHUP)
        assert await it.daemon.process.wait() == 0


@pytest.mark.parametrize("heard", [signal.SIGHUP, signal.SIGINT], ids=["SIGHUP", "SIGINT"])
async def test_a_signal_to_all_processes_ends_no_engine(
    tmp_path: Path, heard: signal.Signals
) -> None:
    """`systemctl kill -s HUP` and Ctrl-C in a terminal send such a signal."""
    async with running(tmp_path, SPECD_DEMO="1") as daemon:
        options = {"num_predict": 400, "seed": 1, "num_thread": 1}
        async with daemon.generate("def f(", model="specd-demo", options=options) as response:
            await response.content.readline()
            children = daemon.children()
            for child in children:
                child.send_signal(heard)
            *_, last = [json.loads(line) async for line in response.content]
        assert last["done"]
        assert daemon.children() == children


@pytest.mark.system
async def test_a_daemon_exits_when_its_terminal_closes(tmp_path: Path) -> None:
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    ours, terminal = pty.openpty()
    try:
        async with running(
            tmp_path,
            engine=FAKE_ENGINE,
            log=terminal,
            under=(sys.executable, "-c", TAKE_TERMINAL),
        ) as daemon:
            os.close(terminal)
            await daemon.answer("a")
            engines = daemon.engines()
            daemon.process.send_signal(signal.SIGHUP)  # by hand: it is there still
            await daemon.told("RELOADING=1")
            assert (await daemon.answer("a"))[-1]["done"]
            os.close(ours)
            assert await daemon.process.wait() == 0
            assert await ended(engines)
    finally:
        with contextlib.suppress(OSError):
            os.close(ours)


# --------------------------------------------------------------------------- one fact, one place


class Asked:
    """Settings that record which of their fields were read."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._settings = Settings()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._settings, name)


def test_the_settings_declared_live_are_those_that_a_reload_applies(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.NOTSET, "specd")  # which is given back at the end

    def taken(**_: object) -> None:
        pass

    def adjust(settings: Asked) -> None:
        assert settings.speculative_decode

    house = SimpleNamespace(
        scheduler=SimpleNamespace(adjust=taken),
        origins=SimpleNamespace(replace=list),
        keys=SimpleNamespace(replace=list),
        pairs=SimpleNamespace(),
        drafter_fetcher=SimpleNamespace(enable=bool),
        generation=SimpleNamespace(adjust=adjust),
    )
    asked: Any = Asked()
    apply_settings(asked, house)  # type: ignore[arg-type]
    assert asked.names == {n for n, field in Settings.model_fields.items() if is_live(field)}
