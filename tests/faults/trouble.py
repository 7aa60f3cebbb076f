"""A daemon whose engines fail at exact moments, and checks that it recovers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.daemon_process import ROOT, Daemon, running
from tests.faults.dialects import DIALECTS, Dialect
from tests.gguf_files import OllamaStore, write_llama

#: The real engine.
FAILING = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.fakes.failing_engine")
GONE = "model runner has unexpectedly stopped"
#: Open files of the daemon for each engine (socket, output) and each template process (pipes).
N_FILES_EACH = 2
#: A pass of the other model, which leaves the processor to others meanwhile.
PACE_S = 0.02
#: Until all is as it was: many more than it ever takes.
CHECKS_PER_LIMIT = 600
ENDLESS = {"num_predict": -1, "temperature": 0}


@dataclass(slots=True)
class Trouble:
    """Models: "m", whose engine fails, and "other".  Each engine has two slots.

    n_heard: lines of the other's answers, where one is always under way.
    """

    daemon: Daemon
    store: OllamaStore
    folder: Path
    log: Path
    has_neighbour: bool
    n_files: int = 0
    n_heard: int = 0
    _ids: Any = field(default_factory=itertools.count)

    def will(self, *faults: str, model: str = "m") -> None:
        """Set the faults of the model's engines: each "moment fault" happens once, in order."""
        path = self.folder / "faults" / self.store.weights_path(model).name
        path.write_text("\n".join(faults), encoding="ascii")

    def prompt(self) -> str:
        """Return a prompt that shares no prefix with any slot's tokens."""
        return f"{next(self._ids)} is the number of this question, and it is long enough"

    async def ask(self, dialect: Dialect, *, stream: bool, model: str = "m") -> tuple[int, bytes]:
        body = {"model": model, "stream": stream, **dialect.body(self.prompt())}
        async with self.daemon.http.post(dialect.path, json=body) as response:
            return response.status, await response.read()

    @contextlib.asynccontextmanager
    async def answer_under_way(self, model: str) -> AsyncIterator[Any]:
        """Yield an endless answer whose first text has arrived."""
        prompt = self.prompt()
        async with self.daemon.generate(prompt, model=model, options=ENDLESS) as response:
            assert "response" in json.loads(await response.content.readline())
            yield response

    async def residents(self) -> set[str]:
        async with self.daemon.http.get("/api/ps") as response:
            return {model["name"] for model in (await response.json())["models"]}

    def count_files(self) -> int:
        """Count the daemon's open files without connections, templates' pipes and pidfds.

        asyncio waits for a child with a pidfd from Python 3.12 on, if the kernel has it.
        """
        process = psutil.Process(self.daemon.process.pid)
        n_of_others = len(process.net_connections("tcp")) + N_FILES_EACH * self._n_templates()
        n_pidfds = 0
        for file in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                n_pidfds += "[pidfd]" in str(file.readlink())
        return process.num_fds() - n_of_others - n_pidfds

    def _n_templates(self) -> int:
        """Return the number of template processes: as many stay as were ever busy together."""
        children = self.daemon.children()
        return len(children) - len(self.daemon.engines())

    async def is_as_before(self) -> None:
        """Assert that "m" answers, nothing has leaked and the other model's answer continues."""
        self.will()
        status, raw = await self.ask(DIALECTS["generate"], stream=True)
        assert DIALECTS["generate"].is_whole(status, raw), raw
        models = await self.residents()
        if self.has_neighbour:
            assert models == {"m:latest", "other:latest"}, models
            n_heard = self.n_heard
            await self._until(lambda: "" if self.n_heard > n_heard else "the other says no more")
        await self._until(lambda: self._traces(len(models)))
        log = self.log.read_text(encoding="utf-8", errors="replace")
        assert "Traceback" not in log
        assert "internal error" not in log

    async def _until(self, left: Callable[[], str]) -> None:
        for _ in range(CHECKS_PER_LIMIT):
            if not left():
                break
            await asyncio.sleep(0.05)
        assert not left(), left()

    def _traces(self, n_models: int) -> str:
        """Describe what remains of a fault; return "" if nothing does."""
        states = [engine.status() for engine in self.daemon.engines()]
        if len(states) != n_models or {psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED} & set(states):
            return f"engines: {states}"
        n_files = self.n_files - N_FILES_EACH * (2 - n_models)
        if (n := self.count_files()) != n_files:
            return f"{n} files are open, and {n_files} were"
        return ""

    async def listen(self) -> None:
        """Read answers of the other model, one after the other, since each one ends."""
        while True:
            async with self.answer_under_way("other") as answer:
                async for line in answer.content:
                    assert "response" in json.loads(line)
                    self.n_heard += 1


@contextlib.asynccontextmanager
async def trouble(folder: Path, *, has_neighbour: bool = True) -> AsyncIterator[Trouble]:
    """Yield a daemon with both models loaded.  has_neighbour: "other" answers all the time."""
    store = OllamaStore(folder / "models")
    for seed, name in enumerate(("m", "other")):
        store.add(name, weights=write_llama(folder / f"{name}.gguf", seed=seed))
    (folder / "faults").mkdir()
    pace = folder / "faults" / store.weights_path("other").name
    pace.with_suffix(".pace").write_text(str(PACE_S), encoding="ascii")
    settings = {
        "FAKE_FAULTS": str(folder / "faults"),
        "FAKE_GRANDCHILD": str(folder / "grandchild"),
        "OLLAMA_NUM_PARALLEL": "2",
        "OLLAMA_LOAD_TIMEOUT": "20s",
        "SPECD_ENGINE_TIMEOUT": "5s",
        "OLLAMA_SPECULATIVE_DECODE": "false",
    }
    with (folder / "log").open("wb") as log:
        async with running(folder, engine=FAILING, log=log.fileno(), **settings) as daemon:
            found = Trouble(daemon, store, folder, folder / "log", has_neighbour)
            for name in ("chat", "generate"):
                for model in ("m", "other"):
                    status, raw = await found.ask(DIALECTS[name], stream=True, model=model)
                    assert status == 200, raw
            found.n_files = found.count_files()
            listening = asyncio.ensure_future(found.listen()) if has_neighbour else None
            yield found
            if listening is not None:
                assert not listening.done(), listening
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
