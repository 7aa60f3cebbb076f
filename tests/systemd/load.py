"""Run clients inside the container, with a new connection per request, until stdin ends.

Print a line for each answer: `done`, `error` (in the answer or by its status), `refused` (no
listener), `unheard` (the connection ended without an answer), `cut` (the answer has no terminal
event), `twice` (it has more than one).
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys

PORT = 11434
PROMPTS = 2
ASKS = 4


async def request(raw: bytes) -> tuple[int, list[bytes]] | str:
    """Return the status and the received lines of the body, or the kind of failure."""
    said = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    except ConnectionError:
        return "refused"
    try:
        writer.write(raw)
        await writer.drain()
        said = await reader.read(1)
        said += await reader.read(-1)
    except ConnectionError:
        return "cut" if said else "unheard"
    finally:
        writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    if not head:
        return "unheard"
    return int(head.split()[1]), [line for line in body.split(b"\n") if line.startswith(b"{")]


async def prompt() -> str:
    body = json.dumps({"model": "specd-demo", "prompt": "def f", "options": {"num_predict": 100}})
    head = f"POST /api/generate HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = await request((head + body).encode())
    if isinstance(answer, str):
        return answer
    status, lines = answer
    events = [json.loads(line) for line in lines]
    ends = [event for event in events if event.get("done") or "error" in event]
    if len(ends) != 1 or ends[0] is not events[-1]:
        return "twice" if ends else "cut"
    return "done" if status == http.client.OK and "error" not in ends[0] else "error"


async def ask() -> str:
    answer = await request(b"GET /api/version HTTP/1.0\r\nHost: localhost\r\n\r\n")
    if isinstance(answer, str):
        return answer
    status, lines = answer
    return "done" if status == http.client.OK and len(lines) == 1 else "error"


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)

    async def go_on(name: str) -> None:
        while not stop.is_set():
            end = await (prompt() if name == "prompt" else ask())
            sys.stdout.write(f"{name} {end}\n")
            sys.stdout.flush()
            if name == "ask":
                await asyncio.sleep(0.005)  # the tests have only two processors

    await asyncio.gather(
        *(go_on("prompt") for _ in range(PROMPTS)), *(go_on("ask") for _ in range(ASKS))
    )


if __name__ == "__main__":
    asyncio.run(main())
