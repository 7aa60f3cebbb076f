"""Models that are deleted or replaced during a read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specd import core
from specd.errors import ModelNotFound, StoreError
from specd.store import Library, StoreWriter
from specd.store.gguf import read_header
from specd.store.gguf_metadata import GgufMetadata, metadata_of
from specd.store.name import parse
from specd.store.shape import Shape as MemoryShape
from specd.store.shape import shape_of
from tests.gguf_files import OllamaStore, Shape, write_llama

Change = Callable[[], object]


class Changing:
    """A store whose model "m" changes just before its weights are first read."""

    def __init__(self, root: Path) -> None:
        self.store = OllamaStore(root / "models")
        self.weights = [
            write_llama(root / f"{n}.gguf", shape=Shape(n_layer=n), seed=n) for n in (1, 2)
        ]
        self.store.add("m", weights=self.weights[0])
        self.library = Library(self.store.root, demo=False, read=self._read)
        self.changes: list[Change] = []

    def _read(self, path: Path) -> tuple[GgufMetadata, MemoryShape]:
        if self.changes:
            self.changes.pop(0)()
        header = read_header(path)
        return metadata_of(header), shape_of(header)

    def delete(self) -> None:
        StoreWriter(self.store.root).delete(parse("m"))

    def replace(self) -> None:
        """Replace the model by the other of two, and remove its weights."""
        weights = self.weights[1] if self._is(self.weights[0]) else self.weights[0]
        self.delete()
        self.store.add("m", weights=weights)

    def _is(self, weights: Path) -> bool:
        return self.store.weights_path("m").read_bytes() == weights.read_bytes()


@pytest.fixture
def changing(tmp_path: Path) -> Changing:
    return Changing(tmp_path)


READS: dict[str, Callable[[Library], object]] = {
    "resolve": lambda library: library.resolve("m"),
    "show": lambda library: library.show("m"),
}


@pytest.mark.parametrize("read", READS.values(), ids=list(READS))
def test_a_model_deleted_during_a_read_is_not_found(
    changing: Changing, read: Callable[[Library], object]
) -> None:
    changing.changes = [changing.delete]
    with pytest.raises(ModelNotFound):
        read(changing.library)


def test_a_model_replaced_during_a_read_is_read_again(changing: Changing) -> None:
    old = changing.library.resolve("m")
    changing.replace()
    changing.changes = [changing.replace, changing.replace, changing.replace]
    found = changing.library.resolve("m")
    assert isinstance(found, core.ModelRef)
    assert found.weights == old.weights
    assert not changing.changes


def test_a_model_whose_weights_are_gone_is_damaged_and_read_once(changing: Changing) -> None:
    n_read = 0

    def lose() -> None:
        nonlocal n_read
        n_read += 1
        changing.store.weights_path("m").unlink(missing_ok=True)

    changing.changes = [lose] * 9
    with pytest.raises(StoreError, match="cannot read"):
        changing.library.resolve("m")
    assert n_read == 1


def test_the_version_changes_when_the_model_is_deleted_written_or_replaced(
    changing: Changing,
) -> None:
    version = changing.library.version
    first = version("m")
    assert first is not None
    assert version("M:latest") == first
    changing.store.add("other", weights=changing.weights[1])
    assert version("m") == first
    changing.delete()
    assert version("m") is None
    changing.store.add("m", weights=changing.weights[0], modified=1_000)
    assert version("m") not in (None, first)
