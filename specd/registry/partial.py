"""A download on disk: the sparse file `…-partial`, and the state of each part in `…-partial-N`.

Files and JSON are the same as Ollama's, so either program can resume the other's download.
Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from specd.errors import StoreError

_CLOSED: Final = -1
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Part(
    msgspec.Struct,
    frozen=True,
    rename={"number": "N", "offset": "Offset", "size": "Size", "completed": "Completed"},
):
    """Bytes [offset, offset + size) of the blob; the first `completed` of them are on disk."""

    number: _Count
    offset: _Count
    size: _Count
    completed: _Count = 0

    @property
    def end(self) -> int:
        return self.offset + self.size


def layout(total: int, size: int) -> list[Part]:
    """Split a blob of `total` bytes into parts of `size` bytes."""
    offsets = range(0, total, size)
    return [Part(n, offset, min(size, total - offset)) for n, offset in enumerate(offsets)]


class Partial:
    """The files of one download, locked against other processes.

    parts: state of the parts as last saved; if the files are incomplete, only what is certain.
    """

    def __init__(self, path: Path, total: int, part_size: int) -> None:
        """part_size: bytes per part of a new download."""
        self.parts: list[Part] = []
        self._path = path
        self._total = total
        self._part_size = part_size
        self._file = _CLOSED
        self._saved: dict[int, Part] = {}

    def open(self) -> None:
        """Open and lock the file, and load the state.  Raises StoreError.

        Call `close` in any case, also after an error or a cancellation.
        """
        with _go_errors(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                reason = f"another process is downloading {self._path.name}"
                raise StoreError(reason) from error
            self.parts = self._load()

    def close(self) -> None:
        if self._file != _CLOSED:
            os.close(self._file)
            self._file = _CLOSED

    # ------------------------------------------------------------------ bytes

    def write(self, data: bytes, offset: int) -> None:
        with _go_errors(self._path):
            view = memoryview(data)
            while view:
                n = os.pwrite(self._file, view, offset)
                view, offset = view[n:], offset + n

    def read(self, n: int, offset: int) -> bytes:
        """Return n bytes from `offset`, fewer only at the end of the file."""
        with _go_errors(self._path):
            return os.pread(self._file, n, offset)

    # ------------------------------------------------------------------ state

    def save(self, parts: Iterable[Part]) -> None:
        """Fsync the data, then record the progress of each changed part."""
        changed = [part for part in parts if self._saved.get(part.number) != part]
        if changed:
            with _go_errors(self._path):
                os.fsync(self._file)
                for part in changed:
                    self._write_state(part)

    def restart(self) -> None:
        """Reset all parts to empty."""
        self.parts = layout(self._total, self._part_size)
        with _go_errors(self._path):
            for path in self._state_files():
                path.unlink(missing_ok=True)
            for part in self.parts:
                self._write_state(part)

    def remove(self) -> None:
        """Remove the bytes and the state files."""
        with _go_errors(self._path):
            self._path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Remove the state files only, once the bytes are a blob."""
        with _go_errors(self._path):
            for path in self._state_files():
                path.unlink(missing_ok=True)

    def _write_state(self, part: Part) -> None:
        """Overwrite one state file with a single write, so that a kill leaves old or new state."""
        text = msgspec.json.encode(part) + b"\n"
        state = os.open(self._state_file(part.number), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(state, text, 0)
            os.ftruncate(state, len(text))
        finally:
            os.close(state)
        self._saved[part.number] = part

    def _load(self) -> list[Part]:
        file_size = os.fstat(self._file).st_size
        found = sorted(filter(None, map(_read, self._state_files())), key=lambda part: part.offset)
        if not _is_whole(found, self._total):
            expected = layout(self._total, self._part_size)
            certain = {(part.number, part.offset, part.size): part for part in found}
            found = [certain.get((part.number, part.offset, part.size), part) for part in expected]
        used = {self._state_file(part.number) for part in found}
        for path in self._state_files():
            if path not in used:
                path.unlink(missing_ok=True)
        if file_size != self._total:
            os.ftruncate(self._file, self._total)
        # The state may claim bytes beyond the end of the file, which were never written.
        parts = [
            replace(part, completed=min(part.completed, max(0, file_size - part.offset)))
            for part in found
        ]
        for part in parts:
            self._write_state(part)
        return parts

    def _state_file(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}-{number}")

    def _state_files(self) -> list[Path]:
        prefix = f"{self._path.name}-"
        return [
            path
            for path in self._path.parent.glob(f"{prefix}*")
            if path.name.removeprefix(prefix).isdecimal()
        ]


def bytes_on_disk(path: Path) -> int:
    """Return how many bytes of that download are on disk, without changing anything."""
    if not path.is_file():
        return 0
    states = path.parent.glob(f"{path.name}-*")
    return sum(part.completed for part in filter(None, map(_read, states)))


def _read(path: Path) -> Part | None:
    """Read a state file; return None if it is damaged, as after a kill during a write."""
    try:
        # The end of a longer, older state may follow.
        part = msgspec.json.decode(path.read_bytes().partition(b"}")[0] + b"}", type=Part)
    except (OSError, ValueError):
        return None
    return part if part.completed <= part.size else None


def _is_whole(parts: list[Part], total: int) -> bool:
    """Return whether the parts cover all bytes without gaps, with the numbers 0 to n - 1."""
    end = 0
    for part in parts:
        if part.offset != end or not part.size:
            return False
        end = part.end
    return end == total and {part.number for part in parts} == set(range(len(parts)))


@contextlib.contextmanager
def _go_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError, with Go's text for a full disk, which clients know."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        reason = "no space left on device" if full else error.strerror or str(error)
        raise StoreError(f"write {path}: {reason}") from error


# --------------------------------------------------------------------------- missing bytes


@dataclass(slots=True, eq=False)
class Span:
    """Missing bytes [start, end); `start` advances as they arrive."""

    start: int
    end: int

    @property
    def done(self) -> bool:
        return self.start == self.end


class Spans:
    """All missing spans of a download, in the file's order.

    Parts are large, to have few state files.  Connections fetch small spans of them in order, so
    that no connection is left with the slow end of a part, and the first bytes can be hashed early.

    size: maximum bytes of one span.  completed: bytes on disk, in any order.
    """

    def __init__(self, parts: Iterable[Part], size: int) -> None:
        self._parts = tuple(parts)
        self._missing = {part.number: deque(_split_part(part, size)) for part in self._parts}
        self.total = sum(part.size for part in self._parts)
        self.completed = sum(part.completed for part in self._parts)

    def __iter__(self) -> Iterator[Span]:
        """Yield the unfinished spans, first to last."""
        for part in self._parts:
            yield from (span for span in self._missing[part.number] if not span.done)

    def before(self, end: int) -> list[Span]:
        """Return the unfinished spans that begin before that byte."""
        return list(itertools.takewhile(lambda span: span.start < end, self))

    def advance(self, span: Span, n: int) -> None:
        """Record that the next n bytes of the span are on disk."""
        assert 0 <= n <= span.end - span.start
        span.start += n
        self.completed += n

    @property
    def contiguous_end(self) -> int:
        """The first missing byte: all bytes before it are on disk."""
        return next((span.start for span in self), self.total)

    def parts(self) -> list[Part]:
        """Return the parts with the bytes completed from each part's start, as Ollama saves it."""
        return [replace(part, completed=self._completed(part)) for part in self._parts]

    def _completed(self, part: Part) -> int:
        missing = self._missing[part.number]
        while missing and missing[0].done:
            missing.popleft()
        return (missing[0].start if missing else part.end) - part.offset


def _split_part(part: Part, size: int) -> Iterator[Span]:
    for start in range(part.offset + part.completed, part.end, size):
        yield Span(start, min(start + size, part.end))
