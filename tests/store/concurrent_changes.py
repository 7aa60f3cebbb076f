"""A concurrent writer of a store: `python -m tests.store.concurrent_changes FOLDER SEED [STEP]`.

Makes and deletes models that share layers.  STEP: of its changes of the file system, before which
it is killed.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from specd.errors import ModelNotFound, StoreError
from specd.store import BlobLock, StoreWriter
from specd.store.name import parse
from tests.faults.killed import Death
from tests.store.manifests import digest, manifest


def race(folder: Path, seed: int) -> None:
    """Return a model's layers: one of its own, and one that it shares."""
    draw, writer = random.Random(seed), StoreWriter(folder)
    for _ in range(60):
        name = parse(f"m{draw.randrange(3)}")
        if draw.random() < 0.4:
            try:
                writer.delete(name)
            except ModelNotFound:
                continue
        else:
            _make(writer, name.model, draw.choice((b"a", b"b")), b"own of %d" % draw.randrange(4))


def _make(writer: StoreWriter, name: str, *layers: bytes) -> None:
    blob_lock = BlobLock(writer)
    try:
        for layer in (*layers, b"{}"):
            writer.put(layer)
            blob_lock.add([digest(layer)])
        writer.publish(parse(name), manifest(*layers), blob_lock=blob_lock)
    except StoreError as error:
        # Another writer removed the blob between the two lines, so nothing was published.
        assert "cannot use the blob" in str(error), error  # noqa: PT017
    finally:
        blob_lock.close()


if __name__ == "__main__":
    folder, seed, *step = sys.argv[1:]
    if step:
        Death(int(step[0]), Path(folder)).lurk()
    race(Path(folder), int(seed))
