"""A trace on disk, a line for each call: written while the engine serves, read by `specd trace`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from specd.engine.speculative.trace import Call, Close, Header, decode, decode_header, encode

log = logging.getLogger("specd.engine")

#: A trace ends at this size, with a line that says so.
MAX_BYTES: Final = 64 * 2**20
_FULL: Final = b'["full"]\n'
#: Of a file's name: enough of a digest, or of a model's.
_NAME_LENGTH: Final = {True: len("sha256-") + 12, False: 40}


class UnreadableTrace(Exception):
    """What is wrong with a trace, in a sentence."""


class TraceWriter:
    """Nobody is refused an answer for a trace's sake: what cannot be written is one warning."""

    def __init__(
        self, folder: Path, weights: Path, header: Header, max_bytes: int = MAX_BYTES
    ) -> None:
        """folder: is made where it is missing.  weights: the model, whose name the file gets."""
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
        """The end of a request reaches the disk at once, with all that was buffered before it."""
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
    """A trace line by line.  end: why there is no more, known when all calls were read."""

    def __init__(self, file: IO[bytes]) -> None:
        """Raises Unreadable where this is no trace."""
        self._file = file
        self.end = ""
        try:
            self.header: Header = decode_header(file.readline())
        except msgspec.MsgspecError as error:
            raise UnreadableTrace(f"this is no trace of speculation: {error}") from error

    def calls(self) -> Iterator[tuple[int, Call]]:
        """Each with the number of its line.  Raises Unreadable."""
        for number, line in enumerate(self._file, start=2):
            if line == _FULL:
                self.end = "the file had its full size; what followed was not written"
                return
            try:
                yield number, decode(line)
            except msgspec.MsgspecError as error:
                if line.endswith(b"\n"):
                    raise UnreadableTrace(f"line {number}: {error}") from error
                # Whoever wrote it was killed.
                self.end = f"line {number} is cut off, and was left out"
                return
