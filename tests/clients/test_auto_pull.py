"""A drafter that the daemon pulls from a registry over TLS, and then uses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon_process import Daemon, ended, running
from tests.gguf_files import VOCABULARY, OllamaStore, Vocabulary, byte_vocabulary, write_llama
from tests.registry.fake_registry import FakeRegistry, Fault, status, then
from tests.registry.tls import certified

pytestmark = pytest.mark.native

ASKED: dict[str, Any] = {"model": "big", "options": {"num_predict": 32, "num_thread": 1}}


class DaemonWithRegistry:
    """A daemon with a rule that pairs "big" with a drafter that only a registry has."""

    def __init__(self, folder: Path, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.folder = folder
        self.remote = FakeRegistry()
        self.tls = certified(folder)
        OllamaStore(folder / "models").add("big", weights=write_llama(folder / "big.gguf", seed=1))
        small = write_llama(folder / "s.gguf", seed=1, noise=0.01, vocabulary=vocabulary)
        self.weights = small.read_bytes()
        self.remote.add("me/small/1b", self.weights, config=b'{"model_format":"gguf"}')
        self.stack = AsyncExitStack()

    @property
    def small(self) -> str:
        return self.remote.name("me/small/1b").removeprefix("https://")

    async def __aenter__(self) -> Daemon:
        await self.stack.enter_async_context(self.remote.serve(self.tls))
        rules = self.folder / "pairs.toml"
        rules.write_text(f'[[pair]]\ntarget = "big*"\ndrafters = ["{self.small}"]\n')
        log = self.stack.enter_context((self.folder / "log").open("wb"))
        return await self.stack.enter_async_context(
            running(
                self.folder,
                log=log.fileno(),
                HOME=str(self.folder),
                SPECD_AUTO_PULL_DRAFTS="1",
                SPECD_PAIRS=str(rules),
                SSL_CERT_FILE=str(self.folder / "registry.pem"),
            )
        )

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")


async def loaded(daemon: Daemon) -> dict[str, Any]:
    async with daemon.http.get("/api/ps") as response:
        [model] = (await response.json())["models"]
    found: dict[str, Any] = model["specd"]
    return found


async def wait_for_words(daemon: Daemon, words: str) -> dict[str, Any]:
    """Return the model's entry of ps once its detail contains `words`."""
    async with asyncio.timeout(60):
        while words not in (found := await loaded(daemon))["detail"]:
            pass
    return found


async def ask(daemon: Daemon, **fields: Any) -> dict[str, Any]:
    *_, last = await daemon.answer("Hello", **ASKED | fields)
    return dict(last["speculation"])


async def test_a_missing_drafter_is_pulled_during_answers_and_used_at_the_next_load(
    tmp_path: Path,
) -> None:
    daemon_with_registry, go_on = DaemonWithRegistry(tmp_path), asyncio.Event()
    async with daemon_with_registry as daemon:
        daemon_with_registry.remote.faults.append(then(go_on))
        said = await ask(daemon)  # answered while the pull waits
        assert (said["reason"], said["draft_n"] - said["lookup_n"]) == ("drafter_not_found", 0)
        found = await wait_for_words(daemon, f"{daemon_with_registry.small} is being pulled.")
        assert (found["drafter"], found["reason"]) == (None, "drafter_not_found")
        go_on.set()
        await wait_for_words(
            daemon, f"{daemon_with_registry.small} is installed; it drafts from the next load."
        )
        await ask(daemon, keep_alive=0)
        assert await ended(daemon.engines())
        said = await ask(daemon)
        assert (said["drafter"], said["pair_source"]) == (daemon_with_registry.small, "user")
        found = await loaded(daemon)
        assert found["drafter"]["name"] == daemon_with_registry.small
        assert found["drafter"]["size"] > 0
        assert found["reason"] != "drafter_not_found"
    assert len([s for s in daemon_with_registry.remote.seen if "/manifests/" in s.path]) == 1


@pytest.mark.parametrize(
    "fault,words",
    [(status(404), "could not be pulled"), (None, "is installed but not used")],
    ids=["none", "another vocabulary"],
)
async def test_an_unusable_drafter_is_requested_once_and_fails_no_answer(
    tmp_path: Path, fault: Fault | None, words: str
) -> None:
    daemon_with_registry = DaemonWithRegistry(tmp_path, byte_vocabulary(shuffle_seed=1))
    if fault is not None:
        daemon_with_registry.remote.manifest_faults.append(fault)
    async with daemon_with_registry as daemon:
        await ask(daemon)
        await wait_for_words(daemon, words)
        for _ in range(2):
            said = await ask(daemon, keep_alive=0)
            assert said["draft_n"] == said["lookup_n"]
            assert await ended(daemon.engines())
    assert daemon_with_registry.log().count(words) == 1
    assert len([s for s in daemon_with_registry.remote.seen if "/manifests/" in s.path]) == 1


async def test_the_shutdown_does_not_wait_for_a_pull(tmp_path: Path) -> None:
    daemon_with_registry = DaemonWithRegistry(tmp_path)
    async with daemon_with_registry as daemon:
        daemon_with_registry.remote.faults.extend([then(asyncio.Event())] * 9)
        await ask(daemon)
        await wait_for_words(daemon, "is being pulled.")
        daemon.process.terminate()
        assert await daemon.process.wait() == 0
    assert "Traceback" not in daemon_with_registry.log()
