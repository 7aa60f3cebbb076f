"""A download on disk: `…-partial`, sparse, and how far each part of it has come in `…-partial-N`.

Files and JSON are Ollama's (contract 4, 5), so that either program goes on where the other stopped.
Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from specd.errors import StoreError

_CLOSED: Final = -1
_KEYS: Final = ("N", "Offset", "Size", "Completed")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes [offset, offset + size) of the blob; the first `completed` of them are on disk."""

    number: int
    offset: int
    size: int
    completed: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size


def layout(total: int, size: int) -> list[Part]:
    """A blob of so many bytes, cut into parts of that size."""
    offsets = range(0, total, size)
    return [Part(n, offset, min(size, total - offset)) for n, offset in enumerate(offsets)]


class Partial:
    """The open files of one download, which no other process may have open too.

    parts: as the files had them; where those are missing or make no whole, what is sure of them.
    """

    def __init__(self, path: Path, total: int, part_size: int) -> None:
        """part_size: for a download that begins."""
        self.parts: list[Part] = []
        self._path = path
        self._total = total
        self._part_size = part_size
        self._file = _CLOSED
        self._saved: dict[int, Part] = {}

    def open(self) -> None:
        """Raises StoreError.  Close this, also where it failed or was not waited for."""
        with _go_errors(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                said = f"another process is downloading {self._path.name}"
                raise StoreError(said) from error
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
        """So many bytes, fewer only at the end of the file."""
        with _go_errors(self._path):
            return os.pread(self._file, n, offset)

    # ------------------------------------------------------------------ state

    def save(self, parts: Iterable[Part]) -> None:
        """What is said to be on disk is there before it is said."""
        changed = [part for part in parts if self._saved.get(part.number) != part]
        if changed:
            with _go_errors(self._path):
                os.fsync(self._file)
                for part in changed:
                    self._write_state(part)

    def restart(self) -> None:
        """As if nothing had come."""
        self.parts = layout(self._total, self._part_size)
        with _go_errors(self._path):
            for path in self._state_files():
                path.unlink(missing_ok=True)
            for part in self.parts:
                self._write_state(part)

    def remove(self) -> None:
        """The bytes and the state."""
        with _go_errors(self._path):
            self._path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """The state alone, when the bytes are a blob."""
        with _go_errors(self._path):
            for path in self._state_files():
                path.unlink(missing_ok=True)

    def _write_state(self, part: Part) -> None:
        """In place and in one piece: a process that is killed leaves the old state or the new."""
        values = (part.number, part.offset, part.size, part.completed)
        text = json.dumps(dict(zip(_KEYS, values, strict=True)), separators=(",", ":")) + "\n"
        state = os.open(self._state_file(part.number), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(state, text.encode(), 0)
            os.ftruncate(state, len(text))
        finally:
            os.close(state)
        self._saved[part.number] = part

    def _load(self) -> list[Part]:
        is_size = os.fstat(self._file).st_size
        found = sorted(filter(None, map(_read, self._state_files())), key=lambda part: part.offset)
        if not _is_whole(found, self._total):
            expected = layout(self._total, self._part_size)
            sure = {(part.number, part.offset, part.size): part for part in found}
            found = [sure.get((part.number, part.offset, part.size), part) for part in expected]
        kept = {self._state_file(part.number) for part in found}
        for path in self._state_files():
            if path not in kept:
                path.unlink(missing_ok=True)
        if is_size != self._total:
            os.ftruncate(self._file, self._total)
        # Bytes beyond the file's end were never there, whatever the state says.
        parts = [
            replace(part, completed=min(part.completed, max(0, is_size - part.offset)))
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
    """What a download of that path needs no more; nothing is changed."""
    if not path.is_file():
        return 0
    states = path.parent.glob(f"{path.name}-*")
    return sum(part.completed for part in filter(None, map(_read, states)))


def _read(path: Path) -> Part | None:
    """None where the file holds no state: a program was killed while it wrote."""
    try:
        values, _ = json.JSONDecoder().raw_decode(path.read_text(encoding="utf-8"))
        part = Part(*(values[key] for key in _KEYS))
    except (OSError, ValueError, LookupError, TypeError):
        return None
    numbers = (part.number, part.offset, part.size, part.completed)
    sane = all(type(number) is int and number >= 0 for number in numbers)
    return part if sane and part.completed <= part.size else None


def _is_whole(parts: list[Part], total: int) -> bool:
    """One after the other from the first byte to the last, numbered as they are."""
    end = 0
    for part in parts:
        if part.offset != end or not part.size:
            return False
        end = part.end
    return end == total and {part.number for part in parts} == set(range(len(parts)))


@contextlib.contextmanager
def _go_errors(path: Path) -> Iterator[None]:
    """Go's words for a full disk: clients know them."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        said = "no space left on device" if full else error.strerror or str(error)
        raise StoreError(f"write {path}: {said}") from error
