"""Play an hour's traffic of a busy home server in ten minutes, and judge the result.

    .venv/bin/python -m benchmarks.soak [--minutes 10] [--clients 16] [--seed 0] [--json FILE]

The daemon and its engines are real: the demo pair with its drafter, a model without a drafter, and
an embedding model.  Every seeded request is answered once alone.  Then sixteen clients play the
hour (traffic.py) at six times its speed, while engines are killed, unloaded and loaded again.
Another process requests the version ten times a second.  Prints each demand with PASS or FAIL; the
exit status is 1 if one is not met.  With fewer minutes, the first part of the hour is played at the
same speed.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.soak.results import SoakResults, results
from benchmarks.soak.session import NotServed, SoakConfig, SoakRecord, soak
from benchmarks.soak.soak_daemon import ROOT, start_daemon
from benchmarks.soak.verdict import judge, table

DATA = ROOT / "docs" / "reliability" / "soak.json"


def main() -> int:
    usual = SoakConfig()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--clients", type=int, default=usual.n_clients)
    parser.add_argument("--seed", type=int, default=usual.seed)
    parser.add_argument("--json", type=Path, help=f"file for the figures ({DATA.name})")
    parser.add_argument("--keep", type=Path, help="a folder for the store and the daemon's log")
    args = parser.parse_args()
    config = SoakConfig(minutes=args.minutes, n_clients=args.clients, seed=args.seed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the daemon is stopped too
    try:
        found = asyncio.run(_soak(config, args.keep))
    except NotServed as error:
        print(f"FAIL  without load: {error}")
        return 1
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    verdicts = judge(found)
    print(table(verdicts))
    return 0 if all(verdict.passed for verdict in verdicts) else 1


async def _soak(config: SoakConfig, keep: Path | None) -> SoakResults:
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {what}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        async with start_daemon(folder) as soak_daemon:
            record: SoakRecord = await soak(soak_daemon, config, say)
        return results(record, soak_daemon.log.read_text(encoding="utf-8", errors="replace"))


if __name__ == "__main__":
    sys.exit(main())
