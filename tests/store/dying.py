"""Writers of a store that die, or race: `python -m tests.store.dying ...`, a process of its own.

`crash OPERATION FOLDER`: FOLDER/before is a store.  For n = 1, 2, ... its copy FOLDER/n is changed
by a child that kills itself at its n-th step on the file system, until one lives to the end.
`race FOLDER SEED`: makes and deletes models that share layers.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from specd.errors import ModelNotFound, StoreError
from specd.store import Hold, Writer
from specd.store.name import parse
from tests.store.manifests import digest, manifest

NEW = (b"new layer", b"shared")
_STEPS = ("fsync", "replace", "unlink", "mkdir", "rmdir", "chmod", "rename")


def put(writer: Writer) -> None:
    writer.put(b"new layer")


def publish(writer: Writer) -> None:
    for layer in NEW:
        writer.put(layer)
    writer.publish(parse("m"), manifest(*NEW))


def delete(writer: Writer) -> None:
    writer.delete(parse("m"))


def copy(writer: Writer) -> None:
    writer.copy(parse("m"), parse("a/copy:v1"))


def copy_over(writer: Writer) -> None:
    writer.copy(parse("other"), parse("m"))


def prune(writer: Writer) -> None:
    writer.prune()


OPERATIONS: dict[str, Callable[[Writer], None]] = {
    operation.__name__: operation for operation in (put, publish, delete, copy, copy_over, prune)
}


class _Death:
    """Comes at the n-th step."""

    def __init__(self, n: int) -> None:
        self._left = n

    def lurk(self) -> None:
        for name in _STEPS:
            setattr(os, name, self._at(getattr(os, name)))

        def by_halves(path: Path, data: bytes) -> int:
            return self._by_halves(path, data)

        Path.write_bytes = by_halves  # type: ignore[method-assign,assignment]

    def _step(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)

    def _at(self, call: Callable[..., object]) -> Callable[..., object]:
        def stepping(*args: object, **options: object) -> object:
            self._step()
            return call(*args, **options)

        return stepping

    def _by_halves(self, path: Path, data: bytes) -> int:
        with path.open("wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            self._step()
            file.write(data[len(data) // 2 :])
        return len(data)


def crash(operation: str, folder: Path) -> None:
    for n in range(1, 1000):
        copy_of = folder / str(n)
        shutil.copytree(folder / "before", copy_of)
        child = os.fork()
        if child == 0:
            death = _Death(n)
            death.lurk()
            OPERATIONS[operation](Writer(copy_of))
            os._exit(0)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return


def race(folder: Path, seed: int) -> None:
    """Every model has a layer of its own and one that others have too."""
    draw, writer = random.Random(seed), Writer(folder)
    for _ in range(60):
        name = parse(f"m{draw.randrange(3)}")
        if draw.random() < 0.4:
            try:
                writer.delete(name)
            except ModelNotFound:
                continue
        else:
            _make(writer, name.model, draw.choice((b"a", b"b")), b"own of %d" % draw.randrange(4))


def _make(writer: Writer, name: str, *layers: bytes) -> None:
    hold = Hold(writer)
    try:
        for layer in (*layers, b"{}"):
            writer.put(layer)
            hold.add([digest(layer)])
        writer.publish(parse(name), manifest(*layers), hold=hold)
    except StoreError as error:
        # Another writer removed it between the two lines: told, and nothing was published.
        assert "cannot use the blob" in str(error), error  # noqa: PT017
    finally:
        hold.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case "crash", operation, folder:
            crash(operation, Path(folder))
        case "race", folder, seed:
            race(Path(folder), int(seed))
