"""Explain a trace of speculation, and replay it with the installed version.

`specd trace` runs `python -m specd.engine.trace FILE`, which loads no native code.
Exit status: 0 if the replay decides the same, 1 if not, 2 if the file cannot be read.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import specd
from specd.engine.speculative.controller import longest_draft
from specd.engine.speculative.timeline import Timelines
from specd.engine.speculative.trace import Replay, encode
from specd.engine.trace_file import TraceReader, UnreadableTrace

SAME, DIFFERENT, UNREADABLE = range(3)


def explain_trace(path: Path) -> int:
    """Print the timelines and the verdict; return the exit status.

    Raises OSError, UnreadableTrace.
    """
    with path.open("rb") as file:
        reader = TraceReader(file)
        timelines, replay = Timelines(longest_draft(reader.header.max_draft)), Replay(reader.header)
        n_calls, difference = 0, ""
        for number, call in reader.calls():
            n_calls += 1
            if not difference and (replayed := replay.find_difference(call)) is not None:
                recorded = encode(call).decode()
                difference = (
                    f"line {number}, {call.method}\n    then: {recorded}\n    now:  {replayed}"
                )
            _print_lines(timelines.add_call(call))
    _print_lines([*timelines.unfinished()])
    _print_lines([*_verdict(reader, n_calls, difference)])
    return DIFFERENT if difference else SAME


def _verdict(reader: TraceReader, n_calls: int, difference: str) -> Iterator[str]:
    if reader.end:
        yield f"the trace ends early: {reader.end}"
    verdict = "not every decision is the same" if difference else "every decision is the same"
    versions = f"traced by specd {reader.header.specd}, replayed by {specd.__version__}"
    yield f"{n_calls} calls, {versions}: {verdict}"
    if difference:
        yield f"first difference: {difference}"


def _print_lines(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="specd.engine.trace", description=__doc__)
    parser.add_argument("file", type=Path)
    # A closed pipe, as of `| head`, ends the process without an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    path = parser.parse_args().file
    try:
        return explain_trace(path)
    except OSError as error:
        sys.stderr.write(f"Error: {path}: {error.strerror or error}\n")
    except UnreadableTrace as error:
        sys.stderr.write(f"Error: {path}: {error}\n")
    return UNREADABLE


if __name__ == "__main__":
    sys.exit(main())
