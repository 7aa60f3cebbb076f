"""Measure how long `specd --version`, `--help`, `list` and completion take, as medians.

`python -m benchmarks.startup_time` starts a daemon with canned answers for `list` and completion.
CPU time is printed too, since other work on the machine only affects wall time.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_MODELS = {
    "models": [
        {"name": f"model-{n}:1b", "digest": "0" * 64, "size": 10**9, "modified_at": ""}
        for n in range(100)
    ]
}
_COMMANDS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "specd --version": (["--version"], {}),
    "specd --help": (["--help"], {}),
    "specd list": (["list"], {}),
    "specd run mod<TAB>": (
        [],
        {"_SPECD_COMPLETE": "complete_bash", "COMP_WORDS": "specd\nrun\nmod", "COMP_CWORD": "2"},
    ),
}


class _Daemon(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(_MODELS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def _daemon() -> Iterator[str]:
    """Yield the URL of a daemon that has a hundred models."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Daemon)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _measure(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return wall time and CPU time of one start, in seconds."""
    used = _cpu_s()
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "specd", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - began, _cpu_s() - used


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=11, help="starts of each command")
    n_runs = parser.parse_args().runs
    print(f"{'median of ' + str(n_runs):22}{'clock':>8}{'CPU':>8}")
    with _daemon() as url:
        for name, (arguments, variables) in _COMMANDS.items():
            environment = {**variables, "OLLAMA_HOST": url}
            _measure(arguments, environment)  # so that Python's compiled files exist
            measured = [_measure(arguments, environment) for _ in range(n_runs)]
            clock_s, cpu_s = (statistics.median(column) for column in zip(*measured, strict=True))
            print(f"{name:22}{clock_s:6.2f} s{cpu_s:6.2f} s")


if __name__ == "__main__":
    main()
