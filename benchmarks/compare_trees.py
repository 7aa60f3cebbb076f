"""Compare the speed of this checkout with another one: `python -m benchmarks.compare_trees OTHER`.

Both daemons run at the same time and answer the same requests of the demo model in turns, so that
other work on the machine slows both.  Each figure is the time in the other checkout divided by the
time in this one: above 1, this one is faster.  It is a median, with the middle half of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

_ROOT = Path(__file__).parents[1]
_WARM_UP = 2
_LONG = {"num_predict": 192, "temperature": 0.8, "seed": 7}
#: Name → how many requests at once, how many one after the other, and the options of each.
_CASES: Mapping[str, tuple[int, int, dict[str, Any]]] = {
    "one token, 20 requests in a row": (1, 20, {"num_predict": 1, "seed": 7}),
    "192 tokens without drafts": (1, 1, _LONG | {"draft_num_predict": 0}),
    "192 tokens with drafts": (1, 1, _LONG),
    "4 answers of 192 tokens at once": (4, 1, _LONG),
}


@asynccontextmanager
async def _daemon(tree: Path, folder: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client of a daemon that runs the code of `tree`."""
    environment = {
        "PYTHONPATH": str(tree),
        "OLLAMA_HOST": "127.0.0.1:0",
        "OLLAMA_MODELS": str(folder / "models"),
        "OLLAMA_NUM_PARALLEL": "4",
        "SPECD_STATE_DIR": str(folder / "state"),
    }
    daemon = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "specd", "serve"),
        cwd=tree,
        env=os.environ | environment,
        stderr=asyncio.subprocess.PIPE,
    )
    assert daemon.stderr is not None
    try:
        url = ""
        while not url:
            line = (await daemon.stderr.readline()).decode()
            if not line:
                raise SystemExit(f"the daemon of {tree} ended before it listened")
            url = "".join(re.findall(r"listens on (http://[^\s,]+)", line))
        reading = asyncio.ensure_future(daemon.stderr.read())  # or a full pipe would block it
        async with aiohttp.ClientSession(url) as client:
            yield client
        reading.cancel()
    finally:
        daemon.terminate()
        await daemon.wait()


async def _measure(client: aiohttp.ClientSession, case: str) -> float:
    """Return the seconds that the requests of a case take."""
    n_parallel, n_in_a_row, options = _CASES[case]
    body = {"model": "specd-demo", "prompt": "Once upon a time", "options": options}

    async def work() -> None:
        for _ in range(n_in_a_row):
            async with client.post("/api/generate", json=body) as reply:
                reply.raise_for_status()
                await reply.read()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(n_parallel)))
    return time.perf_counter() - began


async def _compare(other: Path, n_rounds: int) -> None:
    async with AsyncExitStack() as stack:
        clients = []
        for tree in (_ROOT, other):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            clients.append(await stack.enter_async_context(_daemon(tree, folder)))
        for case in _CASES:
            ratios = []
            for number in range(-_WARM_UP, n_rounds):
                order = (0, 1) if number % 2 else (1, 0)
                took = {index: await _measure(clients[index], case) for index in order}
                if number >= 0:
                    ratios.append(took[1] / took[0])
            quarters = statistics.quantiles(ratios, n=4)
            print(f"{case}: {quarters[1]:.3f} [{quarters[0]:.3f}–{quarters[2]:.3f}]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout, with the same environment")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    asyncio.run(_compare(arguments.other.resolve(), arguments.rounds))


if __name__ == "__main__":
    main()
