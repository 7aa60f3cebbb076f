"""Test the daemon's start, shutdown and faults with the fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest

from specd import core
from specd.pairs import HISTORY_FILE, History
from specd.store import safe_files
from tests.daemon_process import FAKE_ENGINE, ROOT, Daemon, ended
from tests.daemon_process import running as running_daemon
from tests.fakes.engine import BYE
from tests.gguf_files import OllamaStore, write_llama

#: File modes restrict root too.
WITHOUT_ROOTS_RIGHTS = (
    ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
)


def running(tmp_path: Path, **variables: str) -> AbstractAsyncContextManager[Daemon]:
    """Start a daemon with the model "m" in its store."""
    OllamaStore(tmp_path / "models").add(
        "m", weights=write_llama(tmp_path / "m.gguf", chat_template=None)
    )
    return running_daemon(tmp_path, engine=FAKE_ENGINE, log=None, **variables)


@pytest.mark.contract("sched.shutdown")
async def test_it_answers_loads_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        *chunks, last = await daemon.answer("a b")
        assert "".join(chunk["response"] for chunk in chunks) == "a b "
        assert (last["done"], last["done_reason"]) == (True, "stop")
        engines = daemon.engines()
        await daemon.answer("c")
        assert daemon.engines() == engines
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.process.wait() == 0
        assert await ended(engines)


async def test_a_running_answer_gets_an_error_after_the_grace_period(tmp_path: Path) -> None:
    async with running(tmp_path, SPECD_SHUTDOWN_GRACE="0s") as daemon:
        async with daemon.generate("hang") as response:
            assert json.loads(await response.content.readline())["response"] == "last words"
            engines = daemon.engines()
            daemon.process.send_signal(signal.SIGTERM)
            lines = [json.loads(line) async for line in response.content]
        assert len(lines) == 1
        assert "error" in lines[0]
        assert await daemon.process.wait() == 0
        assert await ended(engines)


@pytest.mark.contract("sched.shutdown")
async def test_a_second_signal_ends_the_grace_period(tmp_path: Path) -> None:
    async with running(tmp_path, SPECD_SHUTDOWN_GRACE="1h") as daemon:
        async with daemon.generate("hang") as response:
            await response.content.readline()
            daemon.process.send_signal(signal.SIGINT)
            # Refused connections show that the daemon has handled the first signal.
            with contextlib.suppress(aiohttp.ClientConnectionError):
                while True:
                    async with aiohttp.ClientSession(daemon.url) as http:
                        await (await http.get("/api/version")).read()
            daemon.process.send_signal(signal.SIGINT)
            assert "error" in json.loads(await response.content.readline())
        assert await daemon.process.wait() == 0


async def test_a_killed_engine_costs_one_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        async with daemon.generate("hang") as response:
            await response.content.readline()
            for engine in daemon.engines():
                engine.kill()
            lines = [json.loads(line) async for line in response.content]
        [line] = lines
        assert line["error"].startswith("model runner has unexpectedly stopped, this may be due")
        assert "signal: SIGKILL" in line["error"]
        assert (await daemon.answer("a"))[-1]["done"]


@pytest.mark.contract("sched.leave")
async def test_a_client_that_leaves_in_mid_stream_frees_the_slot(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        async with daemon.generate("hang", keep_alive=0) as response:
            await response.content.readline()
            engines = daemon.engines()
            response.close()
        # keep_alive 0: the engine ends as soon as it is idle.
        assert await ended(engines)


@pytest.mark.contract("sched.leave")
async def test_a_client_that_leaves_before_the_first_byte_frees_the_slot(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        asking = asyncio.create_task(daemon.answer("hang", stream=False, keep_alive=0))
        loaded: list[object] = []
        while not loaded:
            async with daemon.http.get("/api/ps") as response:
                loaded = (await response.json())["models"]
        engines = daemon.engines()
        asking.cancel()
        assert await ended(engines)


def learned(tmp_path: Path) -> core.BandHistory:
    [entry] = History(tmp_path / "state" / HISTORY_FILE).entries()
    [band] = entry.history.bands
    return band


async def test_the_history_survives_the_engine_and_the_daemon(tmp_path: Path) -> None:
    for n_requests in (2, 4):
        async with running(tmp_path) as daemon:
            await daemon.answer("a", keep_alive=0)
            assert await ended(daemon.engines())
            await daemon.answer("b")
            daemon.process.send_signal(signal.SIGTERM)
            assert await daemon.process.wait() == 0
        assert (learned(tmp_path).n_requests, learned(tmp_path).parked) == (n_requests, BYE)


async def test_an_unwritable_state_folder_fails_no_answer(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("not a folder")
    async with running(tmp_path) as daemon:
        assert (await daemon.answer("a"))[-1]["done"]
        daemon.process.send_signal(signal.SIGTERM)
        assert await daemon.process.wait() == 0


async def test_a_locked_store_does_not_delay_the_start(tmp_path: Path) -> None:
    (tmp_path / "models/manifests").mkdir(parents=True)
    (tmp_path / "models/blobs").mkdir()
    with (
        safe_files.exclusive_lock(tmp_path / "models/manifests"),
        (tmp_path / "log").open("wb") as log,
    ):
        async with (
            running_daemon(
                tmp_path, engine=FAKE_ENGINE, log=log.fileno(), SPECD_LOG_FORMAT="text"
            ) as daemon,
            daemon.http.get("/api/tags") as response,
        ):
            assert response.status == 200
    said = (tmp_path / "log").read_text(encoding="utf-8")
    # The address is logged before any later event.
    assert 0 < said.index(" listens on ") < said.index("another specd is writing here")


async def test_an_unwritable_store_is_logged_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "models").touch()
    with (tmp_path / "log").open("wb") as log:
        async with running_daemon(
            tmp_path,
            engine=FAKE_ENGINE,
            log=log.fileno(),
            SPECD_PROMT_LOOKUP="0",
            SPECD_ACCEL="cpu",
        ):
            pass
    said = (tmp_path / "log").read_text(encoding="utf-8")
    assert (
        f"no model can be pulled, created or deleted: {tmp_path}/models is not a directory" in said
    )
    assert (
        "SPECD_PROMT_LOOKUP is set, but there is no such setting; did you mean SPECD_PROMPT_LOOKUP?"
        in said
    )
    assert "SPECD_ACCEL" not in said


@pytest.mark.parametrize("closed", ["models", "models/manifests", "."])
async def test_an_unreadable_store_is_logged_at_the_start(tmp_path: Path, closed: str) -> None:
    store = tmp_path / "house/models"
    OllamaStore(store).add("m", weights=write_llama(tmp_path / "m.gguf"))
    folder = tmp_path / "house" / closed
    folder.chmod(0)
    try:
        with (tmp_path / "log").open("wb") as log:
            async with (
                running_daemon(
                    tmp_path,
                    engine=FAKE_ENGINE,
                    log=log.fileno(),
                    under=WITHOUT_ROOTS_RIGHTS,
                    OLLAMA_MODELS=str(store),
                    SPECD_DEMO="0",
                ) as daemon,
                daemon.http.get("/api/tags") as response,
            ):
                assert (await response.json())["models"] == []
    finally:
        folder.chmod(0o700)
    said = (tmp_path / "log").read_text(encoding="utf-8")
    name = pwd.getpwuid(os.geteuid()).pw_name
    seen = store if closed == "." else folder
    assert f"the store {seen} may not be read by {name}: none of its models is listed" in said
    assert "Traceback" not in said


async def test_a_busy_port_is_a_clear_error(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; from specd.daemon import main; from specd.settings import Settings\n"
            "sys.exit(main(Settings()))",
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OLLAMA_HOST": daemon.url},
        )
        _, said = await second.communicate()
        assert second.returncode == 1
        assert b"cannot listen on " + daemon.url.encode() in said
        assert b"Traceback" not in said
