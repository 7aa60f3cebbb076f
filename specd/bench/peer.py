"""llama-server on the same files, threads, context and prompts as specd's engine.

llama-server ignores speculative parameters of a request.  Each draft length, and plain decoding,
therefore has a server of its own.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from specd import core
from specd.bench.peer_binary import PeerBinary, PeerLoad
from specd.bench.peer_process import PeerProcess
from specd.bench.runs import Answer
from specd.errors import EngineCrashed, EngineError, LoadFailed, LoadStalled

__all__ = ["PeerBinary", "PeerLoad", "PeerServer", "peer_server"]

_POLL_S = 0.05
_LOAD_S = 600.0
_ANSWER_S = 1800.0
#: The prompt's pass gives the first token and the last needs no draft: fewer tokens prove nothing.
_LEAST_TO_DRAFT = 3
#: llama.cpp's word for a random seed.
_RANDOM_SEED = 0xFFFFFFFF


class PeerServer:
    """A loaded server.  drafts: whether it has a drafter."""

    def __init__(
        self, process: PeerProcess, session: aiohttp.ClientSession, *, drafts: bool
    ) -> None:
        self._process = process
        self._session = session
        self._drafts = drafts

    @property
    def pid(self) -> int:
        return self._process.pid

    async def answer(self, prompt: str, *, n_tokens: int, temperature: float, seed: int) -> Answer:
        """Return one answer.  A request waits while all slots are busy.

        Raises EngineCrashed where the server has ended, EngineError where it refuses the request
        or does not draft.
        """
        body = request(prompt, n_tokens=n_tokens, temperature=temperature, seed=seed)
        answer = parse_answer(await self._post("/completion", body))
        is_long = answer.usage.n_generated >= _LEAST_TO_DRAFT
        if self._drafts and is_long and not answer.speculation.draft_n:
            raise EngineError(_no_drafts(self._process))
        return answer

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._session.post(path, json=body) as response:
                status = response.status
                if response.content_type == "text/event-stream":
                    return await _last_event(response.content)
                reply: dict[str, Any] = await response.json(content_type=None)
        except TimeoutError as error:
            raise EngineError(f"llama-server did not answer within {_ANSWER_S:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise await self._failure(error) from error
        if status != 200:
            message = reply.get("error", {}).get("message", "no reason given")
            raise EngineError(f"llama-server refuses ({status}): {message}")
        return reply

    async def _failure(self, error: Exception) -> EngineError:
        try:
            async with asyncio.timeout(_POLL_S * 20):
                await self._process.ended()
        except TimeoutError:
            return EngineError(f"llama-server does not respond: {error}")
        return EngineCrashed(f"llama-server has ended: {self._process.exit_message()}")


@asynccontextmanager
async def peer_server(binary: PeerBinary, load: PeerLoad) -> AsyncIterator[PeerServer]:
    """Yield a ready server; it ends after the block or with this process.

    Raises LoadFailed with the server's error, LoadStalled.
    """
    port = _free_port()
    process = await PeerProcess.start(binary.command(load, port), binary.environment)
    try:
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{port}",
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            # The server closes the connection after a stream.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            trust_env=False,
        ) as session:
            await _wait_until_ready(process, session)
            if load.drafter and not await _can_draft(session):
                raise LoadFailed(_no_drafts(process))
            yield PeerServer(process, session, drafts=load.drafter is not None)
    finally:
        await process.kill()


async def _wait_until_ready(process: PeerProcess, session: aiohttp.ClientSession) -> None:
    ended = asyncio.create_task(process.ended())
    healthy = asyncio.create_task(_is_healthy(session))
    try:
        await asyncio.wait({ended, healthy}, timeout=_LOAD_S, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise LoadFailed(f"llama-server did not start: {process.exit_message()}")
        if not healthy.done():
            raise LoadStalled(f"llama-server has not loaded its model within {_LOAD_S:g} s")
        healthy.result()
    finally:
        ended.cancel()
        healthy.cancel()


async def _is_healthy(session: aiohttp.ClientSession) -> None:
    while True:
        try:
            async with session.get("/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass  # it does not listen yet
        await asyncio.sleep(_POLL_S)


async def _can_draft(session: aiohttp.ClientSession) -> bool:
    """Return False where the server reports that it goes on without its drafter."""
    async with session.get("/slots") as response:
        slots = await response.json(content_type=None) if response.status == 200 else []
    return all(slot.get("speculative", True) for slot in slots)


def _no_drafts(process: PeerProcess) -> str:
    return f"llama-server drafts nothing: {process.first_error() or 'it logged no reason'}"


def _free_port() -> int:
    """Return a port that was free just now; a server that finds it in use exits with an error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def request(prompt: str, *, n_tokens: int, temperature: float, seed: int) -> dict[str, Any]:
    """Return the body of a /completion request with specd's default sampling.

    The sampler chain has only samplers with an effect, since neutral ones cost time.  At
    temperature 0 it picks the best token.
    """
    sampling = core.SamplingParams(temperature=temperature)
    if temperature <= 0:
        chain: dict[str, Any] = {"samplers": ["top_k"], "top_k": 1}
    else:
        chain = {"samplers": ["top_k", "top_p", "temperature"], "top_k": sampling.top_k}
    return {
        "prompt": prompt,
        "n_predict": n_tokens,
        # Token by token, as specd's engine answers.
        "stream": True,
        "cache_prompt": True,
        "ignore_eos": False,
        "seed": seed % _RANDOM_SEED,
        "temperature": temperature,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dynatemp_range": 0.0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0.0,
        "top_n_sigma": -1.0,
        "mirostat": 0,
        "n_probs": 0,
        **chain,
    }


async def _last_event(lines: AsyncIterable[bytes]) -> dict[str, Any]:
    """Return the last event of a stream with the text of all.  Raises ValueError for an error."""
    pieces, event = [], dict[str, Any]()
    async for line in lines:
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise ValueError(event["error"].get("message", "no reason given"))
            pieces.append(event.get("content", ""))
    return event | {"content": "".join(pieces)}


def parse_answer(reply: dict[str, Any]) -> Answer:
    """Return the answer in a reply.

    As in specd, n_generated includes an end-of-text token, and generate_ns begins with the first
    token (llama.cpp, `server_slot_stats::n_gen_steps`).  Raises EngineError where a field is
    missing.
    """
    try:
        timings = reply["timings"]
        usage = core.Usage(
            n_prompt=int(reply["tokens_evaluated"]),
            n_cached=int(timings.get("cache_n", 0)),
            n_generated=int(timings["predicted_n"]),
            generate_ns=round(timings["predicted_ms"] * 1e6),
        )
        # The counts are missing where nothing was drafted.
        speculation = core.SpeculationStats(
            draft_n=int(timings.get("draft_n", 0)),
            draft_n_accepted=int(timings.get("draft_n_accepted", 0)),
        )
        return Answer(reply["content"], usage, speculation)
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"llama-server's reply has no {error}") from error
