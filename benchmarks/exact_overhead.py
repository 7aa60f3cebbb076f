"""Measure the cost of SPECD_EXACT for the demo pair: `python -m benchmarks.exact_overhead`.

Each setting gets a separate daemon, on a free port and with its own store.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

SETTINGS = {
    "q8_0, flash attention": ("q8_0", "1"),
    "f16, flash attention": ("f16", "1"),
    "f32, none": ("f32", "0"),
}
N_TOKENS, N_ROUNDS, N_PARALLEL = 200, 5, 4
PROMPT = "def read_file(path):\n    return open(path).read()\n\n\n" * 10


def main() -> None:
    print("| cache | slots | SPECD_EXACT | answer, tokens/s | next turn, ms to read | enforced |")
    print("|---|---|---|---|---|---|")
    for name, (cache, flash) in SETTINGS.items():
        for n_slots in (1, N_PARALLEL):
            for exact in ("0", "1"):
                speed, turn_ms, enforced = _measure(cache, flash, n_slots, exact)
                words = ", ".join(enforced) or "-"
                print(f"| {name} | {n_slots} | {exact} | {speed:.0f} | {turn_ms:.1f} | {words} |")


def _measure(cache: str, flash: str, n_slots: int, exact: str) -> tuple[float, float, list[str]]:
    """Return tokens/s of n_slots parallel answers, ms of the next prompt, and the conditions."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": folder,
            "SPECD_STATE_DIR": folder,
            "SPECD_DEMO": "1",
            "OLLAMA_KV_CACHE_TYPE": cache,
            "OLLAMA_FLASH_ATTENTION": flash,
            "OLLAMA_NUM_PARALLEL": str(n_slots),
            "SPECD_EXACT": exact,
        }
        command = [sys.executable, "-m", "specd", "serve"]
        daemon = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            _wait(port)
            return _ask(port, n_slots)
        finally:
            daemon.terminate()
            daemon.wait()


def _wait(port: int) -> None:
    for _ in range(600):
        try:
            _call(port, "GET", "/api/version")
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the daemon did not start")


def _call(port: int, method: str, path: str, body: object = None) -> dict[str, Any]:
    connection = HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, path, json.dumps(body))
        answer: dict[str, Any] = json.load(connection.getresponse())
    finally:
        connection.close()
    return answer


def _ask(port: int, n_slots: int) -> tuple[float, float, list[str]]:
    _generate(port, PROMPT, 0)
    with ThreadPoolExecutor(n_slots) as pool:
        best = 0.0
        for _ in range(N_ROUNDS):
            began = time.perf_counter()
            ends = list(pool.map(lambda seed: _generate(port, PROMPT, seed), range(n_slots)))
            taken_s = time.perf_counter() - began
            best = max(best, sum(end["eval_count"] for end in ends) / taken_s)
    said = _generate(port, PROMPT, 0)["response"]
    turn = _generate(port, f"{PROMPT}{said}\n\n\ndef close(", 0)
    [model] = _call(port, "GET", "/api/ps")["models"]
    enforced: list[str] = model["specd"]["exact"]["enforced"]
    return best, turn["prompt_eval_duration"] / 1e6, enforced


def _generate(port: int, prompt: str, seed: int) -> dict[str, Any]:
    options = {"seed": seed, "num_predict": N_TOKENS}
    body = {"model": "specd-demo", "prompt": prompt, "raw": True, "stream": False}
    return _call(port, "POST", "/api/generate", {**body, "options": options})


if __name__ == "__main__":
    main()
