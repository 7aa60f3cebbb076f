"""Send all inputs to real daemons with real engines, many at a time.

The last inputs go to a daemon with API keys, every other one without a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bad_inputs import bad_files, bad_requests
from tests.bad_inputs.inputs import Input, with_header
from tests.daemon_process import Daemon, running
from tests.gguf_files import OllamaStore, Shape, write_llama
from tests.gguf_projectors import write_llava

#: Kind → its share of a hundred inputs.
KINDS: Final[tuple[tuple[int, Callable[[random.Random], Input]], ...]] = (
    (22, bad_requests.wire),
    (16, bad_requests.http),
    (22, bad_requests.bodies),
    (10, bad_requests.options),
    (7, bad_requests.names),
    (4, bad_requests.schemas),
    (5, bad_requests.templates),
    (5, bad_files.ggufs),
    (1, bad_files.chat_templates),
    (4, bad_files.manifests),
    (4, bad_files.images),
)
_N_AT_ONCE: Final = 12
#: Most seconds until the end of an answer.
_PATIENCE_S: Final = 120.0
#: Seconds to wait for more of an answer before the connection is closed.
_SILENCE_S: Final = 1.0
#: A valid request, which must be answered, follows each of this many inputs.
_BETWEEN: Final = 250
#: One input in this many goes to the daemon with a key.
_KEY_SHARE: Final = 4
_KEY: Final = "sk-bad-inputs-0123456789"
_BUG: Final = re.compile(rb"internal error|has no attribute|Traceback")


@dataclass(slots=True)
class BadInputResults:
    """The results.

    kinds: inputs.  statuses: answers by class ("2xx"; "left" for a connection that was closed).
    crashes: of the daemon.  bugs: unexpected answers and log lines.
    engines_lost: answers that say that their engine died.  refused: valid requests between them.
    """

    seed: int
    total: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, dict[str, int]] = field(default_factory=dict)
    crashes: int = 0
    unanswered: int = 0
    unfinished: int = 0
    refused: int = 0
    bugs: list[str] = field(default_factory=list)
    engines_lost: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.crashes or self.unanswered or self.unfinished or self.refused or self.bugs)


def draw_inputs(n: int, seed: int) -> list[Input]:
    """Return the inputs; they depend on the seed only."""
    draw = random.Random(seed)
    shares, makers = zip(*KINDS, strict=True)
    return [
        make(random.Random(draw.randrange(2**64))) for make in draw.choices(makers, shares, k=n)
    ]


def split_by_key(inputs: list[Input]) -> tuple[list[Input], list[Input]]:
    """Return the inputs for a daemon without keys, and those for one with _KEY."""
    n_open = len(inputs) - len(inputs) // _KEY_SHARE
    rest = inputs[n_open:]
    rest[::2] = [with_header(each, f"Authorization: Bearer {_KEY}") for each in rest[::2]]
    return inputs[:n_open], rest


async def send_all(n: int, seed: int, say: Callable[[str], None]) -> BadInputResults:
    found = BadInputResults(seed=seed)
    anyone, who_knows = split_by_key(draw_inputs(n, seed))
    with tempfile.TemporaryDirectory(prefix="specd-bad-") as name:
        folder = Path(name)
        store = OllamaStore(folder / "models")
        shape = Shape(n_ctx=1024)
        weights = write_llama(folder / "m.gguf", shape=shape)
        store.add("m", weights=weights)
        store.add("eye", weights=weights, projector=write_llava(folder / "eye.gguf"))
        for key, inputs in (("", anyone), (_KEY, who_knows)):
            if inputs:
                await _send_to_one(inputs, folder, key, found, say)
    return found


async def _send_to_one(
    inputs: list[Input], folder: Path, key: str, found: BadInputResults, say: Callable[[str], None]
) -> None:
    """Send the inputs to a separate daemon.  key: the one that it requires, "" for none."""
    settings = {
        "OLLAMA_NUM_PARALLEL": "4",
        "OLLAMA_MAX_LOADED_MODELS": "6",
        "OLLAMA_CONTEXT_LENGTH": "512",
        "SPECD_DEMO": "1",
        "SPECD_API_KEYS": key,
    }
    log = folder / "log"
    with log.open("wb") as file:
        async with running(folder, log=file.fileno(), **settings) as daemon:
            if key:
                daemon.http.headers["Authorization"] = f"Bearer {key}"
            began_s = time.monotonic()
            await _Session(daemon, folder / "models", found, say).send(inputs)
            found.seconds = round(found.seconds + time.monotonic() - began_s, 1)
    for line in log.read_bytes().splitlines():
        if _BUG.search(line):
            found.bugs.append(f"log: {line[:300].decode(errors='replace')}")


class _Session:
    def __init__(
        self, daemon: Daemon, store: Path, found: BadInputResults, say: Callable[[str], None]
    ) -> None:
        self._daemon = daemon
        self._store = store
        self._found = found
        self._say = say
        self._room = asyncio.Semaphore(_N_AT_ONCE)
        # Inputs of these kinds share names in the store.
        self._one = {kind: asyncio.Lock() for kind in ("GGUFs", "chat templates", "manifests")}

    async def send(self, inputs: list[Input]) -> None:
        await self._check("the demo answers", "specd-demo")
        for start in range(0, len(inputs), _BETWEEN):
            batch = inputs[start : start + _BETWEEN]
            await asyncio.gather(*map(self._one_input, batch))
            self._found.total += len(batch)
            for given in batch:
                self._found.kinds[given.kind] = self._found.kinds.get(given.kind, 0) + 1
            if self._daemon.process.returncode is not None:
                self._found.crashes += 1
                return
            await self._check(f"{self._found.total} sent", "m")
        await self._check("all sent", "specd-demo")

    async def _check(self, when: str, model: str) -> None:
        """Check that a valid request is answered."""
        self._say(when)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                lines = await self._daemon.answer("a", model=model, options={"num_predict": 2})
        except (OSError, TimeoutError, ValueError) as error:
            self._found.refused += 1
            self._found.bugs.append(f"{when}: an honest request: {error!r}")
            return
        if not lines or not lines[-1].get("done"):
            self._found.refused += 1
            self._found.bugs.append(f"{when}: an honest request: {lines[-1:]}")

    async def _one_input(self, given: Input) -> None:
        alone = self._one.get(given.kind) or contextlib.nullcontext()
        async with alone, self._room:
            if given.file is not None:
                await asyncio.to_thread(self._put, *given.file)
            try:
                answer: bytes | None = b""
                for raw in given.requests:
                    answer = await self._answer(raw, ends=given.ends)
                self._count(given, answer)
            finally:
                if given.file is not None:
                    (self._store / given.file[0]).unlink(missing_ok=True)

    def _put(self, name: str, data: bytes) -> None:
        path = self._store / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    async def _answer(self, raw: bytes, *, ends: bool) -> bytes | None:
        """Return the answer; None after a timeout, empty if the daemon closed the connection."""
        host, _, port = self._daemon.url.removeprefix("http://").rpartition(":")
        answer = bytearray()
        writer = None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                reader, writer = await asyncio.open_connection(host, int(port))
                with contextlib.suppress(ConnectionError):
                    writer.write(raw)
                    await writer.drain()
                    if ends:
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_SILENCE_S):
                                await _read_on(reader, answer)
                        writer.write_eof()
                    await _read_on(reader, answer)
        except TimeoutError:
            return None
        except OSError:
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
        return bytes(answer)

    def _count(self, given: Input, answer: bytes | None) -> None:
        found, last = self._found, given.requests[-1]
        status = "none" if answer is None else _status(answer)
        counts = found.statuses.setdefault(given.kind, {})
        counts[status] = counts.get(status, 0) + 1
        if answer is None:
            found.unanswered += 1
            found.bugs.append(f"{given.kind}: no answer to {last[:2000]!r}")
            return
        if b"unexpectedly stopped" in answer or (b"engine" in answer[:400] and status == "5xx"):
            found.engines_lost += 1
        if _BUG.search(answer):
            found.bugs.append(f"{given.kind}: {answer[-300:]!r} to {last[:2000]!r}")
        if status == "2xx" and not given.ends and not _has_ended(answer):
            found.unfinished += 1
            found.bugs.append(f"{given.kind}: unfinished: {answer[-300:]!r} to {last[:1000]!r}")


async def _read_on(reader: asyncio.StreamReader, answer: bytearray) -> None:
    """Read until the end."""
    while piece := await reader.read(2**16):
        answer += piece


def _status(answer: bytes) -> str:
    said = re.match(rb"HTTP/1\.[01] ([1-5])[0-9][0-9] ", answer)
    return f"{said[1].decode()}xx" if said else "left"


def _has_ended(answer: bytes) -> bool:
    """Return whether a stream has its last event."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"application/x-ndjson" in head:
        lines = [line for line in _unchunked(body).splitlines() if line.strip()]
        last = json.loads(lines[-1]) if lines else {}
        return bool(last.get("done") or last.get("error") or last.get("status") == "success")
    if b"text/event-stream" in head:
        return any(end in body for end in (b"[DONE]", b"message_stop", b"response.", b'"error"'))
    return True


def _unchunked(body: bytes) -> bytes:
    whole, at = b"", 0
    while (end := body.find(b"\r\n", at)) >= 0:
        size = int(body[at:end] or b"0", 16)
        if not size:
            break
        whole += body[end + 2 : end + 2 + size]
        at = end + 4 + size
    return whole
