"""Send thousands of bad inputs to a daemon with real engines, and print the results.

    .venv/bin/python -m tests.bad_inputs [--n 6000] [--seed 0] [--json [FILE]]

The inputs are drawn from a seed: broken connections, invalid HTTP, bodies, options, names, schemas,
templates, GGUFs, manifests and images.  Prints the answers of each kind by class of status.  The
exit status is 1 if the daemon ended, an input got no answer, a stream no end, or a valid request no
service, or if an answer was unexpected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.bad_inputs.session import BadInputResults, send_all

_CLASSES = ("2xx", "3xx", "4xx", "5xx", "left", "none")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="the figures, to stdout without FILE"
    )
    args = parser.parse_args()
    began_s = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began_s:5.0f} s  {what}", file=sys.stderr, flush=True)

    found = asyncio.run(send_all(args.n, args.seed, say))
    figures = json.dumps(asdict(found), indent=1)
    if args.json == "-":
        print(figures)
    else:
        print("\n".join(table(found)))
    if args.json not in {None, "-"}:
        Path(args.json).write_text(f"{figures}\n", encoding="utf-8")
    for bug in found.bugs[:20]:
        print(bug, file=sys.stderr)
    return 0 if found.is_good else 1


def table(found: BadInputResults) -> Iterator[str]:
    yield f"{'kind':16}{'sent':>7}" + "".join(f"{each:>7}" for each in _CLASSES)
    for kind, n in sorted(found.kinds.items()):
        statuses = found.statuses.get(kind, {})
        yield f"{kind:16}{n:7}" + "".join(f"{statuses.get(each, 0) or '':>7}" for each in _CLASSES)
    yield (
        f"{found.total} bad inputs (seed {found.seed}) in {found.seconds:.0f} s: {found.crashes}"
        f" crashes of the daemon, {found.unanswered} unanswered, {found.unfinished} without an end,"
        f" {found.refused} valid requests refused, {len(found.bugs)} unexpected answers;"
        f" {found.engines_lost} answers lost with their engine"
    )


if __name__ == "__main__":
    sys.exit(main())
