"""Traces of speculation on disk: an engine writes them, `specd trace` explains and replays them.

`specd trace` runs `python -m specd.engine.trace FILE`, which loads no native code.
Exit status: 0 if the replay decides the same, 1 if not, 2 if the file cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

import specd
from specd.engine.speculative.controller import longest_draft
from specd.engine.speculative.timeline import Timelines
from specd.engine.speculative.trace import (
    Call,
    Close,
    Header,
    Replay,
    decode,
    decode_header,
    encode,
)

log = logging.getLogger("specd.engine")

#: A trace ends at this size, with a line that says so.
MAX_BYTES: Final = 64 * 2**20
_FULL: Final = b'["full"]\n'
#: Characters of the model's file name in the trace's name: for a digest, and for other names.
_NAME_LENGTH: Final = {True: len("sha256-") + 12, False: 40}

SAME, DIFFERENT, UNREADABLE = range(3)


class UnreadableTrace(Exception):
    """A trace that cannot be read; the message says why."""


class TraceWriter:
    """A writer of a trace.  If it cannot write, it logs one warning and does nothing more."""

    def __init__(
        self, folder: Path, weights: Path, header: Header, max_bytes: int = MAX_BYTES
    ) -> None:
        """Create the file and write the header.

        folder: created if it does not exist.  weights: the model; the file is named after it.
        """
        stem = weights.stem[: _NAME_LENGTH[weights.stem.startswith("sha256-")]]
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.path = folder / f"{stem}-{now}-{os.getpid()}.jsonl"
        self._file: IO[bytes] | None = None
        self._n_left = max_bytes - len(_FULL)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        except OSError as error:
            self._give_up(error)
        self._write(encode(header) + b"\n")
        self._flush()

    def write(self, call: Call) -> None:
        """Write a call; the end of a request also flushes all lines to the file."""
        self._write(encode(call) + b"\n")
        if isinstance(call, Close):
            self._flush()

    def _write(self, line: bytes) -> None:
        if self._file is None:
            return
        full = len(line) > self._n_left
        self._n_left -= len(line)
        try:
            self._file.write(_FULL if full else line)
            if full:
                self._file.close()
                self._file = None
        except OSError as error:
            self._give_up(error)

    def _flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _give_up(self, error: OSError) -> None:
        log.warning("speculation is not traced (SPECD_TRACE_DIR): %s", error)
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


class TraceReader:
    """A reader of a trace.  end: why it ends early, known once all calls were read."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read the header.  Raises UnreadableTrace if the file is not a trace."""
        self._file = file
        self.end = ""
        try:
            self.header: Header = decode_header(file.readline())
        except msgspec.MsgspecError as error:
            raise UnreadableTrace(f"not a trace of speculation: {error}") from error

    def calls(self) -> Iterator[tuple[int, Call]]:
        """Yield each call with the number of its line.  Raises UnreadableTrace."""
        for number, line in enumerate(self._file, start=2):
            if line == _FULL:
                self.end = "the file reached its size limit; later calls were not written"
                return
            try:
                yield number, decode(line)
            except msgspec.MsgspecError as error:
                if line.endswith(b"\n"):
                    raise UnreadableTrace(f"line {number}: {error}") from error
                # The writing process was killed.
                self.end = f"line {number} is cut off and was skipped"
                return


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
